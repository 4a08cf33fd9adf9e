#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {
namespace {

// Units that a problem may have for a kernel. Two blocks copy a unit's rows out of pages sooner than one does; for
// contiguous rows that is so with fewer units only.
int64_t most_units_for(const DecodeEntry& entry, const DecodeProblem& p) {
  return entry.cluster == 2 && p.page_table == nullptr ? kDuoContiguousUnits : entry.most_units;
}

}  // namespace

const DecodeEntry* find_decode(const DecodeProblem& p) {
  const int64_t rows = p.q.tokens * (p.q.heads / p.k.heads);
  const int tile = rows <= 8 ? 8 : 16;
  const int64_t units = most_units(p, tile);
  const int head_dim = p.q.dims <= 64 ? 64 : p.q.dims <= 128 ? 128 : 256;
  for (const auto& file : kDecodeFiles) {
    for (const DecodeEntry& entry : file()) {
      if (entry.head_dim == head_dim && entry.bf16 == (p.dtype == TESSERA_BF16) && entry.rows == tile &&
          units <= most_units_for(entry, p)) {
        return &entry;
      }
    }
  }
  return nullptr;
}

}  // namespace tessera::sm90
