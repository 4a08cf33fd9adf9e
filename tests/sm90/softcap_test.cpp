// The softcap of decode kernels has the bits of R1's for every score. Needs an sm_90 GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/sm90/fmha_decode/config.h"
#include "sm90/byte_test.h"
#include "sm90/softcap_check.h"

namespace tessera::sm90 {
namespace {

class DecodeSoftcap : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "NO CUDA DEVICE: the softcap's bits are not compared here";
    }
  }

  template <class Compare>
  Differences differences(const Compare& compare) {
    Mirror mirror(sizeof(Differences));
    std::memset(mirror.host(), 0, sizeof(Differences));
    mirror.upload();
    EXPECT_EQ(compare(static_cast<Differences*>(mirror.device())), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    Differences found{};
    std::memcpy(&found, mirror.download().data(), sizeof found);
    return found;
  }
};

TEST_F(DecodeSoftcap, TanhOfEveryFloat) {
  const Differences found = differences([](Differences* to) { return compare_tanh(to); });
  EXPECT_EQ(found.count, 0U) << std::hex << found.bits;
}

TEST_F(DecodeSoftcap, EveryScoreUnderSeveralCaps) {
  for (const float cap : {1.0F, 20.0F, 30.0F, 50.0F, 0.1F, 7.77F, 1.9999999F, 3.0F, 1e-3F, 5e4F, 1e-15F, 1e17F}) {
    const Differences found = differences([&](Differences* to) { return compare_softcap(cap, 1.0F / cap, to); });
    EXPECT_EQ(found.count, 0U) << "cap " << cap << " score " << std::hex << found.bits;
  }
}

TEST_F(DecodeSoftcap, CapsThatAreOutOfRange) {
  for (const float cap : {1e-40F, 1e-30F, 1e30F, 3e38F}) {
    const Differences found = differences([&](Differences* to) { return compare_softcap(cap, 0.0F, to); });
    EXPECT_EQ(found.count, 0U) << "cap " << cap << " score " << std::hex << found.bits;
  }
}

TEST_F(DecodeSoftcap, ADifferenceIsSeen) {
  const Differences found = differences([](Differences* to) { return compare_softcap(20.0F, 1.0F / 21.0F, to); });
  EXPECT_GT(found.count, 0U);
}

}  // namespace
}  // namespace tessera::sm90
