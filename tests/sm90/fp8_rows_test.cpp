// FP8 rows on the device have the bits of R11 for every code, with scales of every kind. Needs an sm_90 GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "contract/fp8_rows.h"
#include "sm90/byte_test.h"
#include "sm90/fp8_rows_check.h"

namespace tessera::sm90 {
namespace {

class DeviceFp8Rows : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "NO CUDA DEVICE: FP8 rows are not compared here";
    }
  }

  // What `convert` writes for `scales` scales.
  template <class Convert>
  std::vector<uint16_t> converted(size_t scales, const Convert& convert) {
    Mirror mirror(scales * 256 * sizeof(uint16_t));
    std::memset(mirror.host(), 0x55, mirror.bytes().size());
    mirror.upload();
    EXPECT_EQ(convert(static_cast<uint16_t*>(mirror.device())), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<uint16_t> values(scales * 256);
    std::memcpy(values.data(), mirror.download().data(), mirror.bytes().size());
    return values;
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
  const std::vector<float> scales = all_kinds_of_scales();
  Mirror input(scales.size() * sizeof(float));
  std::memcpy(input.host(), scales.data(), scales.size() * sizeof(float));
  input.upload();
  const std::vector<uint16_t> values = converted(scales.size(), [&](uint16_t* to) {
    return convert_all_codes(static_cast<const float*>(input.device()), static_cast<int>(scales.size()), to);
  });
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], fp8_to_bf16(static_cast<uint8_t>(i % 256), scales[i / 256]))
        << "code " << i % 256 << " scale " << scales[i / 256];
  }
}

// Not a limit, a figure for whoever writes a producer: what a block of 256 threads alone on its SM converts.
TEST_F(DeviceFp8Rows, SaysWhatItCosts) {
  constexpr int kRepeats = 1000;
  Mirror mirror(2 * sizeof(long long));
  std::memset(mirror.host(), 0, mirror.bytes().size());
  mirror.upload();
  ASSERT_EQ(time_conversions(kRepeats, static_cast<long long*>(mirror.device())), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  long long clocks[2];
  std::memcpy(clocks, mirror.download().data(), sizeof clocks);
  std::printf("codes per clock of an SM: %.1f\n", 256.0 * 16 * kRepeats / static_cast<double>(clocks[0]));
  EXPECT_GT(clocks[0], 0);
}

}  // namespace
}  // namespace tessera::sm90
