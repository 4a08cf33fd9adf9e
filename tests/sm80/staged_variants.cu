#include "sm80/variant_tag.cuh"
#include "sm80/variants.h"

namespace tessera::test {
namespace {

constexpr Dims kD128 = {128, 128, false};
constexpr auto kBehind = sm80::Refill::kBehindProducts;
constexpr auto kNext = sm80::Refill::kAtNextTile;
constexpr auto kLater = sm80::Refill::kHalfAPhaseLater;

// Stages of K and V, and tiles of parts of granules.
const Variant kStaged[] = {
    {"d128_w4_t128_s1", variant_entry<kD128, made(4, 1, 128, 2, kBehind)>()},
    {"d128_w4_t128_s1x", variant_entry<kD128, made(4, 1, 128, 2, kLater)>()},
    {"d128_w4_t128_s2", variant_entry<kD128, made(4, 2, 128, 1, kNext)>()},
    {"d128_w4_t64_s2", variant_entry<kD128, made(4, 2, 64, 2, kNext)>()},
    {"d128_w4_t64_s3", variant_entry<kD128, made(4, 3, 64, 2, kNext)>()},
};

}  // namespace

std::span<const Variant> tile_variants() {
  return kStaged;
}

}  // namespace tessera::test
