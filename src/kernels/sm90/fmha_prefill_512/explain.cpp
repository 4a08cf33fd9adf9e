#include "kernels/sm90/fmha_prefill_512/explain.h"

#include <fmt/format.h>

#include "kernels/sm90/fmha_prefill_512/prefill_512.h"

namespace tessera::sm90 {

std::string explain_prefill_512(const tessera_fmha_params& p) {
  using L = Layout512;
  const int64_t group = p.num_heads_q / p.num_heads_kv;
  const int64_t packed = prefill_512_packs(p.seqlen_q, group) ? group : 1;
  const Prefill512Entry& entry = find_prefill_512(p.dtype == TESSERA_BF16);
  const int rows = L::kBlockM;
  const int64_t tiles = (p.seqlen_q * packed + rows - 1) / rows;
  const tessera_kv_segment& s = p.segments[0];
  const bool masked = s.causal != 0 || s.window_left >= 0 || s.window_right >= 0 || s.compress_ratio != 0;
  return fmt::format(
      "variant: {}\n"
      "instructions: TMA, wgmma m64n64k16 and m64n256k16, st.async, setmaxnreg\n"
      "tiles: {} rows (query tokens of {}) by pairs of granules of {} keys; of a pair each of two blocks scores "
      "one and sums {} columns of O over both\n"
      "query tiles: {} per head, {} at most, {}\n"
      "grid: clusters of 2 blocks over all multiprocessors, {} threads each; further tiles from a counter\n"
      "roles: producer warpgroup (a warp for K and V, one per consumer for Q, one that draws tiles; {} registers), {} "
      "consumer warpgroups of {} rows ({} registers)\n"
      "shared memory: {} bytes: Q {} x {} at {}; K and V {} slices x {} at {}; P of the other block {} x {} at {}; "
      "sums, maxima and factors at {}; tiles at {}; barriers at {}\n",
      entry.name, rows, packed == 1 ? "one head" : "all heads of a K/V head", L::kGranule, L::kColumns, tiles,
      tiles * p.num_heads_q / packed * p.batch, masked ? "longest first" : "head by head", L::kThreads,
      L::kProducerRegisters, L::kConsumers, L::kRows, L::kConsumerRegisters, L::kBytes, L::kConsumers, L::kQBytes,
      L::kQ, L::kSlices, L::kSliceBytes, L::kRing, L::kConsumers, L::kWeightBytes, L::kWeights, L::kSums, L::kTiles,
      L::kBarriers);
}

}  // namespace tessera::sm90
