// GPU memory and events through the driver, which is looked up at run time: this file compiles without a CUDA toolkit,
// and the program starts where there is no driver. The device's primary context is the one that the library uses.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "gate/device_state.h"
#include "gate/memory_space.h"

namespace tessera {
namespace {

// The parts of the driver's binary interface that we call; its types are plain integers and pointers.
using Code32 = int;  // CUresult, 0 is success
using Address = unsigned long long;

struct Driver {
  Code32 (*init)(unsigned) = nullptr;
  Code32 (*device_get)(int*, int) = nullptr;
  Code32 (*device_uuid)(void*, int) = nullptr;
  Code32 (*retain)(void**, int) = nullptr;
  Code32 (*set_current)(void*) = nullptr;
  Code32 (*allocate)(Address*, size_t) = nullptr;
  Code32 (*release)(Address) = nullptr;
  Code32 (*to_device)(Address, const void*, size_t) = nullptr;
  Code32 (*to_host)(void*, Address, size_t) = nullptr;
  Code32 (*fill)(Address, unsigned char, size_t) = nullptr;
  Code32 (*synchronize)() = nullptr;
  Code32 (*event_create)(void**, unsigned) = nullptr;
  Code32 (*event_record)(void*, void*) = nullptr;
  Code32 (*event_synchronize)(void*) = nullptr;
  Code32 (*event_elapsed)(float*, void*, void*) = nullptr;
  Code32 (*error_string)(Code32, const char**) = nullptr;
};

Status no_device(const std::string& why) {
  return Status(Code::kDevice,
                fmt::format("device: got {}; allowed a CUDA device with its driver; use device=cpu", why));
}

template <class Function>
bool find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(handle, name));
  return *function != nullptr;
}

Result<const Driver*> load_driver() {
  static Driver d;
  static const bool loaded = [] {
    void* const h = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return h != nullptr && find(h, "cuInit", &d.init) && find(h, "cuDeviceGet", &d.device_get) &&
           find(h, "cuDeviceGetUuid", &d.device_uuid) && find(h, "cuDevicePrimaryCtxRetain", &d.retain) &&
           find(h, "cuCtxSetCurrent", &d.set_current) && find(h, "cuMemAlloc_v2", &d.allocate) &&
           find(h, "cuMemFree_v2", &d.release) && find(h, "cuMemcpyHtoD_v2", &d.to_device) &&
           find(h, "cuMemcpyDtoH_v2", &d.to_host) && find(h, "cuMemsetD8_v2", &d.fill) &&
           find(h, "cuCtxSynchronize", &d.synchronize) && find(h, "cuEventCreate", &d.event_create) &&
           find(h, "cuEventRecord", &d.event_record) && find(h, "cuEventSynchronize", &d.event_synchronize) &&
           find(h, "cuEventElapsedTime", &d.event_elapsed) && find(h, "cuGetErrorString", &d.error_string);
  }();
  if (!loaded) {
    return no_device("no usable libcuda.so.1");
  }
  return &d;
}

Status check(const Driver& d, Code32 code, const char* what) {
  if (code == 0) {
    return {};
  }
  const char* text = nullptr;
  d.error_string(code, &text);
  return Status(Code::kDevice, fmt::format("{}: the CUDA driver reported '{}'", what, text != nullptr ? text : "?"));
}

Address address(const void* p) {
  return reinterpret_cast<Address>(p);
}

class CudaMemory final : public MemorySpace {
 public:
  CudaMemory(const Driver& driver, void* begin, void* end) : d_(driver), begin_(begin), end_(end) {}

  tessera_device device() const override { return TESSERA_DEVICE_CUDA; }

  Result<void*> allocate(size_t bytes) override {
    Address a = 0;
    TESSERA_RETURN_IF_ERROR(check(d_, d_.allocate(&a, bytes), "memory"));
    return reinterpret_cast<void*>(a);
  }
  void release(void* p) override { d_.release(address(p)); }
  Status upload(void* to, const void* from, size_t bytes) override {
    return check(d_, d_.to_device(address(to), from, bytes), "copy to the device");
  }
  Status download(void* to, const void* from, size_t bytes) override {
    return check(d_, d_.to_host(to, address(from), bytes), "copy from the device");
  }
  Status fill(void* to, int value, size_t bytes) override {
    return check(d_, d_.fill(address(to), static_cast<unsigned char>(value), bytes), "fill");
  }
  Status synchronize() override { return check(d_, d_.synchronize(), "kernel"); }

  Status time(const std::function<Status()>& work, double* seconds) override {
    TESSERA_RETURN_IF_ERROR(check(d_, d_.event_record(begin_, nullptr), "event"));
    TESSERA_RETURN_IF_ERROR(work());
    TESSERA_RETURN_IF_ERROR(check(d_, d_.event_record(end_, nullptr), "event"));
    TESSERA_RETURN_IF_ERROR(check(d_, d_.event_synchronize(end_), "kernel"));
    float milliseconds = 0;
    TESSERA_RETURN_IF_ERROR(check(d_, d_.event_elapsed(&milliseconds, begin_, end_), "event"));
    *seconds = double{milliseconds} * 1e-3;
    return {};
  }

 private:
  const Driver& d_;
  void* begin_;
  void* end_;
};

}  // namespace

Result<std::string> cuda_device_uuid() {
  Result<const Driver*> driver = load_driver();
  TESSERA_RETURN_IF_ERROR(driver.status());
  const Driver& d = *driver.value();
  int device = 0;
  std::array<unsigned char, 16> u{};
  if (d.init(0) != 0 || d.device_get(&device, 0) != 0 || d.device_uuid(u.data(), device) != 0) {
    return no_device("no device");
  }
  std::string text = "GPU";
  for (size_t i = 0; i < u.size(); ++i) {
    text += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
  }
  return text;
}

Result<std::unique_ptr<MemorySpace>> cuda_memory() {
  Result<const Driver*> driver = load_driver();
  TESSERA_RETURN_IF_ERROR(driver.status());
  const Driver& d = *driver.value();
  int device = 0;
  if (d.init(0) != 0 || d.device_get(&device, 0) != 0) {
    return no_device("no device");
  }
  void* context = nullptr;
  void* begin = nullptr;
  void* end = nullptr;
  TESSERA_RETURN_IF_ERROR(check(d, d.retain(&context, device), "device"));
  TESSERA_RETURN_IF_ERROR(check(d, d.set_current(context), "device"));
  TESSERA_RETURN_IF_ERROR(check(d, d.event_create(&begin, 0), "event"));
  TESSERA_RETURN_IF_ERROR(check(d, d.event_create(&end, 0), "event"));
  return std::unique_ptr<MemorySpace>(std::make_unique<CudaMemory>(d, begin, end));
}

}  // namespace tessera
