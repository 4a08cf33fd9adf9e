#include "kernels/sm90/fmha_decode/table.h"

#include <algorithm>

namespace tessera::sm90 {
namespace {

// Query rows that share K and V.
int64_t rows_of(const DecodeProblem& p) {
  return p.q.tokens * (p.q.heads / p.k.heads);
}

// Units that a problem may have for a kernel. Two blocks copy a unit's rows out of pages sooner than one does; for
// contiguous rows that is so with fewer units only.
int64_t most_units_for(const DecodeEntry& entry, const DecodeProblem& p) {
  // Tiles of 32 rows are half as many, and take less than twice as long.
  if (entry.value_dim > 256 && entry.cluster > 1 && entry.rows == 16 && rows_of(p) > 16) {
    return kTeamUnits / 2;
  }
  return entry.cluster == 2 && p.page_table == nullptr ? kDuoContiguousUnits : entry.most_units;
}

// Tiles of 32 rows are for problems that have more of 16 than the kernel before takes.
bool has_tile_for(const DecodeEntry& entry, int64_t rows) {
  return entry.rows == (rows <= 8 ? 8 : 16) || (entry.rows > 16 && rows > 16);
}

}  // namespace

bool is_for(const DecodeEntry& entry, const DecodeProblem& p) {
  if (entry.twin) {
    const int64_t half = entry.head_dim / 2;
    return p.q.dims == half && p.v.dims == half && p.k.heads % 2 == 0 && p.k.stride_head == half &&
           p.v.stride_head == half && !has_modified_scores(p) && !has_segments(p);
  }
  const int64_t largest = std::max(p.q.dims, p.v.dims);
  const bool dims = p.q.dims <= entry.head_dim && p.v.dims <= entry.value_dim &&
                    granule_keys(static_cast<int>(largest)) == granule_keys(entry.head_dim);
  const bool two_dims = entry.modified || entry.head_dim != entry.value_dim;
  return dims && (two_dims || p.q.dims == p.v.dims) && (entry.modified || !has_modified_scores(p)) &&
         entry.segments == has_segments(p);
}

const DecodeEntry* find_decode(const DecodeProblem& p) {
  const int64_t rows = rows_of(p);
  for (const auto& file : kDecodeFiles) {
    for (const DecodeEntry& entry : file()) {
      if (!is_for(entry, p) || entry.bf16 != (p.dtype == TESSERA_BF16)) {
        continue;
      }
      const int64_t units = most_units(entry, p);
      // Two heads at a time where there are units enough all the same, and the rows of both fit a tile.
      if (entry.twin ? 2 * rows <= entry.rows && units > kSingleUnits
                     : has_tile_for(entry, rows) && units <= most_units_for(entry, p)) {
        return &entry;
      }
    }
  }
  return nullptr;
}

}  // namespace tessera::sm90
