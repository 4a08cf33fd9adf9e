// Deterministic inputs of the GPU vectors: the probe program runs them on an H200, the tests repeat them on the CPU.
// Every input is a pure function of a few small integers, so that millions of cases need no file. Changing anything
// here invalidates tests/vectors/{mma,ex2}.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "contract/mma_model.h"

namespace tessera {

// splitmix64's output function: a bijection of 64 bits that spreads every input bit.
TESSERA_HD uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Contribution of one result to the hash of a sweep: the hash is the sum modulo 2^64, so any order gives the same.
// All NaN count as one (the payload of a NaN is not part of the contract outside fdot and ex2).
TESSERA_HD uint64_t hash_term(uint32_t index, uint32_t result) {
  return mix64((static_cast<uint64_t>(index) << 32) | result);
}
TESSERA_HD uint32_t canonical_nan(uint32_t bits) {
  return (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fffffffU : bits;
}

// ---- fdot: tiles of 64 x 8 results; row r of A meets column n of B over up to 128 products.

inline constexpr int kTileRows = 64;
inline constexpr int kTileColumns = 8;
inline constexpr int kTileOutputs = kTileRows * kTileColumns;
inline constexpr int kChainSteps = 8;          // k16 steps of a chained case
inline constexpr uint32_t kSampleTiles = 4;    // tiles per mode whose results are stored
inline constexpr uint32_t kSweepTiles = 4096;  // tiles per mode that are hashed (the stored ones first)

enum class MmaMode : uint32_t {
  kNarrow,           // exponents within +-2
  kWide,             // exponents far apart, subnormals included
  kZeros,            // half of the elements are zeros of either sign
  kSubnormal,        // subnormal a
  kCancellation,     // products cancel in pairs, up to last-bit differences
  kApart,            // accumulator 2^-30 .. 2^30 from the products, both signs
  kTinyAccumulator,  // accumulator subnormal or close to it, products as small as the type allows
  kZeroWeights,      // a is zero except for one element in 32 columns, b is as large as the type allows
  kOverflow,         // results around the largest fp32
  kSpecials,         // Inf and NaN among ordinary values
  kZeroSum,          // all products zero; accumulator of every kind, -0 included
  kRawBits,          // every bit random
  kUnderflow,        // results around the smallest fp32
};
inline constexpr uint32_t kMmaModes = 13;

TESSERA_HD const char* mma_mode_name(MmaMode mode) {
  switch (mode) {
    case MmaMode::kNarrow:
      return "narrow";
    case MmaMode::kWide:
      return "wide";
    case MmaMode::kZeros:
      return "zeros";
    case MmaMode::kSubnormal:
      return "subnormal";
    case MmaMode::kCancellation:
      return "cancellation";
    case MmaMode::kApart:
      return "apart";
    case MmaMode::kTinyAccumulator:
      return "tiny_accumulator";
    case MmaMode::kZeroWeights:
      return "zero_weights";
    case MmaMode::kOverflow:
      return "overflow";
    case MmaMode::kSpecials:
      return "specials";
    case MmaMode::kZeroSum:
      return "zero_sum";
    case MmaMode::kRawBits:
      return "raw_bits";
    case MmaMode::kUnderflow:
      return "underflow";
  }
  return "";
}

enum class MmaStream : uint64_t { kA = 1, kB = 2, kC = 3 };

TESSERA_HD uint64_t case_random(MmaMode mode, uint32_t tile, MmaStream stream, uint32_t line, uint32_t k) {
  return mix64(static_cast<uint64_t>(mode) << 56 | static_cast<uint64_t>(stream) << 48 |
               static_cast<uint64_t>(tile) << 24 | static_cast<uint64_t>(line) << 12 | k);
}

// A 16-bit value: sign and fraction from the low bits of r, exponent field clamped into the finite range.
template <class Format>
TESSERA_HD uint16_t half_of(uint64_t r, int32_t field) {
  const int32_t largest = Format::kExponentMask - 1;
  const int32_t clamped = field < 0 ? 0 : field > largest ? largest : field;
  const uint32_t fraction = static_cast<uint32_t>(r) & ((1U << Format::kFractionBits) - 1U);
  return static_cast<uint16_t>(((r >> 15) & 1U) << 15 | static_cast<uint32_t>(clamped) << Format::kFractionBits |
                               fraction);
}

// An integer in [low, high] from the upper bits of r.
TESSERA_HD int32_t in_range(uint64_t r, int32_t low, int32_t high) {
  return low + static_cast<int32_t>((r >> 32) % static_cast<uint64_t>(high - low + 1));
}

template <class Format>
TESSERA_HD uint16_t case_operand(MmaMode mode, uint32_t tile, MmaStream stream, uint32_t line, uint32_t k) {
  const int32_t bias = Format::kExponentBias;
  const int32_t top = Format::kExponentMask - 1;
  const bool is_a = stream == MmaStream::kA;
  const uint64_t r = case_random(mode, tile, stream, line, k);
  const uint16_t narrow = half_of<Format>(r, bias + in_range(r, -2, 2));
  const auto zero = static_cast<uint16_t>(r & 0x8000U);
  switch (mode) {
    case MmaMode::kNarrow:
    case MmaMode::kApart:
      return narrow;
    case MmaMode::kWide:
      return half_of<Format>(r, in_range(r, 0, bias == 127 ? 185 : top));  // bf16: sums rarely overflow
    case MmaMode::kZeros:
      return ((r >> 20) & 1U) != 0 ? zero : narrow;
    case MmaMode::kSubnormal:
      return is_a ? half_of<Format>(r, in_range(r, 0, 1)) : half_of<Format>(r, in_range(r, bias, top));
    case MmaMode::kCancellation: {
      if ((k & 8U) == 0) {
        return narrow;
      }
      const uint64_t partner = case_random(mode, tile, stream, line, k - 8);
      const uint16_t same = half_of<Format>(partner, bias + in_range(partner, -2, 2));
      const uint32_t flip = is_a ? 0x8000U | (((r >> 20) & 3U) == 0 ? 1U : 0U) : 0U;
      return static_cast<uint16_t>(same ^ flip);
    }
    case MmaMode::kTinyAccumulator:
      return ((r >> 20) & 1U) != 0 ? zero : half_of<Format>(r, in_range(r, 0, is_a ? 2 : bias));
    case MmaMode::kZeroWeights:
      return is_a ? (((r >> 20) & 31U) == 0 ? half_of<Format>(r, 1) : zero) : half_of<Format>(r, top);
    case MmaMode::kOverflow:
      // Products close to 2^127 for bf16; fp16 cannot reach it, there the accumulator is at the edge.
      return half_of<Format>(r, bias == 127 ? bias + in_range(r, 59, 64) : top);
    case MmaMode::kSpecials:
      if (((r >> 20) & 63U) == 0) {
        return static_cast<uint16_t>(zero | (Format::kExponentMask << Format::kFractionBits) |
                                     (((r >> 26) & 3U) == 0 ? 1U : 0U));
      }
      return ((r >> 30) & 31U) == 0 ? zero : narrow;
    case MmaMode::kZeroSum:
      // One operand of every product is zero; which one depends on k only.
      return ((k & 1U) != 0) == is_a ? zero : half_of<Format>(r, in_range(r, 0, top));
    case MmaMode::kRawBits:
      return static_cast<uint16_t>(r);
    case MmaMode::kUnderflow:
      return half_of<Format>(r, bias == 127 ? bias + in_range(r, -78, -68) : in_range(r, 0, 3));
  }
  return 0;
}

TESSERA_HD uint32_t float_bits(uint64_t r, int32_t field) {
  const int32_t clamped = field < 0 ? 0 : field > 254 ? 254 : field;
  return (static_cast<uint32_t>(r) & 0x807fffffU) | static_cast<uint32_t>(clamped) << 23;
}

// Accumulator of output (row, column).
template <class Format>
TESSERA_HD uint32_t case_accumulator(MmaMode mode, uint32_t tile, uint32_t row, uint32_t column) {
  const uint64_t r = case_random(mode, tile, MmaStream::kC, row, column);
  const bool bf16 = Format::kExponentBias == 127;
  switch (mode) {
    case MmaMode::kNarrow:
    case MmaMode::kZeros:
      return float_bits(r, 127 + in_range(r, -4, 6));
    case MmaMode::kWide:
      return float_bits(r, bf16 ? in_range(r, 0, 254) : 127 + in_range(r, -50, 34));
    case MmaMode::kSubnormal:
      return float_bits(r, bf16 ? in_range(r, 0, 60) : 127 + in_range(r, -30, 4));
    case MmaMode::kCancellation:
      return float_bits(r, 127 + in_range(r, -40, 2));
    case MmaMode::kApart:
      return float_bits(r, 127 + in_range(r, -30, 30));
    case MmaMode::kTinyAccumulator:
      return float_bits(r, in_range(r, 0, 30));
    case MmaMode::kZeroWeights:
      return float_bits(r, in_range(r, 0, 254));
    case MmaMode::kOverflow:
      return float_bits(r, in_range(r, 250, 254));
    case MmaMode::kSpecials:
      return ((r >> 24) & 15U) == 0 ? 0x7f800000U | (static_cast<uint32_t>(r) & 0x80000001U)
                                    : float_bits(r, 127 + in_range(r, -4, 6));
    case MmaMode::kZeroSum:
      switch ((r >> 32) & 7U) {
        case 0:
          return static_cast<uint32_t>(r) & 0x80000000U;
        case 1:
          return 0x7f800000U | (static_cast<uint32_t>(r) & 0x80000000U);
        case 2:
          return 0x7f800000U | (static_cast<uint32_t>(r) & 0x80000001U);
        case 3:
          return static_cast<uint32_t>(r) & 0x807fffffU;
        default:
          return float_bits(r, static_cast<int32_t>((r >> 40) % 255));
      }
    case MmaMode::kRawBits:
      return static_cast<uint32_t>(r);
    case MmaMode::kUnderflow:
      return ((r >> 24) & 1U) != 0 ? 0U : float_bits(r, in_range(r, 0, 4));
  }
  return 0;
}

// ---- ex2 and the elementary functions

inline constexpr uint32_t kBlockInputs = 1U << 24;  // inputs per hash: the upper 8 bits of the input select the block
inline constexpr uint32_t kBlocks = 256;
inline constexpr uint32_t kEx2Mantissas = 200;
inline constexpr uint32_t kEx2Samples = 512 * kEx2Mantissas;

// Input of ex2 sample i: sign and exponent field from i / kEx2Mantissas, the first mantissas are edges.
TESSERA_HD uint32_t ex2_sample_input(uint32_t i) {
  const uint32_t head = i / kEx2Mantissas;
  const uint32_t m = i % kEx2Mantissas;
  uint32_t mantissa = static_cast<uint32_t>(mix64(i)) & 0x7fffffU;
  if (m < 8) {
    mantissa = m;
  } else if (m < 16) {
    mantissa = 0x7fffffU - (m - 8);
  } else if (m < 39) {
    mantissa = 1U << (m - 16);
  } else if (m < 62) {
    mantissa = (1U << (m - 39)) - 1U;
  } else if (m < 85) {
    mantissa = 0x7fffffU & ~(1U << (m - 62));
  }
  return head << 23 | mantissa;
}

inline constexpr uint32_t kCeilCases = 1U << 22;

// Arguments of ceil_product case i: mostly products within 2^24, some integers and near-integers, some extremes.
struct CeilCase {
  float mu, c;
};
TESSERA_HD CeilCase ceil_case(uint32_t i) {
  const uint64_t r = mix64(i);
  const uint64_t t = mix64(r);
  const uint32_t kind = i & 7U;
  float mu = float_of(float_bits(r, 127 + in_range(r, -8, 16)));
  float c = float_of(float_bits(t, 127 + in_range(t, -6, 7)) & 0x7fffffffU);
  if (kind == 0) {
    c = float_of(static_cast<uint32_t>(in_range(t, 120, 134)) << 23);  // powers of two: exact integers happen
    mu = static_cast<float>(in_range(r, -100000, 100000));
  } else if (kind == 1) {
    mu = float_of(float_bits(r, in_range(r, 1, 254)));
  }
  return {mu, c};
}

}  // namespace tessera
