// A thin C++20 view of tessera.h: spans for memory, [[nodiscard]] status values, helpers that fill strides. Header
// only, no behaviour of its own; every struct is the C one.
//
//   tessera_fmha_params p = tessera::view::fmha_params(TESSERA_F16, TESSERA_F16);
//   p.q = tessera::view::bshd(q, seqlen_q, heads_q, head_dim);
//   ...
//   if (const auto status = tessera::view::run(p, workspace, stream); !status) log(status.text());
#ifndef TESSERA_TESSERA_HPP_
#define TESSERA_TESSERA_HPP_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::view {

// The outcome of a call; true if it succeeded.
class [[nodiscard]] Status {
 public:
  tessera_status code() const { return code_; }
  explicit operator bool() const { return code_ == TESSERA_OK; }
  // "<argument>: got X; allowed Y; do Z"; empty if the call succeeded.
  std::string_view text() const { return code_ == TESSERA_OK ? std::string_view() : std::string_view(error_.text); }

  // Calls f(error) and keeps what it says.
  template <class Call>
  static Status of(const Call& call) {
    Status status;
    status.code_ = call(&status.error_);
    return status;
  }

 private:
  tessera_status code_ = TESSERA_OK;
  tessera_error error_ = {};
};

// ---- tensors: (batch, token, head, dim) with the strides of a dense array

// (batch, tokens, heads, dim), also the layout of a page pool (pages, page_size, heads, dim).
inline tessera_tensor bshd(void* data, int64_t tokens, int64_t heads, int64_t dim) {
  return {data, tokens * heads * dim, heads * dim, dim, 1};
}

// (batch, heads, tokens, dim)
inline tessera_tensor bhsd(void* data, int64_t tokens, int64_t heads, int64_t dim) {
  return {data, tokens * heads * dim, dim, tokens * dim, 1};
}

// (all tokens, heads, dim): packed sequences, for use with cu_seqlens
inline tessera_tensor packed(void* data, int64_t heads, int64_t dim) {
  return {data, 0, heads * dim, dim, 1};
}

// Parameters with the size set, one segment, unlimited windows; everything else zero.
inline tessera_fmha_params fmha_params(tessera_dtype dtype, tessera_dtype o_dtype,
                                       tessera_device device = TESSERA_DEVICE_CPU) {
  tessera_fmha_params params = {};
  params.struct_size = sizeof(params);
  params.dtype = dtype;
  params.o_dtype = o_dtype;
  params.num_segments = 1;
  params.device = device;
  for (tessera_kv_segment& segment : params.segments) segment.window_left = segment.window_right = -1;
  return params;
}

// ---- calls

inline Status select(const tessera_fmha_params& params, std::string_view* kernel_name) {
  return Status::of([&](tessera_error* error) {
    const char* name = nullptr;
    const tessera_status code = tessera_fmha_select(&params, &name, error);
    if (code == TESSERA_OK) *kernel_name = name;
    return code;
  });
}

inline Status workspace_size(const tessera_fmha_params& params, int32_t num_threads, size_t* bytes) {
  return Status::of(
      [&](tessera_error* error) { return tessera_fmha_workspace_size(&params, num_threads, bytes, error); });
}

inline Status run(const tessera_fmha_params& params, std::span<std::byte> workspace,
                  const tessera_stream& stream = {}) {
  return Status::of([&](tessera_error* error) {
    return tessera_fmha_run(&params, workspace.data(), workspace.size(), &stream, error);
  });
}

inline Status merge(const tessera_merge_params& params, const tessera_stream& stream = {}) {
  return Status::of([&](tessera_error* error) { return tessera_fmha_merge(&params, &stream, error); });
}

// The kernels of this build in priority order.
inline std::vector<tessera_kernel_info> kernels() {
  std::vector<tessera_kernel_info> list;
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info = {};
    if (tessera_kernel_get(i, &info, nullptr) == TESSERA_OK) list.push_back(info);
  }
  return list;
}

}  // namespace tessera::view

#endif  // TESSERA_TESSERA_HPP_
