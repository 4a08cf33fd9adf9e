// Compile-time description of the decode kernels and the arguments they take. No device code.
//
// A *unit* is one chunk of keys (R0's C) of one (sequence, K/V head) and one tile of its query rows: rows are (query
// token, head of the group) pairs. One block takes it alone, or a cluster shares it: scores by granules of keys,
// outputs by columns, which is free under the contract.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "kernels/sm90/divisor.h"
#include "tessera/tessera.h"

namespace tessera::sm90 {

// A kernel's numbers; the dtype and head dims are what its bits depend on (R0). Head dims of V above those of Q and K
// do not exist: R0's granule is that of kHeadDim.
template <int kHeadDimValue, bool kBf16Value, int kRowsValue, int kResidentValue = 2,
          int kValueDimValue = kHeadDimValue, bool kModifiedValue = false>
struct DecodeKernel {
  static constexpr int kHeadDim = kHeadDimValue;     // of Q and K
  static constexpr int kValueDim = kValueDimValue;   // of V and O
  static constexpr bool kBf16 = kBf16Value;          // else fp16
  static constexpr int kRows = kRowsValue;           // (query token, head) rows of a unit, at most: N of the products
  static constexpr int kResident = kResidentValue;   // blocks of a multiprocessor, of those that take units alone
  static constexpr bool kModified = kModifiedValue;  // softcap, ALiBi, custom bits (modifiers.cuh)
  // Whether problems may have other head dims of Q and K than of V.
  static constexpr bool kTwoDims = kModified || kValueDim != kHeadDim;
};

template <int kHeadDim, bool kBf16, int kRows, int kResident, int kValueDim = kHeadDim>
using ModifiedDecodeKernel = DecodeKernel<kHeadDim, kBf16, kRows, kResident, kValueDim, true>;

// Two neighbouring K/V heads of 64 dims as one of 128: every row of the unit has a half of the dims, its own head's,
// and what its products with the other head's give is dropped. R0's numbers are those of head dim 64, which are the
// same.
template <class Tag>
struct TwinKernel : Tag {
  static constexpr bool kTwin = true;
};
template <class Tag>
constexpr bool is_twin() {
  return requires {
    Tag::kTwin;
  };
}

// Numbers of which a quotient and its remainders are neither subnormal nor infinite (softcap.cuh).
inline constexpr float kLeastDividend = 0x1p-60F;
inline constexpr float kLargestDividend = 0x1p60F;

// The kernel that takes the units of several segments at once (segments.cuh).
template <class Tag>
struct SegmentsKernel : Tag {
  static constexpr bool kSegments = true;
};
template <class Tag>
constexpr bool has_segments() {
  return requires {
    Tag::kSegments;
  };
}

inline constexpr int kDecodeColumnGroup = 16;  // output columns of one warp; states are stored by them
inline constexpr int kDecodeClasses = 8;       // R7

// G of R0.
constexpr int granule_keys(int head_dim) {
  return head_dim <= 128 ? 128 : 64;
}

// Blocks of the second kernel that share the columns of a tile of rows, and warps of each, one per group.
constexpr int combine_blocks(int value_dim) {
  return value_dim > 256 ? 2 : 1;
}
constexpr int combine_warps(int value_dim) {
  return value_dim / kDecodeColumnGroup / combine_blocks(value_dim);
}

// Pieces of 16 bytes of a chunk's state, per 16 columns and eight rows: outputs by lane, then maxima and sums of pairs
// of rows.
inline constexpr int kPartPieces = 36;
constexpr int state_pieces(int value_dim, int rows) {
  return value_dim / kDecodeColumnGroup * rows / 8 * kPartPieces;
}

struct DecodeStrides {
  int64_t batch, token, head;  // elements
};

// Shapes: Q, O (batch, seqlen_q, heads_kv * group, dims), K, V (batch, seqlen_k, heads_kv, dims).
struct DecodeArguments {
  // Paged K and V are (page, slot, heads_kv, head_dim): `batch` of the strides is the page's. Without a table the
  // sequence is the page.
  const uint16_t* k;
  const uint16_t* v;
  DecodeStrides k_strides, v_strides;
  const int32_t* page_table;
  int64_t page_table_stride;
  int64_t num_pages;
  Divisor page_size;
  const uint16_t* q;
  void* o;
  DecodeStrides q_strides, o_strides;
  tessera_row_scalars lse, row_max, row_sum;  // data null: not wanted
  const float* sinks;                         // [heads], or null
  const int32_t* seqlens_k;                   // [batch], or null: all seqlen_k
  int batch, seqlen_q, seqlen_k;
  Divisor group;  // heads of a K/V head
  int dims;       // head dim of V and O, up to the kernel's: what is missing counts as zeros
  int window;     // keys to the left that a token sees besides its own, or -1: all
  int window_right;
  Divisor row_tiles;      // of a K/V head
  Divisor heads;          // K/V heads * row_tiles: as many units as there are of a chunk
  Divisor uniform_units;  // of a sequence of seqlen_k keys
  int causal;
  int wide_output;   // O in fp32
  int unnormalized;  // O as in the state
  float c;           // R0
  float bias;        // b of R4
  float4* states;    // scratch: states of chunks (sequence, chunk, head of `heads`), state_pieces() each
  int state_chunks;  // per sequence
  // Of clusters, also scratch: how many chunks of (sequence, head of `heads`, 16 columns) are done.
  unsigned long long* counters;
  // Of kernels with two head dims: that of Q and K. The others have `dims`.
  int qk_dims;
  // Of kernels for modified scores: R1's modifiers, after which c is log2 e, and custom bits (R2).
  int natural;  // softcap or ALiBi make the scores natural
  float softmax_scale;
  float softcap;              // 0: off
  float softcap_inverse;      // RN(1 / softcap), or 0: not a number that is divided by the fast way (softcap.cuh)
  const float* alibi_slopes;  // [heads], or null
  tessera_bit_mask mask;      // data null: off
  // Of kernels for several segments, more of R2, and the blocks that have units of this one.
  int compress_ratio;          // above 0: instead of causal and windows
  const int32_t* q_positions;  // [batch] positions of first tokens, or null: behind the keys
  int first_block, blocks;
};

// Several segments (R10) of the same queries, in their order; what belongs to rows is that of the first one.
struct SegmentedArguments {
  DecodeArguments segments[TESSERA_MAX_SEGMENTS];
  int count;
};

}  // namespace tessera::sm90
