#include "gate/invariance.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <random>
#include <string_view>

#include "base/sha256.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

constexpr int64_t kDefaultPageSize = 16;
constexpr int32_t kMaxBatch = 17;
constexpr int64_t kSlowKernelTokens = 40;  // portable kernels are for correctness: a short prefix suffices

// One way to run the sequence. Every schedule makes at least two calls, so that the control can strike between them.
struct Schedule {
  std::string axis = {};
  std::string variant = {};
  int64_t chunk = 0;         // tokens per call; 0: two halves
  int64_t decode_from = -1;  // from here on one token per call
  int32_t batch = 1;         // sequences per call, the target included
  int32_t threads = 0;       // 0: as loaded
  int64_t page_size = kDefaultPageSize;
  int64_t tokens = 0;       // 0: all
  int64_t preempt_at = -1;  // save, free, let others take the pages, restore
  int64_t reject_at = -1;   // evaluate wrong tokens here and drop them again
  std::string fmha_kernel = {};
  std::string gemm_kernel = {};
  bool must_differ = false;
};

class Runner {
 public:
  Runner(Engine& engine, std::span<const int32_t> tokens, const InvarianceOptions& options)
      : engine_(engine),
        tokens_(tokens),
        options_(options),
        vocab_(engine.config().vocab_size),
        threads_(engine.threads()) {}

  Status make_reference(InvarianceReport* report) {
    TESSERA_RETURN_IF_ERROR(reset(kDefaultPageSize));
    const SequenceId id = engine_.new_sequence();
    const BatchItem item{id, tokens_, static_cast<int64_t>(tokens_.size())};
    TESSERA_RETURN_IF_ERROR(engine_.evaluate({&item, 1}, &reference_));
    report->reference_sha256 = sha256_hex(std::as_bytes(std::span<const float>(reference_)));
    return {};
  }

  Status run(const Schedule& s, InvarianceCase* result) {
    const auto start = std::chrono::steady_clock::now();
    result->axis = s.axis;
    result->variant = s.variant;
    result->must_differ = s.must_differ;
    if (s.threads != 0) {
      engine_.set_threads(s.threads);
    }
    engine_.set_kernels(s.fmha_kernel, s.gemm_kernel);
    result->threads = engine_.threads();
    result->forced_kernel = engine_.forced_kernel();
    Status status = reset(s.page_size);
    if (status.ok()) {
      status = run_calls(s, result);
    }
    engine_.set_kernels("", "");
    if (s.threads != 0) {
      engine_.set_threads(threads_);
    }
    result->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return status;
  }

 private:
  Status reset(int64_t page_size) {
    // Each sequence may leave its last page partly empty.
    return engine_.reset_cache(page_size, invariance_cache_tokens(options_) + (kMaxBatch + 1) * page_size);
  }

  Status run_calls(const Schedule& s, InvarianceCase* result) {
    const int64_t n = s.tokens == 0 ? static_cast<int64_t>(tokens_.size()) : s.tokens;
    std::mt19937_64 random(options_.seed);
    SequenceId target = engine_.new_sequence();
    std::vector<SequenceId> neighbours;
    for (int32_t i = 1; i < s.batch; ++i) {
      neighbours.push_back(engine_.new_sequence());
    }
    bool damaged = false;
    int64_t done = 0;
    while (done < n) {
      if (s.preempt_at >= 0 && done == s.preempt_at) {
        TESSERA_RETURN_IF_ERROR(preempt(&target));
      }
      if (s.reject_at >= 0 && done == s.reject_at) {
        TESSERA_RETURN_IF_ERROR(reject(target));
      }
      if (done > 0 && !damaged && (s.must_differ || options_.negative_control)) {
        damage(target);
        damaged = true;
      }
      const int64_t count = std::min(n - done, next_count(s, n, done));
      TESSERA_RETURN_IF_ERROR(call(target, neighbours, done, count, random, result));
      done += count;
    }
    return {};
  }

  // Cut where something happens, so that it happens between two calls.
  static int64_t next_count(const Schedule& s, int64_t n, int64_t done) {
    if (s.decode_from >= 0 && done >= s.decode_from) {
      return 1;
    }
    int64_t count = s.chunk > 0 ? s.chunk : (n + 1) / 2;
    for (const int64_t stop : {s.preempt_at, s.reject_at, s.decode_from}) {
      if (stop > done) {
        count = std::min(count, stop - done);
      }
    }
    return done == 0 ? std::min(count, n - 1) : count;
  }

  // One evaluate call: `count` tokens of the target and random tokens of every neighbour, in random order.
  Status call(SequenceId target, std::span<const SequenceId> neighbours, int64_t begin, int64_t count,
              std::mt19937_64& random, InvarianceCase* result) {
    std::vector<std::vector<int32_t>> streams(neighbours.size());
    std::vector<BatchItem> items{
        {target, tokens_.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), count}};
    for (size_t i = 0; i < neighbours.size(); ++i) {
      const int64_t room = static_cast<int64_t>(tokens_.size()) - engine_.length(neighbours[i]);
      const int64_t length = std::min(room, static_cast<int64_t>(random() % static_cast<uint64_t>(count + 3)));
      for (int64_t t = 0; t < length; ++t) {
        streams[i].push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_)));
      }
      items.push_back({neighbours[i], streams[i], length > 0 ? 1 : 0});
    }
    for (size_t i = items.size(); i > 1; --i) {  // Fisher-Yates with our own generator: the same on every machine
      std::swap(items[i - 1], items[random() % i]);
    }
    std::vector<float> logits;
    TESSERA_RETURN_IF_ERROR(engine_.evaluate(items, &logits));
    int64_t row = 0;
    for (const BatchItem& item : items) {
      if (item.sequence == target) {
        for (int64_t t = 0; t < count; ++t) {
          compare(begin + t, logits.data() + (row + t) * vocab_, result);
        }
      }
      row += item.num_logits;
    }
    return {};
  }

  void compare(int64_t position, const float* row, InvarianceCase* result) const {
    const float* wanted = reference_.data() + position * vocab_;
    ++result->rows;
    if (std::memcmp(wanted, row, static_cast<size_t>(vocab_) * sizeof(float)) == 0) {
      return;
    }
    if (result->rows_differing++ > 0) {
      return;
    }
    for (int64_t i = 0; i < vocab_; ++i) {
      if (std::bit_cast<uint32_t>(wanted[i]) != std::bit_cast<uint32_t>(row[i])) {
        result->first_position = position;
        result->first_token = i;
        result->reference_bits = std::bit_cast<uint32_t>(wanted[i]);
        result->other_bits = std::bit_cast<uint32_t>(row[i]);
        return;
      }
    }
  }

  Status preempt(SequenceId* target) {
    const SavedSequence saved = engine_.save(*target);
    engine_.free_sequence(*target);
    const SequenceId other = engine_.new_sequence();  // takes some of the pages just freed
    const BatchItem item{other, tokens_.first(std::min<size_t>(tokens_.size(), 24)), 0};
    std::vector<float> unused;
    TESSERA_RETURN_IF_ERROR(engine_.evaluate({&item, 1}, &unused));
    *target = engine_.new_sequence();
    return engine_.restore(*target, saved);
  }

  Status reject(SequenceId target) {
    const int64_t length = engine_.length(target);
    const std::vector<int32_t> wrong(5, static_cast<int32_t>(vocab_ - 1));
    const BatchItem item{target, wrong, 5};
    std::vector<float> unused;
    TESSERA_RETURN_IF_ERROR(engine_.evaluate({&item, 1}, &unused));
    engine_.truncate(target, length);
    return {};
  }

  // The lowest mantissa bit of every element of the first token's V row, first head and layer.
  void damage(SequenceId target) {
    const KvCache& cache = engine_.cache();
    std::byte* row = cache.v_row(0, target, 0, 0);
    for (int64_t i = 0; i < engine_.config().head_dim; ++i) {
      row[i * element_bytes(cache.dtype())] ^= std::byte{1};  // little-endian: the lowest bit of the element
    }
  }

  Engine& engine_;
  std::span<const int32_t> tokens_;
  const InvarianceOptions& options_;
  int64_t vocab_;
  int32_t threads_;
  std::vector<float> reference_;  // (tokens, vocab)
};

void add_kernel_schedules(int64_t n, std::vector<Schedule>* all) {
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info;
    if (tessera_kernel_get(i, &info, nullptr) != TESSERA_OK || info.available == 0 ||
        info.operation == TESSERA_OP_MERGE || !std::string_view(info.arithmetic).starts_with("cpu-")) {
      continue;  // the engine computes on the CPU
    }
    Schedule s{.axis = "kernel", .variant = info.name, .tokens = std::min(n, kSlowKernelTokens)};
    (info.operation == TESSERA_OP_FMHA ? s.fmha_kernel : s.gemm_kernel) = info.name;
    all->push_back(s);
  }
}

std::vector<Schedule> schedules(int64_t n) {
  std::vector<Schedule> all;
  for (const int64_t chunk : {1, 7, 64, 512}) {
    all.push_back({.axis = "prefill chunk", .variant = fmt::format("{} tokens", chunk), .chunk = chunk});
  }
  all.push_back({.axis = "decode replay", .variant = "second half token by token", .decode_from = n / 2});
  for (const int32_t batch : {1, 2, 3, 8, kMaxBatch}) {
    all.push_back({.axis = "batch", .variant = fmt::format("{} sequences", batch), .chunk = 37, .batch = batch});
  }
  all.push_back(
      {.axis = "batch", .variant = "8 sequences, decode", .decode_from = n - std::min<int64_t>(n / 2, 32), .batch = 8});
  for (const int32_t threads : {1, 2, 4}) {
    all.push_back({.axis = "threads", .variant = fmt::format("{}", threads), .threads = threads});
  }
  for (const int64_t page : {1, 7, 64, 333}) {
    all.push_back({.axis = "page size", .variant = fmt::format("{} tokens", page), .chunk = 100, .page_size = page});
  }
  all.push_back({.axis = "preemption", .variant = "saved and restored into other pages", .preempt_at = n / 3});
  all.push_back({.axis = "speculation", .variant = "5 rejected tokens dropped", .reject_at = n / 3});
  add_kernel_schedules(n, &all);
  all.push_back({.axis = "control", .variant = "lowest bits of one V row flipped: must differ", .must_differ = true});
  return all;
}

}  // namespace

bool InvarianceReport::passed() const {
  return !cases.empty() && std::all_of(cases.begin(), cases.end(), [](const InvarianceCase& c) { return c.passed(); });
}

int64_t invariance_cache_tokens(const InvarianceOptions& options) {
  return (kMaxBatch + 1) * options.num_tokens;
}

Result<InvarianceReport> run_invariance(Engine& engine, std::span<const int32_t> tokens,
                                        const InvarianceOptions& options) {
  if (options.num_tokens < 8 || static_cast<int64_t>(tokens.size()) != options.num_tokens) {
    return Status(Code::kInvalidArgument, fmt::format("tokens: got {}; allowed at least 8 and exactly num_tokens = {}",
                                                      tokens.size(), options.num_tokens));
  }
  InvarianceReport report;
  report.num_tokens = options.num_tokens;
  Runner runner(engine, tokens, options);
  TESSERA_RETURN_IF_ERROR(runner.make_reference(&report));
  Result<std::string> id = engine.contract_id();
  TESSERA_RETURN_IF_ERROR(id.status());
  report.contract_id = id.value();
  const std::vector<Schedule> all = schedules(options.num_tokens);
  for (size_t i = 0; i < all.size(); ++i) {
    if (options.on_case) {
      options.on_case(all[i].axis + ": " + all[i].variant, i, all.size());
    }
    InvarianceCase result;
    TESSERA_RETURN_IF_ERROR(runner.run(all[i], &result));
    report.cases.push_back(result);
  }
  TESSERA_RETURN_IF_ERROR(engine.reset_cache(kDefaultPageSize, invariance_cache_tokens(options)));
  return report;
}

}  // namespace tessera
