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
    {"d128_w4_t128_s1_poisoned", variant_entry<kD128, made(4, 1, 128, 2, kBehind, 0, Fault::kPoison)>()},
    {"d128_w4_t128_s1_lost", variant_entry<kD128, made(4, 1, 128, 2, kBehind, 0, Fault::kPoisonAndLose)>()},
    {"d128_w4_t128_s1x_poisoned", variant_entry<kD128, made(4, 1, 128, 2, kLater, 0, Fault::kPoison)>()},
    {"d128_w4_t128_s1x_lost", variant_entry<kD128, made(4, 1, 128, 2, kLater, 0, Fault::kPoisonAndLose)>()},
    {"d128_w4_t64_s2_poisoned", variant_entry<kD128, made(4, 2, 64, 2, kNext, 0, Fault::kPoison)>()},
    {"d128_w4_t64_s2_lost", variant_entry<kD128, made(4, 2, 64, 2, kNext, 0, Fault::kPoisonAndLose)>()},
    {"d128_w3_t32_s2g_poisoned", variant_entry<kD128, made(3, 2, 32, 2, kNext, 1, Fault::kPoison)>()},
    {"d128_w3_t32_s2g_lost", variant_entry<kD128, made(3, 2, 32, 2, kNext, 1, Fault::kPoisonAndLose)>()},
    {"d128_w4_t128_s1G_poisoned", variant_entry<kD128, made(4, 1, 128, 2, kNext, 4, Fault::kPoison)>()},
    {"d128_w4_t128_s1G_lost", variant_entry<kD128, made(4, 1, 128, 2, kNext, 4, Fault::kPoisonAndLose)>()},
};

}  // namespace

std::span<const Variant> faulty_variants() {
  return kFaulty;
}

}  // namespace tessera::test
