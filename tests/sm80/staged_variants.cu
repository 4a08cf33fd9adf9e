#include "sm80/variant_tag.cuh"
#include "sm80/variants.h"

namespace tessera::test {
namespace {

constexpr Dims kD64 = {64, 64, false};
constexpr Dims kD128 = {128, 128, false};
constexpr Dims kD192 = {192, 128, false};
constexpr auto kBehind = sm80::Refill::kBehindProducts;
constexpr auto kNext = sm80::Refill::kAtNextTile;
constexpr auto kLater = sm80::Refill::kHalfAPhaseLater;

// Head dim, warps, keys of a tile, stages; n, x: filled at the next tile, half a phase later; g: a staging warp.
const Variant kStaged[] = {
    {"d128_w4_t128_s1", variant_entry<kD128, made(4, 1, 128, 2, kBehind)>()},
    {"d128_w4_t128_s1n", variant_entry<kD128, made(4, 1, 128, 2, kNext)>()},
    {"d128_w4_t128_s1x", variant_entry<kD128, made(4, 1, 128, 2, kLater)>()},
    {"d128_w4_t128_s2", variant_entry<kD128, made(4, 2, 128, 1, kNext)>()},
    {"d128_w4_t128_s3", variant_entry<kD128, made(4, 3, 128, 1, kNext)>()},
    {"d128_w4_t64_s1", variant_entry<kD128, made(4, 1, 64, 2, kBehind)>()},
    {"d128_w4_t64_s2", variant_entry<kD128, made(4, 2, 64, 2, kNext)>()},
    {"d128_w4_t64_s2x", variant_entry<kD128, made(4, 2, 64, 2, kLater)>()},
    {"d128_w4_t64_s3", variant_entry<kD128, made(4, 3, 64, 2, kNext)>()},
    {"d128_w4_t32_s3", variant_entry<kD128, made(4, 3, 32, 2, kNext)>()},
    {"d128_w3_t128_s1g", variant_entry<kD128, made(3, 1, 128, 2, kNext, true)>()},
    {"d128_w3_t128_s1x", variant_entry<kD128, made(3, 1, 128, 2, kLater)>()},
    {"d128_w3_t64_s2", variant_entry<kD128, made(3, 2, 64, 2, kNext)>()},
    {"d128_w3_t64_s2g", variant_entry<kD128, made(3, 2, 64, 2, kNext, true)>()},
    {"d128_w3_t32_s2g", variant_entry<kD128, made(3, 2, 32, 2, kNext, true)>()},
    {"d128_w8_t128_s1x", variant_entry<kD128, made(8, 1, 128, 1, kLater)>()},
    {"d128_w8_t64_s3", variant_entry<kD128, made(8, 3, 64, 1, kNext)>()},
    {"d64_w4_t128_s2x", variant_entry<kD64, made(4, 2, 128, 3, kLater)>()},
    {"d64_w4_t128_s1x", variant_entry<kD64, made(4, 1, 128, 3, kLater)>()},
    {"d192_w4_t64_s2x", variant_entry<kD192, made(4, 2, 64, 2, kLater)>()},
};

}  // namespace

std::span<const Variant> staged_variants() {
  return kStaged;
}

}  // namespace tessera::test
