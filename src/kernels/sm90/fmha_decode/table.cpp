#include "kernels/sm90/fmha_decode/table.h"

namespace tessera::sm90 {
namespace {

// Blocks per unit. An H200 holds 132, 66, 30, 15 clusters of 1, 2, 4, 8 at a time; two rounds of pairs are a little
// faster than one of single blocks (1 x 32768 and 8 x 4096 keys, 128 units).
int blocks_per_unit(int64_t units) {
  return units <= 15 ? 8 : units <= 30 ? 4 : units <= 132 ? 2 : 1;
}

}  // namespace

const DecodeEntry* find_decode(const DecodeProblem& p) {
  const int64_t rows = p.q.tokens * (p.q.heads / p.k.heads);
  const int tile = rows <= 8 ? 8 : 16;
  const int most = blocks_per_unit(most_units(p, tile));
  const DecodeEntry* best = nullptr;
  for (const auto& file : kDecodeFiles) {
    for (const DecodeEntry& entry : file()) {
      if (entry.head_dim == (p.q.dims <= 64    ? 64
                             : p.q.dims <= 128 ? 128
                                               : 256) &&
          entry.bf16 == (p.dtype == TESSERA_BF16) && entry.rows == tile && entry.paged == (p.page_table != nullptr) &&
          entry.cluster <= most && (best == nullptr || entry.cluster > best->cluster)) {
        best = &entry;
      }
    }
  }
  return best;
}

}  // namespace tessera::sm90
