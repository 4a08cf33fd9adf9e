// The decode kernels through the public interface: few query tokens, used lengths, pages, sinks, softcap, ALiBi, custom
// bits, two head dims, segments, all kinds of output. Their scratch starts as NaN.
#include <fmt/format.h>

#include <limits>
#include <string>
#include <tuple>

#include "cuda/decode.h"
#include "fmha/draw.h"
#include "kernels/sm90/fmha_decode/decode.h"
#include "registry/sm90_decode_rows.h"

namespace tessera::test {
namespace {

// Queries anywhere, compressed keys, and more segments before the one that there is.
void add_segments(Draw* draw, FmhaSpec* spec, SegmentSpec* last) {
  const auto disturb = [&](SegmentSpec* s) {
    if (draw->one_in(3)) {
      s->compress_ratio = draw->of<int32_t>({1, 3, 4, 128});
      s->causal = 0;
      s->window_left = s->window_right = -1;
    }
    if (draw->one_in(2)) {
      s->q_positions.clear();
      for (const int64_t length : s->lengths) {
        s->q_positions.push_back(static_cast<int32_t>(draw->in(-3, length + 5) + (draw->one_in(4) ? 3000 : 0)));
      }
    }
  };
  const int64_t more = draw->in(0, 3);
  for (int64_t i = 0; i < more; ++i) {
    SegmentSpec s = *last;
    for (int64_t& length : s.lengths) length = draw->of<int64_t>({0, 1, 64, 129, 2049, draw->in(2, 2600)});
    s.layout = draw->one_in(2) ? KvLayout::kPaged : KvLayout::kBatched;
    s.page_seed += static_cast<uint64_t>(i) + 1;
    s.window_left = draw->one_in(2) ? draw->of<int64_t>({0, 100, 2047}) : -1;
    disturb(&s);
    spec->segments.push_back(s);
  }
  disturb(last);
}

FmhaSpec draw_decode(uint64_t seed, tessera_dtype dtype, bool segments) {
  Draw draw(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = dtype;
  spec.unnormalized = draw.one_in(4);
  spec.o_dtype = spec.unnormalized || draw.one_in(4) ? TESSERA_F32 : dtype;
  spec.head_dim_qk = draw.of<int32_t>({64, 128, 64, 128, 256, 8, 40, 72, 80, 96, 120, 136, 192, 192, 256});
  spec.head_dim_v = spec.head_dim_qk == 192 && draw.one_in(2) ? 128
                    : draw.one_in(6)                          ? draw.of<int32_t>({8, 64, 72, 128, 144, 256})
                                                              : spec.head_dim_qk;
  spec.heads_kv = static_cast<int32_t>(draw.in(1, 3));
  spec.heads_q = spec.heads_kv * draw.of<int32_t>({1, 2, 4, 4, 5, 6, 7, 8, 16, 32});
  spec.head_major = draw.one_in(3);
  spec.row_padding = draw.of<int64_t>({0, 0, 8, 24});
  spec.lse = !draw.one_in(4);
  spec.q_amplitude = draw.of({1.0F, 1.0F, 6.0F, 60.0F});
  const auto batch = static_cast<size_t>(draw.in(1, 5));
  const int64_t q = draw.one_in(2) ? 1 : draw.in(2, 16);
  spec.q_lengths.assign(batch, q);
  if (!spec.unnormalized && draw.one_in(3)) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    for (int32_t h = 0; h < spec.heads_q; ++h) spec.sinks.push_back(draw.of({-kInf, kInf, 0.0F, 1.5F, -30.0F, 90.0F}));
  }
  SegmentSpec s;
  for (size_t b = 0; b < batch; ++b) {
    s.lengths.push_back(draw.of<int64_t>({0, 1, q, 127, 128, 129, 2048, 2049, draw.in(2, 700), draw.in(700, 4500)}));
  }
  s.layout = draw.one_in(2) ? KvLayout::kPaged : KvLayout::kBatched;
  s.page_size = draw.of<int32_t>({1, 2, 16, 17, 48, 64, 128, 256});
  s.page_seed = seed;
  s.causal = q == 1 || draw.one_in(2) ? 1 : 0;
  if (draw.one_in(3)) s.window_left = draw.of<int64_t>({0, 1, 127, 128, 200, 2047, 3000});
  if (draw.one_in(8)) s.window_right = draw.of<int64_t>({0, 1, 5});
  s.head_major = draw.one_in(3);
  s.row_padding = draw.of<int64_t>({0, 0, 8, 24});
  s.poison_masked = draw.one_in(2);
  s.v_is_k = spec.head_dim_v <= spec.head_dim_qk && draw.one_in(6);
  if (draw.one_in(5)) {
    s.mask = true;
    s.mask_per_head = draw.one_in(2);
    s.mask_keys = draw.one_in(3) ? -1 : draw.of<int64_t>({q, 2 * q, 90});
    s.mask_visible_of_8 = draw.of({1, 4, 7});
  }
  if (draw.one_in(6)) spec.softcap = draw.of({1.0F, 20.0F, 50.0F});
  spec.alibi = draw.one_in(10);
  if (segments) add_segments(&draw, &spec, &s);
  spec.segments.push_back(s);
  return spec;
}

class CudaDecode : public CudaTest, public testing::WithParamInterface<std::tuple<tessera_dtype, int>> {};

void expect_oracle_bytes_of(const FmhaSpec& spec) {
  const FmhaProblem problem(spec);
  SCOPED_TRACE(to_text(problem.spec()));
  const CudaRun run = run_cuda(kDecode, problem);
  ASSERT_EQ(run.status, TESSERA_OK) << run.text;
  ASSERT_EQ(run.damage, "");
  ASSERT_EQ(first_difference(problem, run_hopper_oracle(problem), run.out), "");
}

TEST_P(CudaDecode, EqualsTheOracle) {
  constexpr uint64_t kProblems = 30;
  const auto [dtype, group] = GetParam();
  for (uint64_t i = 0; i < kProblems && !HasFatalFailure(); ++i) {
    expect_oracle_bytes_of(draw_decode(70000 + static_cast<uint64_t>(group) * kProblems + i, dtype, false));
  }
}

TEST_P(CudaDecode, SegmentsEqualTheOracle) {
  constexpr uint64_t kProblems = 20;
  const auto [dtype, group] = GetParam();
  for (uint64_t i = 0; i < kProblems && !HasFatalFailure(); ++i) {
    expect_oracle_bytes_of(draw_decode(71000 + static_cast<uint64_t>(group) * kProblems + i, dtype, true));
  }
}

class CudaDecodeTwin : public CudaTest, public testing::WithParamInterface<tessera_dtype> {};

// Head dim 64 and many sequences: a block then takes two K/V heads at a time.
TEST_P(CudaDecodeTwin, TwoHeadsAtATimeEqualTheOracle) {
  for (const int32_t group : {1, 3, 4}) {
    for (const int32_t page_size : {0, 1, 48}) {
      FmhaSpec spec = decode_spec(GetParam(), 1, 1, group);
      spec.head_dim_qk = spec.head_dim_v = 64;
      spec.heads_kv = 4;
      spec.heads_q = 4 * group;
      spec.q_lengths.assign(40, 1);
      spec.seed = static_cast<uint64_t>(group);
      SegmentSpec& s = spec.segments[0];
      s.lengths.assign(40, 0);
      for (size_t b = 0; b < s.lengths.size(); ++b) s.lengths[b] = static_cast<int64_t>(b * 37 % 300);
      s.lengths[7] = 2200;
      s.poison_masked = true;
      if (page_size > 0) {
        s.layout = KvLayout::kPaged;
        s.page_size = page_size;
      }
      if (group == 3) s.window_left = 170;
      for (int32_t h = 0; group == 4 && h < spec.heads_q; ++h) spec.sinks.push_back(0.25F * static_cast<float>(h));
      const FmhaProblem problem(spec);
      const DeviceProblem device(problem);
      Sm90DecodeProblem segments(device.params);
      const sm90::DecodeEntry* entry = sm90::find_decode(segments.first());
      ASSERT_NE(entry, nullptr);
      ASSERT_TRUE(entry->twin) << entry->name;
      expect_oracle_bytes_of(spec);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodeTwin, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);

INSTANTIATE_TEST_SUITE_P(Seeds, CudaDecode,
                         testing::Combine(testing::Values(TESSERA_F16, TESSERA_BF16), testing::Range(0, 4)),
                         [](const auto& param) {
                           return fmt::format("{}_{}", std::get<0>(param.param) == TESSERA_F16 ? "f16" : "bf16",
                                              std::get<1>(param.param));
                         });

}  // namespace
}  // namespace tessera::test
