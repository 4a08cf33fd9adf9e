#include "engine/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "engine/toy_model.h"

namespace tessera {
namespace {

class Generate : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path =
        testing::write_file("generate.gguf", testing::toy_model({.types = {TensorType::Q4_1}}).build());
    Result<std::unique_ptr<Engine>> engine = Engine::load(path, {.threads = 2, .context = 64});
    ASSERT_TRUE(engine.ok()) << engine.status().text();
    engine_ = std::move(engine).value();
  }

  GenerateResult run(const GenerateOptions& options, const GenerateCallbacks& callbacks = {}) {
    const SequenceId id = engine_->new_sequence();
    GenerateResult result;
    const Status status = generate(*engine_, id, prompt_, options, callbacks, &result);
    EXPECT_TRUE(status.ok()) << status.text();
    engine_->free_sequence(id);
    return result;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> prompt_{116, 257, 32, 105, 110, 101};
};

GenerateOptions hashed(int64_t n) {
  GenerateOptions o;
  o.max_new_tokens = n;
  o.stop_at_end = false;
  o.hash_logits = true;
  return o;
}

TEST_F(Generate, ChunksAndThreadsMoveNeitherTokensNorLogits) {
  const GenerateResult whole = run(hashed(20));
  EXPECT_EQ(whole.tokens.size(), 20U);
  EXPECT_EQ(whole.logits_sha256.size(), 64U);
  GenerateOptions options = hashed(20);
  options.chunk = 1;
  engine_->set_threads(1);
  const GenerateResult other = run(options);
  EXPECT_EQ(other.tokens, whole.tokens);
  EXPECT_EQ(other.logits_sha256, whole.logits_sha256);
}

TEST_F(Generate, SamplingDependsOnTheSeedAlone) {
  GenerateOptions options = hashed(20);
  options.sampler.temperature = 1.0F;
  options.seed = 7;
  const GenerateResult a = run(options);
  EXPECT_EQ(run(options).tokens, a.tokens);
  options.seed = 8;
  EXPECT_NE(run(options).tokens, a.tokens);
}

TEST_F(Generate, StopsAtTheContext) {
  const GenerateResult r = run(hashed(1000));
  EXPECT_EQ(r.stop, StopReason::kContext);
  EXPECT_EQ(static_cast<int64_t>(prompt_.size() + r.tokens.size()), engine_->context() + 1);
}

TEST_F(Generate, ACallbackCanStopIt) {
  GenerateCallbacks callbacks;
  callbacks.on_text = [](const std::string&) { return false; };
  const GenerateResult r = run(hashed(50), callbacks);
  EXPECT_EQ(r.stop, StopReason::kCancelled);
  EXPECT_LT(r.tokens.size(), 50U);
}

TEST_F(Generate, ReportsPrefillProgressToTheEnd) {
  GenerateOptions options = hashed(1);
  options.chunk = 4;
  std::vector<int64_t> seen;
  GenerateCallbacks callbacks;
  callbacks.on_prefill = [&seen](int64_t done, int64_t) { seen.push_back(done); };
  run(options, callbacks);
  EXPECT_EQ(seen, (std::vector<int64_t>{4, 6}));
}

TEST_F(Generate, RefusesAPromptBeyondTheContextBeforeAnyWork) {
  GenerateOptions options = hashed(1);
  options.chunk = 8;
  GenerateCallbacks callbacks;
  callbacks.on_prefill = [](int64_t, int64_t) { ADD_FAILURE() << "tokens were evaluated"; };
  const SequenceId id = engine_->new_sequence();
  GenerateResult result;
  const std::vector<int32_t> prompt(static_cast<size_t>(engine_->context()) + 1, 116);
  const Status status = generate(*engine_, id, prompt, options, callbacks, &result);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.text().find("got 65 tokens"), std::string::npos) << status.text();
  EXPECT_EQ(engine_->length(id), 0);
}

TEST_F(Generate, EveryPositionDrawsItsOwnRandomNumber) {
  GenerateOptions options = hashed(40);
  options.sampler.temperature = 1e6F;  // nearly uniform: one number for all positions would repeat one token
  const GenerateResult r = run(options);
  EXPECT_GT(std::set<int32_t>(r.tokens.begin(), r.tokens.end()).size(), 20U);
}

TEST_F(Generate, AnEndTokenStopsItUnlessToldOtherwise) {
  GenerateOptions options = hashed(50);
  options.sampler.temperature = 1e6F;  // nearly uniform: the end token comes up soon
  options.stop_at_end = true;
  GenerateResult stopped;
  for (options.seed = 0; options.seed < 100 && stopped.stop != StopReason::kEndToken; ++options.seed) {
    stopped = run(options);
  }
  ASSERT_EQ(stopped.stop, StopReason::kEndToken);
  EXPECT_EQ(stopped.tokens.back(), 260);
  --options.seed;
  options.stop_at_end = false;
  const GenerateResult whole = run(options);
  EXPECT_EQ(whole.stop, StopReason::kLength);
  ASSERT_EQ(whole.tokens.size(), 50U);
  EXPECT_TRUE(std::equal(stopped.tokens.begin(), stopped.tokens.end(), whole.tokens.begin()));
}

TEST_F(Generate, ACharacterThatIsCutOffAtTheEndIsReplaced) {
  GenerateOptions options = hashed(1);
  options.sampler.temperature = 1e6F;
  std::string streamed;
  GenerateCallbacks callbacks;
  callbacks.on_text = [&streamed](const std::string& piece) {
    streamed += piece;
    return true;
  };
  GenerateResult result;
  const auto begins_a_character = [&] {
    return !result.tokens.empty() && result.tokens[0] >= 0xc2 && result.tokens[0] <= 0xf4;
  };
  for (options.seed = 0; options.seed < 100 && !begins_a_character(); ++options.seed) {
    streamed.clear();
    result = run(options, callbacks);
  }
  ASSERT_TRUE(begins_a_character());
  EXPECT_EQ(result.text, "\xEF\xBF\xBD");
  EXPECT_EQ(streamed, result.text);
}

TEST_F(Generate, TheHashCoversEveryLogitOfEverySampledPosition) {
  const GenerateResult r = run(hashed(3));
  const SequenceId id = engine_->new_sequence();
  Sha256 hash;
  std::vector<int32_t> tokens = prompt_;
  for (const int32_t next : r.tokens) {
    std::vector<float> logits;
    const BatchItem item{id, tokens, 1};
    ASSERT_TRUE(engine_->evaluate({&item, 1}, &logits).ok());
    hash.update(logits.data(), logits.size() * sizeof(float));
    tokens.assign(1, next);
  }
  EXPECT_EQ(r.logits_sha256, to_hex(hash.digest()));
}

TEST_F(Generate, RefusesAnEmptyPromptAndBadOptions) {
  GenerateResult result;
  const SequenceId id = engine_->new_sequence();
  EXPECT_EQ(generate(*engine_, id, {}, hashed(1), {}, &result).code(), Code::kInvalidArgument);
  GenerateOptions options = hashed(1);
  options.chunk = 0;
  EXPECT_EQ(generate(*engine_, id, prompt_, options, {}, &result).code(), Code::kInvalidArgument);
  options = hashed(1);
  options.sampler.top_p = 0.0F;
  EXPECT_EQ(generate(*engine_, id, prompt_, options, {}, &result).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
