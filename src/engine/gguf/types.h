// The numeric type ids of GGUF: tensor element types (and their block sizes) and metadata value types.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// Tensor types the engine can compute with. Values are the ids in the file.
enum class TensorType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
};

// A row is a whole number of blocks: block_elements() values stored in block_bytes() bytes. Both are 0 for a value that
// is not an enumerator, so a cast from an unchecked id cannot pass for a type.
constexpr uint32_t block_elements(TensorType type) {
  switch (type) {
    case TensorType::F32:
    case TensorType::F16:
    case TensorType::BF16:
      return 1;
    case TensorType::Q4_0:
    case TensorType::Q4_1:
    case TensorType::Q5_0:
    case TensorType::Q5_1:
    case TensorType::Q8_0:
      return 32;
    case TensorType::Q4_K:
    case TensorType::Q5_K:
    case TensorType::Q6_K:
      return 256;
  }
  return 0;
}

constexpr uint32_t block_bytes(TensorType type) {
  switch (type) {
    case TensorType::F32:
      return 4;
    case TensorType::F16:
    case TensorType::BF16:
      return 2;
    case TensorType::Q4_0:
      return 18;
    case TensorType::Q4_1:
      return 20;
    case TensorType::Q5_0:
      return 22;
    case TensorType::Q5_1:
      return 24;
    case TensorType::Q8_0:
      return 34;
    case TensorType::Q4_K:
      return 144;
    case TensorType::Q5_K:
      return 176;
    case TensorType::Q6_K:
      return 210;
  }
  return 0;
}

// Whether a type id from a file is one of TensorType.
constexpr bool is_supported_tensor_type(uint32_t id) {
  return block_elements(static_cast<TensorType>(id)) != 0;
}

// The format's name of a tensor type id, supported or not ("Q4_K", "IQ2_XXS"); empty for an id that was never
// assigned; "removed" for an id that was withdrawn from the format.
std::string_view tensor_type_name(uint32_t id);
inline std::string_view type_name(TensorType type) {
  return tensor_type_name(static_cast<uint32_t>(type));
}

// Metadata value types. Values are the ids in the file.
enum class MetaType : uint32_t {
  U8 = 0,
  I8 = 1,
  U16 = 2,
  I16 = 3,
  U32 = 4,
  I32 = 5,
  F32 = 6,
  Bool = 7,    // NOLINT(readability-identifier-naming): a word, unlike the width names
  String = 8,  // NOLINT(readability-identifier-naming): a word, unlike the width names
  Array = 9,   // NOLINT(readability-identifier-naming): a word, unlike the width names
  U64 = 10,
  I64 = 11,
  F64 = 12,
};
inline constexpr uint32_t kMetaTypeCount = 13;

// Encoded bytes of one scalar; 0 for strings and arrays, whose size is in the file.
constexpr uint32_t scalar_bytes(MetaType type) {
  switch (type) {
    case MetaType::U8:
    case MetaType::I8:
    case MetaType::Bool:
      return 1;
    case MetaType::U16:
    case MetaType::I16:
      return 2;
    case MetaType::U32:
    case MetaType::I32:
    case MetaType::F32:
      return 4;
    case MetaType::U64:
    case MetaType::I64:
    case MetaType::F64:
      return 8;
    case MetaType::String:
    case MetaType::Array:
      return 0;
  }
  return 0;
}

constexpr bool is_integer(MetaType type) {
  return type != MetaType::F32 && type != MetaType::F64 && type != MetaType::Bool && scalar_bytes(type) != 0;
}

// "u32", "string", ...
std::string_view type_name(MetaType type);

}  // namespace tessera
