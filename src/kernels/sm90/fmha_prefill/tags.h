// The prefill kernels that exist, by name.
#pragma once

#include <array>
#include <string_view>

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

template <bool kBf16, bool kCausal>
struct PrefillHd256 {
  static constexpr const char* kName = kBf16 ? (kCausal ? "sm90_prefill_hd256_bf16_causal" : "sm90_prefill_hd256_bf16")
                                             : (kCausal ? "sm90_prefill_hd256_f16_causal" : "sm90_prefill_hd256_f16");
  static constexpr PrefillNumbers kNumbers = {
      .head_dim = 256, .bf16 = kBf16, .granule_keys = 64, .chunk_keys = kChunkKeys, .lazy_max = true};
  static constexpr PrefillSchedule kSchedule = {
      .causal = kCausal, .consumer_warpgroups = 2, .stages = 2, .producer_registers = 32, .consumer_registers = 232};
};

// Any of them with the general finish.
template <class Tag>
struct PrefillGeneral : Tag {
  static constexpr auto kText = [] {
    std::array<char, 64> text{};
    std::size_t at = 0;
    for (const std::string_view part : {std::string_view(Tag::kName), std::string_view("_general")}) {
      for (const char c : part) text[at++] = c;
    }
    return text;
  }();
  static constexpr const char* kName = kText.data();
  static constexpr PrefillSchedule kSchedule = [] {
    PrefillSchedule schedule = Tag::kSchedule;
    schedule.general_finish = true;
    return schedule;
  }();
};

}  // namespace tessera::sm90
