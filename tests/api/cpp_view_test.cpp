// tessera.hpp: the view reaches the C functions and adds nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tessera/tessera.hpp"

extern "C" int tessera_header_from_c(void);

namespace tessera::test {
namespace {

TEST(Header, CompilesAndLinksFromC) {
  EXPECT_EQ(tessera_header_from_c(), 1);
}

TEST(Header, VersionsAreSet) {
  EXPECT_NE(std::string(tessera_version()), "");
  EXPECT_EQ(std::string(tessera_contract_version()), "tessera-1");
}

TEST(View, RunsAttention) {
  // One query equal to the first of two orthogonal keys, values 1 and 3.
  std::vector<float> q = {2.0f, 0.0f};
  std::vector<float> k = {2.0f, 0.0f, 0.0f, 2.0f};
  std::vector<float> v = {1.0f, 3.0f};
  std::vector<float> o = {0.0f};
  tessera_fmha_params p = view::fmha_params(TESSERA_F32, TESSERA_F32);
  p.head_dim_qk = 2;
  p.head_dim_v = p.num_heads_q = p.num_heads_kv = 1;
  p.batch = p.seqlen_q = 1;
  p.q = view::bshd(q.data(), 1, 1, 2);
  p.o = view::bshd(o.data(), 1, 1, 1);
  p.segments[0].k = view::bhsd(k.data(), 2, 1, 2);
  p.segments[0].v = view::packed(v.data(), 1, 1);
  p.segments[0].seqlen_k = 2;
  p.softmax_scale = 0.5f;
  size_t bytes = 0;
  ASSERT_TRUE(view::workspace_size(p, 1, &bytes));
  std::vector<std::byte> memory(bytes + 64);
  const size_t skip = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  ASSERT_TRUE(view::run(p, std::span(memory).subspan(skip, bytes)));
  const double e = std::exp(2.0);  // scores 2 and 0
  EXPECT_NEAR(o[0], (e * 1.0 + 3.0) / (e + 1.0), 1e-6);
  std::string_view name;
  ASSERT_TRUE(view::select(p, &name));
  EXPECT_EQ(name.rfind("cpu_fmha_", 0), 0u) << name;
}

TEST(View, KeepsTheSentenceOfAFailure) {
  const tessera_fmha_params p = {};
  std::string_view name = "unchanged";
  const view::Status status = view::select(p, &name);
  EXPECT_FALSE(status);
  EXPECT_EQ(status.code(), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(status.text().find("struct_size"), std::string_view::npos);
  EXPECT_EQ(name, "unchanged");
}

}  // namespace
}  // namespace tessera::test
