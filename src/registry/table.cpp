// The table. Order is priority: the first row that is available and supports the problem runs.
#include <iterator>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/fmha/explain.h"
#include "kernels/cpu/fmha/fmha.h"
#include "registry/registry.h"
#if defined(TESSERA_WITH_CUDA)
#include "registry/sm80_rows.h"
#include "registry/sm90_512_rows.h"
#include "registry/sm90_decode_rows.h"
#include "registry/sm90_mqa_512_rows.h"
#include "registry/sm90_rows.h"
#endif

namespace tessera {
namespace {

constexpr uint32_t kAllDtypes = 1u << TESSERA_F32 | 1u << TESSERA_F16 | 1u << TESSERA_BF16;

// Everything but strided head dims.
constexpr uint32_t kCpuFeatures =
    kFeaturePaged | kFeaturePackedVarlen | kFeatureUsedLengths | kFeatureWindow | kFeatureCompressed | kFeatureBitMask |
    kFeatureQueryPositions | kFeatureSegments | kFeatureSinks | kFeatureSoftcap | kFeatureAlibi | kFeatureUnnormalized |
    kFeatureChunkRange | kFeatureWideOutput | kFeatureGathered | kFeatureFp8Rows | kFeatureOutputRope;

constexpr FmhaSupport kCpuSupport = {kAllDtypes, kFmhaMaxHeadDim, kFmhaMaxHeadDim, kCpuFeatures};

constexpr const char* kFmhaSummary =
    "f32, f16, bf16; head dims 1..576; paged, varlen, masks, segments, sinks, softcap, ALiBi, split, gathered "
    "keys, FP8 rows, RoPE of O";
constexpr const char* kMergeSummary = "states of any cpu-fma32 kernel; head dims 1..576";

template <const FmhaKernels& kKernels>
Status run_fmha(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream) {
  fmha_run(kKernels, params, workspace, stream.executor);
  return {};
}

template <const FmhaKernels& kKernels>
Status run_merge(const tessera_merge_params& params, const tessera_stream& stream) {
  fmha_merge(kKernels, params, stream.executor);
  return {};
}

template <const FmhaKernels& kKernels>
constexpr KernelRow cpu_fmha(const char* name, const char* requirement, bool (*available)()) {
  return {name,
          TESSERA_OP_FMHA,
          Arithmetic::kCpuFma32,
          kFmhaSummary,
          requirement,
          available,
          TESSERA_DEVICE_CPU,
          kCpuSupport,
          {.workspace_bytes = fmha_workspace_bytes,
           .run = run_fmha<kKernels>,
           .limit = fmha_limit,
           .explain = explain_cpu_fmha},
          {nullptr}};
}

template <const FmhaKernels& kKernels>
constexpr KernelRow cpu_merge(const char* name, const char* requirement, bool (*available)()) {
  return {name,      TESSERA_OP_MERGE,   Arithmetic::kCpuFma32, kMergeSummary,      requirement,
          available, TESSERA_DEVICE_CPU, kCpuSupport,           {nullptr, nullptr}, {run_merge<kKernels>}};
}

#if defined(__x86_64__)
constexpr const char* kNeedsAvx512 = "AVX-512 F, BW, DQ, VL";
constexpr const char* kNeedsAvx2 = "AVX2, FMA, F16C";
bool has_avx512() {
  return cpu_features().avx512;
}
bool has_avx2() {
  return cpu_features().avx2;
}
#endif
constexpr const char* kNeedsNothing = "any machine";
bool always() {
  return true;
}

constexpr KernelRow kRows[] = {
#if defined(TESSERA_WITH_CUDA)
    kSm90Mqa512,
    kSm90Decode,
    kSm90Prefill,
    kSm90Ragged,
    kSm90Prefill512,
    kSm80Fmha,
#endif
#if defined(__x86_64__)
    cpu_fmha<kFmhaAvx512>("cpu_fmha_avx512", kNeedsAvx512, has_avx512),
    cpu_fmha<kFmhaAvx2>("cpu_fmha_avx2", kNeedsAvx2, has_avx2),
#endif
    cpu_fmha<kFmhaPortable>("cpu_fmha_portable", kNeedsNothing, always),
#if defined(TESSERA_WITH_CUDA)
    kSm80Merge,
#endif
#if defined(__x86_64__)
    cpu_merge<kFmhaAvx512>("cpu_merge_avx512", kNeedsAvx512, has_avx512),
    cpu_merge<kFmhaAvx2>("cpu_merge_avx2", kNeedsAvx2, has_avx2),
#endif
    cpu_merge<kFmhaPortable>("cpu_merge_portable", kNeedsNothing, always),
};

}  // namespace

std::span<const KernelRow> kernel_rows() {
  return kRows;
}

}  // namespace tessera
