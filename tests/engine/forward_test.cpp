// The forward pass against a float64 forward written from the model definitions, for every architecture and weight
// type.
#include "engine/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "engine/engine.h"
#include "engine/gguf/dequant.h"
#include "engine/toy_model.h"

namespace tessera {
namespace {

using testing::ToySpec;
using Vec = std::vector<double>;

// Plain float64 model: no cache, no batching, whole sequence at once.
class Reference {
 public:
  Reference(const GgufFile& file, const ToySpec& spec) : spec_(spec) {
    for (const TensorInfo& t : file.tensors()) {
      std::vector<float> row(static_cast<size_t>(t.n_elements()));
      EXPECT_TRUE(dequantize_row(t.type, t.data.data(), row.data(), t.n_elements()).ok());
      tensors_[std::string(t.name)] = Vec(row.begin(), row.end());
    }
  }

  // Logits (tokens, vocab).
  std::vector<Vec> logits(const std::vector<int32_t>& tokens) {
    std::vector<Vec> x;
    for (const int32_t t : tokens) {
      const Vec& e = tensors_["token_embd.weight"];
      x.emplace_back(e.begin() + t * testing::kToyHidden, e.begin() + (t + 1) * testing::kToyHidden);
    }
    for (int64_t layer = 0; layer < testing::kToyLayers; ++layer) {
      const std::string p = "blk." + std::to_string(layer) + ".";
      attention(p, &x);
      for (Vec& row : x) {
        const Vec h = norm(row, tensors_[p + "ffn_norm.weight"]);
        Vec gate = product(p + "ffn_gate.weight", h);
        const Vec up = product(p + "ffn_up.weight", h);
        for (size_t i = 0; i < gate.size(); ++i) {
          gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        }
        add(&row, product(p + "ffn_down.weight", gate));
      }
    }
    std::vector<Vec> out;
    for (const Vec& row : x) {
      out.push_back(
          product(spec_.tied ? "token_embd.weight" : "output.weight", norm(row, tensors_["output_norm.weight"])));
    }
    return out;
  }

 private:
  static Vec norm(const Vec& x, const Vec& weight) {
    double sum = 0;
    for (const double v : x) {
      sum += v * v;
    }
    const double r = 1 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-5);
    Vec y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = x[i] * r * weight[i];
    }
    return y;
  }

  Vec product(const std::string& name, const Vec& x) {
    const Vec& w = tensors_.at(name);
    Vec y(w.size() / x.size());
    for (size_t n = 0; n < y.size(); ++n) {
      for (size_t k = 0; k < x.size(); ++k) {
        y[n] += w[n * x.size() + k] * x[k];
      }
    }
    return y;
  }

  static void add(Vec* x, const Vec& y) {
    for (size_t i = 0; i < x->size(); ++i) {
      (*x)[i] += y[i];
    }
  }

  // Per head: norm (qwen3), then rotation.
  void finish_heads(Vec* x, size_t position, const std::string& norm_name) {
    constexpr size_t kDim = testing::kToyHeadDim;
    for (size_t h = 0; h < x->size() / kDim; ++h) {
      Vec head(x->begin() + static_cast<std::ptrdiff_t>(h * kDim),
               x->begin() + static_cast<std::ptrdiff_t>((h + 1) * kDim));
      if (tensors_.contains(norm_name)) {
        head = norm(head, tensors_[norm_name]);
      }
      for (size_t i = 0; i < kDim / 2; ++i) {
        double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
        if (spec_.rope_factors) {
          angle /= tensors_["rope_freqs.weight"][i];
        }
        const size_t a = spec_.arch == "llama" ? 2 * i : i;
        const size_t b = spec_.arch == "llama" ? 2 * i + 1 : i + kDim / 2;
        (*x)[h * kDim + a] = head[a] * std::cos(angle) - head[b] * std::sin(angle);
        (*x)[h * kDim + b] = head[a] * std::sin(angle) + head[b] * std::cos(angle);
      }
    }
  }

  void attention(const std::string& p, std::vector<Vec>* x) {
    std::vector<Vec> q, k, v;
    for (size_t t = 0; t < x->size(); ++t) {
      const Vec h = norm((*x)[t], tensors_[p + "attn_norm.weight"]);
      q.push_back(product(p + "attn_q.weight", h));
      k.push_back(product(p + "attn_k.weight", h));
      v.push_back(product(p + "attn_v.weight", h));
      if (spec_.arch == "qwen2") {
        add(&q[t], tensors_[p + "attn_q.bias"]);
        add(&k[t], tensors_[p + "attn_k.bias"]);
        add(&v[t], tensors_[p + "attn_v.bias"]);
      }
      finish_heads(&q[t], t, p + "attn_q_norm.weight");
      finish_heads(&k[t], t, p + "attn_k_norm.weight");
    }
    constexpr size_t kDim = testing::kToyHeadDim;
    for (size_t t = 0; t < x->size(); ++t) {
      Vec o(q[t].size());
      for (size_t h = 0; h < testing::kToyHeads; ++h) {
        const size_t hk = h / (testing::kToyHeads / testing::kToyHeadsKv);
        Vec weight(t + 1);
        double sum = 0;
        for (size_t j = 0; j <= t; ++j) {
          double s = 0;
          for (size_t d = 0; d < kDim; ++d) {
            s += q[t][h * kDim + d] * k[j][hk * kDim + d];
          }
          weight[j] = std::exp(s / 8.0);  // sqrt(64)
          sum += weight[j];
        }
        for (size_t j = 0; j <= t; ++j) {
          for (size_t d = 0; d < kDim; ++d) {
            o[h * kDim + d] += weight[j] / sum * v[j][hk * kDim + d];
          }
        }
      }
      add(&(*x)[t], product(p + "attn_output.weight", o));
    }
  }

  ToySpec spec_;
  std::map<std::string, Vec> tensors_;
};

std::vector<int32_t> toy_tokens(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) {
    tokens.push_back((i * 37 + 11) % 260);
  }
  return tokens;
}

void expect_matches_reference(const ToySpec& spec, const std::string& label) {
  SCOPED_TRACE(label);
  const std::string path = testing::write_file("forward_" + label + ".gguf", testing::toy_model(spec).build());
  Result<std::unique_ptr<Engine>> engine = Engine::load(path, {.threads = 2});
  ASSERT_TRUE(engine.ok()) << engine.status().text();
  const std::vector<int32_t> tokens = toy_tokens(40);
  const BatchItem item{engine.value()->new_sequence(), tokens, 40};
  std::vector<float> logits;
  const Status status = engine.value()->evaluate({&item, 1}, &logits);
  ASSERT_TRUE(status.ok()) << status.text();

  Reference reference(engine.value()->files().head(), spec);
  const std::vector<Vec> wanted = reference.logits(tokens);
  double largest = 0;
  double spread = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (size_t i = 0; i < wanted[t].size(); ++i) {
      largest = std::max(largest, std::fabs(wanted[t][i] - static_cast<double>(logits[t * wanted[t].size() + i])));
      spread = std::max(spread, std::fabs(wanted[t][i]));
    }
  }
  EXPECT_GT(spread, 0.5);  // the model computes something
  // fp32 steps of a two-layer model whose logits are of order 1..5.
  EXPECT_LT(largest, 5e-5);
}

TEST(Forward, MatchesFloat64ForEveryArchitecture) {
  for (const char* arch : {"llama", "qwen2", "qwen3"}) {
    expect_matches_reference({.arch = arch}, arch);
  }
}

TEST(Forward, MatchesFloat64WithRopeFactorsAndUntiedOutput) {
  expect_matches_reference({.tied = false, .rope_factors = true}, "factors");
}

TEST(Forward, MatchesFloat64ForEveryWeightType) {
  for (const TensorType type :
       {TensorType::F16, TensorType::BF16, TensorType::Q4_0, TensorType::Q4_1, TensorType::Q5_0, TensorType::Q5_1,
        TensorType::Q8_0, TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K}) {
    expect_matches_reference({.types = {type}}, std::string(type_name(type)));
  }
}

TEST(Forward, MatchesFloat64WithMixedTypes) {
  expect_matches_reference(
      {.arch = "qwen2", .types = {TensorType::Q4_K, TensorType::Q6_K, TensorType::Q5_0}, .tied = false}, "mixed");
}

class ForwardErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = testing::write_file("forward_errors.gguf", testing::toy_model({}).build());
    Result<std::unique_ptr<Engine>> engine =
        Engine::load(path, {.threads = 1, .context = 32, .cache_tokens = 64, .page_size = 4});
    ASSERT_TRUE(engine.ok()) << engine.status().text();
    engine_ = std::move(engine).value();
    id_ = engine_->new_sequence();
  }

  std::string error(const std::vector<BatchItem>& items) {
    std::vector<float> logits;
    const Status status = engine_->evaluate(items, &logits);
    EXPECT_FALSE(status.ok());
    return status.text();
  }

  std::unique_ptr<Engine> engine_;
  SequenceId id_ = 0;
};

TEST_F(ForwardErrors, RefusesTokensOutsideTheVocabulary) {
  const std::vector<int32_t> low{-1};
  const std::vector<int32_t> high{testing::kToyVocab};
  EXPECT_NE(error({{id_, low, 1}}).find("token"), std::string::npos);
  EXPECT_NE(error({{id_, high, 1}}).find("262"), std::string::npos);
}

TEST_F(ForwardErrors, RefusesMoreTokensThanTheContext) {
  const std::vector<int32_t> tokens = toy_tokens(33);
  EXPECT_NE(error({{id_, tokens, 1}}).find("context"), std::string::npos);
  EXPECT_EQ(engine_->length(id_), 0);
}

TEST_F(ForwardErrors, AFullCacheLeavesEverySequenceAsItWas) {
  const std::vector<int32_t> tokens = toy_tokens(32);
  const std::vector<SequenceId> ids{engine_->new_sequence(), engine_->new_sequence()};
  const int64_t free_before = engine_->cache().free_pages();
  EXPECT_NE(error({{id_, tokens, 0}, {ids[0], tokens, 0}, {ids[1], tokens, 0}}).find("KV cache"), std::string::npos);
  EXPECT_EQ(engine_->cache().free_pages(), free_before);
  EXPECT_EQ(engine_->length(ids[0]), 0);
}

TEST_F(ForwardErrors, RefusesASequenceTwiceAndUnknownSequences) {
  const std::vector<int32_t> tokens = toy_tokens(2);
  EXPECT_NE(error({{id_, tokens, 0}, {id_, tokens, 0}}).find("more than once"), std::string::npos);
  EXPECT_NE(error({{77, tokens, 0}}).find("77"), std::string::npos);
  EXPECT_NE(error({{id_, tokens, 3}}).find("num_logits"), std::string::npos);
}

TEST_F(ForwardErrors, AnEmptyBatchGivesNoLogits) {
  std::vector<float> logits{1.0F};
  EXPECT_TRUE(engine_->evaluate({}, &logits).ok());
  EXPECT_TRUE(logits.empty());
}

}  // namespace
}  // namespace tessera
