#include "engine/gguf/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/gguf/gguf_error.h"

namespace tessera {
namespace {

constexpr std::string_view kReexport = "export the model again with a current GGUF writer";

std::string int_text(MetaInt v) {
  return v.negative ? fmt::format("{}", static_cast<int64_t>(v.bits)) : fmt::format("{}", v.bits);
}

std::string_view payload_text(const MetaEntry& entry) {
  return {reinterpret_cast<const char*>(entry.payload.data()), entry.payload.size()};
}

std::string key_text(std::string_view key) {
  return fmt::format("key '{}'", key.substr(0, 120));
}

Status bad_value(const std::string& file, const MetaEntry& entry, std::string_view got, std::string_view allowed) {
  return gguf_error(Code::kBadFile, file, entry.offset, key_text(entry.key), got, allowed, kReexport);
}

// Element i of an array of a scalar type, or the scalar itself, as text.
std::string element_text(MetaType type, const std::byte* p) {
  if (type == MetaType::F32) return fmt::format("{}", load_le<float>(p));
  if (type == MetaType::F64) return fmt::format("{}", load_le<double>(p));
  if (type == MetaType::Bool) return *p == std::byte{0} ? "false" : "true";
  return int_text(load_int(type, p));
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::string& path, const ParseOptions& options) {
  Result<MappedFile> map = MappedFile::open(path);
  if (!map.ok()) return map.status();
  Result<GgufFile> file = parse(map.value().bytes(), path, options);
  if (file.ok()) file.value().map_ = std::move(map).value();
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name, const ParseOptions& options) {
  Result<GgufContents> contents = parse_gguf(bytes, name, options);
  if (!contents.ok()) return contents.status();
  GgufFile file;
  file.bytes_ = bytes;
  file.name_ = std::move(name);
  file.contents_ = std::move(contents).value();
  return file;
}

const MetaEntry* GgufFile::find(std::string_view key) const {
  const auto& meta = contents_.metadata;
  const auto it = std::lower_bound(contents_.by_key.begin(), contents_.by_key.end(), key,
                                   [&](uint32_t i, std::string_view k) { return meta[i].key < k; });
  return it != contents_.by_key.end() && meta[*it].key == key ? &meta[*it] : nullptr;
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto& tensors = contents_.tensors;
  const auto it = std::lower_bound(contents_.by_tensor_name.begin(), contents_.by_tensor_name.end(), name,
                                   [&](uint32_t i, std::string_view n) { return tensors[i].name < n; });
  return it != contents_.by_tensor_name.end() && tensors[*it].name == name ? &tensors[*it] : nullptr;
}

Status GgufFile::key_error(std::string_view key, std::string_view got, std::string_view allowed,
                           std::string_view todo) const {
  const MetaEntry* entry = find(key);
  if (entry != nullptr) return gguf_error(Code::kBadFile, name_, entry->offset, key_text(key), got, allowed, todo);
  return {Code::kBadFile, fmt::format("{}: {}: got {}; allowed {}; {}", name_, key_text(key), got, allowed, todo)};
}

Status GgufFile::wrong_type(const MetaEntry& entry, std::string_view wanted) const {
  return bad_value(name_, entry, describe_type(entry), wanted);
}

Result<const MetaEntry*> GgufFile::require(std::string_view key, std::string_view wanted) const {
  const MetaEntry* entry = find(key);
  if (entry == nullptr) return key_error(key, "no such key", wanted, kReexport);
  return entry;
}

Result<uint64_t> GgufFile::get_u64(std::string_view key, uint64_t lo, uint64_t hi) const {
  const auto entry = require(key, fmt::format("an integer from {} to {}", lo, hi));
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (!is_integer(e.type)) return wrong_type(e, fmt::format("an integer from {} to {}", lo, hi));
  const MetaInt v = load_int(e.type, e.payload.data());
  if (v.negative || v.bits < lo || v.bits > hi) {
    return bad_value(name_, e, int_text(v), fmt::format("an integer from {} to {}", lo, hi));
  }
  return v.bits;
}

Result<int64_t> GgufFile::get_i64(std::string_view key, int64_t lo, int64_t hi) const {
  const auto entry = require(key, fmt::format("an integer from {} to {}", lo, hi));
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (!is_integer(e.type)) return wrong_type(e, fmt::format("an integer from {} to {}", lo, hi));
  const MetaInt v = load_int(e.type, e.payload.data());
  if (!v.within(lo, hi)) return bad_value(name_, e, int_text(v), fmt::format("an integer from {} to {}", lo, hi));
  return static_cast<int64_t>(v.bits);
}

Result<float> GgufFile::get_f32(std::string_view key, float lo, float hi) const {
  const auto wanted = [&] { return fmt::format("a finite f32 from {} to {}", lo, hi); };
  const auto entry = require(key, wanted());
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (e.type != MetaType::F32) return wrong_type(e, wanted());
  const float v = load_le<float>(e.payload.data());
  // Written so that NaN fails.
  if (!(v >= lo && v <= hi)) return bad_value(name_, e, fmt::format("{}", v), wanted());
  return v;
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  const auto entry = require(key, "a bool");
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (e.type != MetaType::Bool) return wrong_type(e, "a bool");
  return e.payload[0] != std::byte{0};
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  const auto entry = require(key, "a string");
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (e.type != MetaType::String) return wrong_type(e, "a string");
  return payload_text(e);
}

Result<uint64_t> GgufFile::get_u64_or(std::string_view key, uint64_t fallback, uint64_t lo, uint64_t hi) const {
  if (find(key) == nullptr) return fallback;
  return get_u64(key, lo, hi);
}

Result<int64_t> GgufFile::get_i64_or(std::string_view key, int64_t fallback, int64_t lo, int64_t hi) const {
  if (find(key) == nullptr) return fallback;
  return get_i64(key, lo, hi);
}

Result<float> GgufFile::get_f32_or(std::string_view key, float fallback, float lo, float hi) const {
  if (find(key) == nullptr) return fallback;
  return get_f32(key, lo, hi);
}

Result<bool> GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  if (find(key) == nullptr) return fallback;
  return get_bool(key);
}

Result<std::string_view> GgufFile::get_string_or(std::string_view key, std::string_view fallback) const {
  if (find(key) == nullptr) return fallback;
  return get_string(key);
}

Result<const MetaEntry*> GgufFile::require_array(std::string_view key, std::string_view wanted, uint64_t min_count,
                                                 uint64_t max_count) const {
  Result<const MetaEntry*> entry = require(key, wanted);
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (e.type != MetaType::Array) return wrong_type(e, wanted);
  if (e.count < min_count || e.count > max_count) {
    return bad_value(name_, e, fmt::format("{} elements", e.count),
                     min_count == max_count ? fmt::format("exactly {} elements", min_count)
                                            : fmt::format("{} to {} elements", min_count, max_count));
  }
  return entry;
}

Result<IntArray> GgufFile::get_i64_array(std::string_view key, uint64_t min_count, uint64_t max_count, int64_t lo,
                                         int64_t hi) const {
  const auto entry = require_array(key, "an array of integers", min_count, max_count);
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (!is_integer(e.element_type)) return wrong_type(e, "an array of integers");
  const uint32_t size = scalar_bytes(e.element_type);
  for (uint64_t i = 0; i < e.count; ++i) {
    const MetaInt v = load_int(e.element_type, e.payload.data() + i * size);
    if (!v.within(lo, hi)) {
      return bad_value(name_, e, fmt::format("{} as element {}", int_text(v), i),
                       fmt::format("integers from {} to {}", lo, hi));
    }
  }
  return IntArray(e.element_type, e.payload);
}

Result<FloatArray> GgufFile::get_f32_array(std::string_view key, uint64_t min_count, uint64_t max_count) const {
  const auto entry = require_array(key, "an array of f32", min_count, max_count);
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (e.element_type != MetaType::F32) return wrong_type(e, "an array of f32");
  const FloatArray array(e.element_type, e.payload);
  for (size_t i = 0; i < array.size(); ++i) {
    if (std::isnan(array[i])) return bad_value(name_, e, fmt::format("NaN as element {}", i), "numbers");
  }
  return array;
}

Result<BoolArray> GgufFile::get_bool_array(std::string_view key, uint64_t min_count, uint64_t max_count) const {
  constexpr std::string_view kWanted = "an array of bool (or of i8, u8, i32 holding 0 and 1)";
  const auto entry = require_array(key, kWanted, min_count, max_count);
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  const MetaType type = e.element_type;
  if (type != MetaType::Bool && type != MetaType::I8 && type != MetaType::U8 && type != MetaType::I32) {
    return wrong_type(e, kWanted);
  }
  for (uint64_t i = 0; i < e.count; ++i) {
    const MetaInt v = load_int(type, e.payload.data() + i * scalar_bytes(type));
    if (!v.within(0, 1)) return bad_value(name_, e, fmt::format("{} as element {}", int_text(v), i), "0 or 1");
  }
  return BoolArray(type, e.payload);
}

Result<StringArray> GgufFile::get_string_array(std::string_view key, uint64_t min_count, uint64_t max_count) const {
  const auto entry = require_array(key, "an array of strings", min_count, max_count);
  if (!entry.ok()) return entry.status();
  const MetaEntry& e = *entry.value();
  if (e.element_type != MetaType::String) return wrong_type(e, "an array of strings");
  return StringArray(e.count, e.payload);
}

Result<std::vector<uint64_t>> GgufFile::get_per_layer_u64(std::string_view key, uint64_t n_layers, uint64_t lo,
                                                          uint64_t hi) const {
  if (n_layers < 1 || n_layers > kMaxLayers) {
    return Status(Code::kInvalidArgument, fmt::format("n_layers: got {}; allowed 1 to {}; check the block count of {}",
                                                      n_layers, kMaxLayers, name_));
  }
  const MetaEntry* entry = find(key);
  if (entry == nullptr || entry->type != MetaType::Array) {
    const Result<uint64_t> value = get_u64(key, lo, hi);
    if (!value.ok()) return value.status();
    return std::vector<uint64_t>(static_cast<size_t>(n_layers), value.value());
  }
  constexpr auto kMaxI64 = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const Result<IntArray> array = get_i64_array(key, n_layers, n_layers, static_cast<int64_t>(std::min(lo, kMaxI64)),
                                               static_cast<int64_t>(std::min(hi, kMaxI64)));
  if (!array.ok()) return array.status();
  std::vector<uint64_t> out;
  for (size_t i = 0; i < array.value().size(); ++i) out.push_back(static_cast<uint64_t>(array.value()[i]));
  return out;
}

std::string describe_type(const MetaEntry& entry) {
  if (entry.type != MetaType::Array) return std::string(type_name(entry.type));
  return fmt::format("array of {} [{}]", type_name(entry.element_type), entry.count);
}

std::string describe_value(const MetaEntry& entry, size_t max_chars) {
  if (entry.type == MetaType::String) return quote(payload_text(entry), max_chars);
  if (entry.type != MetaType::Array) return element_text(entry.type, entry.payload.data());
  std::string out = "[";
  const auto append = [&](uint64_t i, const std::string& text) {
    if (i > 0) out += ", ";
    const bool room = out.size() < max_chars;
    out += room ? text : "...";
    return room;
  };
  uint64_t i = 0;
  if (entry.element_type == MetaType::String) {
    for (const std::string_view text : StringArray(entry.count, entry.payload)) {
      if (!append(i++, quote(text, max_chars))) break;
    }
  } else {
    const uint32_t size = scalar_bytes(entry.element_type);
    for (; i < entry.count; ++i) {
      if (!append(i, element_text(entry.element_type, entry.payload.data() + i * size))) break;
    }
  }
  return out + "]";
}

std::string quote(std::string_view text, size_t max_chars) {
  std::string out = "\"";
  for (const char c : text) {
    if (out.size() > max_chars) {
      out += "\"...";
      return out;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out + "\"";
}

}  // namespace tessera
