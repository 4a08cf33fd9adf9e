#include "sm80/variants.h"

#include <algorithm>

#include "sm80/variant_tag.cuh"

namespace tessera::test {
namespace {

constexpr Dims kD64 = {64, 64, true};
constexpr Dims kD128 = {128, 128, true};
constexpr Dims kD256 = {256, 256, true};

// bf16 and tiles of whole granules.
const Variant kVariants[] = {
    {"d64_w4_s2", variant_entry<kD64, granules(4, 2, 2, 128, true)>()},
    {"d64_w4_s1", variant_entry<kD64, granules(4, 1, 2, 128, true)>()},
    {"d64_w4_s3", variant_entry<kD64, granules(4, 3, 2, 128)>()},
    {"d64_w4_s2G", variant_entry<kD64, made(4, 2, 128, 2, sm80::Refill::kAtNextTile, 4)>()},
    {"d64_w8_s2", variant_entry<kD64, granules(8, 2, 1, 128, true)>()},
    {"d128_w8_s1", variant_entry<kD128, granules(8, 1, 1, 128)>()},
    {"d128_w8_s2", variant_entry<kD128, granules(8, 2, 1, 128)>()},
    {"d128_w4_s2", variant_entry<kD128, granules(4, 2, 1, 128)>()},
    {"d256_w8_s1", variant_entry<kD256, granules(8, 1, 1, 64)>()},
};

}  // namespace

std::vector<Variant> staged_variants() {
  std::vector<Variant> all;
  for (const std::span<const Variant> part : {tile_variants(), query_tile_variants(), staging_variants()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::vector<Variant> variants() {
  std::vector<Variant> all = staged_variants();
  all.insert(all.end(), std::begin(kVariants), std::end(kVariants));
  return all;
}

const Variant* find_variant(std::string_view name) {
  static const std::vector<Variant> all = variants();
  const auto at = std::ranges::find(all, name, &Variant::name);
  return at == all.end() ? nullptr : &*at;
}

}  // namespace tessera::test
