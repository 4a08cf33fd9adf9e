// What one instruction set provides to the driver (gemm.cpp). Every set gives the same bits (contract.md, M1..M5).
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/activation.h"
#include "kernels/cpu/gemm/weight_types.h"

namespace tessera::gemm {

// Rows [row_begin, row_end) of a slab of activations, to be quantised. row_begin is a multiple of kPanelRows.
struct QuantizeTask {
  const float* x;  // row 0 of the slab
  int64_t stride_x;
  int64_t k;
  int64_t slab_rows;
  int64_t row_begin;
  int64_t row_end;
  ActBlock* acts;  // records of the slab
  uint8_t* tiles;  // AMX tiles of the slab, or nullptr (amx_tiles.h)
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
  const ActBlock* acts;  // records of the slab; read by quantised types only
  const uint8_t* tiles;  // AMX tiles of the slab, or nullptr
  int64_t slab_rows;
  int64_t row_begin;  // multiple of kPanelRows
  int64_t row_end;
  int64_t group_begin;
  int64_t group_end;
  uint8_t* scratch;  // per thread, Ops::scratch_bytes, 64-byte aligned
};

struct Ops {
  void (*quantize)(const QuantizeTask& task);
  void (*multiply)(const TileTask& task);
};

// Defined only where the compiler targets x86-64; the dispatcher in gemm.cpp checks the CPU before it uses one.
extern const Ops kPortableOps;
extern const Ops kAvx2Ops;
extern const Ops kAvx512VnniOps;

}  // namespace tessera::gemm
