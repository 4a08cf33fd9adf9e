// The device of a call: what its field means, and that no call falls back to another device. Runs on any machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tessera.hpp"

namespace tessera::test {
namespace {

// One query over one key, fp16, head dim 128: a problem that every device's kernels take, in host memory.
struct Problem {
  std::vector<uint16_t> memory = std::vector<uint16_t>(4 * 128 + 64);
  std::vector<std::byte> workspace = std::vector<std::byte>(1 << 20);
  tessera_fmha_params p = view::fmha_params(TESSERA_F16, TESSERA_F16);

  Problem() {
    auto* data = static_cast<uint16_t*>(aligned(memory.data()));
    p.head_dim_qk = p.head_dim_v = 128;
    p.num_heads_q = p.num_heads_kv = 1;
    p.batch = p.seqlen_q = 1;
    p.q = view::bshd(data, 1, 1, 128);
    p.segments[0].k = view::bshd(data + 128, 1, 1, 128);
    p.segments[0].v = view::bshd(data + 256, 1, 1, 128);
    p.segments[0].seqlen_k = 1;
    p.o = view::bshd(data + 384, 1, 1, 128);
    p.softmax_scale = 1.0F;
    std::fill_n(data + 256, 256, uint16_t{0x3c00});  // V and what O holds before
  }
  static void* aligned(void* at) {
    const auto address = reinterpret_cast<uintptr_t>(at);
    return static_cast<std::byte*>(at) + (64 - address % 64) % 64;
  }
  tessera_status run(tessera_error* error) {
    return tessera_fmha_run(&p, aligned(workspace.data()), workspace.size() - 64, nullptr, error);
  }
  bool untouched() const {
    const auto* o = static_cast<const uint16_t*>(p.o.data);
    return std::all_of(o, o + 128, [](uint16_t x) { return x == 0x3c00; });
  }
};

tessera_merge_params merge_params(std::vector<float>* memory) {
  memory->assign(64, 1.0F);
  tessera_merge_params p = {};
  p.struct_size = sizeof(p);
  p.head_dim_qk = p.head_dim_v = 4;
  p.num_heads_q = 1;
  p.num_rows = p.num_states = 1;
  p.o_states = view::bshd(memory->data(), 1, 1, 4);
  p.row_max_log2_states = p.row_sum_states = {memory->data() + 8, 1, 1, 1};
  p.o = view::bshd(memory->data() + 16, 1, 1, 4);
  return p;
}

bool any_cuda_kernel(tessera_operation operation) {
  const auto list = view::kernels();
  return std::any_of(list.begin(), list.end(), [&](const tessera_kernel_info& info) {
    return info.operation == operation && info.available != 0 && !std::string_view(info.name).starts_with("cpu_");
  });
}

TEST(Device, CallersFromBeforeTheFieldMeanTheCpu) {
  Problem problem;
  problem.p.struct_size = offsetof(tessera_fmha_params, device);
  std::memset(&problem.p.device, 0x5a, sizeof(problem.p.device));  // beyond what such a caller has
  tessera_error error = {};
  EXPECT_EQ(problem.run(&error), TESSERA_OK) << error.text;
  std::string_view name;
  ASSERT_TRUE(view::select(problem.p, &name));
  EXPECT_TRUE(name.starts_with("cpu_")) << name;

  std::vector<float> memory;
  tessera_merge_params merge = merge_params(&memory);
  merge.struct_size = offsetof(tessera_merge_params, device);
  std::memset(&merge.device, 0x5a, sizeof(merge.device));
  const view::Status merged = view::merge(merge);
  EXPECT_TRUE(merged) << merged.text();
}

TEST(Device, TheViewSetsIt) {
  EXPECT_EQ(view::fmha_params(TESSERA_F16, TESSERA_F16).device, TESSERA_DEVICE_CPU);
  EXPECT_EQ(view::fmha_params(TESSERA_F16, TESSERA_F16, TESSERA_DEVICE_CUDA).device, TESSERA_DEVICE_CUDA);
}

TEST(Device, CudaNeverFallsBackToTheCpu) {
  Problem problem;
  problem.p.device = TESSERA_DEVICE_CUDA;
  std::string_view name;
  const view::Status status = view::select(problem.p, &name);
  if (any_cuda_kernel(TESSERA_OP_FMHA)) {
    ASSERT_TRUE(status) << status.text();
    EXPECT_FALSE(name.starts_with("cpu_")) << name;
    return;
  }
  EXPECT_EQ(status.code(), TESSERA_UNSUPPORTED);
  EXPECT_TRUE(status.text().starts_with("device: got CUDA, ")) << status.text();
  EXPECT_NE(status.text().find("; allowed CPU"), std::string_view::npos) << status.text();

  tessera_error error = {};
  size_t bytes = 0;
  char id[64];
  EXPECT_EQ(problem.run(&error), TESSERA_UNSUPPORTED) << error.text;
  EXPECT_EQ(tessera_fmha_workspace_size(&problem.p, 1, &bytes, &error), TESSERA_UNSUPPORTED);
  EXPECT_EQ(tessera_fmha_contract_id(&problem.p, id, sizeof(id), nullptr, &error), TESSERA_UNSUPPORTED);
  EXPECT_TRUE(problem.untouched());
  problem.p.device = TESSERA_DEVICE_CPU;  // the problem itself is sound
  EXPECT_EQ(problem.run(&error), TESSERA_OK) << error.text;
}

TEST(Device, CudaMergesNeverFallBackToTheCpu) {
  if (any_cuda_kernel(TESSERA_OP_MERGE)) GTEST_SKIP() << "tests/cuda runs the CUDA merge kernels of this machine";
  std::vector<float> memory;
  tessera_merge_params merge = merge_params(&memory);
  merge.device = TESSERA_DEVICE_CUDA;
  const view::Status status = view::merge(merge);
  EXPECT_EQ(status.code(), TESSERA_UNSUPPORTED);
  EXPECT_TRUE(status.text().starts_with("device: got CUDA, ")) << status.text();
  EXPECT_EQ(memory, std::vector<float>(64, 1.0F));
}

TEST(Device, ARowOfAnotherDeviceCannotBeForced) {
  for (const tessera_kernel_info& info : view::kernels()) {
    if (info.operation != TESSERA_OP_FMHA) continue;
    const bool cpu = std::string_view(info.name).starts_with("cpu_");
    Problem problem;
    problem.p.device = cpu ? TESSERA_DEVICE_CUDA : TESSERA_DEVICE_CPU;
    problem.p.force_kernel = info.name;
    std::string_view name = "unchanged";
    const view::Status status = view::select(problem.p, &name);
    EXPECT_FALSE(status) << info.name;
    EXPECT_EQ(name, "unchanged");
    if (!cpu) {
      EXPECT_EQ(status.code(), TESSERA_INVALID_ARGUMENT);
      EXPECT_NE(status.text().find("allowed for device CPU: cpu_fmha_"), std::string_view::npos) << status.text();
    }
  }
}

}  // namespace
}  // namespace tessera::test
