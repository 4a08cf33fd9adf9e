// A small GGUF writer for tests and fuzz seeds. Every field can be given a value that contradicts the rest.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/gguf/types.h"

namespace tessera::testing {

template <class T>
std::string le(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

// A length-prefixed string.
inline std::string str(std::string_view text) {
  return le<uint64_t>(text.size()) + std::string(text);
}

// An array value: element type, count, elements.
inline std::string array(MetaType element, uint64_t count, std::string_view elements) {
  return le(static_cast<uint32_t>(element)) + le(count) + std::string(elements);
}

template <class T>
std::string array_of(MetaType element, std::initializer_list<T> values) {
  std::string elements;
  for (const T v : values) elements += le(v);
  return array(element, values.size(), elements);
}

inline std::string strings(std::initializer_list<std::string_view> values) {
  std::string elements;
  for (const std::string_view v : values) elements += str(v);
  return array(MetaType::String, values.size(), elements);
}

inline std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s));
}

struct TensorSpec {
  std::string name;
  std::vector<int64_t> dims;
  uint32_t type = 0;
  std::string data;
  std::optional<uint32_t> n_dims = {};  // default: dims.size()
  std::optional<uint64_t> offset = {};  // default: packed
};

struct GgufWriter {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<int64_t> n_tensors = {};  // default: tensors.size()
  std::optional<int64_t> n_kv = {};       // default: pairs.size()
  uint64_t alignment = 32;                // of the layout; the key must be added by hand
  bool pad_last = true;
  std::vector<std::string> pairs;  // encoded key-value pairs
  std::vector<TensorSpec> tensors;

  GgufWriter& kv(std::string_view key, uint32_t type, std::string_view value) {
    pairs.push_back(str(key) + le(type) + std::string(value));
    return *this;
  }
  GgufWriter& kv(std::string_view key, MetaType type, std::string_view value) {
    return kv(key, static_cast<uint32_t>(type), value);
  }
  GgufWriter& u32(std::string_view key, uint32_t value) { return kv(key, MetaType::U32, le(value)); }
  GgufWriter& f32(std::string_view key, float value) { return kv(key, MetaType::F32, le(value)); }
  GgufWriter& string(std::string_view key, std::string_view value) { return kv(key, MetaType::String, str(value)); }
  GgufWriter& tensor(TensorSpec spec) {
    tensors.push_back(std::move(spec));
    return *this;
  }

  std::string build() const {
    std::string out = magic + le(version) + le(n_tensors.value_or(static_cast<int64_t>(tensors.size()))) +
                      le(n_kv.value_or(static_cast<int64_t>(pairs.size())));
    for (const std::string& pair : pairs) out += pair;
    std::string data;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& t = tensors[i];
      out += str(t.name) + le(t.n_dims.value_or(static_cast<uint32_t>(t.dims.size())));
      for (const int64_t d : t.dims) out += le(d);
      out += le(t.type) + le(t.offset.value_or(data.size()));
      data += t.data;
      if (i + 1 < tensors.size() || pad_last) pad(data);
    }
    if (!tensors.empty()) pad(out);
    return out + data;
  }

 private:
  void pad(std::string& s) const { s.resize((s.size() + alignment - 1) / alignment * alignment, '\0'); }
};

// One key of every type and two tensors: the smallest file that exercises every branch of the reader.
inline GgufWriter sample() {
  GgufWriter w;
  w.kv("t.u8", MetaType::U8, le<uint8_t>(200)).kv("t.i8", MetaType::I8, le<int8_t>(-3));
  w.kv("t.u16", MetaType::U16, le<uint16_t>(65535)).kv("t.i16", MetaType::I16, le<int16_t>(-300));
  w.u32("t.u32", 4000000000U).kv("t.i32", MetaType::I32, le<int32_t>(-70000));
  w.f32("t.f32", 0.5F).kv("t.bool", MetaType::Bool, le<uint8_t>(1)).string("t.string", "hello");
  w.kv("t.u64", MetaType::U64, le<uint64_t>(~uint64_t{0}));
  w.kv("t.i64", MetaType::I64, le<int64_t>(-5000000000)).kv("t.f64", MetaType::F64, le<double>(0.25));
  w.kv("t.strings", MetaType::Array, strings({"a", "", "a\xff\x01z"}));
  w.kv("t.floats", MetaType::Array, array_of<float>(MetaType::F32, {1.0F, -2.5F}));
  w.kv("t.ints", MetaType::Array, array_of<int32_t>(MetaType::I32, {7, -8, 9}));
  w.kv("t.bools", MetaType::Array, array_of<uint8_t>(MetaType::Bool, {1, 0, 1}));
  w.u32("general.alignment", 64);
  w.alignment = 64;
  w.tensor({.name = "norm.weight", .dims = {3}, .type = 0, .data = le(1.0F) + le(2.0F) + le(3.0F)});
  w.tensor({.name = "blk.0.w", .dims = {32, 2}, .type = 8, .data = std::string(68, '\x01')});
  return w;
}

}  // namespace tessera::testing
