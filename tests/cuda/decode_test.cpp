// The decode kernels through the public interface: few query tokens, used lengths, pages, sinks, softcap, ALiBi, custom
// bits, two head dims, all kinds of output. Their scratch starts as NaN.
#include <fmt/format.h>

#include <limits>
#include <string>
#include <tuple>

#include "cuda/decode.h"
#include "fmha/draw.h"

namespace tessera::test {
namespace {

FmhaSpec draw_decode(uint64_t seed, tessera_dtype dtype) {
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
  spec.segments.push_back(s);
  return spec;
}

class CudaDecode : public CudaTest, public testing::WithParamInterface<std::tuple<tessera_dtype, int>> {};

TEST_P(CudaDecode, EqualsTheOracle) {
  constexpr uint64_t kProblems = 30;
  const auto [dtype, group] = GetParam();
  for (uint64_t i = 0; i < kProblems; ++i) {
    const FmhaProblem problem(draw_decode(70000 + static_cast<uint64_t>(group) * kProblems + i, dtype));
    SCOPED_TRACE(to_text(problem.spec()));
    const CudaRun run = run_cuda(kDecode, problem);
    ASSERT_EQ(run.status, TESSERA_OK) << run.text;
    ASSERT_EQ(run.damage, "");
    ASSERT_EQ(first_difference(problem, run_hopper_oracle(problem), run.out), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaDecode,
                         testing::Combine(testing::Values(TESSERA_F16, TESSERA_BF16), testing::Range(0, 4)),
                         [](const auto& param) {
                           return fmt::format("{}_{}", std::get<0>(param.param) == TESSERA_F16 ? "f16" : "bf16",
                                              std::get<1>(param.param));
                         });

}  // namespace
}  // namespace tessera::test
