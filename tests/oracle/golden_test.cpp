// The contract's bits may not drift: digests of the oracle's outputs over a spread of features. A mismatch means that a
// rule changed, and a changed rule needs a new contract version (kContractVersion). After such a change, run with
// TESSERA_WRITE_GOLDEN=1 in the environment to write the file again.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "attention_fixture.h"
#include "base/sha256.h"

namespace tessera {
namespace {

const std::string kFile = std::string(TESSERA_TEST_VECTORS) + "/oracle/golden.json";

struct Problem {
  const char* name;
  Shape shape;
  float spread;
  std::function<void(Attention&)> change;
};

const std::vector<float> kSlopes = {0.5F, 0.0625F};
const std::vector<float> kSinks = {1.5F, -20.0F};
const std::vector<int32_t> kLengths = {70, 300};

std::vector<int32_t> gathered_indices() {
  std::vector<int32_t> indices;
  indices.reserve(3 * 200);
  for (int32_t t = 0; t < 3 * 200; ++t) {
    indices.push_back(t % 11 == 4 ? -1 : t * 7919 % 300);
  }
  return indices;
}
const std::vector<int32_t> kIndices = gathered_indices();

std::vector<Problem> problems() {
  const Shape pair{.batch = 1, .sq = 3, .sk = 300, .hq = 2, .hk = 1, .dqk = 40, .dv = 24};
  const auto causal = [](Attention& a) { a.params.segments[0].causal = 1; };
  return {
      {"plain", pair, 2.0F, [](Attention&) {}},
      {"wide_scores", pair, 60.0F, causal},
      {"d192_v128", {.sq = 2, .sk = 200, .hq = 2, .hk = 2, .dqk = 192, .dv = 128}, 3.0F, causal},
      {"chunks", {.sq = 2, .sk = 3333, .dqk = 16, .dv = 16}, 6.0F, causal},
      {"superchunks", {.sq = 1, .sk = 17 * 2048, .dqk = 16, .dv = 16}, 6.0F, [](Attention&) {}},
      {"window", pair, 4.0F, [](Attention& a) { a.params.segments[0].window_left = 150; }},
      {"compressed", pair, 4.0F, [](Attention& a) { a.params.segments[0].compress_ratio = 4; }},
      {"softcap_alibi", pair, 8.0F,
       [](Attention& a) {
         a.params.softcap = 15.0F;
         a.params.alibi_slopes = kSlopes.data();
       }},
      {"sinks", pair, 4.0F, [](Attention& a) { a.params.sinks = kSinks.data(); }},
      {"lengths",
       {.batch = 2, .sq = 3, .sk = 300, .hq = 2, .hk = 1, .dqk = 40, .dv = 24},
       4.0F,
       [](Attention& a) { a.params.segments[0].seqlens_k = kLengths.data(); }},
      {"gathered", pair, 4.0F,
       [](Attention& a) {
         tessera_kv_segment& s = a.params.segments[0];
         s.indices = kIndices.data();
         s.indices_stride = s.topk = 200;
       }},
      {"two_segments", pair, 4.0F,
       [](Attention& a) {
         a.params.num_segments = 2;
         a.params.segments[1] = a.params.segments[0];
         a.params.segments[0].window_left = 63;
         a.params.segments[1].compress_ratio = 4;
       }},
      {"state", pair, 4.0F, [](Attention& a) { a.params.output_mode = TESSERA_OUTPUT_UNNORMALIZED; }},
      {"dtype_output", pair, 4.0F, [](Attention& a) { a.params.o_dtype = a.numerics.dtype; }},
  };
}

std::string digest_of(Numerics numerics, const Problem& problem) {
  Attention a(numerics, problem.shape);
  a.q.fill_fixed(1, problem.spread);
  a.k.fill_fixed(2, 1.7F);
  a.v.fill_fixed(3, 1.7F);
  problem.change(a);
  a.run(2);
  const std::vector<uint8_t> bytes = a.all();
  return sha256_hex(std::as_bytes(std::span(bytes)));
}

class Golden : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(all_numerics()),
                         [](const auto& row) { return name_of(row.param); });

TEST_P(Golden, OutputsHaveTheRecordedBits) {
  nlohmann::json recorded = nlohmann::json::object();
  if (std::ifstream file(kFile); file.good()) {
    recorded = nlohmann::json::parse(file);
  }
  nlohmann::json& mine = recorded[kContractVersion][name_of(GetParam())];
  for (const Problem& problem : problems()) {
    const std::string digest = digest_of(GetParam(), problem);
    if (std::getenv("TESSERA_WRITE_GOLDEN") != nullptr) {
      mine[problem.name] = digest;
    } else {
      EXPECT_EQ(mine.value(problem.name, std::string("nothing recorded")), digest) << problem.name;
    }
  }
  if (std::getenv("TESSERA_WRITE_GOLDEN") != nullptr) {
    std::ofstream(kFile) << recorded.dump(1) << "\n";
  }
}

}  // namespace
}  // namespace tessera
