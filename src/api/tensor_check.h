// Address arithmetic of strided tensors, checked once so that kernels may use plain 64-bit offsets.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Name of an argument inside an array, "segments[1].k", built only when a sentence is written.
struct ArgumentName {
  const char* array;  // NULL: a plain argument
  int32_t index;
  const char* name;
};

std::string to_text(const ArgumentName& name);

// Extents of the four strided dimensions; an extent of 0 means that nothing is accessed.
struct Extents {
  int64_t batch;
  int64_t token;
  int64_t head;
  int64_t dim;
};

enum class Access { kRead, kWrite };

// data (not NULL unless empty, aligned to element_bytes), strides >= 0, all offsets within 2^60 elements; for kWrite
// also that no two elements share an address (sufficient condition: sorted by stride, every stride spans the smaller
// dimensions).
Status check_tensor(const ArgumentName& name, const tessera_tensor& tensor, const Extents& extents,
                    int64_t element_bytes, Access access);

// The same for scalars per row; data == NULL passes.
Status check_row_scalars(const char* name, const tessera_row_scalars& scalars, int64_t batch, int64_t token,
                         int64_t head, Access access);

}  // namespace tessera
