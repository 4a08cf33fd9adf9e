// One case under one configuration: memory, workspace, stream, call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/thread_pool.h"
#include "gate/configuration.h"
#include "gate/kernel_case.h"
#include "gate/memory_space.h"

namespace tessera {

// Rows in the order (sequence, token, head), byte for byte as the kernel wrote them.
struct KernelOutput {
  std::vector<std::byte> o;
  std::vector<float> lse;
  bool operator==(const KernelOutput& other) const;
};

class PreparedCase;

// Where cases run: a configuration with its threads.
class KernelRunner {
 public:
  KernelRunner(Configuration configuration, MemorySpace& space);

  const Configuration& configuration() const { return configuration_; }
  MemorySpace& space() { return space_; }
  void set_threads(int32_t threads);

  // kUnsupported when no kernel of the build takes the case.
  Result<KernelOutput> run(const KernelCase& problem, const CaseView& view);
  // With everything but the call done, for measuring.
  Result<std::unique_ptr<PreparedCase>> prepare(const KernelCase& problem, const CaseView& view);
  Result<std::string> contract_id(const KernelCase& problem);
  Result<std::string> kernel_name(const KernelCase& problem);

 private:
  friend class PreparedCase;

  Configuration configuration_;
  MemorySpace& space_;
  std::unique_ptr<ThreadPool> pool_;
};

class PreparedCase {
 public:
  Status call();  // on a GPU: enqueues
  Result<KernelOutput> output();

 private:
  friend class KernelRunner;
  explicit PreparedCase(KernelRunner& runner) : runner_(runner) {}
  Status allocate(size_t bytes, void** data);

  KernelRunner& runner_;
  std::vector<SpaceBuffer> buffers_;
  tessera_fmha_params params_{};
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  size_t o_bytes_ = 0;
  size_t lse_bytes_ = 0;
};

}  // namespace tessera
