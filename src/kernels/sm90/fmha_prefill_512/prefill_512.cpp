#include "kernels/sm90/fmha_prefill_512/prefill_512.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

namespace tessera::sm90 {
namespace {

using Layout = Layout512;

constexpr std::array<Prefill512Entry, 4> kEntries = {{
    {"sm90_prefill_512_bf16", true, 1, &launch_prefill_512<Prefill512<true, 1>>},
    {"sm90_prefill_512_bf16_4", true, 2, &launch_prefill_512<Prefill512<true, 2>>},
    {"sm90_prefill_512_f16", false, 1, &launch_prefill_512<Prefill512<false, 1>>},
    {"sm90_prefill_512_f16_4", false, 2, &launch_prefill_512<Prefill512<false, 2>>},
}};

constexpr size_t kAccumulatorsAt = 128;  // behind the counter, on a line of the L2 cache of its own
constexpr size_t kScratchAlignment = 128;

// O (64, 256) in fp32 and four scalars a thread, per consumer.
size_t accumulator_bytes(int multiprocessors) {
  return static_cast<size_t>(multiprocessors) * Layout::kConsumers * (Layout::kColumns / 8 + 1) * 128 * sizeof(float4);
}
size_t chain_bytes(const PrefillProblem& problem, int multiprocessors) {
  return problem.k.tokens > kChunkKeys ? accumulator_bytes(multiprocessors) : 0;
}
size_t superchunk_bytes(const PrefillProblem& problem, int multiprocessors) {
  return problem.k.tokens > int64_t{kChunkKeys} * kSuperchunkChunks ? accumulator_bytes(multiprocessors) : 0;
}

Status refuse(Code code, std::string text) {
  return Status(code, std::move(text));
}

Status check(const Prefill512Entry& entry, const PrefillProblem& p) {
  if (p.dtype != (entry.bf16 ? TESSERA_BF16 : TESSERA_F16)) {
    return refuse(Code::kUnsupported, fmt::format("{}: got dtype {}; allowed {}; use the kernel of that dtype",
                                                  entry.name, static_cast<int>(p.dtype), entry.bf16 ? "bf16" : "f16"));
  }
  for (const TensorView* t : {&p.q, &p.k, &p.v, &p.o}) {
    if (t->dims < 8 || t->dims > Layout::kDims || t->dims % 8 != 0) {
      return refuse(Code::kUnsupported, fmt::format("{}: got head_dim {}; allowed multiples of 8 up to {}", entry.name,
                                                    t->dims, Layout::kDims));
    }
  }
  if (p.o.tokens != p.q.tokens || p.o.heads != p.q.heads || p.v.tokens != p.k.tokens || p.v.heads != p.k.heads ||
      p.k.batch != p.q.batch || p.v.batch != p.q.batch || p.o.batch != p.q.batch || p.k.dims != p.q.dims ||
      p.o.dims != p.v.dims) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("{}: got Q, K, V, O of different shapes; allowed equal batch, tokens of Q and O, tokens "
                              "and heads of K and V, dims of Q and K, of V and O; pass tensors that fit",
                              entry.name));
  }
  if (p.k.heads < 1 || p.q.heads % p.k.heads != 0) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("num_heads_kv: got {}; allowed divisors of num_heads_q ({})", p.k.heads, p.q.heads));
  }
  if (p.unnormalized && (!p.wide_output || p.sinks != nullptr)) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("{}: got a state with sinks or 16-bit O; allowed fp32 O without sinks", entry.name));
  }
  const int64_t o_bytes = p.wide_output ? 4 : 2;
  if (reinterpret_cast<uintptr_t>(p.o.data) % 16 != 0 || p.o.stride_batch * o_bytes % 16 != 0 ||
      p.o.stride_token * o_bytes % 16 != 0 || p.o.stride_head * o_bytes % 16 != 0) {
    return refuse(Code::kUnsupported, "o: got an address or stride that is no multiple of 16 bytes; copy the tensor");
  }
  if (!(p.softmax_scale > 0.0F) || p.softmax_scale > std::numeric_limits<float>::max()) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("softmax_scale: got {}; allowed positive finite numbers", p.softmax_scale));
  }
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max() / 2;
  const int64_t tiles = ceil_div(p.q.tokens, Layout::kBlockM);
  if (p.q.tokens > kLongest || p.k.tokens > kLongest || p.q.heads * p.q.batch > kLongest ||
      p.q.heads * p.q.batch * tiles > kLongest) {
    return refuse(
        Code::kUnsupported,
        fmt::format("seqlen: got {} and {} tokens of {} heads; allowed up to {} and as many query tiles of {}",
                    p.q.tokens, p.k.tokens, p.q.heads * p.q.batch, kLongest, Layout::kBlockM));
  }
  return {};
}

}  // namespace

const Prefill512Entry& find_prefill_512(bool bf16, int groups) {
  return kEntries[(bf16 ? 0 : 2) + (groups == 1 ? 0 : 1)];
}

size_t prefill_512_scratch_bytes(const PrefillProblem& problem, int multiprocessors) {
  return kAccumulatorsAt + chain_bytes(problem, multiprocessors) + superchunk_bytes(problem, multiprocessors);
}

Status run_prefill_512(const Prefill512Entry& entry, const PrefillProblem& problem, int multiprocessors,
                       cudaStream_t stream) {
  TESSERA_RETURN_IF_ERROR(check(entry, problem));
  if (problem.scratch == nullptr || reinterpret_cast<uintptr_t>(problem.scratch) % kScratchAlignment != 0) {
    return refuse(Code::kWorkspaceTooSmall,
                  fmt::format("scratch: got none or a misaligned one; allowed {} bytes, {}-byte aligned",
                              prefill_512_scratch_bytes(problem, multiprocessors), kScratchAlignment));
  }
  if (problem.q.tokens == 0 || problem.q.batch == 0 || problem.q.heads == 0) {
    return {};  // no row to write
  }
  // The copy engine knows no empty tensor; with no keys at all the kernel loads nothing.
  TensorView k = problem.k;
  TensorView v = problem.v;
  k.tokens = std::max<int64_t>(k.tokens, 1);
  v.tokens = k.tokens;
  Arguments512 a{};
  struct Map {
    const char* name;
    const TensorView& tensor;
    int box_tokens;
    CUtensorMap& map;
  };
  a.whole_slices = v.dims % kPanelColumns == 0;
  for (const Map& m :
       {Map{"q", problem.q, Layout::kRows, a.q_map}, Map{"k", k, Layout::kGranule / entry.groups, a.k_map},
        Map{"v", v, Layout::kSliceKeys, a.v_map}}) {
    Result<CUtensorMap> map =
        &m.map == &a.v_map && a.whole_slices
            ? make_panels_map(m.name, m.tensor, entry.bf16, m.box_tokens, Layout::kSlicePanels / entry.groups)
            : make_panel_map(m.name, m.tensor, entry.bf16, m.box_tokens);
    if (!map.ok()) {
      return map.status();
    }
    m.map = map.value();
  }
  a.o = const_cast<void*>(problem.o.data);
  a.o_stride_batch = problem.o.stride_batch;
  a.o_stride_token = problem.o.stride_token;
  a.o_stride_head = problem.o.stride_head;
  a.lse = problem.lse;
  a.row_max = problem.row_max_log2;
  a.row_sum = problem.row_sum;
  a.sinks = problem.sinks;
  a.wide_output = problem.wide_output;
  a.unnormalized = problem.unnormalized;
  a.dims_v = static_cast<int>(problem.v.dims);
  a.seqlen_q = static_cast<int>(problem.q.tokens);
  a.seqlen_k = static_cast<int>(problem.k.tokens);
  a.heads_q = static_cast<int>(problem.q.heads);
  a.group = static_cast<int>(problem.q.heads / problem.k.heads);
  a.batch = static_cast<int>(problem.q.batch);
  a.query_tiles = static_cast<int>(ceil_div(problem.q.tokens, Layout::kBlockM * entry.groups));
  const int64_t pairs = problem.q.heads * problem.q.batch;
  const int64_t kv_head_bytes = std::max<int64_t>(1, problem.k.tokens * (k.dims + v.dims) * kElementBytes);
  const int64_t fitting = std::max<int64_t>(1, kSectionBytes / kv_head_bytes) * a.group;
  a.section_heads = static_cast<int>(std::min(pairs, problem.causal ? std::max<int64_t>(fitting, 4) : a.group));
  a.total_tiles = static_cast<int>(pairs * a.query_tiles);
  a.causal = problem.causal;
  a.c = score_scale(problem.softmax_scale, false);
  a.bias = entry.bf16 ? 0.0F : 7.0F;
  constexpr int64_t kFar = int64_t{1} << 40;  // beyond every distance between a query and a key
  a.ragged.left = kFar;
  a.ragged.right_end = problem.causal ? 1 : kFar;
  a.ragged.last_key = std::numeric_limits<int32_t>::max();
  a.ragged.batch = a.batch;
  a.tile_counter = static_cast<int*>(problem.scratch);
  uint8_t* const accumulators = static_cast<uint8_t*>(problem.scratch) + kAccumulatorsAt;
  a.chains = reinterpret_cast<float4*>(accumulators);
  a.superchunks = reinterpret_cast<float4*>(accumulators + chain_bytes(problem, multiprocessors));
  const cudaError_t error = entry.launch(a, std::min(multiprocessors / (2 * entry.groups), a.total_tiles), stream);
  if (error != cudaSuccess) {
    return Status(Code::kDevice, fmt::format("{}: launch failed: {}", entry.name, cudaGetErrorString(error)));
  }
  return {};
}

}  // namespace tessera::sm90
