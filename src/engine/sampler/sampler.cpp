#include "engine/sampler/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/sampler/exp.h"
#include "engine/sampler/philox.h"

namespace tessera {
namespace {

Status bad_param(const char* name, double got, const char* allowed) {
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

void keep_top_k(std::span<const float> logits, std::int32_t top_k, SamplerWorkspace& work) {
  const auto better = [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const auto nth = work.ranks.begin() + top_k;
  std::nth_element(work.ranks.begin(), nth, work.ranks.end(), better);
  for (auto dropped = nth; dropped != work.ranks.end(); ++dropped) {
    work.weights[*dropped] = 0.0;
  }
  work.ranks.erase(nth, work.ranks.end());
}

// Takes tokens off a heap, best first, until they hold the share: a nucleus is usually short, so this beats sorting.
void keep_top_p(std::span<const float> logits, float top_p, SamplerWorkspace& work) {
  const auto worse = [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] < logits[b] : a > b;
  };
  const double wanted = static_cast<double>(top_p) * sum_of(work.weights);
  std::make_heap(work.ranks.begin(), work.ranks.end(), worse);
  auto heap_end = work.ranks.end();
  double held = 0.0;
  while (heap_end != work.ranks.begin() && held < wanted) {
    std::pop_heap(work.ranks.begin(), heap_end, worse);
    --heap_end;
    held += work.weights[*heap_end];
  }
  for (auto dropped = work.ranks.begin(); dropped != heap_end; ++dropped) {
    work.weights[*dropped] = 0.0;
  }
}

std::int32_t draw(const std::vector<double>& weights, double uniform) {
  const double target = uniform * sum_of(weights);
  double running = 0.0;
  std::size_t last = 0;  // the last possible token, should rounding ever keep the sum from exceeding the target
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0.0) {
      running += weights[i];
      last = i;
      if (running > target) {
        break;
      }
    }
  }
  return static_cast<std::int32_t>(last);
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
  const double max = logits[best.value()];
  const double temperature = params.temperature;
  work.weights.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    work.weights[i] = exp_nonpositive((static_cast<double>(logits[i]) - max) / temperature);
  }
  const bool use_top_k = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size();
  const bool use_top_p = params.top_p < 1.0f;
  if (use_top_k || use_top_p) {
    work.ranks.resize(logits.size());
    for (std::size_t i = 0; i < work.ranks.size(); ++i) {
      work.ranks[i] = static_cast<std::int32_t>(i);
    }
  }
  if (use_top_k) {
    keep_top_k(logits, params.top_k, work);
  }
  if (use_top_p) {
    keep_top_p(logits, params.top_p, work);
  }
  if (params.min_p > 0.0f) {
    for (double& weight : work.weights) {
      weight = weight < static_cast<double>(params.min_p) ? 0.0 : weight;
    }
  }
  return draw(work.weights, philox_uniform(seed, sequence, position));
}

}  // namespace tessera
