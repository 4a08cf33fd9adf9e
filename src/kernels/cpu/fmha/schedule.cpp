#include "kernels/cpu/fmha/schedule.h"

#include <algorithm>
#include <iterator>

#include "contract/fp8_rows.h"
#include "contract/plan.h"
#include "kernels/cpu/fmha/fmha.h"
#include "kernels/cpu/fp_environment.h"

namespace tessera {
namespace {

constexpr size_t kLine = 64;
constexpr int64_t kItemsPerThread = 4;  // fewer blocks than this per thread: split them along the keys

// Rows of a block, multiples of the register blocks: the more, the less the packing of K and V costs per row. Wide
// heads start with the second, or Q and O of a block would crowd K and V out of a second-level cache.
constexpr int32_t kBlockRows[] = {192, 96, 48};
constexpr int32_t kWidestLargeBlock = 128;

int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// a * b, or INT64_MAX.
int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// Reserves `bytes` on a cache line of its own and returns where it starts.
size_t take(size_t* end, size_t bytes) {
  const size_t offset = *end;
  *end += (bytes + kLine - 1) / kLine * kLine;
  return offset;
}

// `rows` of each of `pairs` pairs of sequence and K/V head. Large blocks, unless that leaves threads without work.
int32_t choose_block_rows(const tessera_fmha_params& p, int64_t rows, int64_t pairs, int32_t num_threads) {
  const int64_t wanted = num_threads == 1 ? 0 : kItemsPerThread * num_threads;
  size_t choice = std::max(p.head_dim_qk, p.head_dim_v) <= kWidestLargeBlock ? 0 : 1;
  while (choice + 1 < std::size(kBlockRows) && saturating_mul(pairs, ceil_div(rows, kBlockRows[choice])) < wanted) {
    ++choice;
  }
  return static_cast<int32_t>(std::clamp<int64_t>(rows, 1, kBlockRows[choice]));
}

bool has_gathered_keys(const tessera_fmha_params& p) {
  return std::any_of(p.segments, p.segments + p.num_segments, [](const auto& s) { return s.indices != nullptr; });
}

FmhaScratch lay_out_scratch(const FmhaSchedule& s) {
  const size_t rows = static_cast<size_t>(s.block_rows);
  const size_t granule = static_cast<size_t>(s.granule);
  const size_t blocks = granule / 16;
  const bool direct = s.block_rows <= kFmhaDirectRows;
  FmhaScratch at{};
  at.q = take(&at.bytes, rows * static_cast<size_t>(s.dim_qk_padded) * sizeof(float));
  at.scores = take(&at.bytes, rows * granule * sizeof(float));
  at.packed_k = take(&at.bytes, direct ? 0 : granule * static_cast<size_t>(s.params->head_dim_qk) * sizeof(float));
  at.packed_v = take(&at.bytes, direct ? 0 : granule * static_cast<size_t>(s.dim_v_padded) * sizeof(float));
  at.products = take(&at.bytes, direct ? rows * 16 * 16 * sizeof(float) : 0);
  at.row_pointers = take(&at.bytes, 4 * granule * sizeof(void*));
  at.visible = take(&at.bytes, rows * blocks * sizeof(uint16_t));
  at.nonzero = take(&at.bytes, rows * blocks * sizeof(uint16_t));
  at.row_info = take(&at.bytes, rows * sizeof(FmhaRow));
  int32_t longest_list = 0;
  bool fp8 = false;
  for (int32_t i = 0; i < s.params->num_segments; ++i) {
    const tessera_kv_segment& segment = s.params->segments[i];
    if (segment.indices != nullptr) longest_list = std::max(longest_list, segment.topk);
    fp8 = fp8 || segment.format != TESSERA_KV_DENSE;
  }
  at.ranked = take(&at.bytes, static_cast<size_t>(longest_list) * sizeof(int32_t));
  at.decoded = take(&at.bytes, fp8 ? granule * kFp8MaxHeadDim * sizeof(uint16_t) : 0);
  at.row_sums = take(&at.bytes, rows * 8 * sizeof(float));
  at.rescale = take(&at.bytes, rows * sizeof(float));
  for (size_t& state : at.states) state = take(&at.bytes, s.state_bytes);
  return at;
}

// Cuts the keys of every segment into units when there are too few blocks for the threads. Units are what the chain of
// R8 merges: chunks, or whole superchunks if those already give enough items.
void plan_split(FmhaSchedule* s, int32_t num_threads) {
  const tessera_fmha_params& p = *s->params;
  int64_t chunks[TESSERA_MAX_SEGMENTS] = {};
  int64_t superchunks_total = 0;
  int64_t chunks_total = 0;
  for (int32_t i = 0; i < p.num_segments; ++i) {
    const int64_t keys = p.segments[i].indices != nullptr ? p.segments[i].topk : p.segments[i].seqlen_k;
    const int64_t last = std::min(s->chunk_end, ceil_div(keys, s->chunk));
    chunks[i] = std::max<int64_t>(last - s->chunk_begin, 0);
    chunks_total += chunks[i];
    superchunks_total += ceil_div(chunks[i], s->superchunk_chunks);
  }
  const int64_t wanted = kItemsPerThread * num_threads;
  s->split = num_threads > 1 && s->blocks > 0 && s->blocks < wanted && chunks_total > 1;
  // A requested range starts at a superchunk or is a single chunk, so units counted from its start are aligned.
  s->unit_chunks = saturating_mul(s->blocks, superchunks_total) >= wanted ? s->superchunk_chunks : 1;
  s->units = 0;
  for (int32_t i = 0; i < p.num_segments; ++i) {
    s->first_unit[i] = s->units;
    s->units += s->split ? ceil_div(chunks[i], s->unit_chunks) : 0;
  }
  s->first_unit[p.num_segments] = s->units;
}

struct Run {
  const FmhaSchedule* schedule;
  const tessera_merge_params* merge;
  void (*body)(const FmhaSchedule&, int64_t, char*);
  void (*merge_body)(const tessera_merge_params&, int64_t, int64_t);
  int64_t rows_per_item;
  int64_t rows;
};

void run_item(void* arg, int64_t item, int32_t thread) {
  const Run& run = *static_cast<const Run*>(arg);
  const FpEnvironment environment;
  const FmhaSchedule& s = *run.schedule;
  run.body(s, item, s.workspace + static_cast<size_t>(thread) * s.scratch.bytes);
}

void run_merge_item(void* arg, int64_t item, int32_t) {
  const Run& run = *static_cast<const Run*>(arg);
  const FpEnvironment environment;
  const int64_t begin = item * run.rows_per_item;
  run.merge_body(*run.merge, begin, std::min(run.rows, begin + run.rows_per_item));
}

void for_all(const tessera_executor* executor, int64_t count, void (*task)(void*, int64_t, int32_t), void* arg) {
  if (count <= 0) return;
  if (executor == nullptr || executor->num_threads == 1) {
    for (int64_t i = 0; i < count; ++i) task(arg, i, 0);
    return;
  }
  executor->parallel_for(executor->context, count, task, arg);
}

}  // namespace

FmhaSchedule make_fmha_schedule(const tessera_fmha_params& params, int32_t num_threads, void* workspace) {
  FmhaSchedule s{};
  s.params = &params;
  const Result<NumericPlan> plan = plan_for(Arithmetic::kCpuFma32, params.dtype, params.head_dim_qk, params.head_dim_v);
  const NumericPlan numeric = plan.ok() ? plan.value() : NumericPlan{};  // validated by the caller: always ok
  s.granule = numeric.granule;
  s.chunk = numeric.chunk;
  s.superchunk_chunks = numeric.superchunk_chunks;
  s.lazy_threshold = numeric.lazy_threshold;
  s.modifiers = params.softcap != 0.0f || params.alibi_slopes != nullptr;
  s.c = score_scale(params.softmax_scale, s.modifiers);
  s.group = params.num_heads_q / params.num_heads_kv;
  s.dim_qk_padded = (params.head_dim_qk + 15) / 16 * 16;
  s.dim_v_padded = (params.head_dim_v + 15) / 16 * 16;
  const bool gathered = has_gathered_keys(params);
  const int64_t rows = gathered ? s.group : saturating_mul(params.seqlen_q, s.group);
  const int64_t pairs = saturating_mul(params.batch, params.num_heads_kv);
  s.block_rows =
      choose_block_rows(params, rows, gathered ? saturating_mul(pairs, params.seqlen_q) : pairs, num_threads);
  s.row_blocks = ceil_div(rows, s.block_rows);
  if (gathered) {
    s.token_blocks = static_cast<int32_t>(s.row_blocks);
    s.row_blocks = saturating_mul(s.row_blocks, params.seqlen_q);
  }
  s.blocks = saturating_mul(pairs, s.row_blocks);
  s.state_bytes = static_cast<size_t>(s.block_rows) * (2 + static_cast<size_t>(s.dim_v_padded)) * sizeof(float);
  s.state_bytes = (s.state_bytes + kLine - 1) / kLine * kLine;
  s.chunk_begin = params.chunk_begin;
  s.chunk_end = params.chunk_end == 0 ? INT64_MAX : params.chunk_end;
  s.scratch = lay_out_scratch(s);
  plan_split(&s, num_threads);
  s.workspace = static_cast<char*>(workspace);
  s.states_offset = s.scratch.bytes * static_cast<size_t>(num_threads);
  return s;
}

const char* fmha_limit(const tessera_fmha_params& p) {
  for (int32_t i = 0; i < p.num_segments; ++i) {
    if (p.segments[i].indices == nullptr) continue;
    if (p.alibi_slopes != nullptr) return "alibi_slopes: got them for gathered keys; allowed NULL";
    if (p.segments[i].mask.data != nullptr) return "mask: got one for gathered keys; allowed NULL";
  }
  return nullptr;
}

void fmha_sort_keys(int32_t* keys, int64_t count) {
  std::sort(keys, keys + count);
}

size_t fmha_schedule_bytes(const FmhaSchedule& s, int32_t num_threads) {
  size_t threads = 0;
  size_t states = 0;
  size_t total = 0;
  if (__builtin_mul_overflow(s.scratch.bytes, static_cast<size_t>(num_threads), &threads) ||
      __builtin_mul_overflow(static_cast<size_t>(s.blocks), static_cast<size_t>(s.units), &states) ||
      __builtin_mul_overflow(states, s.state_bytes, &states) || __builtin_add_overflow(threads, states, &total)) {
    return SIZE_MAX;
  }
  return total;
}

size_t fmha_workspace_bytes(const tessera_fmha_params& params, int32_t num_threads) {
  return fmha_schedule_bytes(make_fmha_schedule(params, num_threads, nullptr), num_threads);
}

void fmha_run(const FmhaKernels& kernels, const tessera_fmha_params& params, void* workspace,
              const tessera_executor* executor) {
  const int32_t num_threads = executor == nullptr ? 1 : executor->num_threads;
  const FmhaSchedule schedule = make_fmha_schedule(params, num_threads, workspace);
  Run run{};
  run.schedule = &schedule;
  run.body = kernels.attend;
  for_all(executor, schedule.split ? schedule.blocks * schedule.units : schedule.blocks, run_item, &run);
  if (schedule.split) {
    run.body = kernels.combine;
    for_all(executor, schedule.blocks, run_item, &run);
  }
}

void fmha_merge(const FmhaKernels& kernels, const tessera_merge_params& params, const tessera_executor* executor) {
  Run run{};
  run.merge = &params;
  run.merge_body = kernels.merge;
  run.rows_per_item = 64;
  run.rows = params.num_rows * params.num_heads_q;
  for_all(executor, ceil_div(run.rows, run.rows_per_item), run_merge_item, &run);
}

}  // namespace tessera
