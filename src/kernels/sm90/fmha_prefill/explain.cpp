#include "kernels/sm90/fmha_prefill/explain.h"

#include <fmt/format.h>

#include "kernels/sm90/fmha_prefill/config.h"
#include "kernels/sm90/fmha_prefill/ragged.h"
#include "kernels/sm90/fmha_prefill/tags.h"

namespace tessera::sm90 {
namespace {

std::string box(const char* name, int64_t tokens, int64_t heads, int64_t batch, const tessera_tensor& t, int rows,
                int dims) {
  return fmt::format(
      "TMA map of {}: ({} dims, {} tokens, {} heads, {} sequences or pages), strides ({}, {}, {}) bytes, boxes of 64 "
      "dims x {} tokens, 128-byte swizzle, zeros beyond the ends\n",
      name, dims, tokens, heads, batch, t.stride_token * kElementBytes, t.stride_head * kElementBytes,
      t.stride_batch * kElementBytes, rows);
}

bool needs_general_finish(const tessera_fmha_params& p) {
  return p.o_dtype != p.dtype || p.output_mode == TESSERA_OUTPUT_UNNORMALIZED || p.sinks != nullptr;
}

template <class Tag>
bool explain_as(const tessera_fmha_params& p, std::string* text) {
  using L = PrefillLayout<Tag>;
  constexpr PrefillNumbers kNumbers = Tag::kNumbers;
  constexpr PrefillSchedule kSchedule = Tag::kSchedule;
  const tessera_kv_segment& s = p.segments[0];
  const bool plain = p.head_dim_qk == kNumbers.head_dim && (s.causal != 0) == kSchedule.causal &&
                     needs_general_finish(p) == kSchedule.general_finish;
  const bool ragged = p.head_dim_qk <= kNumbers.dims_qk() && p.head_dim_v <= kNumbers.dims_v() &&
                      needs_modifiers(p) == kSchedule.modifiers;
  if ((p.dtype == TESSERA_BF16) != kNumbers.bf16 || !(kSchedule.ragged ? ragged : plain)) {
    return false;
  }
  const int64_t tiles = (p.seqlen_q + L::kBlockM - 1) / L::kBlockM;
  const bool masked = s.causal != 0 || s.window_left >= 0 || s.window_right >= 0 || s.compress_ratio != 0;
  *text = fmt::format(
      "variant: {}\n"
      "instructions: TMA, wgmma m64n{}k16 and m64n{}k16, setmaxnreg\n"
      "tiles: {} rows (query tokens of one head) by granules of {} keys\n"
      "query tiles: {} per head, {} in all{}, {}\n"
      "grid: one block per multiprocessor, {} threads; further tiles from a counter\n"
      "roles: producer warpgroup ({}; {} registers), {} consumer "
      "warpgroups of 64 rows ({} registers)\n"
      "shared memory: {} bytes: Q {} x {} at {}; K {} stages x {} at {}; V {} stages x {} at {}; {} "
      "{} x {} at {}; states at {}; barriers at {}\n"
      "barriers: {} mbarriers (full and empty of each Q, each stage of K and V, each tile slot{})\n",
      Tag::kName, kNumbers.granule_keys, kNumbers.dims_v(), L::kBlockM, kNumbers.granule_keys, tiles,
      tiles * p.num_heads_q * p.batch, kSchedule.ragged ? " at most" : "", masked ? "longest first" : "head by head",
      L::kThreads,
      !kSchedule.ragged ? "one thread for K and V, one per consumer for Q"
      : L::kWide ? "a warp for K, one that draws tiles, a lane per consumer for Q, a warp that feeds and cleans V"
                 : "a warp for K and V, one that draws tiles, a lane per consumer for Q, a warp that cleans V",
      kSchedule.producer_registers, kSchedule.consumer_warpgroups, kSchedule.consumer_registers, L::kBytes,
      kSchedule.consumer_warpgroups, L::kQBytes, L::kQ, kSchedule.stages, L::kKvBytes, L::kK, kSchedule.stages,
      L::kKvBytes, L::kV, L::kWide ? "staging" : "chained O and staging", kSchedule.consumer_warpgroups, L::kChainBytes,
      L::kChain, L::kStates, L::kBarriers, L::kBarrierCount + (kSchedule.ragged ? 1 + kSchedule.stages : 0),
      kSchedule.ragged ? "; one that asks for the next tile; each stage of V before it is clean" : "");
  const int64_t box_keys = ragged_box_keys(kNumbers.granule_keys, s.page_table != nullptr, s.page_size);
  const int64_t keys = s.page_table != nullptr ? s.page_size : s.seqlen_k;
  const int64_t batch = s.page_table != nullptr ? s.num_pages : s.cu_seqlens_k != nullptr ? 1 : p.batch;
  const int64_t query_batch = p.cu_seqlens_q != nullptr ? 1 : p.batch;
  *text += box("Q", p.seqlen_q, p.num_heads_q, query_batch, p.q, kWarpgroupRows, p.head_dim_qk);
  *text += box("K", keys, p.num_heads_kv, batch, s.k, static_cast<int>(box_keys), p.head_dim_qk);
  *text += box("V", keys, p.num_heads_kv, batch, s.v, static_cast<int>(box_keys), p.head_dim_v);
  if (kSchedule.ragged) {
    *text += "ragged: lengths, masks and pages are read on the device; boxes end with the sequence or the mask\n";
  }
  if (needs_general_finish(p)) {
    *text += "O: from registers to memory (sinks, fp32 or states)\n";
    return true;
  }
  *text += box("O", p.seqlen_q, p.num_heads_q, query_batch, p.o, kWarpgroupRows, p.head_dim_v);
  return true;
}

template <class Tag>
bool explain_finish(const tessera_fmha_params& p, std::string* text) {
  return explain_as<Tag>(p, text) || explain_as<PrefillGeneral<Tag>>(p, text);
}
template <class Tag>
bool explain_ragged(const tessera_fmha_params& p, std::string* text) {
  return explain_as<PrefillRagged<Tag>>(p, text) || explain_as<PrefillModified<Tag>>(p, text);
}

template <template <bool, bool> class Tag>
bool explain_head_dim(const tessera_fmha_params& p, std::string* text) {
  return explain_finish<Tag<true, true>>(p, text) || explain_finish<Tag<true, false>>(p, text) ||
         explain_finish<Tag<false, true>>(p, text) || explain_finish<Tag<false, false>>(p, text);
}
template <template <bool, bool> class Tag>
bool explain_ragged_head_dim(const tessera_fmha_params& p, std::string* text) {
  return explain_ragged<Tag<true, false>>(p, text) || explain_ragged<Tag<false, false>>(p, text);
}

}  // namespace

std::string explain_prefill(const tessera_fmha_params& p) {
  std::string text;
  static_cast<void>(explain_head_dim<PrefillHd64>(p, &text) || explain_head_dim<PrefillHd128>(p, &text) ||
                    explain_head_dim<PrefillHd256>(p, &text));
  return text;
}

std::string explain_ragged_prefill(const tessera_fmha_params& p) {
  std::string text;
  static_cast<void>(explain_ragged_head_dim<PrefillHd64>(p, &text) || explain_ragged_head_dim<PrefillHd128>(p, &text) ||
                    explain_ragged_head_dim<PrefillHd192>(p, &text) || explain_ragged_head_dim<PrefillHd256>(p, &text));
  return text;
}

}  // namespace tessera::sm90
