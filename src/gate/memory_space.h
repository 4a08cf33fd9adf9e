// Memory that a kernel computes in, and a clock beside it: the host's, or a GPU's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

class MemorySpace {
 public:
  virtual ~MemorySpace() = default;
  virtual tessera_device device() const = 0;
  virtual Result<void*> allocate(size_t bytes) = 0;  // 256-byte aligned; contents unspecified
  virtual void release(void* p) = 0;
  virtual Status upload(void* to, const void* from, size_t bytes) = 0;
  virtual Status download(void* to, const void* from, size_t bytes) = 0;
  virtual Status fill(void* to, int value, size_t bytes) = 0;
  virtual Status synchronize() = 0;
  // Seconds that `work` takes, measured where it runs. On a GPU: between two events around what it enqueues.
  virtual Status time(const std::function<Status()>& work, double* seconds) = 0;
};

std::unique_ptr<MemorySpace> host_memory();

// The first CUDA device, through the driver found at run time. kDevice when there is none.
Result<std::unique_ptr<MemorySpace>> cuda_memory();

// Memory of a space that is given back at the end.
class SpaceBuffer {
 public:
  SpaceBuffer() = default;
  explicit SpaceBuffer(MemorySpace& space) : space_(&space) {}
  SpaceBuffer(SpaceBuffer&& other) noexcept : space_(other.space_), data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  SpaceBuffer& operator=(SpaceBuffer&&) = delete;
  ~SpaceBuffer() {
    if (data_ != nullptr) {
      space_->release(data_);
    }
  }

  Status allocate(size_t bytes) {
    Result<void*> data = space_->allocate(bytes);
    TESSERA_RETURN_IF_ERROR(data.status());
    data_ = data.value();
    bytes_ = bytes;
    return {};
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  MemorySpace* space_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tessera
