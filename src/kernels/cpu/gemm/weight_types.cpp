#include "kernels/cpu/gemm/weight_types.h"

#include <fmt/format.h>

#include "kernels/cpu/gemm/weight_shape.h"

namespace tessera::gemm {
namespace {

// unit_bytes is the sum written out per plane: quants, high bits, scales (README.md, "Packed layout").
constexpr WeightTraits kTraits[] = {
    {WeightType::kF32, "F32", 1, 4, 1, 64, false},
    {WeightType::kF16, "F16", 1, 2, 1, 32, false},
    {WeightType::kBF16, "BF16", 1, 2, 1, 32, false},
    {WeightType::kQ4_0, "Q4_0", 32, 18, 32, 256 + 32, true},
    {WeightType::kQ4_1, "Q4_1", 32, 20, 32, 256 + 32 + 32, true},
    {WeightType::kQ5_0, "Q5_0", 32, 22, 32, 256 + 64 + 32, true},
    {WeightType::kQ5_1, "Q5_1", 32, 24, 32, 256 + 64 + 32 + 32, true},
    {WeightType::kQ8_0, "Q8_0", 32, 34, 32, 512 + 32, true},
    {WeightType::kQ4_K, "Q4_K", 256, 144, 256, 8 * 256 + 128 + 128 + 32 + 32, true},
    {WeightType::kQ5_K, "Q5_K", 256, 176, 256, 8 * (256 + 64) + 128 + 128 + 32 + 32, true},
    {WeightType::kQ6_K, "Q6_K", 256, 210, 256, 8 * (256 + 128) + 256 + 32, true},
};

// Keeps every size and offset below 2^62 even for F32 (64 bytes per k and row group).
constexpr int64_t kMaxDim = int64_t{1} << 31;
constexpr int64_t kMaxElements = int64_t{1} << 50;

}  // namespace

const WeightTraits* weight_traits(int32_t type) {
  for (const WeightTraits& traits : kTraits) {
    if (static_cast<int32_t>(traits.type) == type) return &traits;
  }
  return nullptr;
}

Result<const WeightTraits*> check_weight_shape(int32_t type, int64_t n, int64_t k) {
  const WeightTraits* traits = weight_traits(type);
  if (traits == nullptr) {
    return Status(Code::kUnsupported,
                  fmt::format("type: got {}; allowed 0 (F32), 1 (F16), 2 (Q4_0), 3 (Q4_1), 6 (Q5_0), 7 (Q5_1), 8 "
                              "(Q8_0), 12 (Q4_K), 13 (Q5_K), 14 (Q6_K), 30 (BF16); requantise the matrix",
                              type));
  }
  if (n < 1 || n > kMaxDim) {
    return Status(Code::kInvalidArgument, fmt::format("n: got {}; allowed 1..{}; pass the number of rows", n, kMaxDim));
  }
  if (k < 1 || k > kMaxDim || k % traits->file_block_k != 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("k: got {}; allowed multiples of {} in 1..{} for {}; pass the row length in elements", k,
                              traits->file_block_k, kMaxDim, traits->name));
  }
  if (row_groups(n) * kGroupRows > kMaxElements / k) {
    return Status(Code::kInvalidArgument,
                  fmt::format("n * k: got {} * {}; allowed at most {} elements; split the matrix", n, k, kMaxElements));
  }
  return traits;
}

size_t packed_size(const WeightTraits& traits, int64_t n, int64_t k) {
  return static_cast<size_t>(row_groups(n)) * group_bytes(traits, k);
}

}  // namespace tessera::gemm
