#include "kernels/sm90/fmha_prefill/table.h"

#include <algorithm>
#include <array>

#include "kernels/sm90/fmha_prefill/tags.h"

namespace tessera::sm90 {
namespace {

template <template <bool, bool> class Tag>
constexpr std::array<PrefillEntry, 4> entries() {
  return {prefill_entry<Tag<true, false>>(), prefill_entry<Tag<true, true>>(), prefill_entry<Tag<false, false>>(),
          prefill_entry<Tag<false, true>>()};
}
template <template <bool, bool> class Tag>
constexpr std::array<PrefillEntry, 4> general_entries() {
  return {prefill_entry<PrefillGeneral<Tag<true, false>>>(), prefill_entry<PrefillGeneral<Tag<true, true>>>(),
          prefill_entry<PrefillGeneral<Tag<false, false>>>(), prefill_entry<PrefillGeneral<Tag<false, true>>>()};
}
template <template <bool, bool> class Tag>
constexpr std::array<PrefillEntry, 4> ragged_entries() {
  return {prefill_entry<PrefillRagged<Tag<true, false>>>(), prefill_entry<PrefillRagged<Tag<false, false>>>(),
          prefill_entry<PrefillModified<Tag<true, false>>>(), prefill_entry<PrefillModified<Tag<false, false>>>()};
}

constexpr std::array kTables = {entries<PrefillHd64>(),          entries<PrefillHd128>(),
                                entries<PrefillHd256>(),         general_entries<PrefillHd64>(),
                                general_entries<PrefillHd128>(), general_entries<PrefillHd256>(),
                                ragged_entries<PrefillHd64>(),   ragged_entries<PrefillHd128>(),
                                ragged_entries<PrefillHd192>(),  ragged_entries<PrefillHd256>()};
constexpr auto kTable = [] {
  std::array<PrefillEntry, kTables.size() * 4> all{};
  std::size_t at = 0;
  for (const auto& table : kTables) {
    for (const PrefillEntry& entry : table) all[at++] = entry;
  }
  return all;
}();

}  // namespace

std::span<const PrefillEntry> prefill_table() {
  return kTable;
}

const PrefillEntry* find_prefill(int head_dim, bool bf16, bool causal, bool general_finish) {
  const auto at = std::ranges::find_if(kTable, [&](const PrefillEntry& e) {
    return !e.ragged && e.head_dim == head_dim && e.bf16 == bf16 && e.causal == causal &&
           e.general_finish == general_finish;
  });
  return at == kTable.end() ? nullptr : &*at;
}

const PrefillEntry* find_ragged_prefill(int64_t head_dim_qk, int64_t head_dim_v, bool bf16, bool modifiers) {
  const auto at = std::ranges::find_if(kTable, [&](const PrefillEntry& e) {
    return e.ragged && e.dims_qk >= head_dim_qk && e.dims_v >= head_dim_v && e.bf16 == bf16 && e.modifiers == modifiers;
  });
  return at == kTable.end() ? nullptr : &*at;
}

}  // namespace tessera::sm90
