#include "fmha/conformance.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "oracle/oracle.h"

namespace tessera::test {
namespace {

template <class T>
std::string difference(const char* what, const std::vector<T>& expected, const std::vector<T>& actual) {
  if (expected.size() != actual.size()) return fmt::format("{}: sizes differ", what);
  if (expected.empty() || std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(T)) == 0) return "";
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &actual[i], sizeof(T)) == 0) continue;
    if constexpr (sizeof(T) == 4) {
      return fmt::format("{}[{}]: expected {:.9g}, got {:.9g}", what, i, expected[i], actual[i]);
    } else {
      return fmt::format("{} byte {}: expected {:#x}, got {:#x}", what, i, expected[i], actual[i]);
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> available_kernels(tessera_operation operation) {
  std::vector<std::string> names;
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info{};
    EXPECT_EQ(tessera_kernel_get(i, &info, nullptr), TESSERA_OK);
    if (info.operation == operation && info.available != 0 && std::strncmp(info.name, "cpu_", 4) == 0) {
      names.emplace_back(info.name);
    }
  }
  return names;
}

ShuffledExecutor::ShuffledExecutor(int32_t num_threads, uint64_t seed) : random_(seed) {
  executor_.context = this;
  executor_.num_threads = num_threads;
  executor_.parallel_for = parallel_for;
}

void ShuffledExecutor::parallel_for(void* context, int64_t num_tasks, void (*task)(void*, int64_t, int32_t),
                                    void* arg) {
  auto* self = static_cast<ShuffledExecutor*>(context);
  std::vector<int64_t> order(static_cast<size_t>(num_tasks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), self->random_);
  const auto work = [&](int32_t thread) {
    for (size_t i = static_cast<size_t>(thread); i < order.size();
         i += static_cast<size_t>(self->executor_.num_threads)) {
      task(arg, order[i], thread);
    }
  };
  std::vector<std::thread> threads;
  for (int32_t t = 1; t < self->executor_.num_threads; ++t) threads.emplace_back(work, t);
  work(0);
  for (std::thread& t : threads) t.join();
}

Workspace::Workspace(size_t bytes) : storage_(bytes + 64, 0xff), bytes_(bytes) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data());
  data_ = storage_.data() + (64 - address % 64) % 64;
}

FmhaOutputs run_kernel(const std::string& kernel, const FmhaProblem& problem, int32_t threads) {
  FmhaOutputs out = problem.make_outputs();
  tessera_fmha_params params = problem.params(&out);
  if (!kernel.empty()) params.force_kernel = kernel.c_str();
  tessera_error error{};
  size_t bytes = 0;
  EXPECT_EQ(tessera_fmha_workspace_size(&params, threads, &bytes, &error), TESSERA_OK) << error.text;
  const Workspace workspace(bytes);
  ShuffledExecutor executor(threads, 7);
  const tessera_stream stream{threads == 1 ? nullptr : executor.get(), nullptr};
  EXPECT_EQ(tessera_fmha_run(&params, workspace.data(), workspace.bytes(), &stream, &error), TESSERA_OK)
      << error.text << "\n"
      << to_text(problem.spec());
  return out;
}

FmhaOutputs run_oracle(const FmhaProblem& problem) {
  FmhaOutputs out = problem.make_outputs();
  const tessera_fmha_params params = problem.params(&out);
  const Status status = oracle_fmha(Arithmetic::kCpuFma32, params, 2);
  EXPECT_TRUE(status.ok()) << status.text() << "\n" << to_text(problem.spec());
  return out;
}

std::string first_difference(const FmhaProblem& problem, const FmhaOutputs& expected, const FmhaOutputs& actual) {
  const FmhaSpec& s = problem.spec();
  for (int64_t b = 0; b < static_cast<int64_t>(s.q_lengths.size()); ++b) {
    for (int64_t i = 0; i < s.q_lengths[static_cast<size_t>(b)]; ++i) {
      for (int64_t h = 0; h < s.heads_q; ++h) {
        const RowBytes e = problem.row(expected, b, i, h);
        const RowBytes a = problem.row(actual, b, i, h);
        if (e == a) continue;
        const auto at = std::mismatch(e.o.begin(), e.o.end(), a.o.begin()).first - e.o.begin();
        return fmt::format(
            "sequence {} token {} head {}: O differs from byte {} of {}; lse {:.9g} / {:.9g}; max {} / {}; "
            "sum {:.9g} / {:.9g}",
            b, i, h, at, e.o.size(), e.lse, a.lse, e.row_max, a.row_max, e.row_sum, a.row_sum);
      }
    }
  }
  std::string text = difference("o (outside the rows)", expected.o, actual.o);
  if (text.empty()) text = difference("lse (outside the rows)", expected.lse, actual.lse);
  if (text.empty()) text = difference("row_max (outside the rows)", expected.row_max, actual.row_max);
  if (text.empty()) text = difference("row_sum (outside the rows)", expected.row_sum, actual.row_sum);
  return text;
}

void expect_oracle_bytes(const FmhaSpec& spec, int32_t threads) {
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_oracle(problem);
  for (const std::string& kernel : available_kernels(TESSERA_OP_FMHA)) {
    for (const int32_t n : {1, threads}) {
      EXPECT_EQ(first_difference(problem, expected, run_kernel(kernel, problem, n)), "")
          << kernel << " on " << n << " threads\n"
          << to_text(problem.spec());
    }
  }
}

RowBytes row_of(const FmhaSpec& spec, int64_t sequence, int64_t token, int64_t head, int32_t threads) {
  const FmhaProblem problem(spec);
  return problem.row(run_kernel("", problem, threads), sequence, token, head);
}

}  // namespace tessera::test
