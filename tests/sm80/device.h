// A problem of tests/fmha on the device: every array copied, exactly as large as it is, and outputs copied back.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "fmha/problem.h"
#include "kernels/sm80/fmha/entry.h"
#include "sm80/edge_memory.h"
#include "tessera/tessera.h"

namespace tessera::test {

// A test that needs a GPU; skips, loudly, where there is none.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override;
};

// Where an array of a test lies.
enum class Memory {
  kPlain,
  kEdge,  // a byte behind it is a fault
};

// Device memory, filled with 0xff (NaN) or with a copy of `source`.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes, const void* source = nullptr, Memory memory = Memory::kPlain);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return data_; }
  void download(void* target) const;

 private:
  size_t bytes_;
  std::unique_ptr<EdgeMemory> edge_;
  void* data_ = nullptr;
};

class DeviceProblem {
 public:
  explicit DeviceProblem(const FmhaProblem& problem, Memory memory = Memory::kPlain);

  tessera_fmha_params& params() { return params_; }
  // After the work on the default stream has ended.
  FmhaOutputs outputs() const;
  // Replaces an array of the problem.
  template <class T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(add(values.data(), values.size() * sizeof(T)));
  }

 private:
  void* add(const void* data, size_t bytes);

  const Memory kind_;
  FmhaOutputs out_;
  tessera_fmha_params params_{};
  std::vector<std::unique_ptr<DeviceBytes>> memory_;
  const DeviceBytes* o_ = nullptr;
  const DeviceBytes* lse_ = nullptr;
  const DeviceBytes* row_max_ = nullptr;
  const DeviceBytes* row_sum_ = nullptr;
};

// The library's entry point on poisoned workspace of exactly the size it asks for.
FmhaOutputs run_device(const FmhaProblem& problem, Memory memory = Memory::kPlain);

// One schedule on a device that is said to have so many multiprocessors.
FmhaOutputs run_entry(const sm80::Entry& entry, const FmhaProblem& problem, int multiprocessors);

// The oracle under hopper-k16-f25.
FmhaOutputs run_hopper_oracle(const FmhaProblem& problem);

// The library's kernel gives the oracle's bytes, guard bytes around the rows included.
void expect_oracle_bytes_on_device(const FmhaSpec& spec);

}  // namespace tessera::test
