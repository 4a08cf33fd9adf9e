// The integer model of the k16 step against a second writing in long double, and its algebraic properties. What the
// hardware says is checked in gpu_mma_vectors_test.cpp.
#include "contract/mma_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>

#include "base/numeric_types.h"
#include "probe/vector_cases.h"

namespace tessera {
namespace {

using Operand = std::array<uint16_t, kStepTerms>;

// The step by its definition: long double holds every scaled term and their sum exactly.
template <class Format>
float slow_fdot(float c, const Operand& a, const Operand& b) {
  const auto exponent_of = [](uint16_t h) {
    const int field = (h >> Format::kFractionBits) & Format::kExponentMask;
    return std::max(field, 1) - Format::kExponentBias;
  };
  const auto value_of = [](uint16_t h) {
    return static_cast<long double>(Format::kExponentBias == 15 ? f16_to_f32(h) : bf16_to_f32(h));
  };
  int largest = -133;
  for (size_t i = 0; i < a.size(); ++i) {
    if (value_of(a[i]) * value_of(b[i]) != 0.0L) {
      largest = std::max(largest, exponent_of(a[i]) + exponent_of(b[i]));
    }
  }
  if (c != 0.0F) {
    largest = std::max(largest, std::max(std::ilogb(c), -126));
  }
  long double sum = std::trunc(std::ldexp(static_cast<long double>(c), 25 - largest));
  for (size_t i = 0; i < a.size(); ++i) {
    sum += std::trunc(std::ldexp(value_of(a[i]) * value_of(b[i]), 25 - largest));
  }
  const long double exact = std::ldexp(sum, largest - 25);
  if (std::fabs(exact) >= 0x1p128L) {
    return exact > 0 ? INFINITY : -INFINITY;
  }
  const auto nearest = static_cast<float>(exact);
  const float truncated =
      std::fabs(static_cast<long double>(nearest)) > std::fabs(exact) ? std::nextafter(nearest, 0.0F) : nearest;
  return truncated == 0.0F ? 0.0F : truncated;
}

template <class Format>
Operand operand(MmaMode mode, uint32_t tile, MmaStream stream, uint32_t line) {
  Operand values;
  for (uint32_t k = 0; k < kStepTerms; ++k) {
    values[k] = case_operand<Format>(mode, tile, stream, line, k);
  }
  return values;
}

template <class Format>
void compare_with_slow_fdot() {
  for (const MmaMode mode :
       {MmaMode::kNarrow, MmaMode::kWide, MmaMode::kZeros, MmaMode::kSubnormal, MmaMode::kCancellation, MmaMode::kApart,
        MmaMode::kTinyAccumulator, MmaMode::kZeroWeights, MmaMode::kOverflow, MmaMode::kUnderflow}) {
    for (uint32_t tile = 100; tile < 105; ++tile) {
      for (uint32_t row = 0; row < kTileRows; ++row) {
        const Operand a = operand<Format>(mode, tile, MmaStream::kA, row);
        for (uint32_t column = 0; column < kTileColumns; ++column) {
          const Operand b = operand<Format>(mode, tile, MmaStream::kB, column);
          const float c = float_of(case_accumulator<Format>(mode, tile, row, column));
          ASSERT_EQ(bits_of(fdot_k16<Format>(c, a.data(), b.data())), bits_of(slow_fdot<Format>(c, a, b)))
              << mma_mode_name(mode) << " tile " << tile << " row " << row << " column " << column;
        }
      }
    }
  }
}

TEST(Fdot, F16EqualsTheDefinitionInLongDouble) {
  compare_with_slow_fdot<F16Format>();
}
TEST(Fdot, Bf16EqualsTheDefinitionInLongDouble) {
  compare_with_slow_fdot<Bf16Format>();
}

TEST(Fdot, LargestSignificandsOfSixteenTermsDoNotOverflow) {
  Operand a;
  a.fill(0x3bff);  // largest fp16 significand, exponent -1
  EXPECT_EQ(bits_of(fdot_k16<F16Format>(0x1.fffffep-2F, a.data(), a.data())),
            bits_of(slow_fdot<F16Format>(0x1.fffffep-2F, a, a)));
  a.fill(0x3f7f);
  EXPECT_EQ(bits_of(fdot_k16<Bf16Format>(0x1.fffffep-2F, a.data(), a.data())),
            bits_of(slow_fdot<Bf16Format>(0x1.fffffep-2F, a, a)));
}

TEST(Fdot, IsSymmetricAndIndependentOfTheOrderOfTerms) {
  std::mt19937 random(5);
  for (uint32_t tile = 0; tile < 200; ++tile) {
    Operand a = operand<Bf16Format>(MmaMode::kApart, tile, MmaStream::kA, 1);
    Operand b = operand<Bf16Format>(MmaMode::kApart, tile, MmaStream::kB, 1);
    const float c = float_of(case_accumulator<Bf16Format>(MmaMode::kApart, tile, 1, 1));
    const float d = fdot_k16<Bf16Format>(c, a.data(), b.data());
    ASSERT_EQ(bits_of(fdot_k16<Bf16Format>(c, b.data(), a.data())), bits_of(d));
    for (size_t i = a.size() - 1; i > 0; --i) {
      const size_t j = random() % (i + 1);
      std::swap(a[i], a[j]);
      std::swap(b[i], b[j]);
    }
    ASSERT_EQ(bits_of(fdot_k16<Bf16Format>(c, a.data(), b.data())), bits_of(d));
  }
}

TEST(Fdot, AllZeroProductsReturnTheAccumulatorAndMinusZeroBecomesPlusZero) {
  Operand zero{};
  zero[3] = 0x8000;
  Operand huge;
  huge.fill(0x7f7f);
  for (const uint32_t c : {0x3f800001U, 0x80000001U, 0x00000001U, 0x7f7fffffU, 0x7f800000U, 0xff800000U}) {
    EXPECT_EQ(bits_of(fdot_k16<Bf16Format>(float_of(c), zero.data(), huge.data())), c);
  }
  EXPECT_EQ(bits_of(fdot_k16<Bf16Format>(-0.0F, zero.data(), huge.data())), 0U);
}

TEST(Fdot, SpecialValuesFollowIeeeAdditionWithOneNan) {
  Operand one;
  one.fill(0x3c00);
  Operand inf = one;
  inf[7] = 0x7c00;
  Operand minus_inf = one;
  minus_inf[9] = 0xfc00;
  Operand nan = one;
  nan[2] = 0xfe01;
  Operand zero{};
  EXPECT_EQ(bits_of(fdot_k16<F16Format>(1.0F, inf.data(), one.data())), 0x7f800000U);
  EXPECT_EQ(bits_of(fdot_k16<F16Format>(1.0F, one.data(), minus_inf.data())), 0xff800000U);
  EXPECT_EQ(bits_of(fdot_k16<F16Format>(1.0F, inf.data(), minus_inf.data())), 0x7fffffffU);
  EXPECT_EQ(bits_of(fdot_k16<F16Format>(-INFINITY, inf.data(), one.data())), 0x7fffffffU);
  EXPECT_EQ(bits_of(fdot_k16<F16Format>(1.0F, inf.data(), zero.data())), 0x7fffffffU);
  EXPECT_EQ(bits_of(fdot_k16<F16Format>(1.0F, nan.data(), zero.data())), 0x7fffffffU);
  EXPECT_EQ(bits_of(fdot_k16<F16Format>(NAN, one.data(), one.data())), 0x7fffffffU);
}

TEST(FdotDecoded, SpecialOperandThatMeetsZeroHasNoEffectAndElseGivesNan) {
  std::array<int16_t, kStepTerms> significands[2]{};
  std::array<int16_t, kStepTerms> exponents[2]{};
  exponents[0].fill(kZeroExponent);
  exponents[1].fill(kZeroExponent);
  const DecodedOperand nan = decode_operand<Bf16Format>(0x7fc0);
  significands[1][4] = nan.significand;
  exponents[1][4] = nan.exponent;
  const auto step = [&] {
    return fdot_decoded<Bf16Format>(2.5F, significands[0].data(), exponents[0].data(), significands[1].data(),
                                    exponents[1].data());
  };
  EXPECT_EQ(step(), 2.5F);
  significands[0][4] = 128;
  exponents[0][4] = 0;
  EXPECT_EQ(bits_of(step()), kMmaNan);
}

}  // namespace
}  // namespace tessera
