// Device memory whose last byte is the last byte of mapped memory: reading or writing one byte further is a fault.
#pragma once

#include <cstddef>
#include <memory>

namespace tessera::test {

class EdgeMemory {
 public:
  // Null where the device or driver has no virtual memory management.
  static std::unique_ptr<EdgeMemory> make(size_t bytes);
  ~EdgeMemory();
  EdgeMemory(const EdgeMemory&) = delete;
  EdgeMemory& operator=(const EdgeMemory&) = delete;

  void* data() const { return data_; }

 private:
  EdgeMemory() = default;
  unsigned long long base_ = 0;  // CUdeviceptr of the reserved range
  size_t reserved_ = 0;
  size_t mapped_ = 0;
  void* data_ = nullptr;
};

}  // namespace tessera::test
