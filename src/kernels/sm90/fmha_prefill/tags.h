// The prefill kernels that exist, by name.
#pragma once

#include "kernels/sm90/fmha_prefill/config.h"

namespace tessera::sm90 {

template <bool kBf16, bool kCausal>
struct PrefillHd64 {
  static constexpr const char* kName = kBf16 ? (kCausal ? "sm90_prefill_hd64_bf16_causal" : "sm90_prefill_hd64_bf16")
                                             : (kCausal ? "sm90_prefill_hd64_f16_causal" : "sm90_prefill_hd64_f16");
  static constexpr PrefillNumbers kNumbers = {
      .head_dim = 64, .bf16 = kBf16, .granule_keys = 128, .chunk_keys = kChunkKeys, .lazy_max = true};
  static constexpr PrefillSchedule kSchedule = {
      .causal = kCausal, .consumer_warpgroups = 3, .stages = 4, .producer_registers = 32, .consumer_registers = 160};
};

template <bool kBf16, bool kCausal>
struct PrefillHd128 {
  static constexpr const char* kName = kBf16 ? (kCausal ? "sm90_prefill_hd128_bf16_causal" : "sm90_prefill_hd128_bf16")
                                             : (kCausal ? "sm90_prefill_hd128_f16_causal" : "sm90_prefill_hd128_f16");
  static constexpr PrefillNumbers kNumbers = {
      .head_dim = 128, .bf16 = kBf16, .granule_keys = 128, .chunk_keys = kChunkKeys, .lazy_max = true};
  static constexpr PrefillSchedule kSchedule = {
      .causal = kCausal, .consumer_warpgroups = 3, .stages = 2, .producer_registers = 32, .consumer_registers = 160};
};

}  // namespace tessera::sm90
