// Schedules that the library does not use; their bytes must be its bytes.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/sm80/fmha/entry.h"

namespace tessera::test {

struct Variant {
  std::string_view name;
  sm80::Entry entry;
};

// fp16 at head dim 128. In a name: w, warps of 16 query rows; t, keys of a stage; s, stages; then x, a refill half a
// phase later; g, a staging warp; G, a staging warpgroup.
std::span<const Variant> tile_variants();
std::span<const Variant> query_tile_variants();
std::span<const Variant> staging_variants();
std::vector<Variant> staged_variants();  // all three

// Kernels whose stages are poisoned, and kernels that lose a tile; not among variants().
std::span<const Variant> faulty_variants();

// All schedules that must give the library's bytes.
std::vector<Variant> variants();
const Variant* find_variant(std::string_view name);

}  // namespace tessera::test
