// Uses everything an accepted file offers and checks what the reader promises about it. Shared by the mutation tests
// and the fuzz target.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "engine/gguf/gguf.h"

namespace tessera::testing {

inline uint64_t byte_sum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (const std::byte b : bytes) sum += std::to_integer<uint64_t>(b);
  return sum;
}

inline uint64_t byte_sum(std::string_view text) {
  return byte_sum(std::as_bytes(std::span(text)));
}

// Empty if every promise holds, else which one does not. `bytes` is what the file was parsed from.
inline std::string walk(const GgufFile& file, std::span<const std::byte> bytes) {
  uint64_t sum = 0;  // reading is the point; the sum only keeps the reads
  std::set<std::string_view> keys;
  for (const MetaEntry& entry : file.metadata()) {
    if (!keys.insert(entry.key).second || file.find(entry.key) != &entry) return "key not unique or not found";
    sum += byte_sum(entry.payload);
    // A refused getter formats a sentence: enough keys to meet every type, not thousands of them.
    if (keys.size() > 100) continue;
    sum += describe_type(entry).size() + describe_value(entry, 100).size();
    if (const auto v = file.get_u64(entry.key); v.ok()) sum += v.value();
    if (const auto v = file.get_i64(entry.key); v.ok()) sum += static_cast<uint64_t>(v.value());
    if (const auto v = file.get_f32(entry.key); v.ok() && v.value() - v.value() != 0) return "f32 not finite";
    if (const auto v = file.get_bool(entry.key); v.ok()) sum += v.value() ? 1 : 0;
    if (const auto v = file.get_string(entry.key); v.ok()) sum += byte_sum(v.value());
    if (const auto v = file.get_per_layer_u64(entry.key, 3, 0, 99); v.ok()) sum += v.value().size();
    if (const auto v = file.get_i64_array(entry.key); v.ok()) sum += v.value().to_vector().size();
    if (const auto v = file.get_f32_array(entry.key); v.ok()) sum += v.value().to_vector().size();
    if (const auto v = file.get_bool_array(entry.key); v.ok()) sum += v.value().to_vector().size();
    if (const auto v = file.get_string_array(entry.key); v.ok()) {
      if (v.value().views().size() != entry.count) return "string array of another length";
      for (const std::string_view text : v.value()) sum += byte_sum(text);
    }
  }
  std::set<std::string_view> names;
  uint64_t total = 0;
  for (const TensorInfo& t : file.tensors()) {
    if (!names.insert(t.name).second || file.find_tensor(t.name) != &t) return "tensor not unique or not found";
    if (t.offset > bytes.size() || t.nbytes > bytes.size() - t.offset) return "tensor outside the file";
    if (t.data.data() != bytes.data() + t.offset || t.data.size() != t.nbytes) return "data is not the extent";
    if (t.n_elements() < 1 || t.row_bytes() * static_cast<uint64_t>(t.n_rows()) != t.nbytes) return "shape and size";
    if (t.offset % file.alignment() != 0) return "tensor misaligned";
    total += t.nbytes;
    sum += byte_sum(t.data);
  }
  if (total > bytes.size()) return "tensors overlap";
  [[maybe_unused]] static volatile uint64_t sink;
  sink = sum;
  return {};
}

}  // namespace tessera::testing
