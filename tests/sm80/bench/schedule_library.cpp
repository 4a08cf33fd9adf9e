// A stand-in for libtessera.so whose attention runs the sm_80 kernel with one schedule, so that the gates can compare
// two of them: a copy of this file has the name of its schedule, d128_w4_t64_s2.so (tests/sm80/staged_variants.cu), or
// library.so for what the library chooses.
//
//     tessera gate perf --a library=d128_w4_t128_s1.so,device=cuda --b library=d128_w4_t64_s2.so,device=cuda
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "api/call_guard.h"
#include "contract/plan.h"
#include "kernels/sm80/fmha/entry.h"
#include "kernels/sm80/fmha/fmha_sm80.h"
#include "sm80/variants.h"

namespace {

using tessera::Code;
using tessera::Result;
using tessera::Status;

#define TESSERA_EXPORTED __attribute__((visibility("default")))

// The name of the file that this code was loaded from, without folder and ending.
const std::string& schedule_name() {
  static const std::string name = [] {
    Dl_info info{};
    std::string path =
        ::dladdr(reinterpret_cast<const void*>(&schedule_name), &info) != 0 ? info.dli_fname : std::string();
    path.erase(0, path.rfind('/') + 1);  // npos + 1 is 0
    return path.substr(0, path.find('.'));
  }();
  return name;
}

// Null: what the library chooses.
Result<const tessera::sm80::Entry*> find_entry(const tessera_fmha_params& params) {
  if (schedule_name() == "library") {
    return nullptr;
  }
  const tessera::test::Variant* const variant = tessera::test::find_variant(schedule_name());
  if (variant == nullptr || params.device != TESSERA_DEVICE_CUDA || !tessera::sm80::fits(variant->entry, params)) {
    return Status(Code::kUnsupported, fmt::format("{}: got a problem that it does not take; allowed its dtype and head "
                                                  "dim on the GPU; name the file after another schedule",
                                                  schedule_name()));
  }
  return &variant->entry;
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
                 cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess
             ? count
             : 1;
}

}  // namespace

extern "C" {

TESSERA_EXPORTED tessera_status tessera_fmha_select(const tessera_fmha_params* params, const char** kernel_name,
                                                    tessera_error* error) {
  return tessera::run_guarded(error, [&] {
    *kernel_name = schedule_name().c_str();
    return find_entry(*params).status();
  });
}

TESSERA_EXPORTED tessera_status tessera_fmha_workspace_size(const tessera_fmha_params* params, int32_t, size_t* bytes,
                                                            tessera_error* error) {
  return tessera::run_guarded(error, [&]() -> Status {
    const Result<const tessera::sm80::Entry*> entry = find_entry(*params);
    TESSERA_RETURN_IF_ERROR(entry.status());
    *bytes = entry.value() == nullptr ? tessera::fmha_sm80_workspace_bytes(*params)
                                      : tessera::sm80::workspace_bytes(*entry.value(), *params, multiprocessors());
    return {};
  });
}

TESSERA_EXPORTED tessera_status tessera_fmha_run(const tessera_fmha_params* params, void* workspace, size_t,
                                                 const tessera_stream* stream, tessera_error* error) {
  return tessera::run_guarded(error, [&]() -> Status {
    const Result<const tessera::sm80::Entry*> entry = find_entry(*params);
    TESSERA_RETURN_IF_ERROR(entry.status());
    return entry.value() == nullptr ? tessera::run_fmha_sm80(*params, workspace, *stream)
                                    : tessera::sm80::run(*entry.value(), *params, workspace, multiprocessors(),
                                                         static_cast<cudaStream_t>(stream->cuda_stream));
  });
}

TESSERA_EXPORTED tessera_status tessera_fmha_contract_id(const tessera_fmha_params* params, char* text, size_t capacity,
                                                         size_t* length, tessera_error* error) {
  return tessera::run_guarded(error, [&]() -> Status {
    const Result<tessera::NumericPlan> plan =
        tessera::plan_for(tessera::Arithmetic::kHopperK16F25, params->dtype, params->head_dim_qk, params->head_dim_v);
    TESSERA_RETURN_IF_ERROR(plan.status());
    const std::string id = tessera::contract_id(plan.value());
    *length = id.copy(text, capacity - 1);
    text[*length] = '\0';
    return {};
  });
}

TESSERA_EXPORTED const char* tessera_contract_version(void) {
  return tessera::kContractVersion;
}

}  // extern "C"
