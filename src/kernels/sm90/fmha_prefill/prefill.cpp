#include "kernels/sm90/fmha_prefill/prefill.h"
#include "kernels/sm90/fmha_prefill/ragged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::sm90 {
namespace {

constexpr int64_t kScratchAlignment = 16;
// What follows the counter starts on a line of the L2 cache: else each access of a warp would touch one line more.
constexpr size_t kLineBytes = 128;

// What decides on the accumulators: the keys of a row and the head dim of the kernel.
int64_t most_keys(const PrefillProblem& problem) {
  return problem.ragged.wanted ? problem.ragged.seqlen_k : problem.k.tokens;
}
int64_t kernel_dim(const PrefillProblem& problem) {
  return problem.ragged.wanted ? ragged_kernel_dim(problem.q.dims, problem.v.dims) : problem.q.dims;
}
// Threads that keep accumulators.
int64_t accumulating_threads(const PrefillProblem& problem, int multiprocessors) {
  return int64_t{kWarpgroupThreads} * most_consumers(kernel_dim(problem)) * multiprocessors;
}
// O (64, head_dim) in fp32 per warpgroup, less the least that every kernel keeps in shared memory.
size_t chain_bytes(const PrefillProblem& problem, int multiprocessors) {
  if (most_keys(problem) <= kChunkKeys) {
    return 0;
  }
  const int64_t floats = std::max<int64_t>(0, kernel_dim(problem) / 2 - least_chain_shared(kernel_dim(problem)));
  return static_cast<size_t>(accumulating_threads(problem, multiprocessors) * floats) * sizeof(float);
}
// O (64, head_dim) in fp32 per warpgroup, and four scalars a thread.
size_t superchunk_bytes(const PrefillProblem& problem, int multiprocessors) {
  if (most_keys(problem) <= int64_t{kChunkKeys} * kSuperchunkChunks) {
    return 0;
  }
  return static_cast<size_t>(accumulating_threads(problem, multiprocessors) * (kernel_dim(problem) / 2 + 4)) *
         sizeof(float);
}

// How long `tall` tiles of time 1 and then `low` ones of time kLowTime take on `blocks` blocks that draw them in order.
double makespan(int64_t tall, int64_t low, int64_t blocks) {
  constexpr double kLowTime = 0.74;  // of a tile with one warpgroup less, measured
  // Blocks that are free at the same time: those that took one tall tile less, and the others.
  const int64_t whole_waves = tall / blocks;
  double free_at[2] = {static_cast<double>(whole_waves), static_cast<double>(whole_waves + 1)};
  const int64_t width[2] = {blocks - tall % blocks, tall % blocks};
  double end = width[1] > 0 ? free_at[1] : free_at[0];
  while (low > 0) {
    const int next = width[1] > 0 && free_at[1] < free_at[0] ? 1 : 0;
    low -= width[next];
    free_at[next] += kLowTime;
    end = std::max(end, free_at[next]);
  }
  return end;
}

// Of `pairs` (sequence, head) pairs with equally long tiles, how many to cut into tall tiles.
int64_t pick_tall_pairs(int64_t pairs, int64_t tall_tiles, int64_t low_tiles, int64_t blocks) {
  int64_t best = pairs;
  double shortest = makespan(pairs * tall_tiles, 0, blocks);
  const int64_t one_wave = ceil_div(blocks, tall_tiles);
  for (int64_t low_pairs = 1; low_pairs <= std::min(pairs, 2 * one_wave); ++low_pairs) {
    const double time = makespan((pairs - low_pairs) * tall_tiles, low_pairs * low_tiles, blocks);
    if (time < shortest) {
      shortest = time;
      best = pairs - low_pairs;
    }
  }
  return best;
}

Status refuse(Code code, std::string text) {
  return Status(code, std::move(text));
}

// What no kernel takes.
Status check_any(const PrefillEntry& entry, const PrefillProblem& p) {
  if (p.dtype != (entry.bf16 ? TESSERA_BF16 : TESSERA_F16)) {
    return refuse(Code::kUnsupported, fmt::format("{}: got dtype {}; allowed {}; use the kernel of that dtype",
                                                  entry.name, static_cast<int>(p.dtype), entry.bf16 ? "bf16" : "f16"));
  }
  if (p.unnormalized && (!p.wide_output || p.sinks != nullptr)) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("{}: got a state with sinks or 16-bit O; allowed fp32 O without sinks", entry.name));
  }
  if (p.k.heads < 1 || p.q.heads % p.k.heads != 0) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("num_heads_kv: got {}; allowed divisors of num_heads_q ({})", p.k.heads, p.q.heads));
  }
  if (!(p.softmax_scale > 0.0F) || p.softmax_scale > std::numeric_limits<float>::max()) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("softmax_scale: got {}; allowed positive finite numbers", p.softmax_scale));
  }
  return {};
}

Status check(const PrefillEntry& entry, const PrefillProblem& p) {
  const int64_t dims = entry.head_dim;
  TESSERA_RETURN_IF_ERROR(check_any(entry, p));
  if (p.causal != entry.causal) {
    return refuse(Code::kUnsupported,
                  fmt::format("{}: got {}; allowed {}; use the kernel of that mask", entry.name,
                              p.causal ? "causal" : "no mask", entry.causal ? "causal" : "no mask"));
  }
  if (needs_general_finish(p) && !entry.general_finish) {
    return refuse(Code::kUnsupported,
                  fmt::format("{}: got sinks, o_dtype f32 or a state; allowed none of them here", entry.name));
  }
  for (const TensorView* t : {&p.q, &p.k, &p.v, &p.o}) {
    if (t->dims != dims) {
      return refuse(Code::kUnsupported, fmt::format("{}: got head_dim {}; allowed {}", entry.name, t->dims, dims));
    }
  }
  if (p.o.tokens != p.q.tokens || p.o.heads != p.q.heads || p.v.tokens != p.k.tokens || p.v.heads != p.k.heads ||
      p.k.batch != p.q.batch || p.v.batch != p.q.batch || p.o.batch != p.q.batch) {
    return refuse(
        Code::kInvalidArgument,
        fmt::format("{}: got Q, K, V, O of different shapes; allowed equal batch, tokens of Q and O, tokens and "
                    "heads of K and V; pass tensors that fit",
                    entry.name));
  }
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max() / 2;
  if (p.q.tokens > kLongest || p.k.tokens > kLongest) {
    return refuse(Code::kUnsupported,
                  fmt::format("seqlen: got {} and {}; allowed up to {}", p.q.tokens, p.k.tokens, kLongest));
  }
  return {};
}

}  // namespace

size_t prefill_scratch_bytes(const PrefillProblem& problem, int multiprocessors) {
  return kCounterBytes + kLineBytes + chain_bytes(problem, multiprocessors) +
         superchunk_bytes(problem, multiprocessors) + (problem.ragged.wanted ? tile_prefix_bytes(problem) : 0);
}

PrefillArguments common_arguments(const PrefillEntry& entry, const PrefillProblem& problem, int multiprocessors) {
  PrefillArguments a{};
  a.lse = problem.lse.data;
  a.lse_stride_batch = problem.lse.stride_batch;
  a.lse_stride_token = problem.lse.stride_token;
  a.lse_stride_head = problem.lse.stride_head;
  a.o = const_cast<void*>(problem.o.data);
  a.o_stride_batch = problem.o.stride_batch;
  a.o_stride_token = problem.o.stride_token;
  a.o_stride_head = problem.o.stride_head;
  a.row_max = problem.row_max_log2;
  a.row_sum = problem.row_sum;
  a.sinks = problem.sinks;
  a.wide_output = problem.wide_output;
  a.unnormalized = problem.unnormalized;
  a.timeline = static_cast<uint2*>(problem.timeline);
  a.tile_counter = static_cast<int*>(problem.scratch);
  uint8_t* const counter_end = static_cast<uint8_t*>(problem.scratch) + kCounterBytes;
  uint8_t* const accumulators = counter_end + (kLineBytes - reinterpret_cast<uintptr_t>(counter_end) % kLineBytes);
  a.chains = reinterpret_cast<float4*>(accumulators);
  a.superchunks = reinterpret_cast<float4*>(accumulators + chain_bytes(problem, multiprocessors));
  a.ragged.tile_prefix = reinterpret_cast<int32_t*>(accumulators + chain_bytes(problem, multiprocessors) +
                                                    superchunk_bytes(problem, multiprocessors));
  a.heads_q = static_cast<int>(problem.q.heads);
  a.group = static_cast<int>(problem.q.heads / problem.k.heads);
  a.c = score_scale(problem.softmax_scale, false);
  a.bias = entry.bf16 ? 0.0F : 7.0F;
  a.move_limit = std::ldexp(1.0F, static_cast<int>(a.bias) + 7);
  return a;
}

Status run_prefill(const PrefillEntry& entry, const PrefillProblem& problem, int multiprocessors, cudaStream_t stream) {
  TESSERA_RETURN_IF_ERROR(entry.ragged ? check_any(entry, problem) : check(entry, problem));
  const size_t scratch = prefill_scratch_bytes(problem, multiprocessors);
  if (problem.scratch == nullptr || reinterpret_cast<uintptr_t>(problem.scratch) % kScratchAlignment != 0) {
    return Status(Code::kWorkspaceTooSmall,
                  fmt::format("scratch: got none or a misaligned one; allowed {} bytes, 16-byte aligned", scratch));
  }
  if (entry.ragged) {
    return run_ragged_prefill(entry, problem, common_arguments(entry, problem, multiprocessors), multiprocessors,
                              stream);
  }
  if (problem.q.tokens == 0 || problem.q.batch == 0 || problem.q.heads == 0) {
    return {};  // no row to write
  }
  // The copy engine knows no empty tensor; with no keys at all the kernel loads nothing.
  TensorView k = problem.k;
  TensorView v = problem.v;
  k.tokens = std::max<int64_t>(k.tokens, 1);
  v.tokens = k.tokens;

  PrefillArguments a = common_arguments(entry, problem, multiprocessors);
  struct Map {
    const char* name;
    const TensorView& tensor;
    int box_tokens;
    CUtensorMap& map;
  };
  for (const Map& m : {Map{"q", problem.q, kWarpgroupRows, a.q_map}, Map{"k", k, entry.granule_keys, a.k_map},
                       Map{"v", v, entry.granule_keys, a.v_map}, Map{"o", problem.o, kWarpgroupRows, a.o_map}}) {
    if (entry.general_finish && &m.map == &a.o_map) {
      continue;  // it does not use the copy engine for O
    }
    Result<CUtensorMap> map = make_panel_map(m.name, m.tensor, entry.bf16, m.box_tokens);
    if (!map.ok()) {
      return map.status();
    }
    m.map = map.value();
  }
  a.seqlen_q = static_cast<int>(problem.q.tokens);
  a.seqlen_k = static_cast<int>(problem.k.tokens);
  const int64_t pairs = problem.q.heads * problem.q.batch;
  const int64_t query_tiles = ceil_div(problem.q.tokens, entry.block_m);
  if (pairs * query_tiles > std::numeric_limits<int32_t>::max() / 2) {
    return Status(Code::kUnsupported,
                  fmt::format("batch: got {} query tiles; allowed 2^30 - 1; split the batch", pairs * query_tiles));
  }
  const int64_t kv_head_bytes = std::max<int64_t>(1, problem.k.tokens * entry.head_dim * kElementBytes * 2);
  // Without a mask all tiles are equally long and need no other heads to balance with: one K/V head after the other.
  // With one, blocks draw their tiles late; at head dim 256 they balance well enough with the heads that fit L2.
  const int64_t fitting = std::max<int64_t>(1, kSectionBytes / kv_head_bytes);
  const int64_t balanced = entry.head_dim == kWideHeadDim ? fitting : std::max(kSectionHeads, fitting);
  const int64_t section = (entry.causal ? balanced : 1) * a.group;
  const int64_t low_tiles = ceil_div(problem.q.tokens, entry.block_m - kWarpgroupRows);
  // One warpgroup alone has nobody to multiply while it computes weights: such tiles are not worth it.
  const bool all_tall = entry.causal || entry.block_m <= 2 * kWarpgroupRows;
  const int64_t tall_pairs = all_tall ? pairs : pick_tall_pairs(pairs, query_tiles, low_tiles, multiprocessors);
  const int64_t last_row = ceil_div(problem.q.tokens, kWarpgroupRows) * kWarpgroupRows;
  a.order = {.query_tiles = static_cast<int>(query_tiles),
             .first_row = static_cast<int>(last_row - query_tiles * entry.block_m),
             .heads_and_batch = static_cast<int>(tall_pairs),
             .section_heads = static_cast<int>(std::min(section, std::max<int64_t>(1, tall_pairs))),
             .tall = static_cast<int>(tall_pairs * query_tiles),
             .low_query_tiles = static_cast<int>(low_tiles),
             .total = static_cast<int>(tall_pairs * query_tiles + (pairs - tall_pairs) * low_tiles)};
  const cudaError_t error = entry.launch(a, std::min(multiprocessors, a.order.total), stream);
  if (error != cudaSuccess) {
    return Status(Code::kDevice, fmt::format("{}: launch failed: {}", entry.name, cudaGetErrorString(error)));
  }
  return {};
}

}  // namespace tessera::sm90
