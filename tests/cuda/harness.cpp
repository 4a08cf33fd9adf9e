#include "cuda/harness.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "oracle/oracle.h"

namespace tessera::test {
namespace {

constexpr size_t kGuardBytes = 1024;
constexpr uint8_t kGuard = 0xff;  // NaN in every dtype, -1 as an integer

size_t guard_bytes() {
  return std::getenv("TESSERA_CUDA_NO_GUARDS") == nullptr ? kGuardBytes : 0;
}

void check(cudaError_t error) {
  ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}

bool holds(const uint8_t* device, const uint8_t* expected, size_t bytes) {
  const auto now = std::make_unique<uint8_t[]>(bytes + 1);
  if (bytes > 0) check(cudaMemcpy(now.get(), device, bytes, cudaMemcpyDeviceToHost));
  return bytes == 0 || std::memcmp(now.get(), expected, bytes) == 0;
}

}  // namespace

std::vector<std::string> cuda_kernels(tessera_operation operation, bool available) {
  std::vector<std::string> names;
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info{};
    if (tessera_kernel_get(i, &info, nullptr) != TESSERA_OK || info.operation != operation) continue;
    if (std::strncmp(info.name, "cpu_", 4) == 0 || std::strcmp(info.arithmetic, "hopper-k16-f25") != 0) continue;
    if (!available || info.available != 0) names.emplace_back(info.name);
  }
  return names;
}

void CudaTest::skip_without_gpu() {
  if (cuda_kernels(TESSERA_OP_FMHA, true).empty()) {
    GTEST_SKIP() << "NO HOPPER GPU: the CUDA kernels of this build are not run here";
  }
}

DeviceArrays::~DeviceArrays() {
  for (const Array& a : arrays_) cudaFree(a.base);
}

void* DeviceArrays::place(const void* data, size_t bytes, bool written, size_t misalign) {
  const size_t guard = guard_bytes();
  Array a{data, nullptr, guard + misalign, bytes, written, {}};
  const size_t total = a.before + bytes + guard;
  check(cudaMalloc(reinterpret_cast<void**>(&a.base), std::max<size_t>(total, 16)));
  check(cudaMemset(a.base, kGuard, total));
  const auto* from = static_cast<const uint8_t*>(data);
  if (bytes > 0 && data != nullptr) check(cudaMemcpy(a.base + a.before, from, bytes, cudaMemcpyHostToDevice));
  if (!written) a.content.assign(from, from + bytes);
  arrays_.push_back(std::move(a));
  return arrays_.back().base + arrays_.back().before;
}

void DeviceArrays::read_back(const void* data, void* to) const {
  const auto at = std::ranges::find_if(arrays_, [&](const Array& a) { return a.host == data; });
  ASSERT_NE(at, arrays_.end());
  if (at->bytes > 0) check(cudaMemcpy(to, at->base + at->before, at->bytes, cudaMemcpyDeviceToHost));
}

std::string DeviceArrays::damage() const {
  const std::vector<uint8_t> guard(kGuardBytes + 64, kGuard);
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const Array& a = arrays_[i];
    const std::string name = "array " + std::to_string(i);
    const uint8_t* body = a.base + a.before;
    if (!holds(a.base, guard.data(), a.before)) return name + ": bytes before it were written";
    if (!holds(body + a.bytes, guard.data(), guard_bytes())) return name + ": bytes behind it changed";
    if (!a.written && !holds(body, a.content.data(), a.bytes)) return name + ": an input was written";
  }
  return "";
}

DeviceProblem::DeviceProblem(const FmhaProblem& problem, Placement placement)
    : params{}, problem_(problem), poison_(problem.make_outputs()) {
  const tessera_fmha_params host = problem.params(&poison_);
  const auto of_elements = [&](const void* data) {
    bool is = data == host.q.data || data == host.o.data;
    for (int32_t i = 0; i < host.num_segments; ++i) {
      is = is || data == host.segments[i].k.data || data == host.segments[i].v.data;
    }
    return is;
  };
  params = problem.params(&poison_, [&](const void* data, size_t bytes) {
    const bool is_output = data == host.o.data;
    const size_t elements = is_output && problem.spec().o_dtype == TESSERA_F32 ? 2 : 1;  // of two bytes
    return arrays_.place(data, bytes, is_output, of_elements(data) ? placement.misalign * elements : 0);
  });
  for (const auto& [scalars, values] :
       {std::pair{&params.lse_natural_no_sink, &poison_.lse}, std::pair{&params.row_max_log2, &poison_.row_max},
        std::pair{&params.row_sum, &poison_.row_sum}}) {
    // The last value is there for empty problems only.
    if (scalars->data == nullptr) continue;
    scalars->data = static_cast<float*>(arrays_.place(values->data(), (values->size() - 1) * sizeof(float), true));
  }
  for (int32_t i = 0; i < host.num_segments && !placement.keep_lengths; ++i) {
    const tessera_kv_segment& s = host.segments[i];
    if (s.seqlens_k == nullptr) continue;
    const auto is_bound = [&](int32_t length) { return length == s.seqlen_k; };
    if (std::all_of(s.seqlens_k, s.seqlens_k + host.batch, is_bound)) params.segments[i].seqlens_k = nullptr;
  }
  params.device = TESSERA_DEVICE_CUDA;
}

std::string DeviceProblem::make_workspace() {
  tessera_error error{};
  if (tessera_fmha_workspace_size(&params, 1, &workspace_bytes_, &error) != TESSERA_OK) return error.text;
  if (workspace_bytes_ == 0) return "";
  workspace_ = arrays_.place(nullptr, workspace_bytes_, true);
  return "";
}

tessera_status DeviceProblem::enqueue(cudaStream_t stream, tessera_error* error) const {
  const tessera_stream where{nullptr, stream};
  return tessera_fmha_run(&params, workspace_, workspace_bytes_, &where, error);
}

void DeviceProblem::fill_workspace(int byte) const {
  if (workspace_bytes_ > 0) check(cudaMemset(workspace_, byte, workspace_bytes_));
  check(cudaDeviceSynchronize());
}

void DeviceProblem::reset_outputs() const {
  const size_t o_bytes = poison_.o.size() - (problem_.spec().o_dtype == TESSERA_F32 ? 4 : 2);
  if (o_bytes > 0) check(cudaMemcpy(params.o.data, poison_.o.data(), o_bytes, cudaMemcpyHostToDevice));
  for (const auto& [scalars, values] :
       {std::pair{&params.lse_natural_no_sink, &poison_.lse}, std::pair{&params.row_max_log2, &poison_.row_max},
        std::pair{&params.row_sum, &poison_.row_sum}}) {
    const size_t bytes = (values->size() - 1) * sizeof(float);
    if (scalars->data != nullptr && bytes > 0) {
      check(cudaMemcpy(scalars->data, values->data(), bytes, cudaMemcpyHostToDevice));
    }
  }
  check(cudaDeviceSynchronize());
}

FmhaOutputs DeviceProblem::outputs() const {
  FmhaOutputs out = problem_.make_outputs();
  arrays_.read_back(poison_.o.data(), out.o.data());
  if (params.lse_natural_no_sink.data != nullptr) arrays_.read_back(poison_.lse.data(), out.lse.data());
  if (params.row_max_log2.data != nullptr) arrays_.read_back(poison_.row_max.data(), out.row_max.data());
  if (params.row_sum.data != nullptr) arrays_.read_back(poison_.row_sum.data(), out.row_sum.data());
  return out;
}

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Stream::~Stream() {
  cudaStreamDestroy(stream_);
}

CudaRun run_cuda(const std::string& kernel, const FmhaProblem& problem, Placement placement) {
  CudaRun run;
  DeviceProblem device(problem, placement);
  if (!kernel.empty()) device.params.force_kernel = kernel.c_str();
  run.text = device.make_workspace();
  check(cudaDeviceSynchronize());  // the stream below does not wait for the copies
  const Stream stream;
  tessera_error error{};
  run.status = device.enqueue(stream.get(), &error);
  if (run.status != TESSERA_OK) run.text = error.text;
  const cudaError_t failed = cudaStreamSynchronize(stream.get());
  if (failed != cudaSuccess) {
    run.damage = cudaGetErrorString(failed);
    return run;
  }
  run.damage = device.damage();
  run.out = device.outputs();
  return run;
}

std::vector<RowBytes> cuda_rows(const std::string& kernel, const FmhaSpec& spec, int64_t sequence) {
  const FmhaProblem problem(spec);
  const CudaRun run = run_cuda(kernel, problem);
  EXPECT_EQ(run.damage, "") << to_text(problem.spec());
  std::vector<RowBytes> rows;
  if (run.status == TESSERA_UNSUPPORTED) return rows;
  EXPECT_EQ(run.status, TESSERA_OK) << run.text << "\n" << to_text(problem.spec());
  if (run.status != TESSERA_OK || !run.damage.empty()) return rows;
  for (int64_t i = 0; i < spec.q_lengths[static_cast<size_t>(sequence)]; ++i) {
    for (int64_t h = 0; h < spec.heads_q; ++h) rows.push_back(problem.row(run.out, sequence, i, h));
  }
  return rows;
}

FmhaOutputs run_hopper_oracle(const FmhaProblem& problem) {
  FmhaOutputs out = problem.make_outputs();
  const tessera_fmha_params params = problem.params(&out);
  const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
  const Status status = oracle_fmha(Arithmetic::kHopperK16F25, params, threads);
  EXPECT_TRUE(status.ok()) << status.text() << "\n" << to_text(problem.spec());
  return out;
}

}  // namespace tessera::test
