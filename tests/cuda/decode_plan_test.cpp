// Every decode kernel of the build under every split of the work gives the bytes of the one that the registry chooses:
// a cluster per chunk, blocks of a whole or half a multiprocessor, one block for everything up to a block per chunk.
// And kernels in which a number of the split is wrong do not.
#include <span>
#include <string>
#include <vector>

#include "cuda/decode.h"
#include "cuda/decode_broken.h"
#include "kernels/sm90/fmha_decode/table.h"
#include "registry/sm90_decode_rows.h"

namespace tessera::test {
namespace {

class CudaDecodePlan : public CudaTest, public testing::WithParamInterface<tessera_dtype> {
 protected:
  static void expect_every_plan(const FmhaSpec& spec) {
    SCOPED_TRACE(to_text(spec));
    const FmhaProblem problem(spec);
    DeviceProblem device(problem);
    FmhaOutputs expected;
    ASSERT_EQ(run_on(device, kDecode, &expected), "");
    sm90::DecodeProblem plan = sm90_decode_problem(device.params);
    int plans = 0;
    for (const auto& file : sm90::kDecodeFiles) {
      for (const sm90::DecodeEntry& entry : file()) {
        if (entry.bf16 != (spec.dtype == TESSERA_BF16)) continue;
        // Kernels for modified scores take problems without any, too.
        if (!sm90::is_for(entry, plan) && (!entry.modified || entry.head_dim != spec.head_dim_qk)) continue;
        DeviceArrays scratch;
        plan.scratch = scratch.place(nullptr, sm90::decode_scratch_bytes(entry, plan), true);
        for (const int blocks : {1, 2, 7, 33, 132, 0}) {
          if (blocks != 0 && entry.cluster != 1) continue;  // clusters are as many as there are chunks
          device.reset_outputs();
          const Status status = sm90::run_decode(entry, plan, blocks, nullptr);
          ASSERT_TRUE(status.ok()) << status.text();
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          EXPECT_EQ(first_difference(problem, expected, device.outputs()), "") << entry.name << ", " << blocks;
          ++plans;
        }
        EXPECT_EQ(scratch.damage(), "") << entry.name;
      }
    }
    EXPECT_EQ(device.damage(), "");
    EXPECT_GE(plans, 10);
  }
};

TEST_P(CudaDecodePlan, OneSequence) {
  for (const int32_t dim : {64, 128, 256}) {
    for (const int64_t keys : {700, 2049, 9000}) {
      FmhaSpec spec = decode_spec(GetParam(), 1, keys);
      spec.head_dim_qk = spec.head_dim_v = dim;
      expect_every_plan(spec);
    }
  }
  FmhaSpec spec = decode_spec(GetParam(), 1, 67000);
  spec.heads_kv = 1;
  spec.heads_q = 4;
  expect_every_plan(spec);
}

TEST_P(CudaDecodePlan, RaggedSequencesInPagesWithWindowsAndSinks) {
  for (const int32_t dim : {64, 128, 256}) {
    FmhaSpec spec = decode_spec(GetParam(), 3, 1, 5);
    spec.head_dim_qk = spec.head_dim_v = dim;
    spec.q_lengths.assign(9, 3);
    spec.segments[0].lengths = {3, 0, 2048, 6000, 129, 4097, 1, 4500, 128};
    spec.segments[0].layout = KvLayout::kPaged;
    spec.segments[0].page_size = 16;
    spec.sinks.assign(static_cast<size_t>(spec.heads_q), 1.0F);
    expect_every_plan(spec);
    spec.segments[0].window_left = 2500;
    expect_every_plan(spec);
  }
}

// ---- the negative control: kernels with a wrong number

// How many of the kernels give other bytes than the registry's.
int count_different(const FmhaSpec& spec, std::span<const sm90::DecodeEntry> kernels) {
  const FmhaProblem problem(spec);
  DeviceProblem device(problem);
  FmhaOutputs expected;
  EXPECT_EQ(run_on(device, kDecode, &expected), "");
  sm90::DecodeProblem plan = sm90_decode_problem(device.params);
  int different = 0;
  for (const sm90::DecodeEntry& entry : kernels) {
    DeviceArrays scratch;
    plan.scratch = scratch.place(nullptr, sm90::decode_scratch_bytes(entry, plan), true);
    device.reset_outputs();
    const Status status = sm90::run_decode(entry, plan, 0, nullptr);
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    different += first_difference(problem, expected, device.outputs()).empty() ? 0 : 1;
  }
  return different;
}

using CudaDecodeBroken = CudaTest;

FmhaSpec narrow(int64_t keys) {
  FmhaSpec spec = decode_spec(TESSERA_BF16, 1, keys);
  spec.head_dim_qk = spec.head_dim_v = 64;
  spec.o_dtype = TESSERA_F32;
  return spec;
}

TEST_F(CudaDecodeBroken, NegativeControl_ChunksThatEndAGranuleEarly) {
  const std::span<const sm90::DecodeEntry> kernels = decode_with_short_chunks();
  ASSERT_EQ(kernels.size(), 2U);
  EXPECT_EQ(count_different(narrow(1900), kernels), 0) << "one chunk of either length";
  EXPECT_EQ(count_different(narrow(2100), kernels), 2);
  EXPECT_EQ(count_different(narrow(5700), kernels), 2);
}

TEST_F(CudaDecodeBroken, NegativeControl_SuperchunksOfFourChunks) {
  const std::span<const sm90::DecodeEntry> kernels = decode_with_short_superchunks();
  ASSERT_EQ(kernels.size(), 2U);
  EXPECT_EQ(count_different(narrow(5 * 2048), kernels), 0) << "a chunk chained alone is chained the same way";
  EXPECT_EQ(count_different(narrow(5 * 2048 + 100), kernels), 2);
  EXPECT_EQ(count_different(narrow(20 * 2048), kernels), 2);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaDecodePlan, testing::Values(TESSERA_F16, TESSERA_BF16), dtype_name);

}  // namespace
}  // namespace tessera::test
