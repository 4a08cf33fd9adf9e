#include "gate/device_state.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <thread>

namespace tessera {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// CPU seconds that all processes have used: the first line of /proc/stat without idle and waiting. 0 where there is
// none.
double busy_seconds() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  stat >> cpu;
  double sum = 0;
  double ticks = 0;
  for (int field = 0; field < 8 && stat >> ticks; ++field) {
    constexpr int kIdle = 3;
    constexpr int kWaiting = 4;
    sum += field == kIdle || field == kWaiting ? 0 : ticks;
  }
  return sum / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Value of the first "key : value" line of /proc/cpuinfo.
std::string cpu_info(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos && colon + 2 <= line.size()) {
      return line.substr(colon + 2);
    }
  }
  return "";
}

// NVML through its binary interface, as it comes with the driver. Every call may be missing or refused: the value then
// stays unknown.
class Nvml {
 public:
  explicit Nvml(const std::string& uuid) {
    handle_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    ready_ = handle_ != nullptr && call<int()>("nvmlInit_v2") == 0 &&
             call<int(const char*, void**)>("nvmlDeviceGetHandleByUUID", uuid.c_str(), &device_) == 0;
  }

  void read(DeviceState* s) const {
    if (!ready_) {
      return;
    }
    std::array<char, 128> name{};
    if (call<int(void*, char*, unsigned)>("nvmlDeviceGetName", device_, name.data(), 127U) == 0) {
      s->name = name.data();
    }
    unsigned value = 0;
    constexpr int kMultiprocessors = 1;
    if (call<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo", device_, kMultiprocessors, &value) == 0) {
      s->clock_mhz = value;
    }
    if (call<int(void*, unsigned*)>("nvmlDeviceGetPowerUsage", device_, &value) == 0) {
      s->power_watts = value * 1e-3;
    }
    if (call<int(void*, int, unsigned*)>("nvmlDeviceGetTemperature", device_, 0, &value) == 0) {
      s->temperature_c = value;
    }
    unsigned long long reasons = 0;
    if (call<int(void*, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons", device_, &reasons) == 0) {
      s->throttle_reasons = static_cast<int64_t>(reasons);
    }
    std::array<unsigned, 2> use{};  // gpu, memory, in percent
    if (call<int(void*, void*)>("nvmlDeviceGetUtilizationRates", device_, use.data()) == 0) {
      s->others = use[0] * 0.01;
    }
    // With room for no entry the call returns "too small" and the number of processes, or success when there is none.
    constexpr int kTooSmall = 7;
    unsigned count = 0;
    const int code =
        call<int(void*, unsigned*, void*)>("nvmlDeviceGetComputeRunningProcesses_v3", device_, &count, nullptr);
    if (code == 0 || code == kTooSmall) {
      s->other_processes = count;
    }
  }

 private:
  template <class Signature, class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<Signature*>(::dlsym(handle_, name));
    return function == nullptr ? -1 : function(arguments...);
  }

  void* handle_ = nullptr;
  void* device_ = nullptr;
  bool ready_ = false;
};

DeviceState gpu_state() {
  DeviceState s;
  const Result<std::string> uuid = cuda_device_uuid();
  if (uuid.ok()) {
    const Nvml nvml(uuid.value());
    nvml.read(&s);
  }
  return s;
}

}  // namespace

DeviceWatch::DeviceWatch(tessera_device device) : device_(device) {
  if (device_ == TESSERA_DEVICE_CUDA) {
    before_ = gpu_state();
  }
  start();
}

void DeviceWatch::start() {
  busy_ = busy_seconds();
  own_ = own_seconds();
  wall_ = wall_seconds();
}

DeviceState DeviceWatch::read() const {
  if (device_ == TESSERA_DEVICE_CUDA) {
    DeviceState now = gpu_state();
    now.others = before_.others;
    now.other_processes = before_.other_processes;
    return now;
  }
  DeviceState s;
  s.name = cpu_info("model name");
  const std::string clock = cpu_info("cpu MHz");
  s.clock_mhz = clock.empty() ? -1 : std::atof(clock.c_str());
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  const double wall = wall_seconds() - wall_;
  if (busy_ > 0 && wall > 0) {
    s.others = std::clamp((busy_seconds() - busy_ - (own_seconds() - own_)) / (wall * cores), 0.0, 1.0);
  }
  return s;
}

}  // namespace tessera
