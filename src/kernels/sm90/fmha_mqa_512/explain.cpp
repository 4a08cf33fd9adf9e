#include "kernels/sm90/fmha_mqa_512/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/sm90/fmha_mqa_512/config.h"

namespace tessera::sm90 {

namespace {

template <class L>
std::string explain(const tessera_fmha_params& p) {
  const bool gathered =
      std::any_of(p.segments, p.segments + p.num_segments, [](const auto& s) { return s.indices != nullptr; });
  const bool fp8 =
      std::any_of(p.segments, p.segments + p.num_segments, [](const auto& s) { return s.format != TESSERA_KV_DENSE; });
  const int rows = L::kRows;
  const int64_t unit_rows = (gathered ? 1 : p.seqlen_q) * p.num_heads_q;
  const int64_t units = p.batch * (gathered ? p.seqlen_q : 1);
  return fmt::format(
      "variant: sm90_mqa_hd{}_{}\n"
      "instructions: cp.async by rows, wgmma m64n64k16 and m64n256k16, setmaxnreg\n"
      "tiles: {} rows (heads of {}) by granules of {} keys, which lie in shared memory once, as K and as V; "
      "each of two warpgroups fetches and scores every other one, two sum {} columns of O each over all\n"
      "query tiles: {} units of {}\n"
      "grid: one block per multiprocessor, {} threads each; tiles that leave some without work are cut at ends of "
      "chunks "
      "({} keys), and a second kernel chains those\n"
      "roles: {} warpgroups that fetch and score ({} registers), {} that multiply ({})\n"
      "shared memory: {} bytes: granules {} x {} at {}; Q {} at {}; P {} x {} at {}{}; factors of O at {}; tiles at "
      "{}; barriers at {}\n"
      "{}{}",
      p.head_dim_qk, p.dtype == TESSERA_BF16 ? "bf16" : "f16", rows, gathered ? "a query token" : "all query tokens",
      L::kGranule, L::kColumns, units, (unit_rows + rows - 1) / rows, L::kThreads, kChunkKeys, L::kScorers,
      L::kScorerRegisters, L::kMultipliers, L::kMultiplierRegisters, L::kBytes, L::kBuffers, L::kBufferBytes, L::kKeys,
      L::kQBytes, L::kQ, L::kBuffers, L::kWeightBytes, L::kWeights,
      L::kWeightsOverKeys ? " and so on, where the keys have dims that are not V" : "", L::kFactors, L::kTiles,
      L::kBarriers, gathered ? "gathered keys: a kernel sorts the lists first\n" : "",
      fp8 ? "fp8 rows: become bf16 in shared memory, by the threads that fetched them\n" : "");
}

}  // namespace

std::string explain_mqa_512(const tessera_fmha_params& p) {
  return p.head_dim_qk == 576 ? explain<MqaLayout<576>>(p) : explain<MqaLayout<512>>(p);
}

}  // namespace tessera::sm90
