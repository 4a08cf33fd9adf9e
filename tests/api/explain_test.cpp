// tessera_fmha_explain: what would be launched, without launching it. Runs on any machine.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/tessera.hpp"

namespace tessera::test {
namespace {

struct Problem {
  alignas(64) uint16_t memory[64] = {};
  tessera_fmha_params p;

  Problem(tessera_device device, int32_t head_dim) : p(view::fmha_params(TESSERA_BF16, TESSERA_BF16, device)) {
    p.head_dim_qk = p.head_dim_v = head_dim;
    p.num_heads_q = 8;
    p.num_heads_kv = 2;
    p.batch = 3;
    p.seqlen_q = 1000;
    p.q = p.o = view::bshd(memory, 1000, 8, head_dim);
    p.segments[0].k = p.segments[0].v = view::bshd(memory, 2000, 2, head_dim);
    p.segments[0].seqlen_k = 2000;
    p.segments[0].causal = 1;
    p.softmax_scale = 1.0F;
  }
  std::string explain() const {
    size_t length = 0;
    tessera_error error{};
    if (tessera_fmha_explain(&p, nullptr, 0, &length, &error) != TESSERA_OK) return error.text;
    std::vector<char> text(length + 1);
    EXPECT_EQ(tessera_fmha_explain(&p, text.data(), text.size(), nullptr, &error), TESSERA_OK) << error.text;
    return std::string(text.data(), length);
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Explain, NamesKernelContractAndTilesOfTheCpu) {
  Problem problem(TESSERA_DEVICE_CPU, 64);
  problem.p.force_kernel = "cpu_fmha_portable";
  const std::string text = problem.explain();
  EXPECT_TRUE(has(text, "kernel: cpu_fmha_portable\ncontract: tessera-1/cpu-fma32/bf16/d64\n")) << text;
  EXPECT_TRUE(has(text, "granules of 128 keys")) << text;
}

TEST(Explain, WritesAsMuchAsFits) {
  Problem problem(TESSERA_DEVICE_CPU, 64);
  problem.p.force_kernel = "cpu_fmha_portable";
  const std::string whole = problem.explain();
  char text[12];
  size_t length = 0;
  ASSERT_EQ(tessera_fmha_explain(&problem.p, text, sizeof(text), &length, nullptr), TESSERA_OK);
  EXPECT_EQ(length, whole.size());
  EXPECT_EQ(std::string(text), whole.substr(0, 11));
  EXPECT_EQ(tessera_fmha_explain(&problem.p, nullptr, 0, nullptr, nullptr), TESSERA_INVALID_ARGUMENT);
}

TEST(Explain, RefusesWhatNoKernelTakes) {
  Problem problem(TESSERA_DEVICE_CPU, 600);
  EXPECT_TRUE(has(problem.explain(), "head_dim_qk: got 600")) << problem.explain();
}

#if defined(TESSERA_WITH_CUDA)
// No device is needed to be told what it would run.
TEST(Explain, CudaKernelsTellTheirTilesAndSharedMemory) {
  for (const char* kernel : {"sm90_fmha_prefill", "sm90_fmha_ragged", "sm80_fmha"}) {
    for (const int32_t head_dim : {64, 128}) {
      Problem problem(TESSERA_DEVICE_CUDA, head_dim);
      problem.p.force_kernel = kernel;
      const std::string text = problem.explain();
      EXPECT_TRUE(has(text, std::string("kernel: ") + kernel)) << text;
      EXPECT_TRUE(has(text, "hopper-k16-f25")) << text;
      EXPECT_TRUE(has(text, "granules of 128 keys")) << text;
      EXPECT_TRUE(has(text, "shared memory: ")) << text;
    }
  }
}

TEST(Explain, DecodeKernelsTellTheirHeadDimsAndWhatTheyChange) {
  Problem problem(TESSERA_DEVICE_CUDA, 128);
  problem.p.seqlen_q = 4;
  problem.p.force_kernel = "sm90_fmha_decode";
  const std::string plain = problem.explain();
  EXPECT_TRUE(has(plain, "head dims: 128 of Q and K, 128 of V and O\n")) << plain;
  EXPECT_TRUE(has(plain, "granules of 128 keys")) << plain;
  problem.p.segments[0].mask = {reinterpret_cast<const uint8_t*>(problem.memory), 4, 0, 1, 4};
  const std::string masked = problem.explain();
  EXPECT_TRUE(has(masked, "hd128_bf16_r16_modified")) << masked;
  EXPECT_TRUE(has(masked, "; softcap, ALiBi and custom bits\n")) << masked;
  problem.p.segments[0].mask = {};
  problem.p.head_dim_qk = 192;
  const std::string two = problem.explain();
  EXPECT_TRUE(has(two, "head dims: 192 of Q and K, 128 of V and O\n")) << two;
  EXPECT_TRUE(has(two, "granules of 64 keys")) << two;
  problem.p.head_dim_v = 100;
  EXPECT_TRUE(has(problem.explain(), "head_dim_qk, head_dim_v: got one that is no multiple of 8")) << problem.explain();
}

TEST(Explain, DecodeKernelsTellWhoChainsChunks) {
  Problem problem(TESSERA_DEVICE_CUDA, 128);
  problem.p.seqlen_q = 1;
  problem.p.force_kernel = "sm90_fmha_decode";
  const std::string team = problem.explain();
  EXPECT_TRUE(has(team, "_team\n") && has(team, "chain of chunks: by whoever finishes last\n")) << team;
  problem.p.segments[0].seqlen_k = 6 * 2048;  // of three sequences and two K/V heads
  const std::string duo = problem.explain();
  EXPECT_TRUE(has(duo, "_duo\n") && has(duo, "blocks per unit: 2, ")) << duo;
  EXPECT_TRUE(has(duo, "chain of chunks: by a second kernel\n")) << duo;
  problem.p.segments[0].seqlen_k = 40 * 2048;
  const std::string pair = problem.explain();
  EXPECT_TRUE(has(pair, "_pair\n") && has(pair, "blocks per unit: 1\nchain of chunks: by a second kernel\n")) << pair;
}

TEST(Explain, ClustersTakeUnitsOfHeadDim512AtOnce) {
  Problem problem(TESSERA_DEVICE_CUDA, 512);
  problem.p.seqlen_q = 1;
  problem.p.force_kernel = "sm90_fmha_decode";
  const std::string team = problem.explain();
  EXPECT_TRUE(has(team, "hd512_bf16_r8_team\n") && has(team, "blocks per unit: 8, ")) << team;
  problem.p.segments[0].seqlen_k = 6 * 2048;  // of three sequences and two K/V heads
  const std::string single = problem.explain();
  EXPECT_TRUE(has(single, "_r8_single\n") && has(single, "chain of chunks: by a second kernel\n")) << single;
}

TEST(Explain, RaggedKernelsTellTheirOwnRoles) {
  Problem problem(TESSERA_DEVICE_CUDA, 128);
  for (const bool ragged : {false, true}) {
    problem.p.force_kernel = ragged ? "sm90_fmha_ragged" : "sm90_fmha_prefill";
    const std::string text = problem.explain();
    EXPECT_EQ(has(text, "one that draws tiles"), ragged) << text;
    EXPECT_EQ(has(text, "one thread for K and V"), !ragged) << text;
  }
}
#endif

}  // namespace
}  // namespace tessera::test
