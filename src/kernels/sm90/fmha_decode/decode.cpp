#include "kernels/sm90/fmha_decode/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "contract/plan.h"

namespace tessera::sm90 {
namespace {

constexpr int64_t kScratchAlignment = 64;
// Blocks alone are launched one per unit, but no more than this many times what the device holds when the lengths are
// on the device, because then most of them may have nothing to do.
constexpr int kRaggedBlocks = 4;
constexpr int64_t kRowBytes = 16;  // Q is read in pieces of 16 bytes

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t row_tiles(const DecodeProblem& p, int rows) {
  return ceil_div(p.q.tokens * (p.q.heads / p.k.heads), rows);
}

// The problem as the kernel sees it: of a twin kernel, two K/V heads are one of twice the head dim. Q and O keep
// theirs.
DecodeProblem seen_by(const DecodeEntry& entry, const DecodeProblem& problem) {
  DecodeProblem p = problem;
  if (entry.twin) {
    for (TensorView* t : {&p.k, &p.v}) {
      t->heads /= 2;
      t->dims *= 2;
      t->stride_head *= 2;
    }
  }
  return p;
}

// One counter per block of those that share a tile of a sequence and K/V head, where these chain chunks themselves.
int64_t counter_bytes(const DecodeEntry& entry, const DecodeProblem& p) {
  const int64_t counters = !entry.counts ? 0 : p.q.batch * p.k.heads * row_tiles(p, entry.rows) * entry.cluster;
  return ceil_div(counters * 8, kScratchAlignment) * kScratchAlignment;
}

Status refuse(Code code, std::string text) {
  return Status(code, std::move(text));
}

Status check(const DecodeEntry& entry, const DecodeProblem& p) {
  if (p.dtype != (entry.bf16 ? TESSERA_BF16 : TESSERA_F16)) {
    return refuse(Code::kUnsupported, fmt::format("{}: got dtype {}; allowed {}; use the kernel of that dtype",
                                                  entry.name, static_cast<int>(p.dtype), entry.bf16 ? "bf16" : "f16"));
  }
  for (const auto& [name, dims, same] : {std::tuple{"q, k", p.q.dims, p.k.dims}, {"v, o", p.v.dims, p.o.dims}}) {
    if (dims < 1 || dims % 8 != 0 || dims != same) {
      return refuse(Code::kInvalidArgument,
                    fmt::format("head dim of {}: got {} and {}; allowed one multiple of 8; pad rows with zeros", name,
                                dims, same));
    }
  }
  if (p.o.tokens != p.q.tokens || p.o.heads != p.q.heads || p.v.tokens != p.k.tokens || p.v.heads != p.k.heads ||
      p.v.batch != p.k.batch || p.o.batch != p.q.batch ||
      (p.page_table == nullptr && (p.k.batch != p.q.batch || p.k.tokens < p.seqlen_k))) {
    return refuse(
        Code::kInvalidArgument,
        fmt::format("{}: got Q, K, V, O of different shapes; allowed equal batch, tokens of Q and O, tokens and "
                    "heads of K and V; pass tensors that fit",
                    entry.name));
  }
  if (p.k.heads < 1 || p.q.heads % p.k.heads != 0) {
    return refuse(
        Code::kInvalidArgument,
        fmt::format("num_heads_kv: got {}; allowed divisors of num_heads_q ({}); every K/V head serves as many",
                    p.k.heads, p.q.heads));
  }
  const auto misaligned = [](const TensorView& t) {
    return reinterpret_cast<uintptr_t>(t.data) % kRowBytes != 0 || t.stride_batch * 2 % kRowBytes != 0 ||
           t.stride_token * 2 % kRowBytes != 0 || t.stride_head * 2 % kRowBytes != 0;
  };
  if (misaligned(p.q) || misaligned(p.k) || misaligned(p.v)) {
    return refuse(
        Code::kUnsupported,
        fmt::format(
            "q, k, v: got an address or stride that is no multiple of {0} bytes; allowed multiples of {0}; copy "
            "the tensor",
            kRowBytes));
  }
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max() / 2;
  if (p.seqlen_k > kLongest || p.k.tokens > kLongest || most_units(p, entry.rows) > kLongest) {
    return refuse(Code::kUnsupported,
                  fmt::format("seqlen_k: got {} and {} chunks in all; allowed up to {}; split the batch", p.seqlen_k,
                              most_units(p, entry.rows), kLongest));
  }
  if (!(p.softmax_scale > 0.0F) || p.softmax_scale > std::numeric_limits<float>::max()) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("softmax_scale: got {}; allowed positive finite numbers; usually 1 / sqrt(head dim)",
                              p.softmax_scale));
  }
  if (!(p.softcap >= 0.0F) || p.softcap > std::numeric_limits<float>::max()) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("softcap: got {}; allowed finite numbers from 0 on; 0 is off", p.softcap));
  }
  return {};
}

Status device_error(const DecodeEntry& entry, cudaError_t error) {
  return Status(Code::kDevice, fmt::format("{}: got {} ({}); allowed a launch on an sm_90 device; choose one",
                                           entry.name, cudaGetErrorName(error), cudaGetErrorString(error)));
}

// Without scratch.
DecodeArguments arguments_of(const DecodeEntry& entry, const DecodeProblem& problem) {
  DecodeArguments a{};
  a.k = static_cast<const uint16_t*>(problem.k.data);
  a.v = static_cast<const uint16_t*>(problem.v.data);
  a.k_strides = {problem.k.stride_batch, problem.k.stride_token, problem.k.stride_head};
  a.v_strides = {problem.v.stride_batch, problem.v.stride_token, problem.v.stride_head};
  a.page_table = problem.page_table;
  a.page_table_stride = problem.page_table_stride;
  a.num_pages = problem.k.batch;
  a.page_size = Divisor::of(static_cast<uint32_t>(std::max<int64_t>(problem.k.tokens, 1)));
  a.q = static_cast<const uint16_t*>(problem.q.data);
  a.o = const_cast<void*>(problem.o.data);
  a.q_strides = {problem.q.stride_batch, problem.q.stride_token, problem.q.stride_head};
  a.o_strides = {problem.o.stride_batch, problem.o.stride_token, problem.o.stride_head};
  a.lse = problem.lse;
  a.row_max = problem.row_max;
  a.row_sum = problem.row_sum;
  a.sinks = problem.sinks;
  a.wide_output = problem.wide_output ? 1 : 0;
  a.unnormalized = problem.unnormalized ? 1 : 0;
  a.seqlens_k = problem.seqlens_k;
  a.batch = static_cast<int>(problem.q.batch);
  a.dims = static_cast<int>(problem.v.dims);
  a.qk_dims = static_cast<int>(problem.k.dims);
  // A window beyond all keys is none.
  const int64_t all = entry.segments ? std::numeric_limits<int32_t>::max() : problem.seqlen_k + problem.q.tokens;
  const auto window = [&](int64_t keys) { return keys >= all ? -1 : static_cast<int>(keys); };
  a.window = window(problem.window_left);
  a.window_right = window(problem.window_right);
  const int64_t tiles = row_tiles(problem, entry.rows);
  a.row_tiles = Divisor::of(static_cast<uint32_t>(tiles));
  a.heads = Divisor::of(static_cast<uint32_t>(problem.k.heads * tiles));
  a.group = Divisor::of(static_cast<uint32_t>(problem.q.heads / problem.k.heads));
  a.seqlen_q = static_cast<int>(problem.q.tokens);
  a.seqlen_k = static_cast<int>(problem.seqlen_k);
  const int64_t unseen = a.window < 0 ? 0 : std::max<int64_t>(0, problem.seqlen_k - problem.q.tokens - a.window);
  const int64_t chunks = std::max<int64_t>(1, ceil_div(problem.seqlen_k, kChunkKeys));
  a.uniform_units = Divisor::of(static_cast<uint32_t>((chunks - unseen / kChunkKeys) * a.heads.value));
  a.causal = problem.causal ? 1 : 0;
  const bool natural = problem.softcap != 0.0F || problem.alibi_slopes != nullptr;
  a.c = score_scale(problem.softmax_scale, natural);
  a.natural = natural ? 1 : 0;
  a.softmax_scale = problem.softmax_scale;
  a.softcap = problem.softcap;
  a.softcap_inverse =
      problem.softcap >= kLeastDividend && problem.softcap <= kLargestDividend ? 1.0F / problem.softcap : 0.0F;
  a.alibi_slopes = problem.alibi_slopes;
  a.mask = problem.mask;
  a.compress_ratio = problem.compress_ratio;
  a.q_positions = problem.q_positions;
  a.bias = entry.bf16 ? 0.0F : 7.0F;
  a.state_chunks = static_cast<int>(most_units(problem, entry.rows) / (int64_t{a.batch} * a.heads.value));
  return a;
}

int64_t state_bytes(const DecodeEntry& entry, const DecodeProblem& problem) {
  return most_units(problem, entry.rows) * state_pieces(entry.value_dim, entry.rows) * int64_t{sizeof(float4)};
}

Status run_segments(const DecodeEntry& entry, const DecodeProblem& problem, int blocks, cudaStream_t stream) {
  int resident = 0;
  cudaError_t error = entry.resident(&resident);
  if (error != cudaSuccess || resident < 1) {
    return device_error(entry, error);
  }
  SegmentedArguments arguments{};
  auto* states = static_cast<uint8_t*>(problem.scratch);
  int first_block = 0;
  for (const DecodeProblem* p = &problem; p != nullptr; p = p->next) {
    DecodeArguments& a = arguments.segments[arguments.count++];
    a = arguments_of(entry, *p);
    a.states = reinterpret_cast<float4*>(states);
    states += state_bytes(entry, *p);
    const bool known = p->seqlens_k == nullptr && p->q_positions == nullptr;
    const int64_t units = known ? int64_t{a.uniform_units.value} * a.batch : most_units(*p, entry.rows);
    const int64_t most = std::clamp<int64_t>(units, 1, int64_t{kRaggedBlocks} * resident);
    a.first_block = first_block;
    a.blocks = static_cast<int>(blocks > 0 ? std::min<int64_t>(most, blocks) : most);
    first_block += a.blocks;
  }
  error = entry.launch_segments(arguments, stream);
  return error == cudaSuccess ? Status() : device_error(entry, error);
}

}  // namespace

int64_t most_units(const DecodeProblem& p, int rows) {
  int64_t chunks = std::max<int64_t>(1, ceil_div(p.seqlen_k, kChunkKeys));
  // Tokens at the end of the keys see none to the right of them; others as many as the right window says.
  const int64_t right = p.causal || p.q_positions == nullptr ? 0 : p.window_right;
  if (p.window_left >= 0 && right >= 0 && p.compress_ratio <= 0) {
    const int64_t seen = std::min(p.window_left, p.seqlen_k) + p.q.tokens + std::min(right, p.seqlen_k);
    chunks = std::min(chunks, (seen + kChunkKeys - 2) / kChunkKeys + 1);  // which begin anywhere
  }
  return p.q.batch * p.k.heads * row_tiles(p, rows) * chunks;
}

int64_t most_units(const DecodeEntry& entry, const DecodeProblem& problem) {
  const DecodeProblem first = seen_by(entry, problem);
  int64_t units = 0;
  for (const DecodeProblem* p = &first; p != nullptr; p = p->next) {
    units += most_units(*p, entry.rows);
  }
  return units;
}

size_t decode_scratch_bytes(const DecodeEntry& entry, const DecodeProblem& problem) {
  const DecodeProblem first = seen_by(entry, problem);
  int64_t bytes = counter_bytes(entry, first);
  for (const DecodeProblem* p = &first; p != nullptr; p = p->next) {
    bytes += state_bytes(entry, *p);
  }
  return static_cast<size_t>(bytes);
}

Status run_decode(const DecodeEntry& entry, const DecodeProblem& caller, int blocks, cudaStream_t stream) {
  if (!is_for(entry, caller)) {
    return refuse(
        Code::kUnsupported,
        fmt::format("{}: got head dims {} of Q and K and {} of V{}{}; allowed what find_decode() gives it; take the "
                    "kernel that it names",
                    entry.name, caller.q.dims, caller.v.dims,
                    has_modified_scores(caller) ? ", and softcap, ALiBi or custom bits" : "",
                    has_segments(caller) ? ", and segments, compressed keys or query positions" : ""));
  }
  int segments = 0;
  for (const DecodeProblem* p = &caller; p != nullptr; p = p->next) {
    TESSERA_RETURN_IF_ERROR(check(entry, *p));
    if (++segments > TESSERA_MAX_SEGMENTS) {
      return refuse(Code::kUnsupported, fmt::format("{}: got more than {} segments; allowed up to that; merge "
                                                    "states of several calls",
                                                    entry.name, int{TESSERA_MAX_SEGMENTS}));
    }
  }
  const DecodeProblem problem = seen_by(entry, caller);
  if (problem.q.tokens == 0 || problem.q.batch == 0 || problem.q.heads == 0) {
    return {};  // no row to write
  }
  if (problem.scratch == nullptr || reinterpret_cast<uintptr_t>(problem.scratch) % kScratchAlignment != 0) {
    return Status(Code::kWorkspaceTooSmall, fmt::format("scratch: got none or a misaligned one; allowed {} bytes, "
                                                        "{}-byte aligned; ask decode_scratch_bytes()",
                                                        decode_scratch_bytes(entry, caller), kScratchAlignment));
  }
  if (entry.segments) {
    return run_segments(entry, problem, blocks, stream);
  }
  auto* const counters = static_cast<uint8_t*>(problem.scratch);
  DecodeArguments a = arguments_of(entry, problem);
  a.counters = reinterpret_cast<unsigned long long*>(counters);
  a.states = reinterpret_cast<float4*>(counters + counter_bytes(entry, problem));

  const bool ragged = problem.seqlens_k != nullptr;
  int64_t units = ragged ? most_units(problem, entry.rows) : int64_t{a.uniform_units.value} * a.batch;
  if (entry.cluster == 1 && ragged) {
    int resident = 0;
    const cudaError_t error = entry.resident(&resident);
    if (error != cudaSuccess || resident < 1) {
      return device_error(entry, error);
    }
    units = std::min(units, int64_t{kRaggedBlocks} * resident);
  }
  if (entry.cluster == 1 && blocks > 0) {
    units = std::min<int64_t>(units, blocks);
  }
  const cudaError_t error = entry.launch(a, static_cast<int>(units), stream);
  return error == cudaSuccess ? Status() : device_error(entry, error);
}

}  // namespace tessera::sm90
