#include "registry/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>

#include "kernels/cpu/gemm/gemm.h"

namespace tessera {
namespace {

// What a problem needs, in the terms of FmhaSupport.
struct FmhaNeeds {
  tessera_dtype dtype;
  int32_t head_dim_qk;
  int32_t head_dim_v;
  uint32_t features;
  const tessera_fmha_params* problem;  // NULL: a merge
};

// Parameter behind each feature bit, for refusals.
constexpr const char* kFeatureNames[] = {
    "segments[].page_table (paged K/V)",
    "cu_seqlens (packed sequences)",
    "seqlens_q, seqlens_k (used lengths)",
    "window_left, window_right",
    "compress_ratio",
    "mask (custom bits)",
    "q_positions",
    "num_segments > 1",
    "sinks",
    "softcap",
    "alibi_slopes",
    "output_mode (un-normalised)",
    "chunk_begin, chunk_end",
    "indices (gathered keys)",
    "format (FP8 K/V rows)",
    "stride_dim other than 1",
    "o_dtype f32 with 16-bit inputs",
    "o_rope",
};

uint32_t feature_if(bool wanted, FmhaFeature feature) {
  return wanted ? feature : 0u;
}

FmhaNeeds needs_of(const tessera_fmha_params& p) {
  uint32_t features = feature_if(p.cu_seqlens_q != nullptr, kFeaturePackedVarlen) |
                      feature_if(p.seqlens_q != nullptr, kFeatureUsedLengths) |
                      feature_if(p.num_segments > 1, kFeatureSegments) | feature_if(p.sinks != nullptr, kFeatureSinks) |
                      feature_if(p.softcap != 0.0f, kFeatureSoftcap) |
                      feature_if(p.alibi_slopes != nullptr, kFeatureAlibi) |
                      feature_if(p.output_mode == TESSERA_OUTPUT_UNNORMALIZED, kFeatureUnnormalized) |
                      feature_if(p.chunk_begin != 0 || p.chunk_end != 0, kFeatureChunkRange) |
                      feature_if(p.q.stride_dim != 1 || p.o.stride_dim != 1, kFeatureStridedDim) |
                      feature_if(p.o_dtype != p.dtype, kFeatureWideOutput) |
                      feature_if(p.o_rope.cos_table != nullptr, kFeatureOutputRope);
  for (int32_t i = 0; i < p.num_segments; ++i) {
    const tessera_kv_segment& s = p.segments[i];
    features |=
        feature_if(s.page_table != nullptr, kFeaturePaged) |
        feature_if(s.cu_seqlens_k != nullptr, kFeaturePackedVarlen) |
        feature_if(s.seqlens_k != nullptr, kFeatureUsedLengths) |
        feature_if(s.window_left >= 0 || s.window_right >= 0, kFeatureWindow) |
        feature_if(s.compress_ratio > 0, kFeatureCompressed) | feature_if(s.mask.data != nullptr, kFeatureBitMask) |
        feature_if(s.q_positions != nullptr, kFeatureQueryPositions) |
        feature_if(s.indices != nullptr, kFeatureGathered) | feature_if(s.format != TESSERA_KV_DENSE, kFeatureFp8Rows) |
        feature_if(s.k.stride_dim != 1 || s.v.stride_dim != 1, kFeatureStridedDim);
  }
  return {p.dtype, p.head_dim_qk, p.head_dim_v, features, &p};
}

FmhaNeeds needs_of(const tessera_merge_params& p) {
  return {p.dtype, p.head_dim_qk, p.head_dim_v,
          feature_if(p.o_states.stride_dim != 1 || p.o.stride_dim != 1, kFeatureStridedDim) |
              feature_if(p.o_rope.cos_table != nullptr, kFeatureOutputRope),
          nullptr};
}

bool has_head_dims(const FmhaSupport& has, const FmhaNeeds& wants) {
  return has.head_dims.empty() || (wants.head_dim_qk == wants.head_dim_v &&
                                   std::ranges::find(has.head_dims, wants.head_dim_qk) != has.head_dims.end());
}

// What the row's own limits say; only asked where everything that is data fits.
const char* limit_of(const KernelRow& row, const FmhaNeeds& wants) {
  return row.fmha.limit == nullptr || wants.problem == nullptr ? nullptr : row.fmha.limit(*wants.problem);
}

bool is_slow(const KernelRow& row, const FmhaNeeds& wants) {
  return row.fmha.slow != nullptr && wants.problem != nullptr && row.fmha.slow(*wants.problem);
}

int differing_fields(const KernelRow& row, const FmhaNeeds& wants) {
  const FmhaSupport& has = row.support;
  const int fields = static_cast<int>((has.dtypes >> wants.dtype & 1u) == 0) +
                     static_cast<int>(wants.head_dim_qk > has.max_head_dim_qk) +
                     static_cast<int>(wants.head_dim_v > has.max_head_dim_v) +
                     static_cast<int>(!has_head_dims(has, wants)) + std::popcount(wants.features & ~has.features);
  return fields == 0 && limit_of(row, wants) != nullptr ? 1 : fields;
}

const char* device_name(tessera_device device) {
  return device == TESSERA_DEVICE_CPU ? "CPU" : "CUDA";
}

std::string head_dims_text(std::span<const int32_t> head_dims) {
  std::string text;
  for (const int32_t dim : head_dims) text += fmt::format("{}{}", text.empty() ? "" : ", ", dim);
  return text;
}

std::string dtypes_text(uint32_t dtypes) {
  std::string text;
  for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
    if ((dtypes >> dtype & 1u) != 0) text += (text.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  }
  return text;
}

// "field: got X; allowed Y" for the first field in which the row falls short.
std::string first_difference(const KernelRow& row, const FmhaNeeds& wants) {
  const FmhaSupport& has = row.support;
  if ((has.dtypes >> wants.dtype & 1u) == 0) {
    return fmt::format("dtype: got {}; allowed {}", dtype_name(wants.dtype), dtypes_text(has.dtypes));
  }
  if (wants.head_dim_qk > has.max_head_dim_qk) {
    return fmt::format("head_dim_qk: got {}; allowed up to {}", wants.head_dim_qk, has.max_head_dim_qk);
  }
  if (wants.head_dim_v > has.max_head_dim_v) {
    return fmt::format("head_dim_v: got {}; allowed up to {}", wants.head_dim_v, has.max_head_dim_v);
  }
  if (!has_head_dims(has, wants)) {
    return fmt::format("head_dim_qk, head_dim_v: got {}, {}; allowed two equal ones of {}", wants.head_dim_qk,
                       wants.head_dim_v, head_dims_text(has.head_dims));
  }
  const uint32_t features = wants.features & ~has.features;
  if (features == 0) return limit_of(row, wants);
  return fmt::format("{}: got it set; allowed unset", kFeatureNames[std::countr_zero(features)]);
}

std::string names_text(tessera_operation operation, tessera_device device) {
  std::string text;
  for (const KernelRow& row : kernel_rows()) {
    if (row.operation == operation && row.device == device) text += (text.empty() ? "" : ", ") + std::string(row.name);
  }
  return text;
}

// Why no row could be considered at all. `missing`: a row of the device that this machine cannot run.
Status no_row(tessera_operation operation, const char* forced, tessera_device device, const KernelRow* missing) {
  if (missing != nullptr && forced != nullptr) {
    return {Code::kUnsupported, fmt::format("force_kernel: got {}, which needs {}; allowed kernels that this "
                                            "machine can run; pass NULL for the best one",
                                            missing->name, missing->requirement)};
  }
  if (missing != nullptr) {
    return {Code::kUnsupported, fmt::format("device: got {}, whose kernels need {}; allowed CPU on this machine; keep "
                                            "the arrays in host memory",
                                            device_name(device), missing->requirement)};
  }
  const std::string names = names_text(operation, device);
  if (names.empty()) {
    return {Code::kUnsupported, fmt::format("device: got {}, for which this build has no kernel of this operation; "
                                            "allowed CPU; configure with -DTESSERA_CUDA=ON or use host memory",
                                            device_name(device))};
  }
  return {Code::kInvalidArgument, fmt::format("force_kernel: got \"{}\"; allowed for device {}: {}; pass NULL for the "
                                              "best one",
                                              forced, device_name(device), names)};
}

Result<const KernelRow*> select(tessera_operation operation, const char* forced, tessera_device device,
                                const FmhaNeeds& needs, bool anywhere = false) {
  const KernelRow* slow = nullptr;
  const KernelRow* nearest = nullptr;
  const KernelRow* missing = nullptr;
  for (const KernelRow& row : kernel_rows()) {
    if (row.operation != operation || row.device != device) continue;
    if (forced != nullptr && std::string_view(forced) != row.name) continue;
    if (!anywhere && !row.available()) {
      missing = &row;
      continue;
    }
    const int differing = differing_fields(row, needs);
    if (differing == 0 && !is_slow(row, needs)) return &row;
    if (differing == 0 && slow == nullptr) slow = &row;
    if (nearest == nullptr || differing < differing_fields(*nearest, needs)) nearest = &row;
  }
  if (slow != nullptr) return slow;
  if (nearest == nullptr) return no_row(operation, forced, device, missing);
  return Status(Code::kUnsupported, fmt::format("{}; nearest kernel {}; change the field or use another kernel",
                                                first_difference(*nearest, needs), nearest->name));
}

}  // namespace

Result<const KernelRow*> select_fmha(const tessera_fmha_params& params) {
  return select(TESSERA_OP_FMHA, params.force_kernel, device_of(params), needs_of(params));
}

Result<const KernelRow*> select_fmha_anywhere(const tessera_fmha_params& params) {
  return select(TESSERA_OP_FMHA, params.force_kernel, device_of(params), needs_of(params), true);
}

Result<const KernelRow*> select_merge(const tessera_merge_params& params) {
  return select(TESSERA_OP_MERGE, params.force_kernel, device_of(params), needs_of(params));
}

int32_t kernel_count() {
  return static_cast<int32_t>(kernel_rows().size() + gemm::gemm_kernels().size());
}

tessera_kernel_info kernel_info(int32_t index) {
  tessera_kernel_info info{};
  const auto rows = kernel_rows();
  const size_t i = static_cast<size_t>(index);
  if (i < rows.size()) {
    const KernelRow& row = rows[i];
    info = {row.name, arithmetic_name(row.arithmetic), row.summary, row.operation, row.available() ? 1 : 0, nullptr};
    if (info.available == 0) info.reason = row.requirement;
    return info;
  }
  const gemm::GemmKernel& kernel = gemm::gemm_kernels()[i - rows.size()];
  info = {kernel.name, gemm::kArithmeticName, kernel.summary, TESSERA_OP_GEMM, kernel.available() ? 1 : 0, nullptr};
  if (info.available == 0) info.reason = kernel.requirement;
  return info;
}

}  // namespace tessera
