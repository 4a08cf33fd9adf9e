// Host side of the kernels for one K/V head whose V, of dim 512, is in K: from a problem to arguments and a launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "kernels/sm90/fmha_mqa_512/config.h"
#include "kernels/sm90/tma_map.h"

namespace tessera::sm90 {

// One segment (R10). `k` is (batch, token, 1 head, head dim), or a page pool (page, slot, 1 head, head dim);
// V is the first 512 elements of its rows.
struct MqaSegmentProblem {
  TensorView k;
  bool fp8 = false;  // rows of TESSERA_KV_FP8_V4_584 (head dim 512) or _V32_656 (576); strides of k then count bytes
  int64_t seqlen_k = 0;
  const int32_t* seqlens_k = nullptr;
  const int32_t* cu_seqlens_k = nullptr;  // packed keys
  const int32_t* page_table = nullptr;
  int64_t page_table_stride = 0;
  const int32_t* q_positions = nullptr;
  bool causal = false;
  int64_t window_left = -1, window_right = -1;
  int32_t compress_ratio = 0;
  // Gathered keys, sorted (fmha_decode/gather.h): rows and their number for every query token.
  bool gathered = false;
  const int32_t* sorted = nullptr;
  const int32_t* counts = nullptr;
  int32_t topk = 0;
};

struct MqaProblem {
  tessera_dtype dtype = TESSERA_BF16;
  TensorView q;  // (batch, token, head, head dim of 512 or 576)
  TensorView o;  // (batch, token, head, 512)
  MqaSegmentProblem segments[TESSERA_MAX_SEGMENTS];
  int32_t count = 0;
  int64_t batch = 0, seqlen_q = 0;  // sequences, and the bound of their query tokens
  const int32_t* seqlens_q = nullptr;
  const int32_t* cu_seqlens_q = nullptr;  // packed Q and O, whose batch is 1
  float softmax_scale = 1.0F;
  const float* sinks = nullptr;
  tessera_output_rope o_rope{};  // R12
  bool wide_output = false;   // O in fp32
  bool unnormalized = false;  // O as in the state
  tessera_row_scalars lse{}, row_max{}, row_sum{};
  void* scratch = nullptr;
};

template <class Tag>
cudaError_t launch_mqa_512(const MqaArguments& arguments, int blocks, cudaStream_t stream);

// Query tiles of a problem.
int64_t mqa_512_tiles(const MqaProblem& problem);

// Chunks (R8) of which a tile may see keys, whatever the lengths and positions on the device are.
int64_t mqa_512_tile_chunks(const MqaProblem& problem);

// How many parts each tile's chunks are cut into, so that all multiprocessors have about as much to do, and granules of
// the block that then has the most: from the bounds of the lengths, never from the lengths. No bit depends on it.
struct MqaPlan {
  int parts;
  int64_t granules;
};
MqaPlan plan_mqa_512(const MqaProblem& problem, int multiprocessors);

// Whether the decode kernels (fmha_decode) are likely to be faster.
bool mqa_512_is_slow(const MqaProblem& problem, int multiprocessors);

// Scratch of a launch in that many parts: what each block has chained so far, of chunks where a segment may have
// several, of superchunks likewise, and of segments; and if there are several parts, a state per tile and chunk.
// Launches that run at the same time need scratch of their own.
size_t mqa_512_scratch_bytes(const MqaProblem& problem, int parts, int multiprocessors);

// Checks the problem and enqueues the kernel, and with several parts the one that chains chunks. kInvalidArgument or
// kUnsupported before anything is enqueued, kDevice if CUDA refuses.
Status run_mqa_512(const MqaProblem& problem, int parts, int multiprocessors, cudaStream_t stream);

}  // namespace tessera::sm90
