// Attention forward with cp.async and mma.sync under docs/contract.md (hopper-k16-f25). README.md has the roles, the
// shared-memory map, the pipeline and where each rule is applied. Every rounding is one of the rules R1..R9.
//
// A block works on query tiles: kBlockM consecutive rows of one (sequence, K/V head), where row r is query token
// r / group and query head head_kv * group + r % group. Each warp owns 16 of them.
#pragma once

#include <cuda_runtime.h>

#include "contract/tanh.h"
#include "kernels/sm80/fmha/config.h"
#include "kernels/sm80/fmha/finish.cuh"
#include "kernels/sm80/fmha/fragment.cuh"
#include "kernels/sm80/fmha/ptx.cuh"
#include "kernels/sm80/fmha/softmax.cuh"
#include "kernels/sm80/fmha/stages.cuh"
#include "kernels/sm80/fmha/tiles.cuh"
#include "kernels/sm80/fmha/visibility.cuh"

namespace tessera::sm80 {

template <class Tag>
struct Kernel {
  using L = Layout<Tag>;
  static constexpr Numbers kNumbers = Tag::kNumbers;
  static constexpr Schedule kSchedule = Tag::kSchedule;
  static constexpr int kSteps = kNumbers.head_dim_qk / 16;  // k16 steps of R1
  static constexpr int kColumns = L::kGranule / 8;          // 8-key columns of S
  static constexpr int kOutColumns = kNumbers.head_dim_v / 8;
  static constexpr int kTiles = L::kTiles;
  static constexpr int kTileColumns = kColumns / kTiles;  // of a tile of K
  static constexpr int kTileBlocks = L::kTileKeys / 16;   // k16 blocks of R6 of a tile of V
  static constexpr int kChunkGranules = kChunkKeys / L::kGranule;
  static constexpr bool kHalfAPhaseLater = Stages<Tag>::kHalfAPhaseLater;
  static constexpr int kHeldSteps = kSchedule.query_in_registers ? kSteps : 1;

  const Arguments& args;
  uint32_t shared;

  // kBlockM rows of (sequence b, K/V head), from row `first` of its `rows`.
  struct Tile {
    int b;
    int head_kv;
    int first;
    int rows;
    TokenRange tokens;
  };

  // Row h of this thread. Behind the last row the last one is repeated, and nothing is stored.
  struct Row {
    int i;     // query token
    int head;  // query head
    bool stored;
  };

  __device__ __forceinline__ Row row(const Tile& tile, int h) const {
    const int r = warp() * kWarpRows + lane() / 4 + 8 * h;
    const int left = tile.rows - tile.first;
    const int at = tile.first + min(r, left - 1);
    const int i = at / args.group;
    return {i, tile.head_kv * args.group + (at - i * args.group), r < left};
  }

  // Everything a thread carries from granule to granule.
  struct Fragments {
    uint32_t q[kHeldSteps][4];
    float o[kOutColumns][4];  // O of the current chunk
    ChunkRows rows;           // of the current chunk
    int chunk;                // of the current segment; -1: no granule of the tile has been seen yet
    int segment;
    uint32_t waiting;  // bit per ChainLevel: a state waits in the workspace
  };

  // ---------------------------------------------------------------- query

  __device__ __forceinline__ void load_query(const Tile& tile) const {
    const tessera_tensor& q = args.params.q;
    constexpr int kRowStep = L::kWorkers / kPanelPieces;
    const int piece = thread() % kPanelPieces;
    const int first_row = thread() / kPanelPieces;
    const uint16_t* data = static_cast<const uint16_t*>(q.data) + tile.b * q.stride_batch;
#pragma unroll 1
    for (int r = first_row; r < L::kBlockM; r += kRowStep) {
      const bool there = r < tile.rows - tile.first;
      const int at = tile.first + (there ? r : 0);
      const int i = at / args.group;
      const int head = tile.head_kv * args.group + (at - i * args.group);
      const uint16_t* source = there ? data + (tile.tokens.first + i) * q.stride_token + head * q.stride_head : data;
      const uint32_t destination =
          swizzled_row<L::kQRowBytes>(shared + L::kQ, r) ^ static_cast<uint32_t>(piece * kPieceBytes);
      if (args.q_vectors) {
        copy_pieces<L::kQRowBytes>(destination, source, piece, args.params.head_dim_qk, there);
      } else {
        copy_pieces_unaligned<L::kQRowBytes>(destination, source, piece, args.params.head_dim_qk, there);
      }
    }
    copy_commit();
  }

  // A operand of k16 step `step`: matrices (rows 0..7, 8..15) x (k 0..7, 8..15).
  __device__ __forceinline__ void query_fragment(uint32_t (&a)[4], int step) const {
    const int r = warp() * kWarpRows + lane() % 16;
    const uint32_t address = swizzled_row<L::kQRowBytes>(shared + L::kQ, r) ^
                             static_cast<uint32_t>((step * 2 % kPanelPieces + lane() / 16) * kPieceBytes);
    load_matrices(a, address + step * 2 / kPanelPieces * kPanelBytes);
  }

  // ---------------------------------------------------------------- one granule

  // R1: the columns of S = Q K^T that tile t of K makes, chains of k16 steps from +0; here the steps [begin, end).
  __device__ __forceinline__ void scores(const Fragments& f, float (&s)[kColumns][4], uint32_t k_tile, int t, int begin,
                                         int end) const {
    const int first = t * kTileColumns;
    if (begin == 0) {
#pragma unroll
      for (int n = first; n < first + kTileColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] = 0.0F;
        }
      }
    }
    // Matrices (keys 0..7) x (k 0..7, 8..15), (keys 8..15) x the same.
    const uint32_t k_row = swizzled_row<L::kQRowBytes>(k_tile, lane() / 16 * 8 + lane() % 8) ^
                           static_cast<uint32_t>(lane() / 8 % 2 * kPieceBytes);
#pragma unroll
    for (int step = begin; step < end; ++step) {
      uint32_t a[4];
      if constexpr (!kSchedule.query_in_registers) {
        query_fragment(a, step);
      }
      const uint32_t k_step = (k_row ^ static_cast<uint32_t>(step * 2 % kPanelPieces * kPieceBytes)) +
                              step * 2 / kPanelPieces * kPanelBytes;
#pragma unroll
      for (int pair = 0; pair < kTileColumns / 2; ++pair) {
        uint32_t b[4];
        const int n = first + 2 * pair;
        load_matrices(b, k_step + pair * 16 * L::kQRowBytes);
        if constexpr (kSchedule.query_in_registers) {
          multiply_add<kNumbers.bf16>(s[n], f.q[step], b[0], b[1]);
          multiply_add<kNumbers.bf16>(s[n + 1], f.q[step], b[2], b[3]);
        } else {
          multiply_add<kNumbers.bf16>(s[n], a, b[0], b[1]);
          multiply_add<kNumbers.bf16>(s[n + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // R5, R6: O := O + P V for the keys of tile t, k16 blocks of keys ascending.
  __device__ __forceinline__ void accumulate(Fragments& f, const float (&p)[kColumns][4], uint32_t v_tile,
                                             int t) const {
    // Transposed: matrices (keys 0..7, 8..15) x (dims 0..7), the same x (dims 8..15).
    const uint32_t v_row =
        swizzled_row<L::kVRowBytes>(v_tile, lane() % 16) ^ static_cast<uint32_t>(lane() / 16 * kPieceBytes);
#pragma unroll
    for (int block = 0; block < kTileBlocks; ++block) {
      uint32_t a[4];
      const int n = t * kTileColumns + 2 * block;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int h = 0; h < kRowsPerThread; ++h) {
          a[2 * k + h] = round_pair<kNumbers.bf16>(p[n + k][2 * h], p[n + k][2 * h + 1]);
        }
      }
#pragma unroll
      for (int pair = 0; pair < kOutColumns / 2; ++pair) {
        uint32_t b[4];
        load_matrices_transposed(b, (v_row ^ static_cast<uint32_t>(pair * 2 % kPanelPieces * kPieceBytes)) +
                                        pair * 2 / kPanelPieces * kPanelBytes + block * 16 * L::kVRowBytes);
        multiply_add<kNumbers.bf16>(f.o[2 * pair], a, b[0], b[1]);
        multiply_add<kNumbers.bf16>(f.o[2 * pair + 1], a, b[2], b[3]);
      }
    }
  }

  // The rare modifiers of R1 (softcap, ALiBi: the scores become natural) and custom bits of R2, which are read inside
  // the row's interval only. The loop is rolled, and the columns rotate through s[0], so that this code is there once:
  // registers cannot be indexed. Bit 2 n + e of word q of kSeen becomes 1 if any row of the block sees key 8 n + 2 q +
  // e.
  __device__ __forceinline__ void modify_and_mask_bits(float (&s)[kColumns][4],
                                                       const KeyInterval (&visible)[kRowsPerThread], int index,
                                                       const Tile& tile, int first_key) const {
    const tessera_fmha_params& p = args.params;
    const tessera_kv_segment& segment = p.segments[index];
    const int keys = key_range(segment, tile.b).count;
    const int64_t position0 = first_position(segment, tile.b, keys, tile.tokens.count);
    const bool masked = segment.mask.data != nullptr;
    const bool alibi = p.alibi_slopes != nullptr;
    const int key0 = first_key + lane() % 4 * 2;
    const uint8_t* bits[kRowsPerThread];
    int64_t position[kRowsPerThread];
    float slope[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const Row r = row(tile, h);
      bits[h] = row_bits(segment.mask, tile.b, r.head, r.i);
      position[h] = position0 + r.i;
      slope[h] = alibi ? p.alibi_slopes[r.head] : 0.0F;
    }
    const int first_covered = first_covered_key(segment.mask, keys);
    uint32_t seen = 0;
#pragma unroll 1
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = i / 2;
        const int key = key0 + 8 * n + i % 2;
        float x = s[0][i];
        if (args.modifiers) {
          x = mul_rn(x, p.softmax_scale);
          if (p.softcap != 0.0F) {
            x = mul_rn(p.softcap, soft_tanh(div_rn(x, p.softcap)));
          }
          if (alibi) {
            x = fma_rn(slope[h], static_cast<float>(key - position[h]), x);
          }
        }
        if (masked) {
          const bool inside = key >= visible[h].begin && key < visible[h].end;
          const int bit = key - first_covered;
          const bool allowed = inside && (bit < 0 || (bits[h][bit >> 3] >> (bit & 7) & 1) != 0);
          x = allowed ? x : minus_infinity();
          seen |= allowed ? 1U << (2 * n + i % 2) : 0U;
        }
        s[0][i] = x;
      }
      rotate<1>(s);
    }
    if (!masked) {
      return;
    }
#pragma unroll
    for (int lanes = 4; lanes < kWarpThreads; lanes *= 2) {
      seen |= __shfl_xor_sync(kAllLanes, seen, lanes);
    }
    if (lane() < 4) {
      atomicOr(seen_words() + lane(), seen);
    }
  }

  __device__ __forceinline__ static uint32_t* seen_words() {
    return reinterpret_cast<uint32_t*>(shared_bytes + L::kSeen);
  }

  // Hygiene for custom bits: V rows of tile t that no row of the block sees may hold NaN and become zero. Between
  // barriers.
  __device__ __forceinline__ void clear_unseen(uint32_t v_tile, int t) const {
    constexpr int kPieces = L::kVRowBytes / kPieceBytes;
#pragma unroll 1
    for (int at = thread(); at < L::kTileKeys * kPieces; at += L::kWorkers) {
      const int key = t * L::kTileKeys + at / kPieces;
      if ((seen_words()[key % 8 / 2] >> (key / 8 * 2 + key % 2) & 1U) == 0) {
        store_shared(v_tile + at * kPieceBytes, make_uint4(0, 0, 0, 0));
      }
    }
  }

  // The workers of the block have come here.
  __device__ __forceinline__ static void worker_barrier() {
    if constexpr (Stages<Tag>::kStaging) {
      barrier_of_warps<1, L::kWorkers>();
    } else {
      __syncthreads();
    }
  }

  // clear_unseen, with its barriers; behind the last tile of a granule the bits become those of no key.
  __device__ __forceinline__ void clear_masked(uint32_t v_tile, int t) const {
    if constexpr (L::kHasBarriers) {
      worker_barrier();  // the bits of all warps are there; else the opening of the tile has waited for them
    }
    clear_unseen(v_tile, t);
    worker_barrier();
    if (t == kTiles - 1) {
      if (thread() < 4) {
        seen_words()[thread()] = 0;
      }
      if constexpr (L::kHasBarriers) {
        worker_barrier();
      }
    }
  }

  // ---------------------------------------------------------------- R8: chunks, superchunks, segments

  __device__ __forceinline__ float4* state_memory(int level) const {
    const int64_t slot = static_cast<int64_t>(blockIdx.x) * args.state_levels + level;
    return static_cast<float4*>(args.states) + slot * (L::kStateVectors * L::kWorkers) + thread();
  }

  // f.o, state := chain(the state that waits at `level`, f.o, state).
  __device__ __forceinline__ void fold(Fragments& f, StateRows& state, int level) const {
    const float4* memory = state_memory(level);
    const float4 scalars = memory[kOutColumns * L::kWorkers];
    const ChainWeights w = chain_scalars({{scalars.x, scalars.y}, {scalars.z, scalars.w}}, state);
    constexpr int kAtOnce = 4;  // loads in flight; all of them would not fit the registers
#pragma unroll 1
    for (int n = 0; n < kOutColumns; n += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float4 first = memory[(n + i) * L::kWorkers];
        f.o[i][0] = __fmaf_rn(first.x, w.first[0], __fmul_rn(f.o[i][0], w.second[0]));
        f.o[i][1] = __fmaf_rn(first.y, w.first[0], __fmul_rn(f.o[i][1], w.second[0]));
        f.o[i][2] = __fmaf_rn(first.z, w.first[1], __fmul_rn(f.o[i][2], w.second[1]));
        f.o[i][3] = __fmaf_rn(first.w, w.first[1], __fmul_rn(f.o[i][3], w.second[1]));
      }
      rotate<kAtOnce>(f.o);
    }
  }

  __device__ __forceinline__ void park(const Fragments& f, const StateRows& state, int level) const {
    float4* memory = state_memory(level);
#pragma unroll
    for (int n = 0; n < kOutColumns; ++n) {
      memory[n * L::kWorkers] = make_float4(f.o[n][0], f.o[n][1], f.o[n][2], f.o[n][3]);
    }
    memory[kOutColumns * L::kWorkers] = make_float4(state.m[0], state.m[1], state.l[0], state.l[1]);
  }

  // Ends the current chunk: its state is chained with what waits at the levels up to `level`.
  __device__ __forceinline__ StateRows close(Fragments& f, int level) const {
    StateRows state = close_rows(f.rows);
#pragma unroll 1
    for (int below = 0; below <= level; ++below) {
      if ((f.waiting >> below & 1U) != 0) {
        fold(f, state, below);
      }
    }
    f.waiting &= ~((2U << level) - 1U);
    return state;
  }

  __device__ __forceinline__ static void start_chunk(Fragments& f) {
    f.rows.clear();
#pragma unroll
    for (int n = 0; n < kOutColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f.o[n][i] = 0.0F;
      }
    }
  }

  // The next granule belongs to `chunk` of `segment`.
  __device__ __forceinline__ void enter_chunk(Fragments& f, int segment, int chunk) const {
    if (f.chunk == chunk && f.segment == segment) {
      return;
    }
    if (f.chunk >= 0) {
      const int level = f.segment != segment                                       ? kSegmentLevel
                        : f.chunk / kSuperchunkChunks != chunk / kSuperchunkChunks ? kSuperchunkLevel
                                                                                   : kChunkLevel;
      const StateRows state = close(f, level);
      park(f, state, level);
      f.waiting |= 1U << level;
      start_chunk(f);
    }
    f.chunk = chunk;
    f.segment = segment;
  }

  // ---------------------------------------------------------------- one segment

  // `staged`: tiles of K, and of V, that went through the stages before; goes on, with mbarriers.
  template <bool kStager>
  __device__ __forceinline__ void attend(Fragments& f, const Tile& tile, int index, uint32_t& staged) const {
    const tessera_kv_segment& segment = args.params.segments[index];
    const TokenRange range = key_range(segment, tile.b);
    const int keys = range.count;
    const int64_t position0 = first_position(segment, tile.b, keys, tile.tokens.count);
    const int last_row = tile.first + min(L::kBlockM, tile.rows - tile.first) - 1;
    const KeyInterval wanted = {visible_interval(args, segment, keys, position0 + tile.first / args.group).begin,
                                visible_interval(args, segment, keys, position0 + last_row / args.group).end};
    if (wanted.begin >= wanted.end) {
      return;
    }
    KeyInterval visible[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      visible[h] = visible_interval(args, segment, keys, position0 + row(tile, h).i);
    }
    // Of the warp, whose rows ascend: keys that any row sees, and keys that all rows see.
    const KeyInterval any = {__shfl_sync(kAllLanes, visible[0].begin, 0), __shfl_sync(kAllLanes, visible[1].end, 31)};
    const KeyInterval all = {__shfl_sync(kAllLanes, visible[1].begin, 31), __shfl_sync(kAllLanes, visible[0].end, 0)};
    const bool paged = segment.page_table != nullptr;
    const bool masked = segment.mask.data != nullptr;

    const int first = wanted.begin / L::kGranule;
    const int count = (wanted.end - 1) / L::kGranule + 1 - first;
    const Stages<Tag> stages{.args = args,
                             .shared = shared,
                             .segment = index,
                             .b = tile.b,
                             .head_kv = tile.head_kv,
                             .first_token = range.first,
                             .first = first,
                             .staged = staged,
                             .granules = count,
                             .wanted = wanted,
                             .paged = paged};

    if constexpr (L::kHasBarriers) {
      staged += static_cast<uint32_t>(count * kTiles);
    } else {
      __syncthreads();  // every warp is done with the stages and words of the segment or tile before
      if (masked && thread() < 4) {
        seen_words()[thread()] = 0;
      }
    }
    if constexpr (kHalfAPhaseLater) {
      stages.start_refills();
    } else if constexpr (!Stages<Tag>::kStaging) {
      stages.start();
    }
    if constexpr (kStager) {
      stages.stage_all();
    } else {
#pragma unroll 1
      for (int j = 0; j < count; ++j) {
        const int first_key = (first + j) * L::kGranule;
        // A granule without visible keys has no effect on a row (R2).
        const bool works = first_key < any.end && first_key > any.begin - L::kGranule;
        float s[kColumns][4];

#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          stages.template open<Operand::kK>(j * kTiles, t);
          if (t == 0) {
            enter_chunk(f, index, (first + j) / kChunkGranules);
          }
          const uint32_t k_tile = stages.template stage<Operand::kK>(j * kTiles + t);
          if constexpr (kHalfAPhaseLater) {
            if (works) {
              scores(f, s, k_tile, t, 0, kSteps / 2);
            }
            if (j > 0) {
              stages.template refill<Operand::kV>((j - 1) * kTiles + t + kSchedule.stages);
            }
            if (works) {
              scores(f, s, k_tile, t, kSteps / 2, kSteps);
            }
          } else if (works) {
            scores(f, s, k_tile, t, 0, kSteps);
          }
          stages.template close<Operand::kK>(j * kTiles, t);
        }
        if (works) {
          if (args.modifiers || masked) {
            modify_and_mask_bits(s, visible, forget(index), tile, first_key);
          }
          if (first_key < all.begin || first_key > all.end - L::kGranule) {
            mask_interval(s, visible, first_key + lane() % 4 * 2);
          }
          if (paged) {
            mask_absent(s, stages.present(j * kTiles) + lane() % 4 * 2);
          }
          float a[kRowsPerThread];
          if (softmax_granule(s, f.rows, a, args.c, args.bias)) {
#pragma unroll
            for (int n = 0; n < kOutColumns; ++n) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                f.o[n][i] = __fmul_rn(f.o[n][i], a[i / 2]);  // R6
              }
            }
          }
        }
        if constexpr (kHalfAPhaseLater) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            stages.template refill<Operand::kK>(j * kTiles + t + kSchedule.stages);
          }
        }
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          stages.template open<Operand::kV>(j * kTiles, t);
          const uint32_t v_tile = stages.template stage<Operand::kV>(j * kTiles + t);
          if (masked) {
            clear_masked(v_tile, t);
          }
          if (works) {
            accumulate(f, s, v_tile, t);
          }
          stages.template close<Operand::kV>(j * kTiles, t);
        }
      }
    }
    if constexpr (!L::kHasBarriers) {
      copy_wait<0>();
    }
  }

  // ---------------------------------------------------------------- one query tile

  // R9. The columns of O rotate through o[0], so that this code is there once.
  __device__ __forceinline__ void finish(Fragments& f, const StateRows& state, const Tile& tile) const {
    const tessera_fmha_params& p = args.params;
    RowFinish end[kRowsPerThread];
    int64_t at[kRowsPerThread];  // element of dim 0
    bool stored[kRowsPerThread];
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const Row r = row(tile, h);
      const int64_t token = tile.tokens.first + r.i;
      stored[h] = r.stored;
      end[h] = finish_row(state.m[h], state.l[h], args.bias, p.sinks == nullptr ? minus_infinity() : p.sinks[r.head],
                          p.output_mode == TESSERA_OUTPUT_NORMALIZED);
      at[h] = tile.b * p.o.stride_batch + token * p.o.stride_token + r.head * p.o.stride_head;
      if (r.stored && lane() % 4 == 0) {
        store_scalars(p, tile.b, token, r.head, state.m[h], state.l[h], args.bias);
      }
    }
#pragma unroll 1
    for (int dim = lane() % 4 * 2; dim < p.head_dim_v; dim += 8) {
#pragma unroll
      for (int h = 0; h < kRowsPerThread; ++h) {
        if (stored[h]) {
          store_pair(at[h] + dim, p.head_dim_v - dim, finish_element(f.o[0][2 * h], end[h]),
                     finish_element(f.o[0][2 * h + 1], end[h]));
        }
      }
      rotate<1>(f.o);
    }
  }

  // Two neighbouring elements of O, the second one if `left` > 1.
  __device__ __forceinline__ void store_pair(int64_t at, int left, float low, float high) const {
    const tessera_fmha_params& p = args.params;
    if (p.o_dtype == TESSERA_F32) {
      float* o = static_cast<float*>(p.o.data) + at;
      if (args.o_pairs) {
        *reinterpret_cast<float2*>(o) = make_float2(output_float(low), output_float(high));
        return;
      }
      o[0] = output_float(low);
      if (left > 1) {
        o[1] = output_float(high);
      }
    } else {
      uint16_t* o = static_cast<uint16_t*>(p.o.data) + at;
      const uint32_t low_bits = output_bits<kNumbers.bf16>(low);
      const uint32_t high_bits = output_bits<kNumbers.bf16>(high);
      if (args.o_pairs) {
        *reinterpret_cast<uint32_t*>(o) = low_bits | high_bits << 16;
        return;
      }
      o[0] = static_cast<uint16_t>(low_bits);
      if (left > 1) {
        o[1] = static_cast<uint16_t>(high_bits);
      }
    }
  }

  // With mbarriers, by every thread before everything else: they live as long as the block, and behind a granule no key
  // is seen (clear_masked), so that nobody has to meet between segments or tiles.
  __device__ __forceinline__ void start() const {
    if (thread() == 0) {
      Stages<Tag>::init_barriers(shared);
    }
    if (thread() < 4) {
      seen_words()[thread()] = 0;
    }
    __syncthreads();
  }

  // Query tile `index` of (sequence, K/V head) number `pair`, as a thread that stages keys or as one that owns rows.
  // The two meet at the mbarriers of the stages only, so that those who stage go on to the next tile.
  template <bool kStager>
  __device__ __forceinline__ void run_tile(int64_t pair, int index, uint32_t& staged) const {
    Tile tile;
    tile.b = static_cast<int>(pair / args.params.num_heads_kv);
    tile.head_kv = static_cast<int>(pair - static_cast<int64_t>(tile.b) * args.params.num_heads_kv);
    tile.tokens = query_range(args.params, tile.b);
    tile.rows = tile.tokens.count * args.group;  // the host has checked the largest sequence
    tile.first = index * L::kBlockM;
    if (tile.first >= tile.rows) {
      return;
    }
    Fragments f;
    f.chunk = -1;
    f.segment = 0;
    f.waiting = 0;
    start_chunk(f);
    if constexpr (!kStager) {
      worker_barrier();  // every warp has read Q of the tile before
      load_query(tile);
    }
    if constexpr (kSchedule.query_in_registers) {
      copy_wait<0>();
      __syncthreads();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        query_fragment(f.q[step], step);
      }
    } else if constexpr (L::kHasBarriers && !kStager) {
      copy_wait<0>();
      worker_barrier();
    }
#pragma unroll 1
    for (int s = 0; s < args.params.num_segments; ++s) {
      attend<kStager>(f, tile, s, staged);
    }
    if constexpr (!kStager) {
      const StateRows state = close(f, kSegmentLevel);
      finish(f, state, tile);
    }
  }
};

// All items of this block.
template <bool kStager, class Tag>
__device__ __forceinline__ void run_items(const Kernel<Tag>& kernel) {
  const Arguments& args = kernel.args;
  uint32_t staged = 0;
  for (int64_t item = blockIdx.x; item < args.items; item += gridDim.x) {
    const int64_t pair = item / args.items_per_head;
    const int mirror = static_cast<int>(item - pair * args.items_per_head);
    const int last = args.query_tiles - 1 - mirror;  // under a causal mask the longest first
    const int tiles = args.paired_tiles && mirror != last ? 2 : 1;
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      kernel.template run_tile<kStager>(pair, t == 0 ? last : mirror, staged);
    }
  }
}

// Grid: any number of blocks; each walks over the items with its own share of the workspace.
template <class Tag>
__global__ void __launch_bounds__(Layout<Tag>::kThreads, Tag::kSchedule.blocks_per_sm)
    fmha_sm80(const __grid_constant__ Arguments args) {
  using L = Layout<Tag>;
  const Kernel<Tag> kernel{args, shared_address(shared_bytes)};
  if constexpr (L::kHasBarriers) {
    kernel.start();
  }
  if constexpr (Tag::kSchedule.staging_warps > 0) {
    if (threadIdx.x >= L::kWorkers) {
      if constexpr (Tag::kSchedule.staging_warps == 4) {
        give_registers<L::kStagerRegisters>();
      }
      run_items<true>(kernel);
      return;
    }
    if constexpr (Tag::kSchedule.staging_warps == 4) {
      take_registers<L::kWorkerRegisters>();
    }
  }
  run_items<false>(kernel);
}

}  // namespace tessera::sm80
