#include "kernels/sm90/fmha_mqa_512/mqa_512.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "contract/plan.h"

namespace tessera::sm90 {
namespace {

using Tiling = MqaTiling;

constexpr size_t kScratchAlignment = 64;
constexpr int64_t kLongest = std::numeric_limits<int32_t>::max() / 2;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Status refuse(Code code, std::string text) {
  return Status(code, std::move(text));
}

// Query tokens then have keys of their own.
bool is_gathered(const MqaProblem& p) {
  return std::any_of(p.segments, p.segments + p.count, [](const auto& s) { return s.gathered; });
}

int64_t units(const MqaProblem& p) {
  return p.batch * (is_gathered(p) ? p.seqlen_q : 1);
}
int64_t unit_tokens(const MqaProblem& p) {
  return is_gathered(p) ? 1 : p.seqlen_q;
}
int64_t unit_tiles(const MqaProblem& p) {
  return ceil_div(unit_tokens(p) * p.q.heads, Tiling::kRows);
}

int64_t blocks_of(const MqaProblem& p, int parts, int multiprocessors) {
  return std::min<int64_t>(multiprocessors, mqa_512_tiles(p) * parts);
}

// Neighbouring keys of a segment that a tile's rows see between them, at most.
int64_t most_keys(const MqaProblem& p, const MqaSegmentProblem& s) {
  if (s.gathered) {
    return s.topk;
  }
  if (s.compress_ratio > 0 || s.window_left < 0 || (s.window_right < 0 && !s.causal)) {
    return s.seqlen_k;
  }
  const int64_t tokens = std::min(unit_tokens(p), (Tiling::kRows - 2) / p.q.heads + 2);
  const int64_t right = s.causal ? 0 : s.window_right;
  return std::min(s.seqlen_k, std::min(s.window_left, kLongest) + std::min(right, kLongest) + tokens);
}
// Granules or chunks (of `size` keys) that so many neighbouring keys of the segment may touch.
int64_t most_touched(const MqaSegmentProblem& s, int64_t keys, int64_t size) {
  const int64_t all = s.gathered ? s.topk : s.seqlen_k;
  return keys == 0 ? 0 : std::min(ceil_div(all, size), (keys + size - 2) / size + 1);
}
int64_t tile_granules(const MqaProblem& p) {
  int64_t granules = 0;
  for (int i = 0; i < p.count; ++i) {
    granules += most_touched(p.segments[i], most_keys(p, p.segments[i]), Tiling::kGranule);
  }
  return granules;
}

// Tokens that the copy engine may store O at. Only cu_seqlens_q, which is on the device, says how many packed ones are.
int64_t bound_of_tokens(const MqaProblem& p) {
  return p.cu_seqlens_q != nullptr ? kLongest : p.o.tokens;
}

// Whether the copy engine can store O: a tile is 64 heads of a token, and strides are multiples of 16 bytes.
bool has_boxes(const MqaProblem& p) {
  constexpr int64_t kElements = 16 / 2;
  constexpr int64_t kLongestStride = (int64_t{1} << 40) / 2;
  const auto fits = [](int64_t count, int64_t stride) {
    return count <= 1 || (stride > 0 && stride % kElements == 0 && stride < kLongestStride);
  };
  return !p.wide_output && p.q.heads % Tiling::kRows == 0 && reinterpret_cast<uintptr_t>(p.o.data) % 16 == 0 &&
         fits(p.o.heads, p.o.stride_head) && fits(bound_of_tokens(p), p.o.stride_token) &&
         fits(p.o.batch, p.o.stride_batch);
}

// O (64, 256) in fp32 and four scalars a thread, per multiplier.
constexpr size_t kStateBytes = (Tiling::kColumns / 8 + 1) * 128 * 16 * size_t{Tiling::kMultipliers};

// When tiles are cut. Below half of the device as many as it takes; else only if all states take less than a GiB.
constexpr int64_t kMostStates = (int64_t{1} << 30) / int64_t{kStateBytes};
constexpr int64_t kMostRounds = 16;           // of blocks over items: more are even enough
constexpr int64_t kSecondKernelGranules = 3;  // what the second kernel takes, in granules of a block

// Which levels of R8's chain a block needs room for.
bool needs_level(const MqaProblem& p, int level) {
  int64_t longest = 0;
  for (int i = 0; i < p.count; ++i) {
    longest = std::max(longest, p.segments[i].gathered ? p.segments[i].topk : p.segments[i].seqlen_k);
  }
  return level == 0   ? longest > kChunkKeys
         : level == 1 ? longest > int64_t{kChunkKeys} * kSuperchunkChunks
                      : p.count > 1;
}

Status check(const MqaProblem& p, int parts) {
  if (p.dtype != TESSERA_F16 && p.dtype != TESSERA_BF16) {
    return refuse(Code::kUnsupported,
                  fmt::format("sm90_mqa_512: got dtype {}; allowed f16 and bf16; convert", static_cast<int>(p.dtype)));
  }
  if (p.count < 1 || p.count > TESSERA_MAX_SEGMENTS) {
    return refuse(Code::kInvalidArgument, fmt::format("sm90_mqa_512: got {} segments; allowed 1 to {}; pass as many",
                                                      p.count, static_cast<int>(TESSERA_MAX_SEGMENTS)));
  }
  if ((p.q.dims != 512 && p.q.dims != 576) || p.o.dims != Tiling::kValueDims || p.o.tokens != p.q.tokens ||
      p.o.heads != p.q.heads || p.o.batch != p.q.batch) {
    return refuse(Code::kInvalidArgument,
                  "sm90_mqa_512: got Q and O of different shapes or of another head dim; allowed equal shapes, Q of "
                  "head dim 512 or 576 and O of 512; pass tensors that fit");
  }
  for (int i = 0; i < p.count; ++i) {
    const MqaSegmentProblem& s = p.segments[i];
    if (s.k.dims != p.q.dims || s.k.heads != 1) {
      return refuse(Code::kInvalidArgument,
                    fmt::format("sm90_mqa_512: got K of {} heads of dim {}; allowed one of Q's {}; pass such rows",
                                s.k.heads, s.k.dims, p.q.dims));
    }
    if (s.fp8 && p.dtype != TESSERA_BF16) {
      return refuse(Code::kUnsupported,
                    "sm90_mqa_512: got FP8 rows with f16; allowed bf16, which they become; convert Q");
    }
    if (s.fp8 && p.q.dims == 512 && s.k.batch * s.k.tokens != 0 && s.page_table == nullptr) {
      return refuse(Code::kInvalidArgument,
                    "sm90_mqa_512: got FP8 rows of dim 512 without a page table; allowed pages, whose footers have the "
                    "scales; pass a table");
    }
    if (s.seqlen_k > kLongest / std::max(s.compress_ratio, 1) || s.k.batch > kLongest || s.k.tokens > kLongest) {
      return refuse(Code::kUnsupported,
                    fmt::format("sm90_mqa_512: got {} keys that stand for {} each; allowed {} in all; split them",
                                s.seqlen_k, std::max(s.compress_ratio, 1), kLongest));
    }
  }
  if (p.unnormalized && (!p.wide_output || p.sinks != nullptr)) {
    return refuse(Code::kInvalidArgument,
                  "sm90_mqa_512: got a state with sinks or 16-bit O; allowed fp32 O without "
                  "sinks; change one of them");
  }
  if (!(p.softmax_scale > 0.0F) || p.softmax_scale > std::numeric_limits<float>::max()) {
    return refuse(Code::kInvalidArgument,
                  fmt::format("softmax_scale: got {}; allowed positive finite numbers; usually 1 / sqrt(head dim)",
                              p.softmax_scale));
  }
  if (p.seqlen_q * p.q.heads > kLongest || mqa_512_tiles(p) * parts > kLongest) {
    return refuse(Code::kUnsupported,
                  fmt::format("sm90_mqa_512: got {} tokens of {} heads; allowed up to {} tiles of "
                              "{} rows; split the batch",
                              p.batch * p.seqlen_q, p.q.heads, kLongest, static_cast<int>(Tiling::kRows)));
  }
  return {};
}

MqaSegment segment_of(const MqaSegmentProblem& p) {
  MqaSegment s{};
  s.k = static_cast<const uint16_t*>(p.k.data);
  // Strides of FP8 rows, in bytes, are multiples of 16.
  s.fp8 = p.fp8;
  s.stride_batch = p.fp8 ? p.k.stride_batch / 2 : p.k.stride_batch;
  s.stride_token = p.fp8 ? p.k.stride_token / 2 : p.k.stride_token;
  const int64_t rows = p.k.batch > 1 ? p.k.stride_batch / std::max<int64_t>(p.k.stride_token, 1) : p.k.tokens;
  s.page_rows = Divisor::of(static_cast<uint32_t>(std::max<int64_t>(rows, 1)));
  s.page_table = p.page_table;
  s.page_table_stride = p.page_table_stride;
  s.num_pages = static_cast<int32_t>(p.page_table != nullptr ? p.k.batch : 0);
  s.page_size = Divisor::of(static_cast<uint32_t>(std::max<int64_t>(p.k.tokens, 1)));
  s.seqlen_k = static_cast<int32_t>(p.seqlen_k);
  s.seqlens_k = p.seqlens_k;
  s.cu_seqlens_k = p.cu_seqlens_k;
  s.q_positions = p.q_positions;
  s.causal = p.causal;
  // A window of 2^31 - 1 keys is all of them.
  const auto window = [](int64_t keys) {
    return keys >= std::numeric_limits<int32_t>::max() ? -1 : static_cast<int32_t>(keys);
  };
  s.window_left = window(p.window_left);
  s.window_right = window(p.window_right);
  s.compressed = p.compress_ratio > 0;
  s.compress_ratio = Divisor::of(static_cast<uint32_t>(std::max(p.compress_ratio, 1)));
  if (p.gathered) {
    s.sorted = p.sorted;
    s.counts = p.counts;
    s.topk = p.topk;
  }
  return s;
}

}  // namespace

int64_t mqa_512_tiles(const MqaProblem& problem) {
  return units(problem) * unit_tiles(problem);
}

int64_t mqa_512_tile_chunks(const MqaProblem& problem) {
  int64_t chunks = 0;
  for (int i = 0; i < problem.count; ++i) {
    chunks += most_touched(problem.segments[i], most_keys(problem, problem.segments[i]), kChunkKeys);
  }
  return chunks;
}

MqaPlan plan_mqa_512(const MqaProblem& problem, int multiprocessors) {
  const int64_t tiles = mqa_512_tiles(problem);
  const int64_t granules = tile_granules(problem);
  const int64_t chunks = ceil_div(granules, Tiling::kChunkGranules);
  MqaPlan plan{1, ceil_div(tiles, multiprocessors) * granules};
  if (tiles == 0 || chunks < 2 || (2 * tiles > multiprocessors && tiles > kMostStates / mqa_512_tile_chunks(problem))) {
    return plan;
  }
  for (int64_t rounds = 1; rounds <= kMostRounds; ++rounds) {
    const int64_t room = std::min(rounds * multiprocessors / tiles, chunks);
    if (room < 2) {
      continue;
    }
    const int64_t of_part = ceil_div(chunks, room);
    const int64_t parts = ceil_div(chunks, of_part);
    const int64_t last =
        ceil_div(tiles * parts, multiprocessors) * of_part * Tiling::kChunkGranules + kSecondKernelGranules;
    if (last < plan.granules) {
      plan = {static_cast<int>(parts), last};
    }
  }
  return plan;
}

// Fitted to what an H200 takes for 8 to 128 heads, 1 to 128 sequences, 1024 to 16384 keys
// (bench/results/2026-12-01-h200-decode-latent.json, -d576.json); microseconds.
bool mqa_512_is_slow(const MqaProblem& problem, int multiprocessors) {
  constexpr double kStart = 24.5;
  constexpr double kGranule = 2.0;  // of a block
  // The decode kernels: a block takes a chunk of up to 16 rows, which it reads keys for.
  constexpr int64_t kDecodeRows = 16;
  constexpr double kDecodeStart = 13.0;
  constexpr double kDecodeGranule = 1.94;
  constexpr double kDecodeKeys = 4.5e-4;  // of 1024 bytes
  const int64_t granules = tile_granules(problem);
  const int64_t chunks = mqa_512_tile_chunks(problem);
  if (chunks == 0) {
    return false;
  }
  const double mqa = kStart + kGranule * static_cast<double>(plan_mqa_512(problem, multiprocessors).granules);
  const int64_t blocks = units(problem) * ceil_div(unit_tokens(problem) * problem.q.heads, kDecodeRows) * chunks;
  const double work = static_cast<double>(ceil_div(blocks, multiprocessors)) *
                      (kDecodeStart + kDecodeGranule * static_cast<double>(granules) / static_cast<double>(chunks));
  const double reading =
      kDecodeKeys * static_cast<double>(units(problem) * granules * Tiling::kGranule * problem.q.dims) / 512.0;
  return std::max(work, reading) < mqa;
}

size_t mqa_512_scratch_bytes(const MqaProblem& problem, int parts, int multiprocessors) {
  size_t states = 0;
  for (int level = 0; level < 3; ++level) {
    states += needs_level(problem, level) ? static_cast<size_t>(blocks_of(problem, parts, multiprocessors)) : 0;
  }
  if (parts > 1) {
    states += static_cast<size_t>(mqa_512_tiles(problem) * mqa_512_tile_chunks(problem));
  }
  return kStateBytes * states;
}

Status run_mqa_512(const MqaProblem& problem, int parts, int multiprocessors, cudaStream_t stream) {
  TESSERA_RETURN_IF_ERROR(check(problem, parts));
  const int64_t blocks = blocks_of(problem, parts, multiprocessors);
  if (blocks == 0) {
    return {};  // no row to write
  }
  const size_t scratch_bytes = mqa_512_scratch_bytes(problem, parts, multiprocessors);
  if (scratch_bytes != 0 &&
      (problem.scratch == nullptr || reinterpret_cast<uintptr_t>(problem.scratch) % kScratchAlignment != 0)) {
    return refuse(Code::kWorkspaceTooSmall,
                  fmt::format("scratch: got none or a misaligned one; allowed {} bytes, {}-byte aligned; pass them",
                              scratch_bytes, kScratchAlignment));
  }
  MqaArguments a{};
  a.count = problem.count;
  for (int i = 0; i < problem.count; ++i) {
    a.segments[i] = segment_of(problem.segments[i]);
  }
  a.q = static_cast<const uint16_t*>(problem.q.data);
  a.q_stride_batch = problem.q.stride_batch;
  a.q_stride_token = problem.q.stride_token;
  a.q_stride_head = problem.q.stride_head;
  a.o = const_cast<void*>(problem.o.data);
  a.o_stride_batch = problem.o.stride_batch;
  a.o_stride_token = problem.o.stride_token;
  a.o_stride_head = problem.o.stride_head;
  const bool bf16 = problem.dtype == TESSERA_BF16;
  a.boxed_output = has_boxes(problem);
  if (a.boxed_output) {
    const TensorView& o = problem.o;  // the engine's rows are heads of a token
    const TensorView rows{o.data, o.batch,        o.heads,       bound_of_tokens(problem),
                          o.dims, o.stride_batch, o.stride_head, o.stride_token};
    const Result<CUtensorMap> map = make_panel_map("o", rows, bf16, Tiling::kRows);
    TESSERA_RETURN_IF_ERROR(map.status());
    a.o_map = map.value();
  }
  a.lse = problem.lse;
  a.row_max = problem.row_max;
  a.row_sum = problem.row_sum;
  a.sinks = problem.sinks;
  a.o_rope = problem.o_rope;
  a.seqlens_q = problem.seqlens_q;
  a.cu_seqlens_q = problem.cu_seqlens_q;
  a.wide_output = problem.wide_output;
  a.unnormalized = problem.unnormalized;
  a.by_token = is_gathered(problem);
  a.seqlen_q = static_cast<int32_t>(problem.seqlen_q);
  a.heads = Divisor::of(static_cast<uint32_t>(problem.q.heads));
  a.unit_tiles = Divisor::of(static_cast<uint32_t>(unit_tiles(problem)));
  a.units_per_batch = Divisor::of(static_cast<uint32_t>(a.by_token ? problem.seqlen_q : 1));
  a.parts = Divisor::of(static_cast<uint32_t>(parts));
  a.total_items = static_cast<int32_t>(mqa_512_tiles(problem) * parts);
  a.c = score_scale(problem.softmax_scale, false);
  a.bias = problem.dtype == TESSERA_BF16 ? 0.0F : 7.0F;
  auto* memory = static_cast<uint8_t*>(problem.scratch);
  for (int level = 0; level < 3; ++level) {
    if (needs_level(problem, level)) {
      a.levels[level] = reinterpret_cast<float4*>(memory);
      memory += kStateBytes * static_cast<size_t>(blocks);
    }
  }
  if (parts > 1) {
    a.states = reinterpret_cast<float4*>(memory);
    a.tile_chunks = static_cast<int32_t>(mqa_512_tile_chunks(problem));
  }
  const bool fp8 = std::any_of(problem.segments, problem.segments + problem.count, [](const auto& s) { return s.fp8; });
  const auto launch = problem.q.dims == 512 ? (fp8    ? launch_mqa_512<Mqa512<512, true, true>>
                                               : bf16 ? launch_mqa_512<Mqa512<512, true>>
                                                      : launch_mqa_512<Mqa512<512, false>>)
                                            : (fp8    ? launch_mqa_512<Mqa512<576, true, true>>
                                               : bf16 ? launch_mqa_512<Mqa512<576, true>>
                                                      : launch_mqa_512<Mqa512<576, false>>);
  const cudaError_t error = launch(a, static_cast<int>(blocks), stream);
  if (error != cudaSuccess) {
    return Status(Code::kDevice, fmt::format("sm90_mqa_512: got {} ({}); allowed a launch on an sm_90 device; choose "
                                             "one",
                                             cudaGetErrorName(error), cudaGetErrorString(error)));
  }
  return {};
}

}  // namespace tessera::sm90
