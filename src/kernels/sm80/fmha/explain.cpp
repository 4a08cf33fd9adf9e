#include "kernels/sm80/fmha/explain.h"

#include <fmt/format.h>

#include "kernels/sm80/fmha/entry.h"
#include "kernels/sm80/fmha/tags.h"

namespace tessera {
namespace sm80 {
namespace {

template <class Tag>
bool explain_as(const tessera_fmha_params& p, std::string* text) {
  using L = Layout<Tag>;
  if (!fits(entry<Tag>(), p)) {
    return false;
  }
  const int64_t rows = p.seqlen_q * (p.num_heads_q / p.num_heads_kv);
  *text = fmt::format(
      "instructions: cp.async, mma.sync m16n8k16\n"
      "head dims of the kernel: {}, {} (smaller ones are filled up with zeros)\n"
      "tiles: {} rows (query token x head of one K/V head) by granules of {} keys\n"
      "query tiles: {} per K/V head of a sequence, {} in all\n"
      "threads: {} warps of 16 rows and {} that copy, {} blocks per multiprocessor\n"
      "shared memory: {} bytes: Q ({}, {}) at {}; K ({}, {}) x {} stages at {}; V ({}, {}) x {} stages at {}; key "
      "flags at {}\n"
      "barriers: {}\n"
      "swizzle: 16-byte pieces of 128-byte panels, piece ^ (row mod 8)\n",
      L::kNumbers.head_dim_qk, L::kNumbers.head_dim_v, L::kBlockM, L::kGranule, (rows + L::kBlockM - 1) / L::kBlockM,
      (rows + L::kBlockM - 1) / L::kBlockM * p.batch * p.num_heads_kv, L::kSchedule.warps, L::kSchedule.staging_warps,
      L::kSchedule.blocks_per_sm, L::kBytes, L::kBlockM, L::kNumbers.head_dim_qk, L::kQ, L::kTileKeys,
      L::kNumbers.head_dim_qk, L::kSchedule.stages, L::kK, L::kTileKeys, L::kNumbers.head_dim_v, L::kSchedule.stages,
      L::kV, L::kPresent,
      L::kHasBarriers ? "mbarriers, full and empty, of every stage" : "cp.async groups and __syncthreads");
  return true;
}

template <bool kBf16>
std::string explain_all(const tessera_fmha_params& p) {
  std::string text;
  static_cast<void>(explain_as<Hd64<kBf16>>(p, &text) || explain_as<Hd128<kBf16>>(p, &text) ||
                    explain_as<Hd192<kBf16>>(p, &text) || explain_as<Hd256<kBf16>>(p, &text));
  return text;
}

}  // namespace
}  // namespace sm80

std::string explain_fmha_sm80(const tessera_fmha_params& p) {
  return p.dtype == TESSERA_BF16 ? sm80::explain_all<true>(p) : sm80::explain_all<false>(p);
}

}  // namespace tessera
