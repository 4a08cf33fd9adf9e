// What the machine does beside a measurement: who else uses it, clocks, power, temperature.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

struct DeviceState {
  std::string name = {};  // CPU model or GPU name
  double clock_mhz = -1;  // of core 0 or of the multiprocessors; -1: not known, here and below
  double power_watts = -1;
  double temperature_c = -1;
  int64_t throttle_reasons = -1;  // NVML's bits
  // Share of the machine that others use: of all cores, or of the GPU before we touch it.
  double others = -1;
  int64_t other_processes = -1;  // with a context on the GPU
};

// Others may use this share before a measurement is refused.
inline constexpr double kMostOthers = 0.10;

// Whose use is seen between start() and read(). On a GPU start() must come before the first CUDA call of the process;
// read() behind it tells clocks, power and temperature only.
class DeviceWatch {
 public:
  // For CUDA, reads the state of the device at once through NVML, if the driver brings it.
  explicit DeviceWatch(tessera_device device);

  void start();
  DeviceState read() const;

 private:
  tessera_device device_;
  double busy_ = 0;  // CPU seconds of all processes, then of ours, and the wall clock
  double own_ = 0;
  double wall_ = 0;
  DeviceState before_;  // of the GPU
};

// "GPU-0123...", without making a context. kDevice where there is no device.
Result<std::string> cuda_device_uuid();

}  // namespace tessera
