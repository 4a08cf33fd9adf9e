// The matrix product with AMX int8 tiles, for batches; a few rows go to the AVX-512 VNNI loops.
//
// One tile product multiplies 16 activation rows by 16 weight rows (lanes) over up to 64 bytes of k. A 32-k block of a
// 4- or 5-bit type fills the 64 bytes twice over: the first 32 meet the weights times 8, the last 32 the weights, so
// that one product takes 11 bits of q. q = 2048 h + l, h = 8 x3 + x2, l = 8 x1 + x0 with signed bytes:
//   H = sum of w * h, L = sum of w * l: two products, I = 2048 H + L (exact, 32 bits).
// 6- and 8-bit types take the digits a, b, c of ActBlock in three products of 32 bytes.
//
// Per task (rows x row groups), for every set of kSetGroups row groups:
//   1. per chunk of 1024 k (M4): unpack the set's weights into tile layout and its scales into fp32;
//   2. per panel of 16 rows, per kRunBlocks blocks of k, per group: the tile products of block b + 1 are issued while
//      the float steps of M3 run on the stored tiles of block b; 16 accumulators (row = register, lane = weight row).
// Step 2 reads a panel's run from the L1 cache for every group of the set and streams the weight tiles from the L2.
#include "kernels/cpu/gemm/amx_tile.h"
#include "kernels/cpu/gemm/dot_avx512.h"

namespace tessera::gemm {
namespace {

constexpr int kTileRows = 16;
constexpr int64_t kChunkBlocks = kChunkK / kBlockK;
constexpr int64_t kSetGroups = 8;
constexpr int64_t kRunBlocks = 8;
// Below this many rows the tiles are too empty to beat vpdpbusd.
constexpr int64_t kMinRows = 12;

// Records of a panel of 16 rows and one block. Wide: the two 64-byte row tiles (h, l). Narrow: three 32-byte row tiles
// (a, b, c). Then dx[16] and xs[16] of M1 and M3. Rows past the slab have dx = xs = 0 and are never stored.
constexpr int kWideTile = kTileRows * 64;
constexpr int kNarrowTile = kTileRows * 32;
constexpr int kWideRecord = 2 * kWideTile + 2 * 64;
constexpr int kNarrowRecord = 3 * kNarrowTile + 2 * 64;

constexpr bool is_wide(WeightType type) {
  return unit_map(type).bits <= 5;
}

constexpr uint32_t kWideTypes = type_bit(WeightType::kQ4_0) | type_bit(WeightType::kQ4_1) |
                                type_bit(WeightType::kQ5_0) | type_bit(WeightType::kQ5_1) |
                                type_bit(WeightType::kQ4_K) | type_bit(WeightType::kQ5_K);

// Where the two kinds of records lie in a slab: [panel][block] each.
struct TileLayout {
  int64_t panels;
  int64_t blocks;
  bool wide;
  bool narrow;

  size_t wide_bytes() const { return wide ? static_cast<size_t>(panels * blocks) * kWideRecord : 0; }
  size_t narrow_bytes() const { return narrow ? static_cast<size_t>(panels * blocks) * kNarrowRecord : 0; }
};

TileLayout tile_layout(uint32_t types, int64_t rows, int64_t k) {
  return {(rows + kPanelRows - 1) / kPanelRows, k / kBlockK, (types & kWideTypes) != 0, (types & ~kWideTypes) != 0};
}

// ---- M1 into tiles

void store_bytes(uint8_t* p, __m512i values) {
  _mm_store_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(values));
}

// 16 values of q as the digits of the wide tiles: bytes [0, 16) of x3 and x2 in the h tile, of x1 and x0 in the l tile.
void store_wide(uint8_t* h_row, uint8_t* l_row, __m512i q) {
  const __m512i l = _mm512_srai_epi32(_mm512_slli_epi32(q, 21), 21);  // [-1024, 1023]
  const __m512i h = _mm512_srai_epi32(_mm512_sub_epi32(q, l), 11);    // [-1024, 1024]
  const __m512i x3 = _mm512_min_epi32(_mm512_srai_epi32(h, 3), _mm512_set1_epi32(127));
  store_bytes(h_row, x3);
  store_bytes(h_row + 32, _mm512_sub_epi32(h, _mm512_slli_epi32(x3, 3)));
  store_bytes(l_row, _mm512_srai_epi32(l, 3));
  store_bytes(l_row + 32, _mm512_and_si512(l, _mm512_set1_epi32(7)));
}

void store_narrow(uint8_t* row, __m512i q) {
  const __m512i c = Avx512Dot::low_digit(q);
  const __m512i ab = _mm512_srai_epi32(_mm512_sub_epi32(q, c), 8);
  const __m512i b = Avx512Dot::low_digit(ab);
  store_bytes(row, _mm512_srai_epi32(_mm512_sub_epi32(ab, b), 8));
  store_bytes(row + kNarrowTile, b);
  store_bytes(row + 2 * kNarrowTile, c);
}

template <int kOrder>
__m512i shuffle_lanes(__m512i a, __m512i b) {
  return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), kOrder));
}

// Lane i of the result: `op` over the 16 lanes of rows[i]. Every level halves the lanes of a row and joins two rows.
template <class Op>
__attribute__((always_inline)) inline __m512i reduce_rows(const __m512i* rows, Op op) {
  __m512i r8[8];
  for (int i = 0; i < 8; ++i) {
    r8[i] = op(_mm512_shuffle_i32x4(rows[i], rows[i + 8], 0x44), _mm512_shuffle_i32x4(rows[i], rows[i + 8], 0xee));
  }
  __m512i r4[4];  // 128-bit groups: rows i, i + 8, i + 4, i + 12
  for (int i = 0; i < 4; ++i) {
    r4[i] = op(_mm512_shuffle_i32x4(r8[i], r8[i + 4], 0x88), _mm512_shuffle_i32x4(r8[i], r8[i + 4], 0xdd));
  }
  __m512i r2[2];  // halves of a group: r4[i], r4[i + 2]
  for (int i = 0; i < 2; ++i) {
    r2[i] = op(_mm512_unpacklo_epi64(r4[i], r4[i + 2]), _mm512_unpackhi_epi64(r4[i], r4[i + 2]));
  }
  // Lanes of a group now: r4[0], r4[2], r4[1], r4[3].
  const __m512i all = op(shuffle_lanes<0x88>(r2[0], r2[1]), shuffle_lanes<0xdd>(r2[0], r2[1]));
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), all);
}

__m512i larger(__m512i a, __m512i b) {
  return _mm512_max_epi32(a, b);
}

__m512i added(__m512i a, __m512i b) {
  return _mm512_add_epi32(a, b);
}

// dx and 1 / dx of M1 for 16 rows, from the bits of their amax. Rows that M1 maps to zero get inverse 0.
struct RowScales {
  __m512 dx;
  __m512 inverse;
};

RowScales row_scales(__m512i amax_bits) {
  const __m512 amax = _mm512_castsi512_ps(amax_bits);
  const __m512 limit = _mm512_set1_ps(static_cast<float>(kActLimit));
  const __mmask16 bad = _mm512_cmpge_epi32_mask(amax_bits, _mm512_set1_epi32(0x7f800000));
  const __mmask16 used = _mm512_cmp_ps_mask(amax, _mm512_set1_ps(kActTiny), _CMP_GE_OQ) & static_cast<__mmask16>(~bad);
  const __m512 dx = _mm512_maskz_div_ps(used, amax, limit);
  return {_mm512_mask_mov_ps(dx, bad, _mm512_set1_ps(__builtin_nanf(""))), _mm512_maskz_div_ps(used, limit, amax)};
}

// The up to 16 rows of one panel, which all belong to the task.
void quantize_panel(const QuantizeTask& task, const TileLayout& layout, int64_t first_row) {
  const int64_t at = first_row / kPanelRows * layout.blocks;
  uint8_t* wide = task.acts + at * kWideRecord;
  uint8_t* narrow = task.acts + layout.wide_bytes() + at * kNarrowRecord;
  const int64_t rows = task.row_end - first_row < kPanelRows ? task.row_end - first_row : kPanelRows;
  const float* x = task.x + first_row * task.stride_x;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t block = 0; block < layout.blocks; ++block, x += kBlockK) {
    __m512i lanes[kTileRows];
    for (int64_t r = 0; r < kTileRows; ++r) {
      if (r >= rows) {
        lanes[r] = _mm512_setzero_si512();
        continue;
      }
      const float* row = x + r * task.stride_x;
      lanes[r] = larger(_mm512_and_si512(_mm512_loadu_si512(row), magnitude),
                        _mm512_and_si512(_mm512_loadu_si512(row + 16), magnitude));
    }
    const RowScales scales = row_scales(reduce_rows(lanes, larger));
    alignas(64) float inverse[kTileRows];
    _mm512_store_ps(inverse, scales.inverse);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * task.stride_x;
      const __m512 factor = _mm512_set1_ps(inverse[r]);
      const __m512i q0 = Avx512Dot::to_quant(_mm512_mul_ps(_mm512_loadu_ps(row), factor));
      const __m512i q1 = Avx512Dot::to_quant(_mm512_mul_ps(_mm512_loadu_ps(row + 16), factor));
      lanes[r] = _mm512_add_epi32(q0, q1);
      if (layout.wide) {
        uint8_t* tile = wide + block * kWideRecord + 64 * r;
        store_wide(tile, tile + kWideTile, q0);
        store_wide(tile + 16, tile + kWideTile + 16, q1);
      }
      if (layout.narrow) {
        uint8_t* tile = narrow + block * kNarrowRecord + 32 * r;
        store_narrow(tile, q0);
        store_narrow(tile + 16, q1);
      }
    }
    const __m512 xs = _mm512_mul_ps(scales.dx, _mm512_cvtepi32_ps(reduce_rows(lanes, added)));
    if (layout.wide) {
      uint8_t* record = wide + block * kWideRecord + 2 * kWideTile;
      _mm512_store_ps(record, scales.dx);
      _mm512_store_ps(record + 64, xs);
    }
    if (layout.narrow) {
      uint8_t* record = narrow + block * kNarrowRecord + 3 * kNarrowTile;
      _mm512_store_ps(record, scales.dx);
      _mm512_store_ps(record + 64, xs);
    }
  }
}

// ---- weights into tiles

// Scratch memory of a thread.
struct Scratch {
  uint8_t weights[kSetGroups][kChunkBlocks][2 * kNarrowTile];  // wide: one tile; 6 bits: one per half; 8 bits: one
  float scales[kSetGroups][kChunkBlocks][2][16];               // ds and mn, or the ds of both halves
  float acc[kSetGroups][kTileRows][16];
  int32_t sums[2][6][kTileRows][16];  // stored tiles, two blocks in flight
};
static_assert(2 * kNarrowTile == 1024 && alignof(Scratch) <= 64 && sizeof(Scratch) % 64 == 0);

void store512(uint8_t* p, __m512i v) {
  _mm512_store_si512(p, v);
}

template <WeightType kType>
void unpack_block(const uint8_t* unit, int sub, uint8_t* tile, float (*scales)[16]) {
  constexpr UnitMap kMap = unit_map(kType);
  const Avx512Dot::Weights w = Avx512Dot::unpack<kMap.bits>(unit + sub * kMap.sub_bytes);
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(kMap.offset));
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
    const __m512i plain = _mm512_sub_epi8(w.g[g], offset);
    if constexpr (is_wide(kType)) {
      // 8 w fits a byte (signed after the offset, unsigned for affine types), so the 16-bit shift is safe before it.
      const __m512i eight = _mm512_sub_epi8(_mm512_slli_epi16(w.g[g], 3), _mm512_slli_epi16(offset, 3));
      store512(tile + 64 * g, eight);
      store512(tile + 512 + 64 * g, plain);
    } else if constexpr (kMap.halves == 2) {
      store512(tile + 64 * g, g < 4 ? plain : _mm512_setzero_si512());
      store512(tile + 512 + 64 * g, g < 4 ? _mm512_setzero_si512() : plain);
    } else {
      store512(tile + 64 * g, plain);
    }
  }
  _mm512_store_ps(scales[0], Avx512Micro::scale_of<kType>(unit, sub * kMap.halves));
  if constexpr (kMap.affine) _mm512_store_ps(scales[1], Avx512Micro::minimum_of<kType>(unit, sub));
  if constexpr (kMap.halves == 2) _mm512_store_ps(scales[1], Avx512Micro::scale_of<kType>(unit, sub * 2 + 1));
}

// Blocks [first, first + blocks) of `groups` row groups.
template <WeightType kType>
void unpack_set(const TileTask& task, int64_t group, int64_t groups, int64_t first, int64_t blocks, Scratch& scratch) {
  constexpr UnitMap kMap = unit_map(kType);
  constexpr int kUnitBytes = kMap.d_at + (kMap.affine ? 64 : 32);
  const int64_t units = task.k / (32 * kMap.subs);
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* unit = task.packed + ((group + g) * units + first / kMap.subs) * kUnitBytes;
    for (int64_t block = 0; block < blocks; block += kMap.subs, unit += kUnitBytes) {
      for (int sub = 0; sub < kMap.subs; ++sub) {
        unpack_block<kType>(unit, sub, scratch.weights[g][block + sub], scratch.scales[g][block + sub]);
      }
    }
  }
}

// ---- products

// Tile products of one block, stored to `sums`. Tiles 0..2: activations, 3: weights, 4..6: sums.
template <WeightType kType>
__attribute__((always_inline)) inline void issue_products(const uint8_t* record, const uint8_t* weights,
                                                          int32_t (*sums)[kTileRows][16]) {
  constexpr UnitMap kMap = unit_map(kType);
  if constexpr (is_wide(kType)) {
    tile_load<0>(record, 64);
    tile_load<1>(record + kWideTile, 64);
    tile_load<3>(weights, 64);
    tile_zero<4>();
    tile_zero<5>();
    tile_dot<4, 0, 3, kMap.affine>();
    tile_dot<5, 1, 3, kMap.affine>();
    tile_store<4>(sums[0], 64);
    tile_store<5>(sums[1], 64);
  } else {
    tile_load<0>(record, 32);
    tile_load<1>(record + kNarrowTile, 32);
    tile_load<2>(record + 2 * kNarrowTile, 32);
#pragma GCC unroll 2
    for (int half = 0; half < kMap.halves; ++half) {
      tile_load<3>(weights + 512 * half, 64);
      tile_zero<4>();
      tile_zero<5>();
      tile_zero<6>();
      tile_dot<4, 0, 3, false>();
      tile_dot<5, 1, 3, false>();
      tile_dot<6, 2, 3, false>();
      tile_store<4>(sums[3 * half], 64);
      tile_store<5>(sums[3 * half + 1], 64);
      tile_store<6>(sums[3 * half + 2], 64);
    }
  }
}

__m512i load_sums(const int32_t (*sums)[16], int r) {
  return _mm512_load_si512(sums[r]);
}

// V of M2 for row r of the panel.
template <WeightType kType, int kHalf>
__attribute__((always_inline)) inline __m512 value_of(const int32_t (*sums)[kTileRows][16], int r) {
  if constexpr (is_wide(kType)) {
    const __m512i h = _mm512_slli_epi32(load_sums(sums[0], r), 11);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(h, load_sums(sums[1], r)));
  } else {
    const __m512i a = load_sums(sums[3 * kHalf], r);
    const __m512i b = load_sums(sums[3 * kHalf + 1], r);
    const __m512i c = load_sums(sums[3 * kHalf + 2], r);
    if constexpr (kType == WeightType::kQ6_K) {
      const __m512i ab = _mm512_add_epi32(_mm512_slli_epi32(a, 8), b);
      return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(ab, 8), c));
    } else {
      return Avx512Micro::carried_value(a, _mm512_add_epi32(_mm512_slli_epi32(b, 8), c));
    }
  }
}

// M3 of one block for the 16 rows of the panel.
template <WeightType kType>
__attribute__((always_inline)) inline void float_steps(const int32_t (*sums)[kTileRows][16], const float* dx,
                                                       const float* xs, const float (*scales)[16], __m512* acc) {
  constexpr UnitMap kMap = unit_map(kType);
  const __m512 first = _mm512_load_ps(scales[0]);
  const __m512 second = _mm512_load_ps(scales[1]);
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    const __m512 row_dx = _mm512_set1_ps(dx[r]);
    acc[r] = _mm512_fmadd_ps(first, _mm512_mul_ps(row_dx, value_of<kType, 0>(sums, r)), acc[r]);
    if constexpr (kMap.halves == 2) {
      acc[r] = _mm512_fmadd_ps(second, _mm512_mul_ps(row_dx, value_of<kType, 1>(sums, r)), acc[r]);
    }
    if constexpr (kMap.affine) acc[r] = _mm512_fmadd_ps(second, _mm512_set1_ps(xs[r]), acc[r]);
  }
}

// One run of blocks of one panel and one group; continues the chains in `stored`, or starts them at +0.
template <WeightType kType>
void run_blocks(const uint8_t* records, int64_t blocks, const uint8_t (*weights)[2 * kNarrowTile],
                const float (*scales)[2][16], bool start, float (*stored)[16], Scratch& scratch) {
  constexpr int kRecord = is_wide(kType) ? kWideRecord : kNarrowRecord;
  __m512 acc[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) acc[r] = start ? _mm512_setzero_ps() : _mm512_load_ps(stored[r]);
  issue_products<kType>(records, weights[0], scratch.sums[0]);
  for (int64_t b = 0; b < blocks; ++b) {
    if (b + 1 < blocks) {
      issue_products<kType>(records + (b + 1) * kRecord, weights[b + 1], scratch.sums[(b + 1) & 1]);
    }
    const auto* dx = reinterpret_cast<const float*>(records + (b + 1) * kRecord - 128);
    float_steps<kType>(scratch.sums[b & 1], dx, dx + 16, scales[b], acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(stored[r], acc[r]);
}

// M4 and M5 for the rows of a panel that exist: y is where the chunks are added up.
void finish_chunk(const TileTask& task, int64_t group, int64_t row, int64_t rows, const float (*acc)[16],
                  bool first_chunk, bool last_chunk) {
  const int64_t column = group * kGroupRows;
  const int count = task.n - column < kGroupRows ? static_cast<int>(task.n - column) : static_cast<int>(kGroupRows);
  for (int64_t r = 0; r < rows; ++r) {
    float* y = task.y + (row + r) * task.stride_y + column;
    __m512 sum = _mm512_load_ps(acc[r]);
    if (!first_chunk) sum = _mm512_add_ps(simd::Avx512::load_partial(y, count), sum);
    if (last_chunk) {
      Avx512Micro::finish(task, group, row + r, sum);
    } else {
      simd::Avx512::store_partial(y, sum, count);
    }
  }
}

// Asks for the output lines of a panel before its products, so that the stores at the end need not wait for memory.
// Inlined always: GCC 12 drops calls of functions that do nothing but prefetch.
__attribute__((always_inline)) inline void prefetch_outputs(const TileTask& task, int64_t group, int64_t groups,
                                                            int64_t row, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* y = task.y + (row + r) * task.stride_y + group * kGroupRows;
    for (int64_t g = 0; g < groups; ++g) __builtin_prefetch(y + g * kGroupRows, 1);
  }
}

template <WeightType kType>
void multiply_type(const TileTask& task) {
  constexpr UnitMap kMap = unit_map(kType);
  constexpr int kRecord = is_wide(kType) ? kWideRecord : kNarrowRecord;
  constexpr int kTileBytes = is_wide(kType) ? 64 : 32;
  static_assert(kChunkBlocks % kMap.subs == 0);
  auto& scratch = *reinterpret_cast<Scratch*>(task.scratch);
  const TileLayout layout = tile_layout(task.types, task.slab_rows, task.k);
  const uint8_t* records = task.acts + (is_wide(kType) ? 0 : layout.wide_bytes());
  TileShape shape(kTileBytes);
  for (int64_t group = task.group_begin; group < task.group_end; group += kSetGroups) {
    const int64_t groups = task.group_end - group < kSetGroups ? task.group_end - group : kSetGroups;
    for (int64_t chunk = 0; chunk < layout.blocks; chunk += kChunkBlocks) {
      const int64_t blocks = layout.blocks - chunk < kChunkBlocks ? layout.blocks - chunk : kChunkBlocks;
      unpack_set<kType>(task, group, groups, chunk, blocks, scratch);
      for (int64_t row = task.row_begin; row < task.row_end; row += kPanelRows) {
        const int64_t rows = task.row_end - row < kPanelRows ? task.row_end - row : kPanelRows;
        shape.set_rows(static_cast<int>(rows));
        prefetch_outputs(task, group, groups, row, rows);
        const uint8_t* panel = records + (row / kPanelRows * layout.blocks + chunk) * kRecord;
        for (int64_t run = 0; run < blocks; run += kRunBlocks) {
          const int64_t count = blocks - run < kRunBlocks ? blocks - run : kRunBlocks;
          for (int64_t g = 0; g < groups; ++g) {
            run_blocks<kType>(panel + run * kRecord, count, scratch.weights[g] + run, scratch.scales[g] + run, run == 0,
                              scratch.acc[g], scratch);
          }
        }
        for (int64_t g = 0; g < groups; ++g) {
          finish_chunk(task, group + g, row, rows, scratch.acc[g], chunk == 0, chunk + blocks == layout.blocks);
        }
      }
    }
  }
}

// ---- Ops

size_t act_bytes(uint32_t types, int64_t rows, int64_t k) {
  if (rows < kMinRows) return Avx512Micro::act_bytes(types, rows, k);
  const TileLayout layout = tile_layout(types, rows, k);
  return layout.wide_bytes() + layout.narrow_bytes();
}

size_t scratch_bytes(uint32_t /*types*/, int64_t rows) {
  return rows < kMinRows ? 0 : sizeof(Scratch);
}

void quantize(const QuantizeTask& task) {
  if (task.slab_rows < kMinRows) return Avx512Micro::quantize(task);
  const TileLayout layout = tile_layout(task.types, task.slab_rows, task.k);
  for (int64_t row = task.row_begin; row < task.row_end; row += kPanelRows) quantize_panel(task, layout, row);
}

void multiply(const TileTask& task) {
  if (task.slab_rows < kMinRows) return Avx512Micro::multiply(task);
  switch (task.type) {
    case WeightType::kQ4_0:
      return multiply_type<WeightType::kQ4_0>(task);
    case WeightType::kQ4_1:
      return multiply_type<WeightType::kQ4_1>(task);
    case WeightType::kQ5_0:
      return multiply_type<WeightType::kQ5_0>(task);
    case WeightType::kQ5_1:
      return multiply_type<WeightType::kQ5_1>(task);
    case WeightType::kQ8_0:
      return multiply_type<WeightType::kQ8_0>(task);
    case WeightType::kQ4_K:
      return multiply_type<WeightType::kQ4_K>(task);
    case WeightType::kQ5_K:
      return multiply_type<WeightType::kQ5_K>(task);
    case WeightType::kQ6_K:
      return multiply_type<WeightType::kQ6_K>(task);
    default:
      return Avx512Micro::multiply(task);
  }
}

}  // namespace

const Ops kAmxOps = {&act_bytes, &scratch_bytes, &quantize, &multiply, 256};

}  // namespace tessera::gemm
