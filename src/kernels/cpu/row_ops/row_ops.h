// RMSNorm, SwiGLU and RoPE on fp32 rows (rules E1..E3 of contract.md).
#pragma once

#include <cstdint>
#include <span>

#include "tessera/tessera.h"

namespace tessera::row_ops {

// y[r] = E1(x[r]); strides in elements; y may be x.
struct RmsNormTask {
  int64_t rows;
  int64_t dim;
  const float* x;
  int64_t stride_x;
  const float* weight;  // [dim]
  float eps;
  float* y;
  int64_t stride_y;
};

// y[r] = E2(gate[r], up[r]); y may be gate or up.
struct SwigluTask {
  int64_t rows;
  int64_t dim;
  const float* gate;
  int64_t stride_gate;
  const float* up;
  int64_t stride_up;
  float* y;
  int64_t stride_y;
};

// E3 in place on x (rows, num_heads, head_dim); the tables are (num_positions, rotary_dim / 2).
struct RopeTask {
  int64_t rows;
  int32_t num_heads;
  int32_t rotary_dim;
  bool interleaved;  // pairs (2i, 2i + 1), else (i, i + rotary_dim / 2)
  const int32_t* positions;
  const float* cos_table;
  const float* sin_table;
  float* x;
  int64_t stride_row;
  int64_t stride_head;
};

// One instruction set's implementation, on rows [begin, end) of a task. All give the same bits.
struct RowOps {
  const char* name;
  bool (*available)();
  void (*rms_norm)(const RmsNormTask& task, int64_t begin, int64_t end);
  void (*swiglu)(const SwigluTask& task, int64_t begin, int64_t end);
  void (*rope)(const RopeTask& task, int64_t begin, int64_t end);
};

// Implementations of this build, best first; the last one runs everywhere.
std::span<const RowOps* const> all_row_ops();

// The first available one.
const RowOps& best_row_ops();

// All rows, on `executor` when there is enough work to share (nullptr: the calling thread).
void run_rms_norm(const RowOps& ops, const RmsNormTask& task, const tessera_executor* executor);
void run_swiglu(const RowOps& ops, const SwigluTask& task, const tessera_executor* executor);
void run_rope(const RowOps& ops, const RopeTask& task, const tessera_executor* executor);

}  // namespace tessera::row_ops
