// Strict reader for GGUF version 2 and 3 files: everything is validated when the file is opened, nothing is copied.
//
// After open() or parse() has succeeded, every key, string, array and tensor extent is known to lie inside the file,
// keys and tensor names are unique, and tensors do not overlap. Strings, arrays and tensor data are views into the
// mapped file: they live as long as the GgufFile (moving it keeps them valid). A GgufFile is immutable, so any number
// of threads may read it. Opening takes time O(metadata bytes * log(number of keys)) and touches no tensor data.
//
// All errors are sentences that name the file, the byte offset, the key or tensor, what was found and what is allowed.
// kBadFile: the file contradicts the format. kUnsupported: a valid file of a version or tensor type this build does not
// read. kIo: the file could not be opened.
#pragma once

#include <array>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/gguf/arrays.h"
#include "engine/gguf/mapped_file.h"
#include "engine/gguf/types.h"

namespace tessera {

// Limits beyond the format's own. They bound memory and time for a hostile file and are far above any real model.
inline constexpr uint64_t kMaxMetaEntries = uint64_t{1} << 20;
inline constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
inline constexpr uint64_t kMaxKeyBytes = 65535;
inline constexpr uint64_t kMaxStringBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxArrayElements = uint64_t{1} << 28;
inline constexpr uint64_t kMaxTensorNameBytes = 63;
inline constexpr uint32_t kMaxDims = 4;
inline constexpr uint32_t kDefaultAlignment = 32;
inline constexpr uint32_t kMinAlignment = 8;
inline constexpr uint32_t kMaxAlignment = 65536;
inline constexpr uint64_t kMaxLayers = 512;

// One key-value pair.
struct MetaEntry {
  std::string_view key;                // 1..65535 printable ASCII characters
  MetaType type;                       //
  MetaType element_type;               // of an array; equal to `type` otherwise
  uint64_t count;                      // elements of an array; 1 otherwise
  uint64_t offset;                     // of the key-value pair in the file, bytes
  std::span<const std::byte> payload;  // encoded value: scalar, characters of a string, elements of an array
};

// One tensor. dims[0] is the contiguous direction: a matrix [dims[0] = K, dims[1] = N] holds N rows of K values.
struct TensorInfo {
  std::string_view name;            // 1..63 printable ASCII characters
  TensorType type;                  //
  uint32_t n_dims;                  // 1..4
  std::array<int64_t, 4> dims;      // every entry >= 1; unused ones are 1
  uint64_t info_offset;             // of the tensor's description in the file, bytes
  uint64_t offset;                  // of its data in the file, bytes (absolute)
  uint64_t nbytes;                  // of its data, without padding
  std::span<const std::byte> data;  // [offset, offset + nbytes) of the file

  int64_t n_elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  int64_t n_rows() const { return dims[1] * dims[2] * dims[3]; }
  uint64_t row_bytes() const { return static_cast<uint64_t>(dims[0]) / block_elements(type) * block_bytes(type); }
};

struct ParseOptions {
  // Off: tensor data must be packed in the order of the descriptions and end with the file, as every known writer does;
  // a damaged count, which would shift all the data, is then noticed. On: gaps, other orders and trailing bytes pass;
  // overlaps never do.
  bool allow_gaps = false;
};

// What a parse yields (gguf_parse.cpp); GgufFile adds the lookups.
struct GgufContents {
  uint32_t version = 0;
  uint32_t alignment = kDefaultAlignment;
  uint64_t data_offset = 0;
  std::vector<MetaEntry> metadata;       // in file order
  std::vector<uint32_t> by_key;          // indices into metadata, sorted by key
  std::vector<TensorInfo> tensors;       // in file order
  std::vector<uint32_t> by_tensor_name;  // indices into tensors, sorted by name
};
Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, std::string_view name, const ParseOptions& options);

class GgufFile {
 public:
  // Maps and validates `path`.
  static Result<GgufFile> open(const std::string& path, const ParseOptions& options = {});
  // Validates bytes that the caller keeps alive; `name` stands for the file in error sentences.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name, const ParseOptions& options = {});

  const std::string& name() const { return name_; }
  uint64_t size() const { return bytes_.size(); }
  uint32_t version() const { return contents_.version; }
  uint32_t alignment() const { return contents_.alignment; }
  uint64_t data_offset() const { return contents_.data_offset; }

  // Metadata and tensors in file order.
  std::span<const MetaEntry> metadata() const { return contents_.metadata; }
  std::span<const TensorInfo> tensors() const { return contents_.tensors; }

  // nullptr when absent; O(log n).
  const MetaEntry* find(std::string_view key) const;
  const TensorInfo* find_tensor(std::string_view name) const;

  // Required values. Integers of any width and sign are accepted when the value lies in [lo, hi] (writers disagree on
  // widths). f32 must be exactly f32, and finite because lo and hi are; bool and string must have exactly that type.
  Result<uint64_t> get_u64(std::string_view key, uint64_t lo = 0,
                           uint64_t hi = std::numeric_limits<uint64_t>::max()) const;
  Result<int64_t> get_i64(std::string_view key, int64_t lo = std::numeric_limits<int64_t>::min(),
                          int64_t hi = std::numeric_limits<int64_t>::max()) const;
  Result<float> get_f32(std::string_view key, float lo = -FLT_MAX, float hi = FLT_MAX) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;

  // Optional values: `fallback` when the key is absent; a present key of the wrong type or range is still an error.
  // The fallback itself is not range-checked.
  Result<uint64_t> get_u64_or(std::string_view key, uint64_t fallback, uint64_t lo = 0,
                              uint64_t hi = std::numeric_limits<uint64_t>::max()) const;
  Result<int64_t> get_i64_or(std::string_view key, int64_t fallback, int64_t lo = std::numeric_limits<int64_t>::min(),
                             int64_t hi = std::numeric_limits<int64_t>::max()) const;
  Result<float> get_f32_or(std::string_view key, float fallback, float lo = -FLT_MAX, float hi = FLT_MAX) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view fallback) const;

  // Arrays as views; the length must lie in [min_count, max_count]. Integers: any integer element type, each value in
  // [lo, hi]. f32: exactly f32 elements, none of them NaN. bool: elements of type bool, i8, u8 or i32, each 0 or 1.
  // Optional arrays: ask find() first.
  Result<IntArray> get_i64_array(std::string_view key, uint64_t min_count = 0, uint64_t max_count = kMaxArrayElements,
                                 int64_t lo = std::numeric_limits<int64_t>::min(),
                                 int64_t hi = std::numeric_limits<int64_t>::max()) const;
  Result<FloatArray> get_f32_array(std::string_view key, uint64_t min_count = 0,
                                   uint64_t max_count = kMaxArrayElements) const;
  Result<BoolArray> get_bool_array(std::string_view key, uint64_t min_count = 0,
                                   uint64_t max_count = kMaxArrayElements) const;
  Result<StringArray> get_string_array(std::string_view key, uint64_t min_count = 0,
                                       uint64_t max_count = kMaxArrayElements) const;

  // A hyperparameter that a file gives either once or per layer: a scalar is repeated, an array must have exactly
  // n_layers (1..512) elements. Each value lies in [lo, hi].
  Result<std::vector<uint64_t>> get_per_layer_u64(std::string_view key, uint64_t n_layers, uint64_t lo,
                                                  uint64_t hi) const;

  // An error about `key` in the form of this reader's own, for checks that only the caller can make: names the file,
  // the offset (when the key is present) and the key.
  Status key_error(std::string_view key, std::string_view got, std::string_view allowed, std::string_view todo) const;

  // MappedFile::advise_dontneed; no effect on a parse()d span.
  void advise_dontneed(uint64_t offset, uint64_t bytes) const { map_.advise_dontneed(offset, bytes); }

 private:
  Result<const MetaEntry*> require(std::string_view key, std::string_view wanted) const;
  Result<const MetaEntry*> require_array(std::string_view key, std::string_view wanted, uint64_t min_count,
                                         uint64_t max_count) const;
  Status wrong_type(const MetaEntry& entry, std::string_view wanted) const;

  MappedFile map_;                    // empty for parse()
  std::span<const std::byte> bytes_;  // of map_ or of the caller
  std::string name_;
  GgufContents contents_;
};

// "u32", "array of string [49152]".
std::string describe_type(const MetaEntry& entry);

// The value as one line of printable text for listings: strings quoted and escaped, arrays as their first elements,
// cut to about max_chars characters.
std::string describe_value(const MetaEntry& entry, size_t max_chars);

// Quotes text from a file for an error sentence: non-printable bytes as \xNN, cut to about max_chars characters.
std::string quote(std::string_view text, size_t max_chars = 80);

}  // namespace tessera
