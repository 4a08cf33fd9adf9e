// FP8 rows on the device have the bits of R11 for every code, with scales of every kind. Needs an sm_90 GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "contract/fp8_rows.h"
#include "sm90/byte_test.h"
#include "sm90/fp8_rows_check.h"

namespace tessera::sm90 {
namespace {

// Ranges of the short ways (kernels/sm90/fp8_rows.cuh).
constexpr uint32_t kLargestByte = 134;
constexpr float kLargestScale = 0x1p119F;

class DeviceFp8Rows : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "NO CUDA DEVICE: FP8 rows are not compared here";
    }
  }

  // All codes with each of the scales, by the device and by R11.
  static void check(Fp8Way way, const std::vector<float>& scales) {
    Mirror input(scales.size() * sizeof(float));
    std::memcpy(input.host(), scales.data(), scales.size() * sizeof(float));
    input.upload();
    Mirror output(scales.size() * 256 * sizeof(uint16_t));
    std::memset(output.host(), 0x55, output.bytes().size());
    output.upload();
    ASSERT_EQ(convert_all_codes(way, static_cast<const float*>(input.device()), static_cast<int>(scales.size()),
                                static_cast<uint16_t*>(output.device())),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<uint16_t> values(scales.size() * 256);
    std::memcpy(values.data(), output.download().data(), output.bytes().size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], fp8_to_bf16(static_cast<uint8_t>(i % 256), scales[i / 256]))
          << "code " << i % 256 << " scale " << scales[i / 256];
    }
  }
};

std::vector<float> all_kinds_of_scales() {
  std::vector<float> scales;
  for (int byte = 0; byte < 256; ++byte) scales.push_back(ue8m0_to_f32(static_cast<uint8_t>(byte)));
  std::mt19937 random(17);
  for (int i = 0; i < 30000; ++i) scales.push_back(float_of(static_cast<uint32_t>(random())));  // NaN and Inf too
  for (int i = 0; i < 2000; ++i) scales.push_back(float_of(static_cast<uint32_t>(random()) & 0x807fffffU));
  return scales;
}

TEST_F(DeviceFp8Rows, EveryCodeWithEveryKindOfScale) {
  check(Fp8Way::kGeneral, all_kinds_of_scales());
}

TEST_F(DeviceFp8Rows, EveryCodeByAFactor) {
  std::vector<float> scales;
  for (uint32_t byte = 0; byte <= kLargestByte; ++byte) scales.push_back(ue8m0_to_f32(static_cast<uint8_t>(byte)));
  check(Fp8Way::kByFactor, scales);
}

TEST_F(DeviceFp8Rows, EveryCodeByAScaleInRange) {
  std::vector<float> scales = all_kinds_of_scales();
  std::erase_if(scales, [](float scale) { return !(std::fabs(scale) < kLargestScale); });
  scales.push_back(std::nextafter(kLargestScale, 0.0F));
  ASSERT_GT(scales.size(), 20000U);
  check(Fp8Way::kByScale, scales);
}

// Not a limit, a figure for whoever writes a producer: what a block of 256 threads alone on its SM converts.
TEST_F(DeviceFp8Rows, SaysWhatItCosts) {
  constexpr int kRepeats = 1000;
  for (const Fp8Way way : {Fp8Way::kGeneral, Fp8Way::kByFactor, Fp8Way::kByScale}) {
    Mirror mirror(2 * sizeof(long long));
    std::memset(mirror.host(), 0, mirror.bytes().size());
    mirror.upload();
    ASSERT_EQ(time_conversions(way, kRepeats, static_cast<long long*>(mirror.device())), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    long long clocks[2];
    std::memcpy(clocks, mirror.download().data(), sizeof clocks);
    std::printf("way %d, codes per clock of an SM: %.1f\n", static_cast<int>(way),
                256.0 * 16 * kRepeats / static_cast<double>(clocks[0]));
    EXPECT_GT(clocks[0], 0);
  }
}

}  // namespace
}  // namespace tessera::sm90
