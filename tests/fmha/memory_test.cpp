// What a kernel may touch: nothing outside the described arrays (guard pages), and nothing that a row may not see
// (poison).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fmha/conformance.h"

namespace tessera::test {
namespace {

// Copies of arrays, each ending (or beginning) at a page that may not be touched.
class GuardedMemory {
 public:
  explicit GuardedMemory(bool guard_behind) : guard_behind_(guard_behind) {}
  ~GuardedMemory() {
    for (const auto& [address, bytes] : mappings_) munmap(address, bytes);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  void* place(const void* data, size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (bytes + page - 1) / page * page;
    const size_t total = body + 2 * page;
    auto* base = static_cast<char*>(mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base, MAP_FAILED);
    mappings_.emplace_back(base, total);
    EXPECT_EQ(mprotect(base, page, PROT_NONE), 0);
    EXPECT_EQ(mprotect(base + page + body, page, PROT_NONE), 0);
    char* at = base + page + (guard_behind_ ? body - bytes : 0);
    if (bytes > 0) std::memcpy(at, data, bytes);
    return at;
  }

 private:
  bool guard_behind_;
  std::vector<std::pair<void*, size_t>> mappings_;
};

// Every kernel gives the oracle's bytes when each array lies against a guard page.
void expect_no_stray_access(const FmhaSpec& spec) {
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_oracle(problem);
  for (const std::string& kernel : available_kernels(TESSERA_OP_FMHA)) {
    for (const bool behind : {true, false}) {
      GuardedMemory memory(behind);
      FmhaOutputs out = problem.make_outputs();
      tessera_fmha_params p =
          problem.params(&out, [&](const void* data, size_t bytes) { return memory.place(data, bytes); });
      p.force_kernel = kernel.c_str();
      size_t bytes = 0;
      tessera_error error{};
      ASSERT_EQ(tessera_fmha_workspace_size(&p, 1, &bytes, &error), TESSERA_OK) << error.text;
      const std::vector<uint8_t> zeros((bytes + 63) / 64 * 64);
      void* workspace = memory.place(zeros.data(), zeros.size());
      ASSERT_EQ(tessera_fmha_run(&p, workspace, bytes, nullptr, &error), TESSERA_OK) << error.text;
      const size_t o_bytes = out.o.size() - (spec.o_dtype == TESSERA_F32 ? 4 : 2);
      std::memcpy(out.o.data(), p.o.data, o_bytes);
      EXPECT_EQ(first_difference(problem, expected, out), "") << kernel << "\n" << to_text(spec);
    }
  }
}

FmhaSpec exact_fit(tessera_dtype dtype, int32_t dim, int64_t q, int64_t k) {
  FmhaSpec spec;
  spec.dtype = spec.o_dtype = dtype;
  spec.head_dim_qk = spec.head_dim_v = dim;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, q, k);
}

TEST(GuardPages, RowsOfEveryWidth) {
  for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
    for (const int32_t dim : {1, 7, 8, 16, 40, 64, 72, 128}) {
      for (const int64_t q : {1, 20}) expect_no_stray_access(exact_fit(dtype, dim, q, 37));
    }
  }
}

TEST(GuardPages, HeadMajorPackedAndPaged) {
  for (const KvLayout layout : {KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged}) {
    for (const int64_t q : {1, 20}) {
      FmhaSpec spec = exact_fit(TESSERA_F16, 24, q, 50);
      spec.head_major = true;
      spec.segments[0].head_major = true;
      spec.segments[0].layout = layout;
      spec.segments[0].page_size = 25;
      spec.packed_q = layout == KvLayout::kPacked;
      expect_no_stray_access(spec);
    }
  }
}

TEST(GuardPages, F24_DecodeOfF16KeysThatAreNoMultipleOfABlock) {
  for (int64_t k = 128; k <= 227; k += 9) {
    FmhaSpec spec = exact_fit(TESSERA_F16, 64, 1, k);
    spec.heads_q = spec.heads_kv = 16;
    expect_no_stray_access(spec);
  }
}

// Decode looks at the granule ahead; its page table ends with the last page.
TEST(GuardPages, PageTablesOfSeveralGranules) {
  for (const int64_t k : {129, 200, 256}) {
    for (const int32_t page : {1, 16}) {
      FmhaSpec spec = exact_fit(TESSERA_F16, 24, 1, k);
      spec.segments[0].layout = KvLayout::kPaged;
      spec.segments[0].page_size = page;
      expect_no_stray_access(spec);
    }
  }
}

TEST(GuardPages, D10_MaskOfExactSize) {
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{384, 384}, {5, 13}, {3, 17}, {1, 1}}) {
    FmhaSpec spec = exact_fit(TESSERA_F32, 8, q, k);
    spec.heads_q = spec.heads_kv = 1;
    spec.segments[0].causal = 0;
    spec.segments[0].mask = true;
    expect_no_stray_access(spec);
  }
}

TEST(GuardPages, ListsOfGatheredKeys) {
  for (const int64_t q : {1, 3}) {
    FmhaSpec spec = exact_fit(TESSERA_F32, 16, q, 200);
    spec.segments[0].causal = 0;
    spec.segments[0].topk = 150;
    spec.segments[0].absent_of = 3;
    spec.segments[0].layout = KvLayout::kPaged;
    spec.segments[0].page_size = 1;
    expect_no_stray_access(spec);
  }
}

// 72 rows and their scales fill a page of the V4 format to its last byte but one.
TEST(GuardPages, Fp8RowsAndTheirScales) {
  for (const tessera_kv_format format : {TESSERA_KV_FP8_V32_656, TESSERA_KV_FP8_V4_584}) {
    for (const int64_t q : {1, 11}) {
      FmhaSpec spec = exact_fit(TESSERA_BF16, 512, q, 144);
      spec.head_dim_qk = format == TESSERA_KV_FP8_V4_584 ? 512 : 576;
      spec.heads_kv = 1;
      spec.segments[0].format = format;
      spec.segments[0].layout = format == TESSERA_KV_FP8_V4_584 ? KvLayout::kPaged : KvLayout::kBatched;
      spec.segments[0].page_size = 72;
      expect_no_stray_access(spec);
    }
  }
}

TEST(GuardPages, SinksSlopesPositionsAndLengths) {
  FmhaSpec spec = exact_fit(TESSERA_F32, 16, 3, 20);
  spec.q_lengths = {3, 2};
  spec.segments[0].lengths = {20, 11};
  spec.segments[0].q_positions = {17, 9};
  spec.sinks = {0.0f, 1.0f, 2.0f, 3.0f};
  spec.alibi = true;
  expect_no_stray_access(spec);
}

// A row that does not see a poisoned key is clean, even where its neighbours in the tile do see it.
TEST(Poison, ReachesOnlyTheRowsThatSeeIt) {
  for (const tessera_dtype dtype : {TESSERA_F32, TESSERA_F16, TESSERA_BF16}) {
    for (const int64_t q : {2, 8, 90}) {
      FmhaSpec spec = exact_fit(dtype, 40, q, 150);
      const FmhaProblem clean(spec);
      const FmhaOutputs expected = run_oracle(clean);
      const int64_t poisoned = 150 - q / 2;  // seen by the last rows only
      for (const std::string& kernel : available_kernels(TESSERA_OP_FMHA)) {
        for (const bool in_values : {false, true}) {
          const FmhaProblem problem(spec);
          FmhaOutputs out = problem.make_outputs();
          tessera_fmha_params p = problem.params(&out);
          p.force_kernel = kernel.c_str();
          const tessera_tensor& t = in_values ? p.segments[0].v : p.segments[0].k;
          const size_t width = dtype == TESSERA_F32 ? 4 : 2;
          std::memset(static_cast<uint8_t*>(t.data) + static_cast<size_t>(poisoned * t.stride_token) * width, 0xff,
                      static_cast<size_t>(t.stride_token) * width);
          size_t bytes = 0;
          ASSERT_EQ(tessera_fmha_workspace_size(&p, 1, &bytes, nullptr), TESSERA_OK);
          const Workspace workspace(bytes);
          ASSERT_EQ(tessera_fmha_run(&p, workspace.data(), bytes, nullptr, nullptr), TESSERA_OK);
          for (int64_t i = 0; i < q; ++i) {
            for (int64_t h = 0; h < spec.heads_q; ++h) {
              const bool same = problem.row(out, 0, i, h) == clean.row(expected, 0, i, h);
              EXPECT_EQ(same, 150 - q + i < poisoned) << kernel << " row " << i;
            }
          }
        }
      }
    }
  }
}

TEST(Poison, D1_PaddedKeysAndValues) {
  FmhaSpec spec;
  spec.dtype = spec.o_dtype = TESSERA_F16;
  spec.heads_q = spec.heads_kv = 1;
  spec.q_lengths = {1, 3};
  spec.segments.emplace_back();
  spec.segments[0].lengths = {1, 3};
  expect_oracle_bytes(spec);
}

TEST(Poison, D3_D11_ScratchOfAFormerCallWithNaN) {
  FmhaSpec dirty = exact_fit(TESSERA_F32, 64, 40, 200);
  FmhaSpec clean = exact_fit(TESSERA_F32, 64, 40, 65);
  for (const int64_t k : {1, 63, 65}) {
    clean.segments[0].lengths = {k};
    const FmhaProblem first(dirty);
    const FmhaProblem second(clean);
    const FmhaOutputs expected = run_oracle(second);
    for (const std::string& kernel : available_kernels(TESSERA_OP_FMHA)) {
      FmhaOutputs out = first.make_outputs();
      tessera_fmha_params p = first.params(&out);
      p.force_kernel = kernel.c_str();
      std::memset(p.segments[0].k.data, 0xff, 200 * 2 * 64 * 4);
      std::memset(p.segments[0].v.data, 0xff, 200 * 2 * 64 * 4);
      const Workspace workspace(8 << 20);
      ASSERT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, nullptr), TESSERA_OK);
      FmhaOutputs again = second.make_outputs();
      tessera_fmha_params next = second.params(&again);
      next.force_kernel = kernel.c_str();
      ASSERT_EQ(tessera_fmha_run(&next, workspace.data(), workspace.bytes(), nullptr, nullptr), TESSERA_OK);
      EXPECT_EQ(first_difference(second, expected, again), "") << kernel;
    }
  }
}

TEST(Poison, D4_PagesLeftOfTheWindow) {
  FmhaSpec spec = exact_fit(TESSERA_BF16, 64, 1, 400);
  spec.heads_q = 64;
  spec.heads_kv = 8;
  spec.segments[0].layout = KvLayout::kPaged;
  spec.segments[0].window_left = 127;
  spec.segments[0].poison_masked = true;
  spec.segments[0].unlisted_pages = true;
  expect_oracle_bytes(spec);
}

TEST(Poison, D9_OverAllocatedPackedTail) {
  FmhaSpec spec;
  spec.q_lengths = {40, 25, 35};
  spec.packed_q = true;
  spec.slot_padding = 20;
  spec.segments.emplace_back();
  spec.segments[0].lengths = {40, 25, 35};
  spec.segments[0].layout = KvLayout::kPacked;
  spec.segments[0].causal = 1;
  expect_oracle_bytes(spec);
}

TEST(Poison, F29_TailRowsOfAPage) {
  for (const int64_t k : {12, 13}) {
    FmhaSpec spec = exact_fit(TESSERA_F16, 128, 1, k);
    spec.segments[0].layout = KvLayout::kPaged;
    expect_oracle_bytes(spec);
  }
}

}  // namespace
}  // namespace tessera::test
