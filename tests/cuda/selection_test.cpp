// Which CUDA kernel a problem gets, and what a refusal says. Runs no kernel, but needs a GPU: a row that cannot run is
// never asked.
#include <functional>
#include <string>
#include <string_view>

#include "cuda/harness.h"
#include "tessera/tessera.hpp"

namespace tessera::test {
namespace {

// 4 sequences, 8/2 heads, head dim 128; the addresses are never read.
tessera_fmha_params problem(int64_t seqlen_q, int64_t seqlen_k) {
  tessera_fmha_params p = view::fmha_params(TESSERA_BF16, TESSERA_BF16, TESSERA_DEVICE_CUDA);
  void* const somewhere = reinterpret_cast<void*>(uintptr_t{1} << 20);
  p.head_dim_qk = p.head_dim_v = 128;
  p.num_heads_q = 8;
  p.num_heads_kv = 2;
  p.batch = 4;
  p.seqlen_q = seqlen_q;
  p.q = p.o = view::bshd(somewhere, seqlen_q, 8, 128);
  p.segments[0].k = p.segments[0].v = view::bshd(somewhere, seqlen_k, 2, 128);
  p.segments[0].seqlen_k = seqlen_k;
  p.segments[0].causal = 1;
  p.softmax_scale = 0.1F;
  return p;
}

std::string chosen(const tessera_fmha_params& p) {
  std::string_view name;
  const view::Status status = view::select(p, &name);
  return status ? std::string(name) : std::string(status.text());
}

using CudaSelection = CudaTest;

TEST_F(CudaSelection, PrefillAndDecode) {
  EXPECT_EQ(chosen(problem(512, 512)), "sm90_fmha_prefill");
  EXPECT_EQ(chosen(problem(64, 4096)), "sm90_fmha_prefill");
  EXPECT_EQ(chosen(problem(1, 4096)), "sm90_fmha_decode");
  tessera_fmha_params softcap = problem(512, 512);
  softcap.softcap = 20.0F;
  EXPECT_EQ(chosen(softcap), "sm90_fmha_ragged");
  softcap.head_dim_v = 84;
  EXPECT_EQ(chosen(softcap), "sm80_fmha") << "no multiple of 8";
}

TEST_F(CudaSelection, OneHeadWhoseValuesAreItsKeys) {
  tessera_fmha_params p = problem(256, 4096);
  p.head_dim_qk = p.head_dim_v = 512;
  p.num_heads_q = 64;
  p.num_heads_kv = 1;
  p.q = p.o = view::bshd(p.q.data, 256, 64, 512);
  p.segments[0].k = p.segments[0].v = view::bshd(p.q.data, 4096, 1, 512);
  EXPECT_EQ(chosen(p), "sm90_fmha_mqa_512");
  tessera_fmha_params latent = p;
  latent.head_dim_qk = 576;
  latent.q = view::bshd(p.q.data, 256, 64, 576);
  latent.segments[0].k = latent.segments[0].v = view::bshd(p.q.data, 4096, 1, 576);
  EXPECT_EQ(chosen(latent), "sm90_fmha_mqa_512");
  latent.segments[0].v.stride_token = 512;
  EXPECT_NE(chosen(latent), "sm90_fmha_mqa_512") << "rows of their own";
  tessera_fmha_params other = p;
  other.segments[0].v.data = static_cast<char*>(p.q.data) + 1024;
  EXPECT_NE(chosen(other), "sm90_fmha_mqa_512") << "other values";
  other.force_kernel = "sm90_fmha_mqa_512";
  EXPECT_NE(chosen(other).find("v: got other memory than k"), std::string::npos) << chosen(other);
  p.seqlen_q = 1;
  EXPECT_EQ(chosen(p), "sm90_fmha_decode") << "few chunks of few rows";
  p.num_heads_q = 128;
  EXPECT_EQ(chosen(p), "sm90_fmha_decode") << "few chunks, though their keys are read again for every 16 rows";
  p.batch = 32;
  EXPECT_EQ(chosen(p), "sm90_fmha_mqa_512") << "keys of many chunks";
}

// No other CUDA kernel takes FP8 rows: it is this one whatever the size, or a refusal.
TEST_F(CudaSelection, Fp8Rows) {
  for (const int64_t tokens : {1, 256}) {
    tessera_fmha_params p = problem(tokens, 4096);
    p.dtype = p.o_dtype = TESSERA_BF16;
    p.head_dim_qk = p.head_dim_v = 512;
    p.num_heads_q = 8;
    p.num_heads_kv = 1;
    p.q = p.o = view::bshd(p.q.data, tokens, 8, 512);
    tessera_kv_segment& s = p.segments[0];
    s.format = TESSERA_KV_FP8_V4_584;
    s.page_table = reinterpret_cast<const int32_t*>(uintptr_t{1} << 20);
    s.page_table_stride = s.num_pages = 64;
    s.page_size = 64;
    s.k = s.v = {p.q.data, 65 * 576, 576, 0, 1};
    EXPECT_EQ(chosen(p), "sm90_fmha_mqa_512");
    tessera_fmha_params latent = p;
    latent.head_dim_qk = 576;
    latent.q = view::bshd(p.q.data, tokens, 8, 576);
    latent.segments[0].format = TESSERA_KV_FP8_V32_656;
    latent.segments[0].page_table = nullptr;
    latent.segments[0].k = latent.segments[0].v = {p.q.data, 4096 * 656, 656, 0, 1};
    EXPECT_EQ(chosen(latent), "sm90_fmha_mqa_512");
    p.softcap = 20.0F;
    EXPECT_NE(chosen(p).find("softcap"), std::string::npos) << chosen(p);
  }
}

TEST_F(CudaSelection, DecodeTakesModifiedScoresAndTwoHeadDims) {
  tessera_fmha_params p = problem(4, 4096);
  p.softcap = 20.0F;
  EXPECT_EQ(chosen(p), "sm90_fmha_decode");
  p = problem(4, 4096);
  p.segments[0].mask = {reinterpret_cast<const uint8_t*>(uintptr_t{1} << 20), 4, 0, 1, 4};
  EXPECT_EQ(chosen(p), "sm90_fmha_decode");
  p = problem(1, 4096);
  p.head_dim_qk = 192;
  EXPECT_EQ(chosen(p), "sm90_fmha_decode");
  p.head_dim_v = 84;
  p.force_kernel = "sm90_fmha_decode";
  EXPECT_NE(chosen(p).find("head_dim_qk, head_dim_v: got one that is no multiple of 8"), std::string::npos);
}

TEST_F(CudaSelection, ASlowRowCanBeForced) {
  tessera_fmha_params p = problem(1, 4096);
  p.force_kernel = "sm90_fmha_prefill";
  EXPECT_EQ(chosen(p), "sm90_fmha_prefill");
}

TEST_F(CudaSelection, RaggedKernelsRefuseByNameToo) {
  tessera_fmha_params p = problem(512, 512);
  p.force_kernel = "sm90_fmha_ragged";
  p.segments[0].window_left = 100;
  EXPECT_EQ(chosen(p), "sm90_fmha_ragged");
  p.head_dim_v = 80;
  EXPECT_EQ(chosen(p), "sm90_fmha_ragged");
  p.head_dim_v = 84;
  EXPECT_NE(chosen(p).find("head_dim_qk, head_dim_v: got one that is no multiple of 8"), std::string::npos);
  p = problem(512, 512);
  p.force_kernel = "sm90_fmha_ragged";
  p.segments[0].page_table = reinterpret_cast<const int32_t*>(uintptr_t{1} << 20);
  p.segments[0].page_table_stride = 64;
  p.segments[0].page_size = 12;
  p.segments[0].num_pages = 8;
  EXPECT_NE(chosen(p).find("page_size: got no multiple of 8"), std::string::npos);
}

TEST_F(CudaSelection, RefusalsNameTheFieldAndTheRow) {
  struct Case {
    std::string_view words;
    std::function<void(tessera_fmha_params&)> change;
  };
  const Case cases[] = {
      {"head_dim_qk, head_dim_v: got 80, 80; allowed two equal ones of 64, 128",
       [](tessera_fmha_params& p) { p.head_dim_qk = p.head_dim_v = 80; }},
      {"head_dim_qk, head_dim_v: got 128, 64;", [](tessera_fmha_params& p) { p.head_dim_v = 64; }},
      {"head_dim_qk: got 512; allowed up to 256", [](tessera_fmha_params& p) { p.head_dim_qk = 512; }},
      {"window_left, window_right: got it set", [](tessera_fmha_params& p) { p.segments[0].window_left = 7; }},
      {"softcap: got it set", [](tessera_fmha_params& p) { p.softcap = 1.0F; }},
      {"data of q, k, v, o: got an address that is no multiple of 16 bytes",
       [](tessera_fmha_params& p) { p.q.data = static_cast<char*>(p.q.data) + 2; }},
      {"strides of q, k, v, o: got one that is no multiple of 16 bytes",
       [](tessera_fmha_params& p) { p.segments[0].v.stride_token += 4; }},
      {"strides of q, k, v, o: got 0", [](tessera_fmha_params& p) { p.segments[0].k.stride_head = 0; }},
      {"seqlen_q, seqlen_k: got more than 2^30 - 1",
       [](tessera_fmha_params& p) { p.segments[0].seqlen_k = int64_t{1} << 30; }},
      {"batch: got more than 2^30 - 1 tiles", [](tessera_fmha_params& p) { p.batch = int64_t{1} << 30; }},
  };
  for (const Case& c : cases) {
    tessera_fmha_params p = problem(512, 512);
    c.change(p);
    p.force_kernel = "sm90_fmha_prefill";
    std::string_view name;
    const view::Status status = view::select(p, &name);
    EXPECT_EQ(status.code(), TESSERA_UNSUPPORTED) << c.words;
    EXPECT_NE(status.text().find(c.words), std::string_view::npos) << status.text();
    EXPECT_NE(status.text().find("nearest kernel sm90_fmha_prefill"), std::string_view::npos) << status.text();
  }
}

TEST_F(CudaSelection, TheContractIsThatOfHopper) {
  char text[64] = "";
  const tessera_fmha_params p = problem(1, 4096);
  ASSERT_EQ(tessera_fmha_contract_id(&p, text, sizeof(text), nullptr, nullptr), TESSERA_OK);
  EXPECT_EQ(std::string(text), "tessera-1/hopper-k16-f25/bf16/d128");
}

}  // namespace
}  // namespace tessera::test
