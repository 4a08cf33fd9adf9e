// Memory taken straight from the operating system: 4 KiB aligned, zero-filled, and resident only where it was touched.
// Weights, the KV pool and scratch live in it, so that a generous capacity costs no memory until it is used.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace tessera {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  // `purpose` names the buffer in the error sentence. huge_pages asks for transparent huge pages (dense, long-lived
  // data).
  static Result<AlignedBuffer> allocate(size_t bytes, const char* purpose, bool huge_pages = false);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

  // Makes the buffer at least `bytes` large; the old content is dropped when it has to grow.
  Status ensure(size_t bytes, const char* purpose);

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tessera
