// The one comparison of the attention tests: a kernel of the registry against the oracle, byte for byte, guard bytes
// between and behind the rows included.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fmha/problem.h"
#include "tessera/tessera.h"

namespace tessera::test {

// Names of the CPU kernels of an operation that this machine can run.
std::vector<std::string> available_kernels(tessera_operation operation);

// An executor that runs tasks in a shuffled order, some on other threads.
class ShuffledExecutor {
 public:
  ShuffledExecutor(int32_t num_threads, uint64_t seed);
  const tessera_executor* get() const { return &executor_; }

 private:
  static void parallel_for(void* context, int64_t num_tasks, void (*task)(void*, int64_t, int32_t), void* arg);
  tessera_executor executor_{};
  std::mt19937_64 random_;
};

// 64-byte aligned memory filled with poison.
class Workspace {
 public:
  explicit Workspace(size_t bytes);
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> storage_;
  void* data_;
  size_t bytes_;
};

// Runs a kernel by name (empty: the registry's choice) with a workspace of exactly the size it asks for. Fails the
// test if the call fails.
FmhaOutputs run_kernel(const std::string& kernel, const FmhaProblem& problem, int32_t threads = 1);

FmhaOutputs run_oracle(const FmhaProblem& problem);

// Where two outputs differ first, or "".
std::string first_difference(const FmhaProblem& problem, const FmhaOutputs& expected, const FmhaOutputs& actual);

// Every available kernel, on 1 and on `threads` threads, gives the oracle's bytes.
void expect_oracle_bytes(const FmhaSpec& spec, int32_t threads = 3);

// What the registry's kernel gives for one row of a problem.
RowBytes row_of(const FmhaSpec& spec, int64_t sequence, int64_t token, int64_t head, int32_t threads = 1);

}  // namespace tessera::test
