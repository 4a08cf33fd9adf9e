#include "cuda/golden.h"

#include <cstdlib>
#include <functional>

#include "base/sha256.h"

namespace tessera::test {
namespace {

FmhaSpec causal(int32_t dim, int64_t q, int64_t k) {
  FmhaSpec spec;
  spec.head_dim_qk = spec.head_dim_v = dim;
  spec.heads_q = 2;
  spec.heads_kv = 1;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, q, k);
}

FmhaSpec changed(FmhaSpec spec, const std::function<void(FmhaSpec&, SegmentSpec&)>& change) {
  change(spec, spec.segments[0]);
  return spec;
}

std::vector<GoldenProblem> problems_of_one_dtype() {
  using Spec = FmhaSpec&;
  using Seg = SegmentSpec&;
  return {
      // what the prefill kernels take
      {"prefill_causal", causal(128, 130, 260)},
      {"prefill_full", changed(causal(128, 65, 300), [](Spec, Seg s) { s.causal = 0; })},
      {"prefill_chunks", causal(128, 5, 4200)},
      {"prefill_superchunks", causal(128, 2, 33000)},
      {"prefill_wide_scores", changed(causal(128, 70, 200), [](Spec p, Seg) { p.q_amplitude = 60.0F; })},
      {"prefill_rows_without_keys", causal(128, 150, 40)},
      {"prefill_grouped_batch", changed(causal(128, 9, 150),
                                        [](Spec p, Seg s) {
                                          p.heads_q = 6;
                                          p.heads_kv = 2;
                                          p.q_lengths = {9, 9};
                                          s.lengths = {150, 150};
                                        })},
      {"decode", changed(causal(128, 1, 1500), [](Spec p, Seg) { p.heads_q = 8; })},
      // what needs a kernel with all features
      {"d64_packed", changed(causal(64, 9, 150),
                             [](Spec p, Seg s) {
                               p.q_lengths = {40, 1, 17};
                               p.packed_q = true;
                               s.lengths = {40, 700, 140};
                               s.layout = KvLayout::kPacked;
                             })},
      {"d64_paged_window", changed(causal(64, 3, 500),
                                   [](Spec p, Seg s) {
                                     p.heads_q = 8;
                                     s.layout = KvLayout::kPaged;
                                     s.window_left = 127;
                                     s.poison_masked = s.unlisted_pages = true;
                                   })},
      {"d80_softcap_alibi", changed(causal(80, 20, 200),
                                    [](Spec p, Seg) {
                                      p.softcap = 20.0F;
                                      p.alibi = true;
                                      p.q_amplitude = 6.0F;
                                    })},
      {"d96_sinks", changed(causal(96, 20, 90),
                            [](Spec p, Seg) {
                              p.sinks = {1.5F, -30.0F};
                            })},
      {"d192_v128", changed(causal(192, 20, 150), [](Spec p, Seg) { p.head_dim_v = 128; })},
      {"d256", causal(256, 20, 100)},
      {"d40_tree_mask", changed(causal(40, 12, 200),
                                [](Spec, Seg s) {
                                  s.mask = true;
                                  s.mask_keys = 12;
                                })},
      {"d64_two_segments", changed(causal(64, 8, 300),
                                   [](Spec p, Seg s) {
                                     SegmentSpec compressed = s;
                                     compressed.compress_ratio = 4;
                                     compressed.causal = 0;
                                     s.window_left = 63;
                                     p.segments.push_back(compressed);
                                   })},
      {"d128_state_of_a_range", changed(causal(128, 4, 2500),
                                        [](Spec p, Seg) {
                                          p.unnormalized = true;
                                          p.chunk_end = 2;
                                        })},
      {"d128_f32_output", changed(causal(128, 30, 130), [](Spec p, Seg) { p.o_dtype = TESSERA_F32; })},
  };
}

}  // namespace

std::vector<GoldenProblem> golden_problems() {
  std::vector<GoldenProblem> all;
  for (const tessera_dtype dtype : {TESSERA_F16, TESSERA_BF16}) {
    for (GoldenProblem& problem : problems_of_one_dtype()) {
      FmhaSpec& spec = problem.spec;
      spec.dtype = dtype;
      const bool wide = spec.unnormalized || problem.name == "d128_f32_output";
      spec.o_dtype = wide ? TESSERA_F32 : dtype;
      spec.seed = 20251129;
      all.push_back({(dtype == TESSERA_F16 ? "f16/" : "bf16/") + problem.name, spec});
    }
  }
  return all;
}

std::string golden_digest(const FmhaProblem& problem, const FmhaOutputs& out) {
  const FmhaSpec& spec = problem.spec();
  Sha256 sha;
  for (size_t b = 0; b < spec.q_lengths.size(); ++b) {
    for (int64_t i = 0; i < spec.q_lengths[b]; ++i) {
      for (int64_t h = 0; h < spec.heads_q; ++h) {
        const RowBytes row = problem.row(out, static_cast<int64_t>(b), i, h);
        sha.update(row.o.data(), row.o.size());
        if (spec.lse) sha.update(&row.lse, sizeof(row.lse));
        if (!spec.unnormalized) continue;
        sha.update(&row.row_max, sizeof(row.row_max));
        sha.update(&row.row_sum, sizeof(row.row_sum));
      }
    }
  }
  return to_hex(sha.digest());
}

std::string golden_path() {
  const char* path = std::getenv("TESSERA_FMHA_GOLDEN");
  return path != nullptr ? path : std::string(TESSERA_TEST_VECTORS) + "/fmha_golden.json";
}

}  // namespace tessera::test
