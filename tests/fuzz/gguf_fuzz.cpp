// libFuzzer target of the GGUF reader: parse, then use everything that the reader promises about an accepted file.
#include <cstdint>
#include <cstdlib>

#include "engine/gguf/dequant.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/tensor_check.h"
#include "gguf/walk.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  for (const bool allow_gaps : {false, true}) {
    const tessera::Result<tessera::GgufFile> file = tessera::GgufFile::parse(bytes, "fuzz", {.allow_gaps = allow_gaps});
    if (!file.ok()) {
      check(!file.status().text().empty());
      continue;
    }
    check(tessera::testing::walk(file.value(), bytes).empty());
    for (const tessera::TensorInfo& tensor : file.value().tensors()) {
      (void)tessera::check_tensor_values(tensor, "fuzz");
    }
  }
  return 0;
}
