// Mixes of all features, drawn from a fixed seed: every CPU kernel gives the oracle's bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "fmha/conformance.h"
#include "fmha/draw.h"

namespace tessera::test {
namespace {

// Short lengths most of the time, sometimes one that crosses granules, rarely one that crosses chunks.
int64_t draw_length(Draw* draw, bool allow_long) {
  if (draw->one_in(9)) return 0;
  if (allow_long && draw->one_in(12)) return draw->in(1000, 2200);
  if (draw->one_in(3)) return draw->in(100, 300);
  return draw->in(1, 70);
}

SegmentSpec draw_segment(Draw* draw, const FmhaSpec& spec, bool allow_long) {
  SegmentSpec s;
  for (size_t b = 0; b < spec.q_lengths.size(); ++b) s.lengths.push_back(draw_length(draw, allow_long));
  s.layout = draw->of({KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged});
  s.page_size = draw->of<int32_t>({1, 2, 3, 16, 17, 48, 64, 128, 333});
  s.page_seed = draw->bits();
  s.head_major = draw->one_in(3);
  s.row_padding = draw->one_in(3) ? draw->in(1, 9) : 0;
  if (draw->one_in(4)) s.bound = *std::max_element(s.lengths.begin(), s.lengths.end()) + draw->in(0, 40);
  s.v_is_k = spec.head_dim_v <= spec.head_dim_qk && draw->one_in(6);
  s.poison_masked = draw->one_in(2);
  s.unlisted_pages = s.poison_masked;
  if (draw->one_in(5)) {
    s.compress_ratio = draw->of<int32_t>({1, 3, 4, 128});
  } else {
    s.causal = draw->one_in(2) ? 1 : 0;
    if (draw->one_in(3)) s.window_left = draw->of<int64_t>({0, 1, 15, 16, 31, 127, 128, 1000});
    if (draw->one_in(5)) s.window_right = draw->of<int64_t>({0, 1, 16, 100});
  }
  if (draw->one_in(3)) {
    for (size_t b = 0; b < spec.q_lengths.size(); ++b) {
      s.q_positions.push_back(static_cast<int32_t>(draw->in(-3, s.lengths[b] + 5)));
    }
  }
  if (draw->one_in(4)) {
    s.mask = true;
    s.mask_per_head = draw->one_in(2);
    s.mask_keys = draw->one_in(2) ? -1 : draw->in(0, 90);
    s.mask_visible_of_8 = draw->of({1, 4, 7});
    s.unlisted_pages = false;  // pages whose keys only custom bits hide still have to be listed
  }
  return s;
}

FmhaSpec draw_spec(uint64_t seed) {
  Draw draw(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = draw.of({TESSERA_F32, TESSERA_F16, TESSERA_BF16});
  spec.unnormalized = draw.one_in(4);
  spec.o_dtype = spec.unnormalized || draw.one_in(3) ? TESSERA_F32 : spec.dtype;
  spec.head_dim_qk = draw.of<int32_t>({1, 5, 8, 16, 24, 40, 64, 64, 80, 96, 128, 128, 136, 192});
  spec.head_dim_v = draw.one_in(2) ? spec.head_dim_qk : draw.of<int32_t>({3, 16, 32, 64, 72, 128, 144});
  spec.heads_kv = static_cast<int32_t>(draw.in(1, 3));
  spec.heads_q = spec.heads_kv * draw.of<int32_t>({1, 1, 2, 3, 4, 5, 9, 16});
  const int64_t batch = draw.in(1, 4);
  for (int64_t b = 0; b < batch; ++b)
    spec.q_lengths.push_back(draw.one_in(8) ? 0 : draw.one_in(2) ? 1 : draw.in(2, 30));
  spec.q_lengths.erase(spec.q_lengths.begin());  // the default sequence
  spec.packed_q = draw.one_in(2);
  spec.slot_padding = draw.one_in(3) ? draw.in(1, 4) : 0;
  spec.head_major = draw.one_in(3);
  spec.row_padding = draw.one_in(3) ? draw.in(1, 9) : 0;
  spec.lse = !draw.one_in(5);
  const bool ranged = spec.unnormalized && draw.one_in(3);
  const int64_t segments = ranged || draw.one_in(2) ? 1 : draw.in(2, TESSERA_MAX_SEGMENTS);
  for (int64_t i = 0; i < segments; ++i) spec.segments.push_back(draw_segment(&draw, spec, segments < 3));
  if (ranged) {
    spec.chunk_begin = draw.in(0, 2);
    spec.chunk_end = spec.chunk_begin == 0 ? draw.in(1, 3) : spec.chunk_begin + 1;
  }
  if (draw.one_in(4)) spec.softcap = draw.of({1.0f, 20.0f, 50.0f});
  spec.alibi = draw.one_in(5);
  if (!spec.unnormalized && draw.one_in(3)) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    for (int32_t h = 0; h < spec.heads_q; ++h) spec.sinks.push_back(draw.of({-kInf, kInf, 0.0f, 1.5f, -30.0f, 90.0f}));
  }
  spec.q_amplitude = draw.of({1.0f, 1.0f, 6.0f, 60.0f});
  if (!spec.unnormalized && spec.head_dim_v % 2 == 0 && draw.one_in(4)) {
    spec.o_rope_dims = 2 * static_cast<int32_t>(draw.in(1, spec.head_dim_v / 2));
  }
  if (draw.one_in(4)) spec.scale = draw.of({0.05f, 1.0f, 3.0f});
  return spec;
}

// 32 groups of 12 mixes, so that a failure names a small range of seeds.
class RandomMixes : public testing::TestWithParam<int> {};

TEST_P(RandomMixes, EqualTheOracle) {
  for (int i = 0; i < 12; ++i) {
    const uint64_t seed = 1000 + static_cast<uint64_t>(GetParam()) * 12 + static_cast<uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_oracle_bytes(draw_spec(seed), 2 + i % 5);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMixes, testing::Range(0, 32));

}  // namespace
}  // namespace tessera::test
