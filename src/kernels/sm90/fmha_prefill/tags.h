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
      .head_dim = 64, .bf16 = kBf16, .granule_keys = 128, .chunk_keys = kChunkKeys};
  static constexpr PrefillSchedule kSchedule = {
      .causal = kCausal, .consumer_warpgroups = 3, .stages = 4, .producer_registers = 32, .consumer_registers = 160};
};

template <bool kBf16, bool kCausal>
struct PrefillHd128 {
  static constexpr const char* kName = kBf16 ? (kCausal ? "sm90_prefill_hd128_bf16_causal" : "sm90_prefill_hd128_bf16")
                                             : (kCausal ? "sm90_prefill_hd128_f16_causal" : "sm90_prefill_hd128_f16");
  static constexpr PrefillNumbers kNumbers = {
      .head_dim = 128, .bf16 = kBf16, .granule_keys = 128, .chunk_keys = kChunkKeys};
  static constexpr PrefillSchedule kSchedule = {
      .causal = kCausal, .consumer_warpgroups = 3, .stages = 2, .producer_registers = 32, .consumer_registers = 160};
};

template <bool kBf16, bool kCausal>
struct PrefillHd256 {
  static constexpr const char* kName = kBf16 ? (kCausal ? "sm90_prefill_hd256_bf16_causal" : "sm90_prefill_hd256_bf16")
                                             : (kCausal ? "sm90_prefill_hd256_f16_causal" : "sm90_prefill_hd256_f16");
  static constexpr PrefillNumbers kNumbers = {
      .head_dim = 256, .bf16 = kBf16, .granule_keys = 64, .chunk_keys = kChunkKeys};
  static constexpr PrefillSchedule kSchedule = {
      .causal = kCausal, .consumer_warpgroups = 2, .stages = 2, .producer_registers = 32, .consumer_registers = 232};
};

// Head dim 192 of Q and K, 128 of V, in the tiles of 256: ragged kernels only.
template <bool kBf16, bool kCausal>
struct PrefillHd192 : PrefillHd256<kBf16, kCausal> {
  static constexpr const char* kName = kBf16 ? "sm90_prefill_hd192_bf16" : "sm90_prefill_hd192_f16";
  static constexpr PrefillNumbers kNumbers = {
      .head_dim = 256, .bf16 = kBf16, .granule_keys = 64, .chunk_keys = kChunkKeys, .qk_dims = 192, .v_dims = 128};
};

constexpr std::array<char, 64> joined_name(std::string_view name, std::string_view suffix) {
  std::array<char, 64> text{};
  std::size_t at = 0;
  for (const std::string_view part : {name, suffix}) {
    for (const char c : part) text[at++] = c;
  }
  return text;
}

// Any of them with the general finish.
template <class Tag>
struct PrefillGeneral : Tag {
  static constexpr auto kText = joined_name(Tag::kName, "_general");
  static constexpr const char* kName = kText.data();
  static constexpr PrefillSchedule kSchedule = [] {
    PrefillSchedule schedule = Tag::kSchedule;
    schedule.general_finish = true;
    return schedule;
  }();
};

// Any of those without a causal mask as a ragged kernel: masks, lengths, layouts and finish at run time.
template <class Tag>
struct PrefillRagged : Tag {
  static constexpr auto kText = joined_name(Tag::kName, "_ragged");
  static constexpr const char* kName = kText.data();
  static constexpr PrefillSchedule kSchedule = [] {
    PrefillSchedule schedule = Tag::kSchedule;
    schedule.general_finish = true;
    schedule.ragged = true;
    return schedule;
  }();
};

// Those with modifiers of the scores, which take registers: two consumers.
template <class Tag>
struct PrefillModified : PrefillRagged<Tag> {
  static constexpr auto kText = joined_name(Tag::kName, "_modified");
  static constexpr const char* kName = kText.data();
  static constexpr PrefillSchedule kSchedule = [] {
    PrefillSchedule schedule = PrefillRagged<Tag>::kSchedule;
    schedule.modifiers = true;
    schedule.consumer_warpgroups = 2;
    schedule.consumer_registers = 232;
    return schedule;
  }();
};

}  // namespace tessera::sm90
