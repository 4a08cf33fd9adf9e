// Refusals of segments with FP8 rows and of gathered keys: the sentence begins with the argument, no output is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tessera/tessera.hpp"

namespace tessera::test {
namespace {

constexpr int64_t kPageBytes = 5 * 576;  // of 4 keys: 2336 rounded up

// Two sequences of one token and 8 keys in pages of 4, V4 rows of zeros with scale 2^-127.
struct Latent {
  std::vector<uint16_t> q = std::vector<uint16_t>(2 * 3 * 576);
  std::vector<uint16_t> o = std::vector<uint16_t>(2 * 3 * 512, 0x1234);
  std::vector<uint8_t> pool = std::vector<uint8_t>(4 * kPageBytes + 64);
  std::vector<int32_t> pages = {0, 1, 2, 3};
  std::vector<int32_t> list = {0, 7, -1, 3, 2, 1};
  std::vector<int32_t> lens = {3, 2};
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 22);
  tessera_fmha_params p;

  Latent() {
    p = view::fmha_params(TESSERA_BF16, TESSERA_BF16);
    p.head_dim_qk = p.head_dim_v = 512;
    p.num_heads_q = 3;
    p.num_heads_kv = 1;
    p.batch = 2;
    p.seqlen_q = 1;
    p.q = view::bshd(q.data(), 1, 3, 512);
    p.o = view::bshd(o.data(), 1, 3, 512);
    tessera_kv_segment& s = p.segments[0];
    s.format = TESSERA_KV_FP8_V4_584;
    s.k = {pool.data() + (16 - reinterpret_cast<uintptr_t>(pool.data()) % 16) % 16, kPageBytes, 576, 0, 1};
    s.v = s.k;
    s.seqlen_k = 8;
    s.page_table = pages.data();
    s.page_table_stride = 2;
    s.page_size = 4;
    s.num_pages = 4;
    p.softmax_scale = 0.05f;
  }
  tessera_kv_segment& segment() { return p.segments[0]; }
  void v32() {
    tessera_kv_segment& s = p.segments[0];
    p.head_dim_qk = 576;
    p.q = view::bshd(q.data(), 1, 3, 576);
    s.format = TESSERA_KV_FP8_V32_656;
    s.k.stride_token = 656;
    s.k.stride_batch = 4 * 656;
    s.v = s.k;
  }
  void both(const std::function<void(tessera_tensor&)>& change) {
    change(segment().k);
    change(segment().v);
  }
  void gather() {
    segment().indices = list.data();
    segment().indices_stride = segment().topk = 3;
  }
  tessera_status run(tessera_error* error) {
    void* workspace = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    return tessera_fmha_run(&p, workspace, memory.size() - 64, nullptr, error);
  }
};

TEST(Fp8Segment, SoundOnesRun) {
  tessera_error error{};
  Latent v4;
  EXPECT_EQ(v4.run(&error), TESSERA_OK) << error.text;
  Latent v32;
  v32.v32();
  EXPECT_EQ(v32.run(&error), TESSERA_OK) << error.text;
  Latent listed;
  listed.gather();
  listed.segment().topk_lens = listed.lens.data();
  EXPECT_EQ(listed.run(&error), TESSERA_OK) << error.text;
  EXPECT_NE(listed.o[0], 0x1234);
}

TEST(Fp8Segment, TheContractIdentityDoesNotNameTheFormat) {
  Latent x;
  char coded[128];
  ASSERT_EQ(tessera_fmha_contract_id(&x.p, coded, sizeof coded, nullptr, nullptr), TESSERA_OK);
  EXPECT_STREQ(coded, "tessera-1/cpu-fma32/bf16/d512");
}

struct Refused {
  const char* sentence;
  std::function<void(Latent&)> change;
  tessera_status code = TESSERA_INVALID_ARGUMENT;
};

std::vector<Refused> refusals() {
  return {
      {"dtype: got f16; allowed bf16 with segments[0].format TESSERA_KV_FP8_V4_584",
       [](Latent& x) { x.p.dtype = x.p.o_dtype = TESSERA_F16; }},
      {"head_dim_qk: got 576; allowed 512 with segments[0].format TESSERA_KV_FP8_V4_584",
       [](Latent& x) { x.p.head_dim_qk = 576; }},
      {"head_dim_qk: got 512; allowed 576 with segments[0].format TESSERA_KV_FP8_V32_656",
       [](Latent& x) {
         x.v32();
         x.p.head_dim_qk = 512;
       }},
      {"head_dim_v: got 448; allowed 512", [](Latent& x) { x.p.head_dim_v = 448; }},
      {"num_heads_kv: got 3; allowed 1", [](Latent& x) { x.p.num_heads_kv = 3; }},
      {"segments[0].page_table: got NULL; allowed a table with format TESSERA_KV_FP8_V4_584",
       [](Latent& x) { x.segment().page_table = nullptr; }},
      {"segments[0].v: got another tensor than k",
       [](Latent& x) { x.segment().v.data = x.pool.data() + x.pool.size() / 2; }},
      {"segments[0].v: got another tensor than k", [](Latent& x) { x.segment().v.stride_head = 16; }},
      {"segments[0].k.stride_dim: got 2; allowed 1", [](Latent& x) { x.both([](auto& t) { t.stride_dim = 2; }); }},
      {"segments[0].k.stride_token: got 584; allowed 576 bytes",
       [](Latent& x) { x.both([](auto& t) { t.stride_token = 584; }); }},
      {"segments[0].k.stride_batch: got 2336; allowed multiples of 576 bytes from 2336 on",
       [](Latent& x) { x.both([](auto& t) { t.stride_batch = 2336; }); }},
      {"segments[0].k.stride_batch: got 2304; allowed multiples of 576 bytes from 2336 on",
       [](Latent& x) { x.both([](auto& t) { t.stride_batch = 4 * 576; }); }},
      {"segments[0].k.stride_token: got 660; allowed multiples of 16 bytes",
       [](Latent& x) {
         x.v32();
         x.both([](auto& t) { t.stride_token = 660; });
       }},
      {"segments[0].k.data: got 0x",
       [](Latent& x) { x.both([](auto& t) { t.data = static_cast<uint8_t*>(t.data) + 8; }); }},
      {"segments[0].k.data: got NULL", [](Latent& x) { x.both([](auto& t) { t.data = nullptr; }); }},
      {"segments[0].page_table[1][1]: got 4; allowed 0..3", [](Latent& x) { x.pages[3] = 4; }},
      {"segments[0].indices[1][0]: got 8; allowed -1 (no key) to 7",
       [](Latent& x) {
         x.gather();
         x.list[3] = 8;
       }},
      {"segments[0].indices[0][2]: got -2; allowed -1 (no key) to 7",
       [](Latent& x) {
         x.gather();
         x.list[2] = -2;
       }},
      {"segments[0].topk_lens[1]: got 4; allowed 0..3",
       [](Latent& x) {
         x.gather();
         x.lens[1] = 4;
         x.segment().topk_lens = x.lens.data();
       }},
      {"segments[0].topk_lens[0]: got -1; allowed 0..3",
       [](Latent& x) {
         x.gather();
         x.lens[0] = -1;
         x.segment().topk_lens = x.lens.data();
       }},
      {"segments[0].page_table[0][1]: got -3; allowed 0..3",
       [](Latent& x) {
         x.gather();
         x.pages[1] = -3;  // holds key 7, which is listed
       }},
      {"mask: got one for gathered keys",
       [](Latent& x) {
         x.gather();
         x.segment().mask = {x.pool.data(), 0, 0, 0, -1};
       },
       TESSERA_UNSUPPORTED},
  };
}

TEST(Fp8Segment, RefusalsNameTheFieldAndWriteNothing) {
  for (const Refused& refused : refusals()) {
    Latent x;
    refused.change(x);
    tessera_error error{};
    EXPECT_EQ(x.run(&error), refused.code) << refused.sentence << "\n" << error.text;
    EXPECT_EQ(std::string(error.text).rfind(refused.sentence, 0), 0u) << error.text << "\n" << refused.sentence;
    EXPECT_TRUE(std::all_of(x.o.begin(), x.o.end(), [](uint16_t v) { return v == 0x1234; })) << refused.sentence;
  }
}

TEST(Fp8Segment, PagesThatNoListedKeyNeedsAreNotLookedAt) {
  Latent x;
  x.gather();
  x.list = {0, 1, -1, 3, 2, 1};
  x.pages = {0, -1, 2, 99};
  tessera_error error{};
  EXPECT_EQ(x.run(&error), TESSERA_OK) << error.text;
}

TEST(Fp8Segment, WithoutKeysNothingHasToBeThere) {
  Latent x;
  x.segment().seqlen_k = 0;
  x.segment().page_table = nullptr;
  x.both([](auto& t) { t.data = nullptr; });
  tessera_error error{};
  EXPECT_EQ(x.run(&error), TESSERA_OK) << error.text;
  EXPECT_EQ(x.o[0], 0);
}

}  // namespace
}  // namespace tessera::test
