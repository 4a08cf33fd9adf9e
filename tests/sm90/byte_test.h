// What the byte tests of sm_90 kernels share: values, device memory with a host copy, and the words for a difference.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/numeric_types.h"

namespace tessera::sm90 {

inline constexpr uint8_t kPoison = 0xff;  // NaN in fp16, bf16 and fp32

// How the values of a case are drawn.
enum class Values {
  kNormal,  // scores of about one nat
  kWide,    // scores of tens of nats: the maximum moves, weights underflow
  kRising,  // later keys score higher: the maximum moves in every few granules
  kTiny,    // mostly zeros and subnormals
};

// Draws elements of 16 bits. The normal numbers come from a pool: the longest problems have tens of millions.
class ValueSource {
 public:
  ValueSource(bool bf16, Values values, bool keys, std::mt19937& random)
      : bf16_(bf16), values_(values), keys_(keys), state_(random()), pool_(size_t{1} << kPoolBits) {
    std::normal_distribution<float> normal(0.0F, values == Values::kWide ? 2.5F : 1.0F);
    std::generate(pool_.begin(), pool_.end(), [&] { return normal(random); });
  }

  // `step` says how late in the sequence the element stands, for kRising keys.
  uint16_t draw(int64_t step) {
    float x = pool_[bits() >> (64 - kPoolBits)];
    if (values_ == Values::kRising && keys_) {
      x = 0.3F * x + 0.2F * static_cast<float>(step);
    } else if (values_ == Values::kRising) {
      x = std::fabs(x);
    } else if (values_ == Values::kTiny) {
      const uint64_t kind = bits() >> 58;
      x = kind % 4 == 0 ? x * (kind % 8 == 0 ? 1e-7F : 1e-39F) : kind / 8 == 0 ? -0.0F : x;
    }
    return bf16_ ? f32_to_bf16(x) : f32_to_f16(x);
  }

 private:
  static constexpr int kPoolBits = 14;

  uint64_t bits() { return state_ = state_ * 6364136223846793005U + 1442695040888963407U; }

  bool bf16_;
  Values values_;
  bool keys_;
  uint64_t state_;
  std::vector<float> pool_;
};

// Device memory with a host copy of the same bytes.
class Mirror {
 public:
  explicit Mirror(size_t bytes) : host_(bytes, kPoison) {
    EXPECT_EQ(cudaMalloc(&device_, std::max<size_t>(bytes, 64)), cudaSuccess);
    upload();
  }
  ~Mirror() { cudaFree(device_); }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  void upload() { EXPECT_EQ(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), cudaSuccess); }
  std::vector<uint8_t> download() const {
    std::vector<uint8_t> bytes(host_.size());
    EXPECT_EQ(cudaMemcpy(bytes.data(), device_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }
  void* device() const { return device_; }
  uint8_t* host() { return host_.data(); }
  const std::vector<uint8_t>& bytes() const { return host_; }

 private:
  std::vector<uint8_t> host_;
  void* device_ = nullptr;
};

inline std::string first_difference(const std::vector<uint8_t>& got, const std::vector<uint8_t>& want, size_t unit) {
  size_t count = 0;
  size_t first = 0;
  for (size_t i = 0; i < got.size(); i += unit) {
    if (std::memcmp(&got[i], &want[i], unit) != 0) {
      first = count++ == 0 ? i : first;
    }
  }
  uint32_t a = 0;
  uint32_t b = 0;
  std::memcpy(&a, &got[first], unit);
  std::memcpy(&b, &want[first], unit);
  return fmt::format("{} of {} elements differ, first {}: got {:08x}, want {:08x}", count, got.size() / unit,
                     first / unit, a, b);
}

}  // namespace tessera::sm90
