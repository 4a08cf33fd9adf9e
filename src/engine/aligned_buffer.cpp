#include "engine/aligned_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace tessera {
namespace {

constexpr size_t kSmallPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

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
  // A huge page needs 2 MiB of aligned address space: map that much more and give the ends back.
  const size_t slack = huge_pages ? kHugePage : 0;
  void* p = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return Status(Code::kIo,
                  fmt::format("{}: the system refused {} bytes of memory; use a smaller model, context or batch",
                              purpose, bytes));
  }
  if (huge_pages) {
    auto* begin = static_cast<std::byte*>(p);
    const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(p) % kHugePage) % kHugePage;
    const size_t used = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
    const size_t tail = (bytes + slack + kSmallPage - 1) / kSmallPage * kSmallPage - head - used;
    if (head > 0) {
      munmap(begin, head);
    }
    if (tail > 0) {
      munmap(begin + head + used, tail);
    }
    p = begin + head;
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
