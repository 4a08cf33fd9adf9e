// The attention cases (docs/cases.md) that reach into the arrays of a call: the addresses are the host's.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fmha/cases.h"
#include "fmha/conformance.h"

namespace tessera::test {
namespace {

TEST_F(CasesE, E4_E16_PagesAndStridesBeyond32Bits) {
  // A pool whose pages lie 2^31 elements apart in virtual memory would not fit a test machine; two sequences read one
  // small pool through strides that wrap to the same place only if they were cut to 32 bits.
  FmhaSpec spec = paged(batch(heads(2, 1, 64, TESSERA_F32), {1}, {64}, {1}), 64);
  const FmhaProblem problem(spec);
  FmhaOutputs out = problem.make_outputs();
  tessera_fmha_params p = problem.params(&out);
  int32_t page = p.segments[0].page_table[0];
  auto* base = static_cast<float*>(p.segments[0].k.data) + page * p.segments[0].k.stride_batch;
  auto* v_base = static_cast<float*>(p.segments[0].v.data) + page * p.segments[0].v.stride_batch;
  const FmhaOutputs expected = run_oracle(problem);
  // The same bytes, reached as page 3 of a pool with a stride of 2^33 elements that begins far below.
  constexpr int64_t kStride = int64_t{1} << 33;
  page = 3;
  p.segments[0].page_table = &page;
  p.segments[0].num_pages = 4;
  p.segments[0].k.stride_batch = p.segments[0].v.stride_batch = kStride;
  p.segments[0].k.data =
      reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(base) - static_cast<uintptr_t>(3 * kStride) * 4);
  p.segments[0].v.data =
      reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(v_base) - static_cast<uintptr_t>(3 * kStride) * 4);
  const Workspace workspace(4 << 20);
  tessera_error error{};
  ASSERT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, &error), TESSERA_OK) << error.text;
  EXPECT_EQ(first_difference(problem, expected, out), "");
}

TEST_F(CasesE, E9_E10_E22_MaskOffsetsBeyond32Bits) {
  FmhaSpec spec = batch(heads(1, 1, 16, TESSERA_F32), {2}, {20}, {1});
  spec.segments[0].mask = true;
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_oracle(problem);
  FmhaOutputs out = problem.make_outputs();
  tessera_fmha_params p = problem.params(&out);
  // Row 1 of sequence 0 at an offset of 2^28 bytes: reached from a base below, so nothing of that size is allocated.
  const uint8_t* rows = p.segments[0].mask.data;
  tessera_fmha_params one = p;
  one.seqlen_q = 1;
  const Workspace workspace(4 << 20);
  for (int64_t i = 0; i < 2; ++i) {
    one.q.data = static_cast<float*>(p.q.data) + i * p.q.stride_token;
    one.o.data = static_cast<float*>(p.o.data) + i * p.o.stride_token;
    one.lse_natural_no_sink.data = p.lse_natural_no_sink.data + i;
    const int32_t position = static_cast<int32_t>(18 + i);
    one.segments[0].q_positions = &position;
    one.segments[0].mask.stride_head = 0;
    one.segments[0].mask.data = rows + i * p.segments[0].mask.stride_row;
    one.segments[0].mask.stride_row = int64_t{1} << 28;
    ASSERT_EQ(tessera_fmha_run(&one, workspace.data(), workspace.bytes(), nullptr, nullptr), TESSERA_OK);
  }
  EXPECT_EQ(first_difference(problem, expected, out), "");
  p.segments[0].mask.stride_row = (int64_t{1} << 28) + 1;
  EXPECT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
}

TEST_F(CasesG, G12_G13_TableEntriesAreCheckedBeforeUse) {
  const FmhaProblem problem(paged(batch(heads(1, 1, 16), {1}, {40}, {1}), 16));
  for (const int32_t bad : {-1, 1 << 20}) {
    FmhaOutputs out = problem.make_outputs();
    const FmhaOutputs untouched = out;
    tessera_fmha_params p = problem.params(&out);
    const std::vector<int32_t> pages = {p.segments[0].page_table[0], bad, p.segments[0].page_table[2]};
    p.segments[0].page_table = pages.data();
    const Workspace workspace(4 << 20);
    tessera_error error{};
    EXPECT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, &error), TESSERA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.text).find("segments[0].page_table[0][1]"), std::string::npos) << error.text;
    EXPECT_EQ(out.o, untouched.o) << "nothing is written on failure";
  }
}

}  // namespace
}  // namespace tessera::test
