#include "kernels/sm90/fmha_decode/table.h"

#include <algorithm>

namespace tessera::sm90 {
namespace {

// Units that a problem may have for a kernel. Two blocks copy a unit's rows out of pages sooner than one does; for
// contiguous rows that is so with fewer units only.
int64_t most_units_for(const DecodeEntry& entry, const DecodeProblem& p) {
  return entry.cluster == 2 && p.page_table == nullptr ? kDuoContiguousUnits : entry.most_units;
}

}  // namespace

bool is_for(const DecodeEntry& entry, const DecodeProblem& p) {
  const int64_t largest = std::max(p.q.dims, p.v.dims);
  const bool dims = p.q.dims <= entry.head_dim && p.v.dims <= entry.value_dim &&
                    granule_keys(static_cast<int>(largest)) == granule_keys(entry.head_dim);
  const bool two_dims = entry.modified || entry.head_dim != entry.value_dim;
  return dims && (two_dims || p.q.dims == p.v.dims) && (entry.modified || !has_modified_scores(p));
}

const DecodeEntry* find_decode(const DecodeProblem& p) {
  const int64_t rows = p.q.tokens * (p.q.heads / p.k.heads);
  const int tile = rows <= 8 ? 8 : 16;
  const int64_t units = most_units(p, tile);
  for (const auto& file : kDecodeFiles) {
    for (const DecodeEntry& entry : file()) {
      if (is_for(entry, p) && entry.bf16 == (p.dtype == TESSERA_BF16) && entry.rows == tile &&
          units <= most_units_for(entry, p)) {
        return &entry;
      }
    }
  }
  return nullptr;
}

}  // namespace tessera::sm90
