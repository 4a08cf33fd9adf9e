// Views of metadata arrays inside the mapped file. GGUF does not align values, so elements are loaded, not referenced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "engine/gguf/cursor.h"
#include "engine/gguf/types.h"

namespace tessera {

// An integer of the file, in a form that holds every i64 and every u64.
struct MetaInt {
  bool negative;  // bits is the two's complement of an i64 below zero
  uint64_t bits;  // the value itself otherwise

  // Whether the value lies in [lo, hi].
  constexpr bool within(int64_t lo, int64_t hi) const {
    if (negative) return static_cast<int64_t>(bits) >= lo && static_cast<int64_t>(bits) <= hi;
    return hi >= 0 && bits <= static_cast<uint64_t>(hi) && (lo <= 0 || bits >= static_cast<uint64_t>(lo));
  }
};

// Loads one integer or bool of `type`; the bytes are known to be there.
inline MetaInt load_int(MetaType type, const std::byte* p) {
  int64_t i = 0;
  switch (type) {
    case MetaType::U8:
    case MetaType::Bool:
      return {false, load_le<uint8_t>(p)};
    case MetaType::U16:
      return {false, load_le<uint16_t>(p)};
    case MetaType::U32:
      return {false, load_le<uint32_t>(p)};
    case MetaType::U64:
      return {false, load_le<uint64_t>(p)};
    case MetaType::I8:
      i = load_le<int8_t>(p);
      break;
    case MetaType::I16:
      i = load_le<int16_t>(p);
      break;
    case MetaType::I32:
      i = load_le<int32_t>(p);
      break;
    case MetaType::I64:
      i = load_le<int64_t>(p);
      break;
    case MetaType::F32:
    case MetaType::F64:
    case MetaType::String:
    case MetaType::Array:
      break;
  }
  return {i < 0, static_cast<uint64_t>(i)};
}

// Elements read as T (int64_t, float or bool). GgufFile has checked that every element is representable.
template <class T>
class ScalarArray {
 public:
  ScalarArray() = default;
  ScalarArray(MetaType element_type, std::span<const std::byte> bytes) : element_type_(element_type), bytes_(bytes) {}

  size_t size() const { return bytes_.size() / scalar_bytes(element_type_); }
  bool empty() const { return bytes_.empty(); }

  T operator[](size_t i) const {
    const std::byte* p = bytes_.data() + i * scalar_bytes(element_type_);
    if constexpr (std::is_same_v<T, float>) {
      return load_le<float>(p);
    } else {
      return static_cast<T>(load_int(element_type_, p).bits);
    }
  }

  std::vector<T> to_vector() const {
    std::vector<T> out(size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = (*this)[i];
    return out;
  }

 private:
  MetaType element_type_ = MetaType::U8;
  std::span<const std::byte> bytes_;
};

using IntArray = ScalarArray<int64_t>;
using FloatArray = ScalarArray<float>;
using BoolArray = ScalarArray<bool>;

// Strings in file order. Each is stored behind its length, so element i is found by walking: iterate, or take views()
// once (16 bytes per string, no characters copied) where random access is needed.
class StringArray {
 public:
  class Iterator {
   public:
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;

    Iterator() = default;
    explicit Iterator(const std::byte* p) : p_(p) {}
    std::string_view operator*() const {
      return {reinterpret_cast<const char*>(p_ + 8), static_cast<size_t>(load_le<uint64_t>(p_))};
    }
    Iterator& operator++() {
      p_ += 8 + load_le<uint64_t>(p_);
      return *this;
    }
    Iterator operator++(int) {
      Iterator old = *this;
      ++*this;
      return old;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const std::byte* p_ = nullptr;
  };

  StringArray() = default;
  // `bytes` holds exactly `count` length-prefixed strings, as validated by parse_gguf.
  StringArray(uint64_t count, std::span<const std::byte> bytes) : count_(count), bytes_(bytes) {}

  size_t size() const { return static_cast<size_t>(count_); }
  bool empty() const { return count_ == 0; }
  Iterator begin() const { return Iterator(bytes_.data()); }
  Iterator end() const { return Iterator(bytes_.data() + bytes_.size()); }

  std::vector<std::string_view> views() const {
    std::vector<std::string_view> out;
    out.reserve(size());
    for (const std::string_view s : *this) out.push_back(s);
    return out;
  }

 private:
  uint64_t count_ = 0;
  std::span<const std::byte> bytes_;
};

}  // namespace tessera
