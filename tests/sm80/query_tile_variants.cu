#include "sm80/variant_tag.cuh"
#include "sm80/variants.h"

namespace tessera::test {
namespace {

constexpr Dims kD128 = {128, 128, false};
constexpr auto kNext = sm80::Refill::kAtNextTile;
constexpr auto kLater = sm80::Refill::kHalfAPhaseLater;

// Query tiles of 48 and 128 rows.
const Variant kQueryTiles[] = {
    {"d128_w3_t64_s2", variant_entry<kD128, made(3, 2, 64, 2, kNext)>()},
    {"d128_w3_t64_s2g", variant_entry<kD128, made(3, 2, 64, 2, kNext, 1)>()},
    {"d128_w3_t32_s2g", variant_entry<kD128, made(3, 2, 32, 2, kNext, 1)>()},
    {"d128_w8_t128_s1x", variant_entry<kD128, made(8, 1, 128, 1, kLater)>()},
};

}  // namespace

std::span<const Variant> query_tile_variants() {
  return kQueryTiles;
}

}  // namespace tessera::test
