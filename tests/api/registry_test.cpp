// The registry: order, names, forcing, and refusals that say what differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tessera.hpp"

namespace tessera::test {
namespace {

std::vector<tessera_kernel_info> kernels_of(tessera_operation operation) {
  std::vector<tessera_kernel_info> list = view::kernels();
  std::erase_if(list, [&](const auto& info) { return info.operation != operation; });
  return list;
}

bool of_cpu(const tessera_kernel_info& info) {
  return std::string_view(info.name).starts_with("cpu_");
}

tessera_fmha_params plain(std::vector<float>* memory) {
  memory->resize(64);
  tessera_fmha_params p = view::fmha_params(TESSERA_F32, TESSERA_F32);
  p.head_dim_qk = p.head_dim_v = 4;
  p.num_heads_q = p.num_heads_kv = 1;
  p.batch = p.seqlen_q = 1;
  p.q = view::bshd(memory->data(), 1, 1, 4);
  p.o = view::bshd(memory->data() + 8, 1, 1, 4);
  p.segments[0].k = p.segments[0].v = view::bshd(memory->data() + 16, 1, 1, 4);
  p.segments[0].seqlen_k = 1;
  p.softmax_scale = 1.0f;
  return p;
}

TEST(Registry, EveryOperationEndsWithAKernelForEveryMachine) {
  for (const tessera_operation operation : {TESSERA_OP_FMHA, TESSERA_OP_MERGE, TESSERA_OP_GEMM}) {
    const auto list = kernels_of(operation);
    ASSERT_FALSE(list.empty());
    EXPECT_EQ(list.back().available, 1) << list.back().name;
  }
}

TEST(Registry, NamesAreUniqueAndDescribed) {
  std::set<std::string> names;
  for (const tessera_kernel_info& info : view::kernels()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_GT(std::string(info.summary).size(), 10u);
    EXPECT_FALSE(std::string(info.arithmetic).empty());
    EXPECT_EQ(info.reason == nullptr, info.available != 0) << info.name;
  }
}

TEST(Registry, IndicesOutsideAreRefused) {
  tessera_kernel_info info = {};
  tessera_error error = {};
  for (const int32_t index : {-1, tessera_kernel_count()}) {
    EXPECT_EQ(tessera_kernel_get(index, &info, &error), TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.text).rfind("index: got ", 0), 0u) << error.text;
  }
  EXPECT_EQ(tessera_kernel_get(0, nullptr, &error), TESSERA_INVALID_ARGUMENT);
}

TEST(Registry, TheFirstAvailableRowIsSelected) {
  std::vector<float> memory;
  const tessera_fmha_params p = plain(&memory);
  std::string_view name;
  ASSERT_TRUE(view::select(p, &name));
  const auto list = kernels_of(TESSERA_OP_FMHA);
  const auto first =
      std::find_if(list.begin(), list.end(), [](const auto& info) { return of_cpu(info) && info.available != 0; });
  EXPECT_EQ(name, first->name);
}

TEST(Registry, EveryAvailableRowCanBeForced) {
  std::vector<float> memory;
  tessera_fmha_params p = plain(&memory);
  for (const tessera_kernel_info& info : kernels_of(TESSERA_OP_FMHA)) {
    if (!of_cpu(info)) continue;
    p.force_kernel = info.name;
    std::string_view name;
    const view::Status status = view::select(p, &name);
    if (info.available != 0) {
      EXPECT_TRUE(status) << status.text();
      EXPECT_EQ(name, info.name);
    } else {
      EXPECT_EQ(status.code(), TESSERA_UNSUPPORTED);
      EXPECT_NE(status.text().find(info.name), std::string_view::npos);
    }
  }
}

TEST(Registry, AnUnknownNameListsTheKnownOnes) {
  std::vector<float> memory;
  tessera_fmha_params p = plain(&memory);
  for (const char* name : {"fastest", "", "cpu_merge_portable"}) {
    p.force_kernel = name;
    std::string_view selected;
    const view::Status status = view::select(p, &selected);
    EXPECT_EQ(status.code(), TESSERA_INVALID_ARGUMENT);
    EXPECT_EQ(status.text().rfind("force_kernel: got ", 0), 0u) << status.text();
    EXPECT_NE(status.text().find("cpu_fmha_portable"), std::string_view::npos) << status.text();
  }
}

struct Refusal {
  const char* field;
  void (*change)(tessera_fmha_params* p);
};

TEST(Registry, UnsupportedProblemsNameTheFieldAndTheNearestKernel) {
  static const int32_t index = 0;
  const Refusal refusals[] = {
      {"head_dim_qk: got 577; allowed up to 576", [](tessera_fmha_params* p) { p->head_dim_qk = 577; }},
      {"head_dim_v: got 1024; allowed up to 576", [](tessera_fmha_params* p) { p->head_dim_v = 1024; }},
      {"alibi_slopes: got them for gathered keys; allowed NULL",
       [](tessera_fmha_params* p) {
         static const float slope = 0.5f;
         p->alibi_slopes = &slope;
         p->segments[0].indices = &index;
         p->segments[0].topk = 1;
         p->segments[0].indices_stride = 1;
       }},
      {"stride_dim other than 1: got it set", [](tessera_fmha_params* p) { p->segments[0].k.stride_dim = 2; }},
      {"stride_dim other than 1: got it set", [](tessera_fmha_params* p) { p->q.stride_dim = 0; }},
  };
  for (const Refusal& refusal : refusals) {
    std::vector<float> memory;
    tessera_fmha_params p = plain(&memory);
    p.force_kernel = "cpu_fmha_portable";
    refusal.change(&p);
    std::string_view name;
    const view::Status status = view::select(p, &name);
    EXPECT_EQ(status.code(), TESSERA_UNSUPPORTED) << refusal.field;
    EXPECT_NE(status.text().find(refusal.field), std::string_view::npos) << status.text();
    EXPECT_NE(status.text().find("nearest kernel cpu_fmha_portable"), std::string_view::npos) << status.text();
  }
}

}  // namespace
}  // namespace tessera::test
