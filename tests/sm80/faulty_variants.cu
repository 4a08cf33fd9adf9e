#include "sm80/variant_tag.cuh"
#include "sm80/variants.h"

namespace tessera::test {
namespace {

constexpr Dims kD128 = {128, 128, false};
constexpr auto kBehind = sm80::Refill::kBehindProducts;
constexpr auto kNext = sm80::Refill::kAtNextTile;
constexpr auto kLater = sm80::Refill::kHalfAPhaseLater;

using Fault = sm80::StageFault;

// A stage is NaN between two fillings; "lost": and a tile of V is never filled.
const Variant kFaulty[] = {
    {"d128_w4_t128_s1_poisoned", variant_entry<kD128, made(4, 1, 128, 2, kBehind, false, Fault::kPoison)>()},
    {"d128_w4_t128_s1_lost", variant_entry<kD128, made(4, 1, 128, 2, kBehind, false, Fault::kPoisonAndLose)>()},
    {"d128_w4_t128_s1x_poisoned", variant_entry<kD128, made(4, 1, 128, 2, kLater, false, Fault::kPoison)>()},
    {"d128_w4_t128_s1x_lost", variant_entry<kD128, made(4, 1, 128, 2, kLater, false, Fault::kPoisonAndLose)>()},
    {"d128_w4_t64_s1_poisoned", variant_entry<kD128, made(4, 1, 64, 2, kBehind, false, Fault::kPoison)>()},
    {"d128_w4_t64_s2_poisoned", variant_entry<kD128, made(4, 2, 64, 2, kNext, false, Fault::kPoison)>()},
    {"d128_w4_t64_s2_lost", variant_entry<kD128, made(4, 2, 64, 2, kNext, false, Fault::kPoisonAndLose)>()},
    {"d128_w4_t64_s3_poisoned", variant_entry<kD128, made(4, 3, 64, 2, kNext, false, Fault::kPoison)>()},
    {"d128_w3_t32_s2g_poisoned", variant_entry<kD128, made(3, 2, 32, 2, kNext, true, Fault::kPoison)>()},
    {"d128_w3_t32_s2g_lost", variant_entry<kD128, made(3, 2, 32, 2, kNext, true, Fault::kPoisonAndLose)>()},
};

}  // namespace

std::span<const Variant> faulty_variants() {
  return kFaulty;
}

}  // namespace tessera::test
