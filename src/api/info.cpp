// tessera_kernel_*, tessera_version: what this build is and has.
#include <fmt/format.h>

#include "api/call_guard.h"
#include "contract/plan.h"
#include "registry/registry.h"

namespace tessera {
namespace {

// Status crosses the C interface as a plain cast.
static_assert(static_cast<int>(Code::kOk) == TESSERA_OK);
static_assert(static_cast<int>(Code::kInvalidArgument) == TESSERA_INVALID_ARGUMENT);
static_assert(static_cast<int>(Code::kUnsupported) == TESSERA_UNSUPPORTED);
static_assert(static_cast<int>(Code::kWorkspaceTooSmall) == TESSERA_WORKSPACE_TOO_SMALL);
static_assert(static_cast<int>(Code::kIo) == TESSERA_IO);
static_assert(static_cast<int>(Code::kBadFile) == TESSERA_BAD_FILE);
static_assert(static_cast<int>(Code::kDevice) == TESSERA_DEVICE);
static_assert(static_cast<int>(Code::kInternal) == TESSERA_INTERNAL);

Status get_kernel(int32_t index, tessera_kernel_info* info) {
  if (info == nullptr) {
    return {Code::kInvalidArgument, "info: got NULL; allowed a tessera_kernel_info; pass the address of one"};
  }
  if (index < 0 || index >= kernel_count()) {
    return {Code::kInvalidArgument,
            fmt::format("index: got {}; allowed 0..{}; ask tessera_kernel_count first", index, kernel_count() - 1)};
  }
  *info = kernel_info(index);
  return {};
}

}  // namespace
}  // namespace tessera

extern "C" {

int32_t tessera_kernel_count(void) {
  return tessera::kernel_count();
}

tessera_status tessera_kernel_get(int32_t index, tessera_kernel_info* info, tessera_error* error) {
  return tessera::run_guarded(error, [&] { return tessera::get_kernel(index, info); });
}

const char* tessera_version(void) {
  return TESSERA_VERSION;
}

const char* tessera_contract_version(void) {
  return tessera::kContractVersion;
}

}  // extern "C"
