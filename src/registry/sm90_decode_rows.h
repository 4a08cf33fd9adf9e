// Registry row of the sm90 decode kernels. Compiled with TESSERA_CUDA only.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kernels/sm90/fmha_decode/decode.h"
#include "kernels/sm90/fmha_decode/gather.h"
#include "registry/cuda_device.h"
#include "registry/registry.h"

namespace tessera {

// A problem as its segments, each of which points to the next, without scratch. A K/V without keys is never read; its
// view then describes Q's memory. A segment of gathered keys becomes one of pages of one key, whose table is the sorted
// list: every query token then is a sequence of its own.
class Sm90DecodeProblem {
 public:
  explicit Sm90DecodeProblem(const tessera_fmha_params& params);
  Sm90DecodeProblem(const Sm90DecodeProblem&) = delete;
  Sm90DecodeProblem& operator=(const Sm90DecodeProblem&) = delete;

  sm90::DecodeProblem& first() { return segments_[0]; }
  std::span<const sm90::DecodeProblem> segments() const { return {segments_.data(), count_}; }
  // Bytes for a call: scratch of the kernel, and the sorted lists.
  size_t workspace_bytes(const sm90::DecodeEntry& entry) const;
  // Gives the call its memory, and returns the lists that have to be sorted before it.
  std::span<const sm90::GatheredKeys> place(const sm90::DecodeEntry& entry, void* workspace);

 private:
  std::array<sm90::DecodeProblem, TESSERA_MAX_SEGMENTS> segments_;
  std::array<sm90::GatheredKeys, TESSERA_MAX_SEGMENTS> lists_;
  std::array<size_t, TESSERA_MAX_SEGMENTS> listed_;  // the segment of each list
  size_t count_;
  size_t list_count_ = 0;
};

// kernels/sm90/fmha_decode: one row for all its kernels; which one runs is decided by shapes and dtype.
size_t sm90_decode_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads);
Status run_sm90_decode(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);
const char* sm90_decode_limit(const tessera_fmha_params& params);
bool sm90_decode_is_slow(const tessera_fmha_params& params);
// Whether a cluster takes each of the problem's units, of head dim 512 of V, at once. For problems within the limit.
bool sm90_decode_has_wide_team(const tessera_fmha_params& params);
std::string explain_sm90_decode(const tessera_fmha_params& params);

inline constexpr KernelRow kSm90Decode = {
    .name = "sm90_fmha_decode",
    .operation = TESSERA_OP_FMHA,
    .arithmetic = Arithmetic::kHopperK16F25,
    .summary =
        "CUDA; f16, bf16; head dims 8..512, of Q and K 576, in steps of 8; few query tokens; causal, windows, custom "
        "bits; paged, used "
        "lengths, segments, gathered keys, sinks, softcap, ALiBi, f32 O, states, LSE; rows aligned to 16 bytes",
    .requirement = kNeedsHopper,
    .available = has_hopper,
    .device = TESSERA_DEVICE_CUDA,
    .support = {.dtypes = 1u << TESSERA_F16 | 1u << TESSERA_BF16,
                .max_head_dim_qk = 576,
                .max_head_dim_v = 512,
                .features = kFeaturePaged | kFeatureUsedLengths | kFeatureWindow | kFeatureCompressed |
                            kFeatureBitMask | kFeatureQueryPositions | kFeatureSegments | kFeatureSinks |
                            kFeatureSoftcap | kFeatureAlibi | kFeatureUnnormalized | kFeatureWideOutput |
                            kFeatureGathered},
    .fmha = {.workspace_bytes = sm90_decode_workspace_bytes,
             .run = run_sm90_decode,
             .limit = sm90_decode_limit,
             .slow = sm90_decode_is_slow,
             .explain = explain_sm90_decode},
    .merge = {nullptr},
};

}  // namespace tessera
