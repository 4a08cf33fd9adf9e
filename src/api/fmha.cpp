// tessera_fmha_*: checks every argument (fmha_check.h), asks the registry for a kernel, and runs it.
#include <fmt/format.h>

#include <cstring>
#include <string>

#include "api/call_guard.h"
#include "api/fmha_check.h"
#include "contract/plan.h"
#include "registry/registry.h"

namespace tessera {
namespace {

Status invalid(std::string text) {
  return {Code::kInvalidArgument, std::move(text)};
}

// A checked and complete call, and the kernel that takes it.
struct Call {
  tessera_fmha_params params;
  const KernelRow* row;
};

Result<Call> checked_call(const tessera_fmha_params* params) {
  TESSERA_RETURN_IF_ERROR(check_fmha_shapes(params));
  Call call{complete(*params), nullptr};
  const Result<const KernelRow*> row = select_fmha(call.params);
  if (!row.ok()) return row.status();
  call.row = row.value();
  return call;
}

Result<NumericPlan> checked_plan(const tessera_fmha_params* params) {
  const Result<Call> call = checked_call(params);
  if (!call.ok()) return call.status();
  return plan_for(call.value().row->arithmetic, params->dtype, params->head_dim_qk, params->head_dim_v);
}

Status select(const tessera_fmha_params* params, const char** kernel_name) {
  if (kernel_name == nullptr) return invalid("kernel_name: got NULL; allowed a const char*; pass the address of one");
  const Result<Call> call = checked_call(params);
  if (call.ok()) *kernel_name = call.value().row->name;
  return call.status();
}

Result<size_t> needed_bytes(const Call& call, int32_t num_threads) {
  const size_t bytes = call.row->fmha.workspace_bytes(call.params, num_threads);
  if (bytes == SIZE_MAX) {
    return invalid(
        fmt::format("num_threads: got {}, which needs a workspace beyond the address space; allowed fewer; "
                    "use fewer threads or a smaller batch",
                    num_threads));
  }
  return bytes;
}

Status workspace_size(const tessera_fmha_params* params, int32_t num_threads, size_t* bytes) {
  if (bytes == nullptr) return invalid("bytes: got NULL; allowed a size_t; pass the address of one");
  const Result<Call> call = checked_call(params);
  if (!call.ok()) return call.status();
  TESSERA_RETURN_IF_ERROR(check_threads(num_threads));
  const Result<size_t> needed = needed_bytes(call.value(), num_threads);
  if (needed.ok()) *bytes = needed.value();
  return needed.status();
}

Status run(const tessera_fmha_params* params, void* workspace, size_t workspace_bytes, const tessera_stream* stream) {
  const Result<Call> checked = checked_call(params);
  if (!checked.ok()) return checked.status();
  const Call& call = checked.value();
  const tessera_stream where = stream == nullptr ? tessera_stream{} : *stream;
  TESSERA_RETURN_IF_ERROR(check_executor(where.executor));
  const int32_t num_threads = where.executor == nullptr ? 1 : where.executor->num_threads;
  const Result<size_t> needed = needed_bytes(call, num_threads);
  if (!needed.ok()) return needed.status();
  const bool aligned = reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment == 0;
  if (needed.value() > 0 && (workspace == nullptr || workspace_bytes < needed.value() || !aligned)) {
    return {Code::kWorkspaceTooSmall,
            fmt::format("workspace: got {} bytes at {}; allowed at least {} bytes, aligned to {}; ask "
                        "tessera_fmha_workspace_size with {} threads",
                        workspace_bytes, workspace, needed.value(), kWorkspaceAlignment, num_threads)};
  }
  if (call.params.batch == 0 || call.params.seqlen_q == 0) return {};
  if (call.row->device == TESSERA_DEVICE_CPU) TESSERA_RETURN_IF_ERROR(check_fmha_memory(call.params));
  return call.row->fmha.run(call.params, workspace, where);
}

// As much of `from` as fits, and its whole length.
Status copy_text(const std::string& from, char* text, size_t capacity, size_t* length) {
  if (length != nullptr) *length = from.size();
  if (text == nullptr || capacity == 0) {
    if (length != nullptr) return {};
    return invalid("text: got NULL or no capacity, and no length; allowed one of them; pass a buffer");
  }
  const size_t copied = from.copy(text, capacity - 1);
  text[copied] = '\0';
  return {};
}

Status contract_id_of(const tessera_fmha_params* params, char* text, size_t capacity, size_t* length) {
  const Result<NumericPlan> plan = checked_plan(params);
  if (!plan.ok()) return plan.status();
  return copy_text(contract_id(plan.value()), text, capacity, length);
}

Status explain(const tessera_fmha_params* params, char* text, size_t capacity, size_t* length) {
  TESSERA_RETURN_IF_ERROR(check_fmha_shapes(params));
  const tessera_fmha_params all = complete(*params);
  const Result<const KernelRow*> row = select_fmha_anywhere(all);
  if (!row.ok()) return row.status();
  const KernelRow& kernel = *row.value();
  const Result<NumericPlan> plan = plan_for(kernel.arithmetic, params->dtype, params->head_dim_qk, params->head_dim_v);
  if (!plan.ok()) return plan.status();
  const NumericPlan& p = plan.value();
  std::string lines = fmt::format(
      "kernel: {}\ncontract: {}\nconstants: granule {} keys, chunk {} keys, superchunk {} "
      "chunks, T {}, b {}\nneeds: {}\n",
      kernel.name, contract_id(p), p.granule, p.chunk, p.superchunk_chunks, p.lazy_threshold, p.bias,
      kernel.requirement);
  if (kernel.fmha.explain != nullptr) lines += kernel.fmha.explain(all);
  return copy_text(lines, text, capacity, length);
}

Status chunk_keys(const tessera_fmha_params* params, int64_t* keys) {
  if (keys == nullptr) return invalid("keys: got NULL; allowed an int64_t; pass the address of one");
  const Result<NumericPlan> plan = checked_plan(params);
  if (plan.ok()) *keys = plan.value().chunk;
  return plan.status();
}

Status merge(const tessera_merge_params* params, const tessera_stream* stream) {
  TESSERA_RETURN_IF_ERROR(check_merge_shapes(params));
  const tessera_merge_params all = complete(*params);
  const Result<const KernelRow*> row = select_merge(all);
  if (!row.ok()) return row.status();
  const tessera_stream where = stream == nullptr ? tessera_stream{} : *stream;
  TESSERA_RETURN_IF_ERROR(check_executor(where.executor));
  if (all.num_rows == 0) return {};
  if (row.value()->device == TESSERA_DEVICE_CPU) TESSERA_RETURN_IF_ERROR(check_merge_memory(all));
  return row.value()->merge.run(all, where);
}

}  // namespace
}  // namespace tessera

extern "C" {

tessera_status tessera_fmha_select(const tessera_fmha_params* params, const char** kernel_name, tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::select(params, kernel_name); });
}

tessera_status tessera_fmha_workspace_size(const tessera_fmha_params* params, int32_t num_threads, size_t* bytes,
                                           tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::workspace_size(params, num_threads, bytes); });
}

tessera_status tessera_fmha_run(const tessera_fmha_params* params, void* workspace, size_t workspace_bytes,
                                const tessera_stream* stream, tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::run(params, workspace, workspace_bytes, stream); });
}

tessera_status tessera_fmha_contract_id(const tessera_fmha_params* params, char* text, size_t capacity, size_t* length,
                                        tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::contract_id_of(params, text, capacity, length); });
}

tessera_status tessera_fmha_explain(const tessera_fmha_params* params, char* text, size_t capacity, size_t* length,
                                    tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::explain(params, text, capacity, length); });
}

tessera_status tessera_fmha_chunk_keys(const tessera_fmha_params* params, int64_t* keys, tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::chunk_keys(params, keys); });
}

tessera_status tessera_fmha_merge(const tessera_merge_params* params, const tessera_stream* stream,
                                  tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::merge(params, stream); });
}

}  // extern "C"
