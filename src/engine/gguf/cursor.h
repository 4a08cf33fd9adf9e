// A bounds-checked little-endian read cursor that knows its offset in the file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace tessera {

static_assert(std::endian::native == std::endian::little, "GGUF fields are read in place: little-endian hosts only");

// Unaligned little-endian load; the caller has checked that sizeof(T) bytes are there.
template <class T>
T load_le(const std::byte* p) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// Every check compares the wanted count with `end - ptr`; `ptr + n` is never formed before it is known to be inside, so
// no count from the file can wrap the pointer. A failed read leaves the cursor where it was.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes)
      : begin_(bytes.data()), ptr_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  uint64_t offset() const { return static_cast<uint64_t>(ptr_ - begin_); }
  uint64_t remaining() const { return static_cast<uint64_t>(end_ - ptr_); }

  // Takes the next n bytes as a view.
  [[nodiscard]] bool take(uint64_t n, std::span<const std::byte>& out) {
    if (n > remaining()) return false;
    out = {ptr_, static_cast<size_t>(n)};
    ptr_ += n;
    return true;
  }

  template <class T>
  [[nodiscard]] bool read(T& out) {
    if (sizeof(T) > remaining()) return false;
    out = load_le<T>(ptr_);
    ptr_ += sizeof(T);
    return true;
  }

 private:
  const std::byte* begin_;
  const std::byte* ptr_;
  const std::byte* end_;
};

}  // namespace tessera
