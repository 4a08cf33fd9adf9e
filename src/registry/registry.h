// The kernels of this build, in priority order, and the one walk that chooses among them.
//
// What a kernel supports is data (FmhaSupport), so that a refusal can name the nearest row and the field that differs.
// To add an attention kernel, add a row to table.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "contract/plan.h"
#include "tessera/tessera.h"

namespace tessera {

// What an attention problem may ask for beyond the plain case. Bits of a set.
enum FmhaFeature : uint32_t {
  kFeaturePaged = 1u << 0,           // segments[].page_table
  kFeaturePackedVarlen = 1u << 1,    // cu_seqlens_q, segments[].cu_seqlens_k
  kFeatureUsedLengths = 1u << 2,     // seqlens_q, segments[].seqlens_k
  kFeatureWindow = 1u << 3,          // window_left, window_right
  kFeatureCompressed = 1u << 4,      // compress_ratio
  kFeatureBitMask = 1u << 5,         // mask
  kFeatureQueryPositions = 1u << 6,  // q_positions
  kFeatureSegments = 1u << 7,        // num_segments > 1
  kFeatureSinks = 1u << 8,
  kFeatureSoftcap = 1u << 9,
  kFeatureAlibi = 1u << 10,
  kFeatureUnnormalized = 1u << 11,  // output_mode
  kFeatureChunkRange = 1u << 12,    // chunk_begin, chunk_end
  kFeatureGathered = 1u << 13,      // segments[].indices
  kFeatureFp8Rows = 1u << 14,       // segments[].format
  kFeatureStridedDim = 1u << 15,    // stride_dim other than 1
  kFeatureWideOutput = 1u << 16,    // o_dtype F32 for 16-bit inputs
  kFeatureOutputRope = 1u << 17,    // o_rope
};

struct FmhaSupport {
  uint32_t dtypes;  // bit 1 << tessera_dtype
  int32_t max_head_dim_qk;
  int32_t max_head_dim_v;
  uint32_t features;
  std::span<const int32_t> head_dims = {};  // not empty: head_dim_qk and head_dim_v are equal and one of these
};

// How the public API calls an attention kernel; all functions get validated parameters.
struct FmhaEntry {
  size_t (*workspace_bytes)(const tessera_fmha_params& params, int32_t num_threads);
  Status (*run)(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream);
  // What FmhaSupport cannot say (alignment, products of extents): "field: got X; allowed Y", or NULL if the kernel
  // takes the problem. A literal, because a call that another row takes in the end allocates nothing. NULL: no more
  // limits.
  const char* (*limit)(const tessera_fmha_params& params) = nullptr;
  // Whether a later row that takes the problem is likely to be faster. NULL: never.
  bool (*slow)(const tessera_fmha_params& params) = nullptr;
  // What would be launched, for people: lines of "key: value". Needs no device. NULL: nothing to say.
  std::string (*explain)(const tessera_fmha_params& params) = nullptr;
};

struct MergeEntry {
  Status (*run)(const tessera_merge_params& params, const tessera_stream& stream);
};

struct KernelRow {
  const char* name;
  tessera_operation operation;
  Arithmetic arithmetic;
  const char* summary;      // for people: dtypes, head dims, features
  const char* requirement;  // what the machine must have
  bool (*available)();
  tessera_device device;  // CPU: pointers are read on the host, and the API checks what they point to before the call
  FmhaSupport support;
  FmhaEntry fmha;    // operation TESSERA_OP_FMHA
  MergeEntry merge;  // operation TESSERA_OP_MERGE
};

// Attention and merge kernels of all devices, for each device best first; the last row of each operation runs on every
// machine.
std::span<const KernelRow> kernel_rows();

// The device of a call. Callers whose struct_size ends before the field mean the CPU.
template <class Params>
tessera_device device_of(const Params& params) {
  return params.struct_size > offsetof(Params, device) ? params.device : TESSERA_DEVICE_CPU;
}

// The first available row of the call's device that supports the problem and is not slow for it, or else the first that
// supports it; params.force_kernel, if not NULL, restricts the walk to one row. `params` has passed the shape checks of
// the API. kUnsupported names the nearest row and the field that differs, or says that no kernel of this device can run
// here; another device is never chosen instead.
Result<const KernelRow*> select_fmha(const tessera_fmha_params& params);
Result<const KernelRow*> select_merge(const tessera_merge_params& params);
// The same as select_fmha on a machine that can run every row of the build.
Result<const KernelRow*> select_fmha_anywhere(const tessera_fmha_params& params);

// All rows, matrix products included, for tessera_kernel_get: 0 <= index < kernel_count().
int32_t kernel_count();
tessera_kernel_info kernel_info(int32_t index);

}  // namespace tessera
