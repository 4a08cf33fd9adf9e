#include "registry/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

namespace tessera {
namespace {

struct Device {
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;

  bool hopper() const { return major == 9 && minor == 0; }
};

cudaError_t ask(int ordinal, Device* device) {
  for (const auto& [attribute, value] : {std::pair{cudaDevAttrComputeCapabilityMajor, &device->major},
                                         std::pair{cudaDevAttrComputeCapabilityMinor, &device->minor},
                                         std::pair{cudaDevAttrMultiProcessorCount, &device->multiprocessors}}) {
    const cudaError_t error = cudaDeviceGetAttribute(value, attribute, ordinal);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// 0: no Hopper device.
int find_most_multiprocessors() {
  int count = 0;
  int most = 0;
  bool failed = cudaGetDeviceCount(&count) != cudaSuccess;
  for (int i = 0; i < count && !failed; ++i) {
    Device device;
    failed = ask(i, &device) != cudaSuccess;
    if (!failed && device.hopper()) most = std::max(most, device.multiprocessors);
  }
  if (failed) cudaGetLastError();  // the caller's next look at it shall not see that there is no driver
  return most;
}

}  // namespace

int most_multiprocessors() {
  static const int most = find_most_multiprocessors();
  return most;
}

bool has_hopper() {
  return most_multiprocessors() > 0;
}

Result<int> current_multiprocessors() {
  int ordinal = 0;
  Device device;
  cudaError_t error = cudaGetDevice(&ordinal);
  if (error == cudaSuccess) error = ask(ordinal, &device);
  if (error != cudaSuccess) {
    return Status(Code::kDevice, fmt::format("device: got {} when asked which one is current; allowed a working CUDA "
                                             "device; check the driver",
                                             cudaGetErrorName(error)));
  }
  if (!device.hopper()) {
    return Status(Code::kUnsupported, fmt::format("device: got the current CUDA device {} of compute capability {}.{}; "
                                                  "allowed 9.0; make a Hopper device current (cudaSetDevice)",
                                                  ordinal, device.major, device.minor));
  }
  return device.multiprocessors;
}

}  // namespace tessera
