#include "sm80/variant_tag.cuh"
#include "sm80/variants.h"

namespace tessera::test {
namespace {

constexpr Dims kD128 = {128, 128, false};
constexpr auto kNext = sm80::Refill::kAtNextTile;

// A warpgroup that copies for the others.
const Variant kStaging[] = {
    {"d128_w4_t128_s1G", variant_entry<kD128, made(4, 1, 128, 2, kNext, 4)>()},
    {"d128_w8_t128_s2G", variant_entry<kD128, made(8, 2, 128, 1, kNext, 4)>()},
    {"d128_w8_t128_s1G", variant_entry<kD128, made(8, 1, 128, 1, kNext, 4)>()},
};

}  // namespace

std::span<const Variant> staging_variants() {
  return kStaging;
}

}  // namespace tessera::test
