#include "engine/gguf/types.h"

#include <array>

namespace tessera {
namespace {

// Indexed by id. Ids that were withdrawn keep their place in the numbering and may never be reused.
constexpr std::array<std::string_view, 43> kTensorTypeNames = {
    "F32",     "F16",    "Q4_0",  "Q4_1",    "removed", "removed", "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",    "Q2_K",
    "Q3_K",    "Q4_K",   "Q5_K",  "Q6_K",    "Q8_K",    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",  "IQ3_S",
    "IQ2_S",   "IQ4_XS", "I8",    "I16",     "I32",     "I64",     "F64",    "IQ1_M",   "BF16",  "removed", "removed",
    "removed", "TQ1_0",  "TQ2_0", "removed", "removed", "removed", "MXFP4",  "NVFP4",   "Q1_0",  "Q2_0"};

constexpr std::array<std::string_view, kMetaTypeCount> kMetaTypeNames = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

}  // namespace

std::string_view tensor_type_name(uint32_t id) {
  return id < kTensorTypeNames.size() ? kTensorTypeNames[id] : std::string_view{};
}

std::string_view type_name(MetaType type) {
  const auto id = static_cast<uint32_t>(type);
  return id < kMetaTypeCount ? kMetaTypeNames[id] : std::string_view{"unknown"};
}

}  // namespace tessera
