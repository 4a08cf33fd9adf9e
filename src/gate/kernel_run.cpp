#include "gate/kernel_run.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace tessera {
namespace {

Status from_api(const Library& library, tessera_status code, const tessera_error& error) {
  return code == TESSERA_OK ? Status()
                            : Status(static_cast<Code>(code), fmt::format("{}: {}", library.name, error.text));
}

}  // namespace

bool KernelOutput::operator==(const KernelOutput& other) const {
  return o == other.o && lse.size() == other.lse.size() &&
         std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
}

KernelRunner::KernelRunner(Configuration configuration, MemorySpace& space)
    : configuration_(std::move(configuration)), space_(space) {
  set_threads(std::max(1, configuration_.threads));
}

void KernelRunner::set_threads(int32_t threads) {
  pool_ = std::make_unique<ThreadPool>(threads);
}

Status PreparedCase::allocate(size_t bytes, void** data) {
  SpaceBuffer buffer(runner_.space_);
  TESSERA_RETURN_IF_ERROR(buffer.allocate(std::max<size_t>(bytes, 1)));
  *data = buffer.data();
  buffers_.push_back(std::move(buffer));
  return {};
}

Result<std::unique_ptr<PreparedCase>> KernelRunner::prepare(const KernelCase& problem, const CaseView& view) {
  const CaseTensors tensors(problem, view);
  std::unique_ptr<PreparedCase> prepared(new PreparedCase(*this));
  Status status;
  const auto place = [&](const void* data, size_t bytes) -> const void* {
    void* copy = nullptr;
    if (status.ok()) {
      status = prepared->allocate(bytes, &copy);
    }
    if (status.ok()) {
      status = space_.upload(copy, data, bytes);
    }
    return copy;
  };
  prepared->o_bytes_ = tensors.o_bytes();
  prepared->lse_bytes_ = tensors.lse_bytes();
  void* o = nullptr;
  void* lse = nullptr;
  TESSERA_RETURN_IF_ERROR(prepared->allocate(prepared->o_bytes_, &o));
  TESSERA_RETURN_IF_ERROR(prepared->allocate(prepared->lse_bytes_, &lse));
  prepared->params_ = tensors.params(place, o, static_cast<float*>(lse));
  TESSERA_RETURN_IF_ERROR(status);
  prepared->params_.device = space_.device();
  const Library& library = configuration_.calls();
  prepared->params_.force_kernel = configuration_.kernel.empty() ? nullptr : configuration_.kernel.c_str();
  tessera_error error{};
  const tessera_status code =
      library.fmha_workspace_size(&prepared->params_, pool_->num_threads(), &prepared->workspace_bytes_, &error);
  TESSERA_RETURN_IF_ERROR(from_api(library, code, error));
  TESSERA_RETURN_IF_ERROR(prepared->allocate(prepared->workspace_bytes_, &prepared->workspace_));
  return prepared;
}

Status PreparedCase::call() {
  const Library& library = runner_.configuration_.calls();
  const tessera_stream stream{runner_.pool_->executor(), nullptr};
  tessera_error error{};
  return from_api(library, library.fmha_run(&params_, workspace_, workspace_bytes_, &stream, &error), error);
}

Result<KernelOutput> PreparedCase::output() {
  KernelOutput out;
  out.o.resize(o_bytes_);
  out.lse.resize(lse_bytes_ / sizeof(float));
  TESSERA_RETURN_IF_ERROR(runner_.space_.synchronize());
  TESSERA_RETURN_IF_ERROR(runner_.space_.download(out.o.data(), params_.o.data, o_bytes_));
  TESSERA_RETURN_IF_ERROR(runner_.space_.download(out.lse.data(), params_.lse_natural_no_sink.data, lse_bytes_));
  return out;
}

Result<KernelOutput> KernelRunner::run(const KernelCase& problem, const CaseView& view) {
  Result<std::unique_ptr<PreparedCase>> prepared = prepare(problem, view);
  TESSERA_RETURN_IF_ERROR(prepared.status());
  PreparedCase& p = *prepared.value();
  // A row that the kernel forgets must not look like one that it wrote before: NaN in every type.
  TESSERA_RETURN_IF_ERROR(space_.fill(p.params_.o.data, 0xff, p.o_bytes_));
  TESSERA_RETURN_IF_ERROR(space_.fill(p.params_.lse_natural_no_sink.data, 0xff, p.lse_bytes_));
  TESSERA_RETURN_IF_ERROR(p.call());
  return p.output();
}

Result<std::string> KernelRunner::contract_id(const KernelCase& problem) {
  const CaseTensors tensors(problem, {.sequences = 1, .tokens = 1});
  alignas(64) float nothing[16] = {};  // only looked at as an address
  tessera_fmha_params params = tensors.params([](const void* data, size_t) { return data; }, nothing, nothing);
  params.device = space_.device();
  params.force_kernel = configuration_.kernel.empty() ? nullptr : configuration_.kernel.c_str();
  const Library& library = configuration_.calls();
  tessera_error error{};
  char text[128];
  size_t length = 0;
  TESSERA_RETURN_IF_ERROR(
      from_api(library, library.fmha_contract_id(&params, text, sizeof(text), &length, &error), error));
  return std::string(text);
}

Result<std::string> KernelRunner::kernel_name(const KernelCase& problem) {
  Result<std::unique_ptr<PreparedCase>> prepared = prepare(problem, {});
  TESSERA_RETURN_IF_ERROR(prepared.status());
  const Library& library = configuration_.calls();
  tessera_error error{};
  const char* name = nullptr;
  TESSERA_RETURN_IF_ERROR(from_api(library, library.fmha_select(&prepared.value()->params_, &name, &error), error));
  return std::string(name);
}

}  // namespace tessera
