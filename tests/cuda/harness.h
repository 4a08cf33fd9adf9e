// Attention problems on the GPU through the public interface: every array of a problem is copied into device memory
// between guard bytes, the call runs on a stream of its own, and what comes back is comparable with the oracle by
// memcmp.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fmha/problem.h"
#include "tessera/tessera.h"

namespace tessera::test {

// Names of the CUDA kernels of an operation in this build; only those that this machine can run, if `available`.
std::vector<std::string> cuda_kernels(tessera_operation operation, bool available);

// Skips, loudly, where no kernel can run.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override { skip_without_gpu(); }
  static void skip_without_gpu();
};

// Device memory for the arrays of one call. Every array lies between kGuardBytes of NaN on either side (none if the
// environment has TESSERA_CUDA_NO_GUARDS, so that a memory checker sees the array's own ends).
class DeviceArrays {
 public:
  DeviceArrays() = default;
  ~DeviceArrays();
  DeviceArrays(const DeviceArrays&) = delete;
  DeviceArrays& operator=(const DeviceArrays&) = delete;

  // A copy of `bytes` bytes at `data` (NULL: NaN instead); `written` if a kernel may change them. `misalign` bytes are
  // left out before it.
  void* place(const void* data, size_t bytes, bool written, size_t misalign = 0);
  // The array that was placed from `data`, as it is now.
  void read_back(const void* data, void* to) const;
  // The first array that was touched where it may not be: guards, and whole inputs. "" if none.
  std::string damage() const;

 private:
  struct Array {
    const void* host;
    uint8_t* base;  // of the allocation
    size_t before;
    size_t bytes;
    bool written;
    std::vector<uint8_t> content;  // of an input
  };
  std::vector<Array> arrays_;
};

struct Placement {
  size_t misalign = 0;        // bytes before q, k, v and o: 2 aligns them to their elements only
  bool keep_lengths = false;  // pass seqlens_k also where all lengths equal seqlen_k
};

// A problem's arrays on the device, and the call that uses them. The problem has to outlive it.
class DeviceProblem {
 public:
  explicit DeviceProblem(const FmhaProblem& problem, Placement placement = {});

  tessera_fmha_params params;  // device pointers

  // A workspace of exactly the size that the kernel asks for, full of NaN. "" or the refusal.
  std::string make_workspace();
  // Enqueues the call. make_workspace() has been called.
  tessera_status enqueue(cudaStream_t stream, tessera_error* error) const;
  void fill_workspace(int byte) const;
  // Poison, as before the first call.
  void reset_outputs() const;
  FmhaOutputs outputs() const;
  std::string damage() const { return arrays_.damage(); }

 private:
  const FmhaProblem& problem_;
  FmhaOutputs poison_;
  DeviceArrays arrays_;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
};

// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

struct CudaRun {
  tessera_status status = TESSERA_OK;
  std::string text;    // of a refusal
  std::string damage;  // bytes that changed and may not, or a failed kernel; "" if none
  FmhaOutputs out;
};

// One call of a kernel by name ("": the registry's choice).
CudaRun run_cuda(const std::string& kernel, const FmhaProblem& problem, Placement placement = {});

// The same, as the rows of a sequence; none if the kernel does not take the problem. Any other failure fails the test.
std::vector<RowBytes> cuda_rows(const std::string& kernel, const FmhaSpec& spec, int64_t sequence);

// The oracle under hopper-k16-f25, on all threads of the host.
FmhaOutputs run_hopper_oracle(const FmhaProblem& problem);

}  // namespace tessera::test
