// What one instruction set provides to the driver (gemm.cpp). Every set gives the same bits (contract.md, M1..M5).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "kernels/cpu/gemm/weight_types.h"

namespace tessera::gemm {

// Set of weight types: bit t is the type with number t.
TESSERA_HD constexpr uint32_t type_bit(WeightType type) {
  return uint32_t{1} << static_cast<int32_t>(type);
}

// Rows [row_begin, row_end) of a slab of activations, to be quantised. row_begin is a multiple of kPanelRows.
struct QuantizeTask {
  const float* x;  // row 0 of the slab
  int64_t stride_x;
  int64_t k;
  uint32_t types;  // of the matrices that will use the records
  int64_t slab_rows;
  int64_t row_begin;
  int64_t row_end;
  uint8_t* acts;  // records of the slab, Ops::act_bytes
};

// Rows [row_begin, row_end) of the slab times row groups [group_begin, group_end) of one weight matrix.
struct TileTask {
  WeightType type;
  int64_t n;
  int64_t k;
  const uint8_t* packed;  // group 0
  const float* bias;      // [n] or nullptr
  float* y;               // row 0 of the slab
  int64_t stride_y;
  const float* x;  // row 0 of the slab; read by unquantised types only
  int64_t stride_x;
  uint32_t types;       // as in the QuantizeTask
  const uint8_t* acts;  // records of the slab; read by quantised types only
  int64_t slab_rows;
  int64_t row_begin;  // multiple of kPanelRows
  int64_t row_end;
  int64_t group_begin;
  int64_t group_end;
  uint8_t* scratch;  // of this thread, Ops::scratch_bytes
};

struct Ops {
  // Bytes of the records of a slab of `rows` rows, for quantised types in `types`; 64-byte aligned memory.
  size_t (*act_bytes)(uint32_t types, int64_t rows, int64_t k);
  // Bytes of scratch memory per thread for such a slab; 64-byte aligned, a multiple of 64.
  size_t (*scratch_bytes)(uint32_t types, int64_t rows);
  void (*quantize)(const QuantizeTask& task);
  void (*multiply)(const TileTask& task);
  // Rows of one task: enough to pay for unpacking the weights, few enough that their records stay in the L2 cache.
  int64_t task_rows;
};

// Defined only where the compiler targets x86-64; the dispatcher in gemm.cpp checks the CPU before it uses one.
extern const Ops kPortableOps;
extern const Ops kAvx2Ops;
extern const Ops kAvx512VnniOps;
extern const Ops kAmxOps;

}  // namespace tessera::gemm
