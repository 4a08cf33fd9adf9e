#include "kernels/sm80/fmha/fmha_sm80.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "contract/plan.h"
#include "kernels/sm80/fmha/entry.h"
#include "kernels/sm80/fmha/tags.h"

namespace tessera {
namespace sm80 {
namespace {

constexpr std::array kEntries = {
    entry<Hd64<true>>(),  entry<Hd128<true>>(),  entry<Hd192<true>>(),  entry<Hd256<true>>(),
    entry<Hd64<false>>(), entry<Hd128<false>>(), entry<Hd192<false>>(), entry<Hd256<false>>(),
};

constexpr int64_t kLargestInt = std::numeric_limits<int32_t>::max();

Status unsupported(std::string text) {
  return {Code::kUnsupported, std::move(text)};
}

Status check_support(const tessera_fmha_params& p) {
  if (p.dtype != TESSERA_F16 && p.dtype != TESSERA_BF16) {
    return unsupported(fmt::format("dtype: got {}; allowed f16, bf16; use a CPU kernel for f32", dtype_name(p.dtype)));
  }
  for (const auto& [name, dim] : {std::pair{"head_dim_qk", p.head_dim_qk}, std::pair{"head_dim_v", p.head_dim_v}}) {
    if (dim < 1 || dim > kFmhaSm80MaxHeadDim) {
      return unsupported(
          fmt::format("{}: got {}; allowed 1..{}; use a CPU kernel for wider heads", name, dim, kFmhaSm80MaxHeadDim));
    }
  }
  for (int32_t i = 0; i < p.num_segments; ++i) {
    const tessera_kv_segment& s = p.segments[i];
    if (s.format != TESSERA_KV_DENSE || s.indices != nullptr) {
      return unsupported(fmt::format("segments[{}]: got {}; allowed dense rows, all of them; use another kernel", i,
                                     s.indices != nullptr ? "gathered keys" : "FP8 rows"));
    }
    if (s.k.stride_dim != 1 || s.v.stride_dim != 1) {
      return unsupported(fmt::format("segments[{}].k, v: got stride_dim {}, {}; allowed 1; make the rows contiguous", i,
                                     s.k.stride_dim, s.v.stride_dim));
    }
  }
  if (p.q.stride_dim != 1 || p.o.stride_dim != 1) {
    return unsupported(fmt::format("q, o: got stride_dim {}, {}; allowed 1; make the rows contiguous", p.q.stride_dim,
                                   p.o.stride_dim));
  }
  // Rows of a sequence and K/V head are counted in 32 bits, with room for a tile behind the last one.
  const int64_t group = p.num_heads_q / p.num_heads_kv;
  if (p.batch > kLargestInt || p.seqlen_q > (kLargestInt - 1024) / group) {
    return unsupported(
        fmt::format("seqlen_q: got {} tokens with {} query heads per K/V head; allowed 2^31 rows; "
                    "split the sequence",
                    p.seqlen_q, group));
  }
  return {};
}

// Whether rows of `dims` elements are whole, aligned pieces of `bytes` bytes. Negative strides count by their size.
bool made_of(const tessera_tensor& t, int64_t dims, int64_t element_bytes, int64_t bytes) {
  const int64_t elements = bytes / element_bytes;
  return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0 && dims % elements == 0 &&
         t.stride_batch % elements == 0 && t.stride_token % elements == 0 && t.stride_head % elements == 0;
}

int64_t divide_up(int64_t x, int64_t y) {
  return x / y + (x % y != 0 ? 1 : 0);
}

// Levels of R8 at which a state can have to wait.
int state_levels(const tessera_fmha_params& p) {
  if (p.num_segments > 1) {
    return kChainLevels;
  }
  const int64_t chunks = divide_up(p.segments[0].seqlen_k, kChunkKeys);
  return chunks > kSuperchunkChunks ? kSuperchunkLevel + 1 : chunks > 1 ? kChunkLevel + 1 : 0;
}

// Query tiles of the largest sequence, times sequences and K/V heads.
struct Tiles {
  int64_t per_head;
  int64_t heads;
};

Tiles count_tiles(const Entry& entry, const tessera_fmha_params& p) {
  const int64_t rows = p.seqlen_q * (p.num_heads_q / p.num_heads_kv);
  return {divide_up(rows, entry.block_m), p.batch * p.num_heads_kv};
}

// Blocks that hold states: as many as run at a time.
int64_t resident_blocks(const Entry& entry, int multiprocessors) {
  return int64_t{multiprocessors} * entry.blocks_per_sm;
}

// Saturating product of counts >= 0.
int64_t product(int64_t x, int64_t y) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  return y != 0 && x > kLargest / y ? kLargest : x * y;
}

Status launch_status(const char* kernel, cudaError_t error) {
  if (error == cudaSuccess) {
    return {};
  }
  return {Code::kDevice, fmt::format("{}: got {} from the launch; allowed success; check the device and the stream",
                                     kernel, cudaGetErrorString(error))};
}

int multiprocessors_of_device() {
  constexpr int kDefault = 132;  // H100, H200: the size can be asked for before there is a device
  int device = 0;
  int count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess || count < 1) {
    static_cast<void>(cudaGetLastError());
    return kDefault;
  }
  return count;
}

}  // namespace

bool fits(const Entry& entry, const tessera_fmha_params& p) {
  const Result<NumericPlan> plan = plan_for(Arithmetic::kHopperK16F25, p.dtype, p.head_dim_qk, p.head_dim_v);
  return plan.ok() && entry.numbers.bf16 == (p.dtype == TESSERA_BF16) && entry.numbers.head_dim_qk >= p.head_dim_qk &&
         entry.numbers.head_dim_v >= p.head_dim_v && entry.numbers.granule_keys == plan.value().granule;
}

const Entry* find_entry(const tessera_fmha_params& params) {
  const auto at = std::ranges::find_if(kEntries, [&](const Entry& e) { return fits(e, params); });
  return at == kEntries.end() ? nullptr : &*at;
}

size_t workspace_bytes(const Entry& entry, const tessera_fmha_params& p, int multiprocessors) {
  const Tiles tiles = count_tiles(entry, p);
  const int64_t blocks = std::min(product(tiles.per_head, tiles.heads), resident_blocks(entry, multiprocessors));
  return static_cast<size_t>(blocks * state_levels(p) * entry.state_bytes);
}

Status run(const Entry& entry, const tessera_fmha_params& p, void* workspace, int multiprocessors,
           cudaStream_t stream) {
  const Tiles tiles = count_tiles(entry, p);
  if (tiles.per_head == 0 || tiles.heads == 0) {
    return {};  // no row to write
  }
  Arguments a{};
  a.params = p;
  a.modifiers = p.softcap != 0.0F || p.alibi_slopes != nullptr;
  a.c = score_scale(p.softmax_scale, a.modifiers);
  const Result<NumericPlan> plan = plan_for(Arithmetic::kHopperK16F25, p.dtype, p.head_dim_qk, p.head_dim_v);
  if (!plan.ok()) {
    return plan.status();
  }
  a.bias = plan.value().bias;
  constexpr int64_t kPiece = 16;
  a.q_vectors = made_of(p.q, p.head_dim_qk, kElementBytes, kPiece);
  for (int32_t i = 0; i < p.num_segments; ++i) {
    a.k_vectors[i] = made_of(p.segments[i].k, p.head_dim_qk, kElementBytes, kPiece);
    a.v_vectors[i] = made_of(p.segments[i].v, p.head_dim_v, kElementBytes, kPiece);
  }
  const int64_t o_bytes = p.o_dtype == TESSERA_F32 ? int64_t{sizeof(float)} : kElementBytes;
  a.o_pairs = made_of(p.o, p.head_dim_v, o_bytes, 2 * o_bytes);
  a.group = p.num_heads_q / p.num_heads_kv;
  a.chunk_begin = std::min(p.chunk_begin, kLargestInt);
  a.chunk_end = p.chunk_end == 0 ? kLargestInt : std::min(p.chunk_end, kLargestInt);
  a.query_tiles = static_cast<int>(tiles.per_head);
  a.state_levels = state_levels(p);
  a.states = workspace;

  // Without states any number of blocks will do, and the hardware balances them; with states the blocks that run at a
  // time share the items, which are made equal by pairing long tiles with short ones.
  const int64_t resident = resident_blocks(entry, multiprocessors);
  const int64_t all = product(tiles.per_head, tiles.heads);
  a.paired_tiles = a.state_levels > 0 && all >= 4 * resident;
  a.items_per_head = a.paired_tiles ? divide_up(tiles.per_head, 2) : tiles.per_head;
  a.items = product(a.items_per_head, tiles.heads);
  constexpr int64_t kLargestGrid = int64_t{1} << 30;
  const int64_t blocks = std::min(a.items, a.state_levels > 0 ? resident : kLargestGrid);
  return launch_status("fmha_sm80", entry.launch(a, static_cast<int>(blocks), stream));
}

}  // namespace sm80

size_t fmha_sm80_workspace_bytes(const tessera_fmha_params& params) {
  if (!sm80::check_support(params).ok()) {
    return 0;
  }
  const sm80::Entry* entry = sm80::find_entry(params);
  return entry == nullptr ? 0 : sm80::workspace_bytes(*entry, params, sm80::multiprocessors_of_device());
}

Status run_fmha_sm80(const tessera_fmha_params& params, void* workspace, const tessera_stream& stream) {
  TESSERA_RETURN_IF_ERROR(sm80::check_support(params));
  const sm80::Entry* entry = sm80::find_entry(params);
  if (entry == nullptr) {
    return {Code::kInternal, "fmha_sm80: got no kernel for a supported problem; allowed one per head dim; report it"};
  }
  return sm80::run(*entry, params, workspace, sm80::multiprocessors_of_device(),
                   static_cast<cudaStream_t>(stream.cuda_stream));
}

Status run_merge_sm80(const tessera_merge_params& params, const tessera_stream& stream) {
  const Result<NumericPlan> plan =
      plan_for(Arithmetic::kHopperK16F25, params.dtype, params.head_dim_qk, params.head_dim_v);
  if (!plan.ok()) {
    return plan.status();
  }
  if (params.num_rows == 0) {
    return {};
  }
  return sm80::launch_status(
      "merge_sm80", sm80::launch_merge(params, plan.value().bias, static_cast<cudaStream_t>(stream.cuda_stream)));
}

}  // namespace tessera
