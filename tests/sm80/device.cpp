#include "sm80/device.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <thread>

#include "fmha/conformance.h"
#include "kernels/sm80/fmha/fmha_sm80.h"
#include "oracle/oracle.h"

namespace tessera::test {

void DeviceTest::SetUp() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "NO CUDA DEVICE: the kernel's bytes are not compared here";
  }
}

DeviceBytes::DeviceBytes(size_t bytes, const void* source, Memory memory) : bytes_(bytes) {
  if (memory == Memory::kEdge) {
    edge_ = EdgeMemory::make(bytes);
    EXPECT_NE(edge_, nullptr);
    data_ = edge_ == nullptr ? nullptr : edge_->data();
  } else {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(bytes, 1)), cudaSuccess);
  }
  if (bytes == 0) {
    return;
  }
  if (source == nullptr) {
    EXPECT_EQ(cudaMemset(data_, 0xff, bytes), cudaSuccess);
  } else {
    EXPECT_EQ(cudaMemcpy(data_, source, bytes, cudaMemcpyHostToDevice), cudaSuccess);
  }
}

DeviceBytes::~DeviceBytes() {
  if (edge_ == nullptr) {
    cudaFree(data_);
  }
}

void DeviceBytes::download(void* target) const {
  if (bytes_ == 0) {
    return;
  }
  ASSERT_EQ(cudaMemcpy(target, data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
}

DeviceProblem::DeviceProblem(const FmhaProblem& problem, Memory memory) : kind_(memory), out_(problem.make_outputs()) {
  const void* const o_host = out_.o.data();
  params_ = problem.params(&out_, [&](const void* data, size_t bytes) {
    // In plain memory the guard element behind O is part of the comparison.
    void* copy = add(data, data == o_host && memory == Memory::kPlain ? out_.o.size() : bytes);
    o_ = data == o_host ? memory_.back().get() : o_;
    return copy;
  });
  const auto scalars = [&](tessera_row_scalars& s, const std::vector<float>& values, const DeviceBytes*& copy) {
    if (s.data != nullptr) {
      const size_t count = values.size() - (memory == Memory::kPlain ? 0 : 1);
      s.data = static_cast<float*>(add(values.data(), count * sizeof(float)));
      copy = memory_.back().get();
    }
  };
  scalars(params_.lse_natural_no_sink, out_.lse, lse_);
  scalars(params_.row_max_log2, out_.row_max, row_max_);
  scalars(params_.row_sum, out_.row_sum, row_sum_);
}

void* DeviceProblem::add(const void* data, size_t bytes) {
  memory_.push_back(std::make_unique<DeviceBytes>(bytes, data, kind_));
  return memory_.back()->data();
}

FmhaOutputs DeviceProblem::outputs() const {
  FmhaOutputs out = out_;
  o_->download(out.o.data());
  if (lse_ != nullptr) lse_->download(out.lse.data());
  if (row_max_ != nullptr) row_max_->download(out.row_max.data());
  if (row_sum_ != nullptr) row_sum_->download(out.row_sum.data());
  return out;
}

FmhaOutputs run_device(const FmhaProblem& problem, Memory memory) {
  DeviceProblem device(problem, memory);
  const DeviceBytes workspace(fmha_sm80_workspace_bytes(device.params()), nullptr, memory);
  const Status status = run_fmha_sm80(device.params(), workspace.data(), {});
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << to_text(problem.spec());
  return device.outputs();
}

FmhaOutputs run_entry(const sm80::Entry& entry, const FmhaProblem& problem, int multiprocessors) {
  DeviceProblem device(problem);
  const DeviceBytes workspace(sm80::workspace_bytes(entry, device.params(), multiprocessors));
  const Status status = sm80::run(entry, device.params(), workspace.data(), multiprocessors, nullptr);
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << to_text(problem.spec());
  return device.outputs();
}

FmhaOutputs run_hopper_oracle(const FmhaProblem& problem) {
  FmhaOutputs out = problem.make_outputs();
  const tessera_fmha_params params = problem.params(&out);
  const Status status =
      oracle_fmha(Arithmetic::kHopperK16F25, params, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_TRUE(status.ok()) << status.text() << "\n" << to_text(problem.spec());
  return out;
}

void expect_oracle_bytes_on_device(const FmhaSpec& spec) {
  const FmhaProblem problem(spec);
  EXPECT_EQ(first_difference(problem, run_hopper_oracle(problem), run_device(problem)), "") << to_text(problem.spec());
}

}  // namespace tessera::test
