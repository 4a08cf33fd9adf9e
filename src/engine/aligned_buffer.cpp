#include "engine/aligned_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

namespace tessera {

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

Result<AlignedBuffer> AlignedBuffer::allocate(size_t bytes, const char* purpose, bool huge_pages) {
  AlignedBuffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return Status(Code::kIo,
                  fmt::format("{}: the system refused {} bytes of memory; use a smaller model, context or batch",
                              purpose, bytes));
  }
  if (huge_pages) {
    madvise(p, bytes, MADV_HUGEPAGE);  // advice only: without huge pages the result is the same, a little slower
  }
  buffer.data_ = static_cast<std::byte*>(p);
  buffer.size_ = bytes;
  return buffer;
}

Status AlignedBuffer::ensure(size_t bytes, const char* purpose) {
  if (bytes <= size_) {
    return {};
  }
  *this = AlignedBuffer();  // frees the old memory before the new is taken
  Result<AlignedBuffer> grown = allocate(bytes, purpose);
  TESSERA_RETURN_IF_ERROR(grown.status());
  *this = std::move(grown).value();
  return {};
}

}  // namespace tessera
