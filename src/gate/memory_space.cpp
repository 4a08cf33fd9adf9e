#include "gate/memory_space.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace tessera {
namespace {

constexpr size_t kAlignment = 256;

class HostMemory final : public MemorySpace {
 public:
  tessera_device device() const override { return TESSERA_DEVICE_CPU; }

  Result<void*> allocate(size_t bytes) override {
    void* const p = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
    if (p == nullptr) {
      return Status(Code::kIo, fmt::format("memory: the system refused {} bytes; give a smaller grid", bytes));
    }
    return p;
  }
  void release(void* p) override { std::free(p); }

  Status upload(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Status download(void* to, const void* from, size_t bytes) override { return upload(to, from, bytes); }
  Status fill(void* to, int value, size_t bytes) override {
    std::memset(to, value, bytes);
    return {};
  }
  Status synchronize() override { return {}; }

  Status time(const std::function<Status()>& work, double* seconds) override {
    const auto start = std::chrono::steady_clock::now();
    TESSERA_RETURN_IF_ERROR(work());
    *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {};
  }
};

}  // namespace

std::unique_ptr<MemorySpace> host_memory() {
  return std::make_unique<HostMemory>();
}

}  // namespace tessera
