#include "gate/perf_works.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tessera {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Prefill, then steps; the wall time of the part that is asked for.
Status run_engine(Engine& engine, const Configuration& c, std::span<const int32_t> tokens, int64_t steps,
                  double* seconds) {
  TESSERA_RETURN_IF_ERROR(apply(c, engine));
  const SequenceId id = engine.new_sequence();
  std::vector<float> logits;
  const BatchItem prompt{id, tokens, 1};
  double start = now_seconds();
  Status status = engine.evaluate({&prompt, 1}, &logits);
  start = steps > 0 ? now_seconds() : start;
  for (int64_t i = 0; i < steps && status.ok(); ++i) {
    const BatchItem step{id, tokens.subspan(static_cast<size_t>(i) % tokens.size(), 1), 1};
    status = engine.evaluate({&step, 1}, &logits);
  }
  *seconds = now_seconds() - start;
  engine.free_sequence(id);
  return status;
}

Status time_calls(MemorySpace& space, PreparedCase& prepared, int64_t calls, double* seconds) {
  const auto work = [&]() -> Status {
    for (int64_t i = 0; i < calls; ++i) {
      TESSERA_RETURN_IF_ERROR(prepared.call());
    }
    return {};
  };
  TESSERA_RETURN_IF_ERROR(space.time(work, seconds));
  *seconds /= static_cast<double>(calls);
  return {};
}

}  // namespace

std::vector<PerfWork> engine_works(Engine& engine, const Configuration& a, const Configuration& b,
                                   std::span<const int32_t> tokens, int64_t decode_tokens) {
  std::vector<PerfWork> works;
  const auto run = [&engine, tokens](const Configuration& c, int64_t steps) {
    return [&engine, tokens, &c, steps](double* seconds) { return run_engine(engine, c, tokens, steps, seconds); };
  };
  works.push_back({"prefill", run(a, 0), run(b, 0)});
  if (decode_tokens > 0) {
    works.push_back({"decode", run(a, decode_tokens), run(b, decode_tokens)});
  }
  return works;
}

Result<std::vector<PerfWork>> kernel_works(KernelRunner& a, KernelRunner& b, std::span<const KernelCase> grid,
                                           double min_seconds, std::vector<std::string>* refused) {
  std::vector<PerfWork> works;
  for (const KernelCase& c : grid) {
    Result<std::unique_ptr<PreparedCase>> in_a = a.prepare(c, {});
    Result<std::unique_ptr<PreparedCase>> in_b = b.prepare(c, {});
    const Status status = in_a.ok() ? in_b.status() : in_a.status();
    if (status.code() == Code::kUnsupported) {
      refused->push_back(c.name + ": " + status.text());
      continue;
    }
    TESSERA_RETURN_IF_ERROR(status);
    const std::shared_ptr<PreparedCase> pa = std::move(in_a).value();
    const std::shared_ptr<PreparedCase> pb = std::move(in_b).value();
    MemorySpace& space = a.space();
    double once = 0;
    TESSERA_RETURN_IF_ERROR(time_calls(space, *pa, 1, &once));  // the first call loads code
    TESSERA_RETURN_IF_ERROR(time_calls(space, *pa, 3, &once));
    const auto calls = static_cast<int64_t>(std::clamp(std::ceil(min_seconds / std::max(once, 1e-9)), 1.0, 10000.0));
    works.push_back({c.name, [&space, pa, calls](double* seconds) { return time_calls(space, *pa, calls, seconds); },
                     [&space, pb, calls](double* seconds) { return time_calls(space, *pb, calls, seconds); }});
  }
  return works;
}

std::vector<KernelCase> perf_grid(tessera_device device) {
  const bool gpu = device == TESSERA_DEVICE_CUDA;
  const tessera_dtype dtype = gpu ? TESSERA_BF16 : TESSERA_F32;
  std::vector<KernelCase> grid;
  for (const int32_t dim : {64, 128}) {
    KernelCase c{.dtype = dtype, .head_dim = dim, .heads_q = gpu ? 16 : 4, .heads_kv = gpu ? 4 : 2};
    c.name = "prefill d" + std::to_string(dim);
    c.batch = 1;
    c.seqlen_q = c.seqlen_k = gpu ? 4096 : 256;
    grid.push_back(c);
    c.name = "decode d" + std::to_string(dim);
    c.batch = gpu ? 16 : 2;
    c.seqlen_q = 1;
    c.seqlen_k = gpu ? 4096 : 1024;
    grid.push_back(c);
  }
  return grid;
}

}  // namespace tessera
