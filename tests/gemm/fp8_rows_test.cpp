// tessera_kv_to_fp8 (E6): bytes against a formula of the test's own, slots, floors and refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/numeric_types.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

struct Format {
  tessera_kv_format format;
  int64_t dims, coded, tile;
};
constexpr Format kV32{TESSERA_KV_FP8_V32_656, 576, 512, 128};
constexpr Format kV4{TESSERA_KV_FP8_V4_584, 512, 448, 64};

double e4m3(int code) {
  const int field = code >> 3 & 15;
  const double magnitude = field == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), field - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

std::vector<uint16_t> random_rows(int64_t rows, int64_t dims, float spread) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<uint16_t> x(static_cast<size_t>(rows * dims));
  for (uint16_t& bits : x) bits = f32_to_bf16(normal(random));
  return x;
}

// Cache of `pages` pages of `page_size` rows, 16-byte aligned, every byte 0xee.
struct Cache {
  Cache(Format f, int32_t slots_of_page, int64_t page_count)
      : format(f),
        page_size(slots_of_page),
        pages(page_count),
        stride(((slots_of_page * row_bytes() + 575) / 576) * 576) {
    memory.assign(static_cast<size_t>(stride * pages) + 16, 0xee);
  }
  int64_t row_bytes() const { return format.format == TESSERA_KV_FP8_V4_584 ? 584 : 656; }
  uint8_t* data() { return memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16) % 16; }
  uint8_t* page(int64_t slot) { return data() + slot / page_size * stride; }
  const uint8_t* row(int64_t slot) {
    return page(slot) + slot % page_size * (format.format == TESSERA_KV_FP8_V4_584 ? 576 : 656);
  }
  double scale(int64_t slot, int64_t tile) {
    if (format.format == TESSERA_KV_FP8_V4_584) {
      return std::ldexp(1.0, page(slot)[page_size * 576 + slot % page_size * 8 + tile] - 127);
    }
    float x = 0.0F;
    std::memcpy(&x, row(slot) + 512 + 4 * tile, 4);
    return x;
  }
  uint16_t rest(int64_t slot, int64_t d) {
    uint16_t x = 0;
    std::memcpy(&x, row(slot) + (format.format == TESSERA_KV_FP8_V4_584 ? 448 : 528) + 2 * d, 2);
    return x;
  }
  tessera_status write(int64_t rows, const std::vector<uint16_t>& x, const int64_t* slots, int32_t floor = -22,
                       tessera_error* error = nullptr) {
    return tessera_kv_to_fp8(format.format, rows, x.data(), format.dims, floor, slots, data(), stride, page_size, pages,
                             error);
  }

  Format format;
  int32_t page_size;
  int64_t pages;
  int64_t stride;
  std::vector<uint8_t> memory;
};

void expect_row(Cache& cache, int64_t slot, const uint16_t* x, int floor) {
  const Format& f = cache.format;
  for (int64_t tile = 0; tile * f.tile < f.coded; ++tile) {
    double largest = 0.0;
    for (int64_t d = tile * f.tile; d < (tile + 1) * f.tile; ++d) {
      largest = std::max(largest, std::fabs(static_cast<double>(bf16_to_f32(x[d]))));
    }
    int e = floor;
    while (std::ldexp(448.0, e) < largest) ++e;
    ASSERT_EQ(cache.scale(slot, tile), std::ldexp(1.0, e)) << tile;
    for (int64_t d = tile * f.tile; d < (tile + 1) * f.tile; ++d) {
      const double value = bf16_to_f32(x[d]);
      const double error = std::fabs(e4m3(cache.row(slot)[d]) * std::ldexp(1.0, e) - value);
      for (int code = 0; code < 256; ++code) {
        if ((code & 0x7f) == 0x7f) continue;
        ASSERT_LE(error, std::fabs(e4m3(code) * std::ldexp(1.0, e) - value)) << d;
      }
    }
  }
  for (int64_t d = 0; d < 64; ++d) ASSERT_EQ(cache.rest(slot, d), x[f.coded + d]);
}

TEST(KvToFp8, EveryElementIsTheNearestOneUnderTheSmallestScale) {
  for (const Format& f : {kV32, kV4}) {
    for (const float spread : {1.0F, 1e-3F, 3e4F}) {
      const std::vector<uint16_t> x = random_rows(5, f.dims, spread);
      Cache cache(f, 3, 2);
      ASSERT_EQ(cache.write(5, x, nullptr), TESSERA_OK);
      for (int64_t r = 0; r < 5; ++r) expect_row(cache, r, x.data() + r * f.dims, -22);
    }
  }
}

TEST(KvToFp8, TheFloorIsTheCallers) {
  for (const int floor : {-22, -13}) {
    std::vector<uint16_t> x = random_rows(1, 512, 1e-6F);
    std::fill(x.begin() + 64, x.begin() + 128, uint16_t{0});
    Cache cache(kV4, 1, 1);
    ASSERT_EQ(cache.write(1, x, nullptr, floor), TESSERA_OK);
    EXPECT_EQ(cache.scale(0, 0), std::ldexp(1.0, floor));
    EXPECT_EQ(cache.scale(0, 1), std::ldexp(1.0, floor));
    expect_row(cache, 0, x.data(), floor);
  }
}

TEST(KvToFp8, SlotsGetTheirRowsAndNothingElseIsWritten) {
  const std::vector<uint16_t> x = random_rows(4, 512, 1.0F);
  Cache cache(kV4, 2, 3);
  Cache want(kV4, 2, 3);
  const std::vector<int64_t> slots = {4, -1, 1, 4};  // the last row of a slot stays
  ASSERT_EQ(cache.write(4, x, slots.data()), TESSERA_OK);
  expect_row(cache, 4, x.data() + 3 * 512, -22);
  expect_row(cache, 1, x.data() + 2 * 512, -22);
  for (const int64_t slot : {0, 2, 3, 5}) {
    EXPECT_EQ(std::memcmp(cache.row(slot), want.row(slot), 576), 0) << slot;
    EXPECT_EQ(std::memcmp(cache.page(slot) + 2 * 576 + slot % 2 * 8, want.page(slot) + 2 * 576 + slot % 2 * 8, 8), 0);
  }
  EXPECT_EQ(cache.page(4)[2 * 576 + 7], 0) << "the byte that nobody reads";
}

TEST(KvToFp8, RefusalsNameTheArgument) {
  const std::vector<uint16_t> x = random_rows(3, 512, 1.0F);
  tessera_error error{};
  Cache cache(kV4, 1, 2);
  const std::vector<int64_t> beyond = {0, 2, 1};
  EXPECT_EQ(cache.write(3, x, nullptr, -22, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("rows: got 3; allowed 0..2", 0), 0U) << error.text;
  EXPECT_EQ(cache.write(3, x, beyond.data(), -22, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("slots[1]: got 2; allowed -1 (nowhere) to 1", 0), 0U) << error.text;
  EXPECT_EQ(cache.write(1, x, nullptr, 1, &error), TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("smallest_scale: got 1", 0), 0U) << error.text;
  EXPECT_EQ(tessera_kv_to_fp8(TESSERA_KV_DENSE, 1, x.data(), 512, -22, nullptr, cache.data(), 1152, 1, 2, &error),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("format: got 0", 0), 0U) << error.text;
  EXPECT_EQ(tessera_kv_to_fp8(kV4.format, 1, x.data(), 512, -22, nullptr, cache.data(), 583, 1, 2, &error),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("stride_page: got 583; allowed 584..", 0), 0U) << error.text;
  EXPECT_EQ(tessera_kv_to_fp8(kV4.format, 1, x.data(), 512, -22, nullptr, cache.data() + 1, 1152, 1, 2, &error),
            TESSERA_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.text).rfind("cache: got address", 0), 0U) << error.text;
  EXPECT_TRUE(std::all_of(cache.memory.begin(), cache.memory.end(), [](uint8_t b) { return b == 0xee; }));
}

}  // namespace
}  // namespace tessera
