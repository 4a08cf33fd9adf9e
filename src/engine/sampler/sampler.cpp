#include "engine/sampler/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/sampler/exp.h"
#include "engine/sampler/philox.h"

namespace tessera {
namespace {

template <class Number>
Status bad_param(const char* name, Number got, const char* allowed) {
  return {Code::kInvalidArgument,
          fmt::format("{}: got {}; allowed {}; change the sampling option", name, got, allowed)};
}

// The best token: highest logit, lowest id of equal ones.
Result<std::int32_t> find_best(std::span<const float> logits) {
  if (logits.empty() || logits.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    return Status(Code::kInvalidArgument,
                  fmt::format("logits: got {} values; allowed 1..2147483647; pass one row of logits", logits.size()));
  }
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < std::numeric_limits<float>::infinity())) {
      return Status(Code::kInvalidArgument,
                    fmt::format("logits[{}]: got {}; allowed finite values and -inf; the model computed no usable "
                                "distribution, check its weights",
                                i, logits[i]));
    }
    if (logits[i] > logits[best]) {
      best = i;
    }
  }
  if (logits[best] == -std::numeric_limits<float>::infinity()) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("logits: got {} values that are all -inf; allowed at least one possible token; loosen the "
                    "mask",
                    logits.size()));
  }
  return static_cast<std::int32_t>(best);
}

double sum_of(const std::vector<double>& weights) {
  double sum = 0.0;
  for (const double weight : weights) {
    sum += weight;
  }
  return sum;
}

// work.ids: the ids of the k best tokens, ascending. One pass with a heap of the k best so far, worst on top.
void select_top_k(std::span<const float> logits, std::size_t top_k, SamplerWorkspace& work) {
  const auto better = [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  work.ids.resize(top_k);
  std::iota(work.ids.begin(), work.ids.end(), 0);
  std::make_heap(work.ids.begin(), work.ids.end(), better);
  for (std::size_t i = top_k; i < logits.size(); ++i) {
    // An equal logit with a higher id ranks behind what is kept already.
    if (logits[i] > logits[work.ids.front()]) {
      std::pop_heap(work.ids.begin(), work.ids.end(), better);
      work.ids.back() = static_cast<std::int32_t>(i);
      std::push_heap(work.ids.begin(), work.ids.end(), better);
    }
  }
  std::sort(work.ids.begin(), work.ids.end());
}

// Takes tokens off a heap, best first, until they hold the share: a nucleus is usually short, so this beats sorting.
void keep_top_p(std::span<const float> logits, float top_p, SamplerWorkspace& work) {
  const auto worse = [&](std::int32_t a, std::int32_t b) {  // a, b: indices into ids and weights, which ascend alike
    const float logit_a = logits[work.ids[a]];
    const float logit_b = logits[work.ids[b]];
    return logit_a != logit_b ? logit_a < logit_b : a > b;
  };
  const double wanted = static_cast<double>(top_p) * sum_of(work.weights);
  work.order.resize(work.ids.size());
  std::iota(work.order.begin(), work.order.end(), 0);
  std::make_heap(work.order.begin(), work.order.end(), worse);
  auto heap_end = work.order.end();
  double held = 0.0;
  while (heap_end != work.order.begin() && held < wanted) {
    std::pop_heap(work.order.begin(), heap_end, worse);
    --heap_end;
    held += work.weights[*heap_end];
  }
  for (auto dropped = work.order.begin(); dropped != heap_end; ++dropped) {
    work.weights[*dropped] = 0.0;
  }
}

std::int32_t draw(const SamplerWorkspace& work, double uniform) {
  const double target = uniform * sum_of(work.weights);
  double running = 0.0;
  std::size_t last = 0;  // the last possible token, should rounding ever keep the sum from exceeding the target
  for (std::size_t i = 0; i < work.weights.size(); ++i) {
    if (work.weights[i] > 0.0) {
      running += work.weights[i];
      last = i;
      if (running > target) {
        break;
      }
    }
  }
  return work.ids[last];
}

}  // namespace

Status check_sampler_params(const SamplerParams& params) {
  // Each test is written so that NaN fails it.
  if (!(params.temperature >= 0.0f && params.temperature < std::numeric_limits<float>::infinity())) {
    return bad_param("temperature", params.temperature, "finite values >= 0");
  }
  if (params.top_k < 0) {
    return bad_param("top_k", params.top_k, "0 (all tokens) or more");
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return bad_param("top_p", params.top_p, "values above 0, up to 1");
  }
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) {
    return bad_param("min_p", params.min_p, "0..1");
  }
  return {};
}

Result<std::int32_t> sample(std::span<const float> logits, const SamplerParams& params, std::uint64_t seed,
                            std::uint64_t sequence, std::uint64_t position, SamplerWorkspace* workspace) {
  TESSERA_RETURN_IF_ERROR(check_sampler_params(params));
  Result<std::int32_t> best = find_best(logits);
  if (!best.ok() || params.temperature == 0.0f) {
    return best;
  }
  SamplerWorkspace local;
  SamplerWorkspace& work = workspace != nullptr ? *workspace : local;
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size()) {
    select_top_k(logits, static_cast<std::size_t>(params.top_k), work);
  } else {
    work.ids.resize(logits.size());
    std::iota(work.ids.begin(), work.ids.end(), 0);
  }
  const double max = logits[best.value()];
  const double temperature = params.temperature;
  work.weights.resize(work.ids.size());
  for (std::size_t i = 0; i < work.ids.size(); ++i) {
    work.weights[i] = exp_nonpositive((static_cast<double>(logits[work.ids[i]]) - max) / temperature);
  }
  if (params.top_p < 1.0f) {
    keep_top_p(logits, params.top_p, work);
  }
  if (params.min_p > 0.0f) {
    for (double& weight : work.weights) {
      weight = weight < static_cast<double>(params.min_p) ? 0.0 : weight;
    }
  }
  return draw(work, philox_uniform(seed, sequence, position));
}

}  // namespace tessera
