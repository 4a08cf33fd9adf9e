// Gathered keys (R10) of the public parameters as the kernel that sorts them takes them. Compiled with TESSERA_CUDA
// only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/sm90/fmha_decode/gather.h"
#include "tessera/tessera.h"

namespace tessera {

bool has_gathered(const tessera_fmha_params& params);

// The rows of K and V in the batches or pages of a segment are numbered through; 0 if they cannot be.
int64_t rows_of_batch(const tessera_tensor& tensor);

// What the list of a gathered segment has to become, without memory for it.
sm90::GatheredKeys gathered_list(const tessera_fmha_params& params, const tessera_kv_segment& segment);

// Bytes for the sorted list, and that memory given to it; its address is a multiple of 64.
size_t gathered_list_bytes(const sm90::GatheredKeys& list);
void place_gathered_list(sm90::GatheredKeys* list, void* memory);

// Bytes rounded up to where memory of its own may begin.
constexpr size_t aligned_bytes(size_t bytes) {
  constexpr size_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace tessera
