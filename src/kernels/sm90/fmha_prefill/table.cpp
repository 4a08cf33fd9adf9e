#include "kernels/sm90/fmha_prefill/table.h"

#include <algorithm>
#include <array>

#include "kernels/sm90/fmha_prefill/tags.h"

namespace tessera::sm90 {
namespace {

constexpr std::array kTable = {
    prefill_entry<PrefillHd64<true, false>>(),   prefill_entry<PrefillHd64<true, true>>(),
    prefill_entry<PrefillHd64<false, false>>(),  prefill_entry<PrefillHd64<false, true>>(),
    prefill_entry<PrefillHd128<true, false>>(),  prefill_entry<PrefillHd128<true, true>>(),
    prefill_entry<PrefillHd128<false, false>>(), prefill_entry<PrefillHd128<false, true>>(),
};

}  // namespace

std::span<const PrefillEntry> prefill_table() {
  return kTable;
}

const PrefillEntry* find_prefill(int head_dim, bool bf16, bool causal) {
  const auto at = std::ranges::find_if(
      kTable, [&](const PrefillEntry& e) { return e.head_dim == head_dim && e.bf16 == bf16 && e.causal == causal; });
  return at == kTable.end() ? nullptr : &*at;
}

}  // namespace tessera::sm90
