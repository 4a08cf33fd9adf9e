#include "sm80/draw.h"

#include <algorithm>
#include <limits>

#include "fmha/draw.h"

namespace tessera::test {
namespace {

int64_t draw_keys(Draw& draw) {
  switch (draw.in(0, 7)) {
    case 0:
      return 0;
    case 1:
      return draw.of<int64_t>({63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 4097});
    case 2:
      return draw.in(900, 2300);
    case 3:
    case 4:
      return draw.in(100, 400);
    default:
      return draw.in(1, 90);
  }
}

SegmentSpec draw_segment(Draw& draw, const FmhaSpec& spec) {
  SegmentSpec s;
  for (size_t b = 0; b < spec.q_lengths.size(); ++b) s.lengths.push_back(draw_keys(draw));
  s.layout = draw.of({KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged, KvLayout::kPaged});
  s.page_size = draw.of<int32_t>({1, 2, 7, 16, 48, 64, 128, 256, 300});
  s.page_seed = draw.bits();
  s.head_major = draw.one_in(3);
  s.row_padding = draw.one_in(3) ? draw.of<int64_t>({1, 2, 5, 8, 16}) : 0;
  if (draw.one_in(4)) s.bound = *std::max_element(s.lengths.begin(), s.lengths.end()) + draw.in(0, 300);
  s.v_is_k = spec.head_dim_v <= spec.head_dim_qk && draw.one_in(6);
  s.poison_masked = draw.one_in(2);
  s.unlisted_pages = s.poison_masked;
  if (draw.one_in(5)) {
    s.compress_ratio = draw.of<int32_t>({1, 2, 4, 100});
  } else {
    s.causal = draw.one_in(2) ? 1 : 0;
    if (draw.one_in(3)) s.window_left = draw.of<int64_t>({0, 1, 17, 64, 127, 128, 1100, int64_t{1} << 61});
    if (draw.one_in(5)) s.window_right = draw.of<int64_t>({0, 1, 40, int64_t{1} << 61});
  }
  if (draw.one_in(3)) {
    for (size_t b = 0; b < spec.q_lengths.size(); ++b) {
      s.q_positions.push_back(static_cast<int32_t>(draw.in(-4, s.lengths[b] + 6)));
    }
  }
  if (draw.one_in(4)) {
    s.mask = true;
    s.mask_per_head = draw.one_in(2);
    s.mask_keys = draw.one_in(2) ? -1 : draw.in(0, 150);
    s.mask_visible_of_8 = draw.of({1, 4, 7});
    s.unlisted_pages = false;  // pages whose keys only custom bits hide still have to be listed
  }
  return s;
}

}  // namespace

FmhaSpec draw_device_spec(uint64_t seed) {
  Draw draw(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = draw.of({TESSERA_F16, TESSERA_BF16});
  spec.unnormalized = draw.one_in(4);
  spec.o_dtype = spec.unnormalized || draw.one_in(3) ? TESSERA_F32 : spec.dtype;
  spec.head_dim_qk = draw.of<int32_t>({1, 7, 24, 64, 64, 80, 96, 128, 128, 128, 160, 192, 192, 256});
  spec.head_dim_v = draw.one_in(2) ? spec.head_dim_qk : draw.of<int32_t>({5, 32, 64, 72, 128, 128, 130, 200, 256});
  spec.heads_kv = static_cast<int32_t>(draw.in(1, 3));
  spec.heads_q = spec.heads_kv * draw.of<int32_t>({1, 1, 2, 3, 4, 8, 20});
  spec.q_lengths.clear();
  for (int64_t b = draw.in(1, 4); b > 0; --b) {
    spec.q_lengths.push_back(draw.one_in(8) ? 0 : draw.one_in(2) ? 1 : draw.in(2, 40));
  }
  spec.packed_q = draw.one_in(2);
  spec.slot_padding = draw.one_in(3) ? draw.in(1, 4) : 0;
  spec.head_major = draw.one_in(3);
  spec.row_padding = draw.one_in(3) ? draw.of<int64_t>({1, 2, 6, 8}) : 0;
  spec.lse = !draw.one_in(5);
  const bool ranged = spec.unnormalized && draw.one_in(2);
  const int64_t segments = ranged || draw.one_in(2) ? 1 : draw.in(2, TESSERA_MAX_SEGMENTS);
  for (int64_t i = 0; i < segments; ++i) spec.segments.push_back(draw_segment(draw, spec));
  if (ranged) {
    spec.chunk_begin = draw.in(0, 2);
    spec.chunk_end = spec.chunk_begin == 0 ? draw.in(1, 3) : spec.chunk_begin + 1;
  }
  if (draw.one_in(4)) spec.softcap = draw.of({1.0F, 20.0F, 50.0F});
  spec.alibi = draw.one_in(5);
  if (!spec.unnormalized && draw.one_in(3)) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    for (int32_t h = 0; h < spec.heads_q; ++h) spec.sinks.push_back(draw.of({-kInf, kInf, 0.0F, 1.5F, -30.0F, 90.0F}));
  }
  spec.q_amplitude = draw.of({1.0F, 1.0F, 6.0F, 60.0F});
  if (draw.one_in(4)) spec.scale = draw.of({0.05F, 1.0F, 3.0F});
  return spec;
}

}  // namespace tessera::test
