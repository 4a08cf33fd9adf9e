// The warps of a block alone that score: S = K Q^T (R1), masks (R2), the running maximum (R3), weights (R4, R5),
// granule by granule. What the output warps need of a granule goes into a slot.
//
// Warp w holds the granule's k16 blocks w, w + 4, .. as (16 keys, rows); a lane the keys e and e + 8 of it, e = lane /
// 4, which are of class e (R7), and the rows 2 q and 2 q + 1 of every eight, q = lane mod 4: s[block][eight][2 h + r].
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "contract/exp2.h"
#include "contract/plan.h"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/fmha_decode/alone.h"
#include "kernels/sm90/fmha_decode/fragments.cuh"
#include "kernels/sm90/fmha_decode/modifiers.cuh"
#include "kernels/sm90/fmha_decode/position.cuh"
#include "kernels/sm90/fmha_decode/rows.cuh"
#include "kernels/sm90/fmha_decode/softmax_steps.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "kernels/sm90/fmha_decode/visible.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

// Named barriers: of all warps that score, and behind it one per group of them.
inline constexpr uint32_t kAloneBarrier = 1;

template <class Tag>
class AloneScores {
  using Layout = AloneLayout<Tag>;
  static constexpr int kRows = Layout::kRows;
  static constexpr int kEights = Layout::kEights;
  static constexpr int kTiles = Layout::kTiles;
  static constexpr int kGroups = Layout::kGroups;
  static constexpr bool kBf16 = Tag::kBf16;
  static constexpr bool kModified = Tag::kModified;
  static constexpr bool kTwin = is_twin<Tag>();
  static constexpr int kPieces = Layout::kHeadDim / 8;

 public:
  // `warp` of those that score.
  __device__ __forceinline__ AloneScores(const DecodeArguments& args, uint32_t smem, int warp)
      : args_(args),
        smem_(smem),
        warp_(warp % kAloneWarps),
        group_(static_cast<uint32_t>(warp / kAloneWarps)),
        lane_(static_cast<int>(threadIdx.x % 32)) {
    e_ = lane_ / 4;
    q_ = lane_ % 4;
  }

  __device__ __forceinline__ void run() {
    UnitFinder<Tag> finder(args_);
#pragma unroll 1
    for (int number = static_cast<int>(blockIdx.x) / Layout::kShare;; number += static_cast<int>(gridDim.x)) {
      const Unit unit = finder.find(number);
      if (uniform(unit.batch) < 0) {
        return;
      }
      const UnitKeys<Tag> keys(unit);
      const Pages pages(args_, unit);
      begin(unit);
      if (Layout::kShare > 1) {
        cluster_wait();
      }
      const int rank = Layout::kShare == 1 ? 0 : static_cast<int>(cluster_rank());
      int granule = 0;  // of the unit
#pragma unroll 1
      for (int first = keys.begin; first < keys.end; first += Layout::kRound) {
        const int own = first + rank * Layout::kGranule;
        if (Layout::kShare == 1 || own < keys.end) {
          if (kGroups == 1 || turn_.stage == group_) {
            score(pages, own, granule + rank);
          } else {
            skip();
          }
        }
        turn_.advance();
        granule += Layout::kShare;
        if (first > keys.begin) {
          skip();
        }
      }
      if (Layout::kShare > 1) {
        replay_others(keys.granules());  // what the other block sends has come before this one leaves
        return;
      }
      if (keys.begin < keys.end) {
        skip();
      }
    }
  }

 private:
  using Modifiers = ScoreModifiers<has_segments<Tag>()>;
  struct None {};

  __device__ __forceinline__ void score(const Pages& pages, int first_key, int granule) {
    slot_ = Layout::kShare == 1 ? turn_.stage : static_cast<uint32_t>(granule);
    float s[kTiles][kEights][4];
    multiply(s, pages, first_key);
    float a[2 * kEights];
    float offset[2 * kEights];
    maxima(s, a, offset, granule);
    if (Layout::kShare == 1) {
      barrier_wait(smem_ + Layout::kSlotEmpty + 8 * slot_, turn_.parity ^ 1U);
    }
    __syncwarp();
    weigh(s, offset);
    hand_over(a);
  }

  __device__ __forceinline__ static void meet_all() {
    __syncwarp();
    named_barrier_sync(kAloneBarrier, 32 * kGroups * kAloneWarps);
  }
  __device__ __forceinline__ void meet() const {
    __syncwarp();
    if (kGroups == 1) {
      named_barrier_sync(kAloneBarrier, 32 * kAloneWarps);
    } else if (group_ == 0) {
      named_barrier_sync(kAloneBarrier + 1, 32 * kAloneWarps);
    } else {
      named_barrier_sync(kAloneBarrier + 2, 32 * kAloneWarps);
    }
  }

  // Q, limits of R2, and no maximum yet.
  __device__ __forceinline__ void begin(const Unit& unit) {
    if (kGroups > 1) {
      meet_all();  // with one group, maxima() has been behind every use of the last Q
    }
    const auto group = static_cast<int>(args_.group.value);
#pragma unroll 1
    for (int i = 32 * (static_cast<int>(group_) * kAloneWarps + warp_) + lane_; i < kRows * kPieces;
         i += 32 * kGroups * kAloneWarps) {
      const int row = unit.first_row + i / kPieces;
      const int dim = i % kPieces * 8;
      const int token = divide(row, args_.group);
      const int64_t head = unit.kv_head * group + row - token * group;
      const int first_dim =
          kTwin && 2 * (row - token * group) >= group ? Layout::kHeadDim / 2 : 0;  // of the row's head
      uint4 piece = make_uint4(0, 0, 0, 0);
      if (token < args_.seqlen_q && (kTwin ? dim / (Layout::kHeadDim / 2) == first_dim / (Layout::kHeadDim / 2)
                                           : dim < (Tag::kTwoDims ? args_.qk_dims : args_.dims))) {
        piece = *reinterpret_cast<const uint4*>(args_.q + unit.batch * args_.q_strides.batch +
                                                token * args_.q_strides.token + head * args_.q_strides.head + dim -
                                                first_dim);
      }
      store_piece(smem_ + Layout::kQ +
                      static_cast<uint32_t>(i / kPieces * Layout::kRowBytes + (i % kPieces ^ i / kPieces % 8) * 16),
                  piece);
    }
    if constexpr (kModified) {
      modifiers_ = Modifiers(args_, unit);
    } else if constexpr (has_segments<Tag>()) {
      visible_ = VisibleKeys<kRows>::of_segment(args_, unit.first_row, unit.position, unit.keys);
    } else {
      visible_ = VisibleKeys<kRows>(args_, unit);
    }
    if constexpr (kTwin) {
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
        const int row = unit.first_row + 8 * (i / 2) + 2 * q_ + i % 2;
        second_[i] = 2 * (row - divide(row, args_.group) * group) >= group;
      }
    }
#pragma unroll
    for (float& m : m_) {
      m = minus_infinity();
    }
    meet_all();
  }

  // Of a step of the head dim, two pieces of a row of K or Q: as rows are aligned to their length, it and the swizzle
  // are both flips of address bits; rows of 192 dims are aligned to 128 bytes only.
  static __device__ __forceinline__ uint32_t at_step(uint32_t row, int step) {
    constexpr int kFlips = std::has_single_bit(static_cast<uint32_t>(Layout::kRowBytes)) ? Layout::kRowBytes : 128;
    return (row ^ static_cast<uint32_t>(32 * step % kFlips)) + static_cast<uint32_t>(32 * step / kFlips * kFlips);
  }

  // R1 and R2.
  __device__ __forceinline__ void multiply(float (&s)[kTiles][kEights][4], const Pages& pages, int first_key) {
    int32_t entries[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = first_key + 16 * (warp_ + kAloneWarps * t) + e_ + 8 * h;
        entries[t][h] = pages.ask(key);
      }
    }
    [[maybe_unused]] uint32_t sees = 0;
    if constexpr (kModified) {
      sees = sight(pages, entries, first_key);
    }
    uint32_t keys[kTiles];  // of the lane's row of matrices
    uint32_t stages[Layout::kGranuleStages];
#pragma unroll
    for (int i = 0; i < Layout::kGranuleStages; ++i) {
      barrier_wait(smem_ + Layout::kFull + 8 * at_.stage, at_.parity);
      stages[i] = at_.stage;
      at_.advance();
    }
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int block = warp_ + kAloneWarps * t;
      uint32_t stage = stages[0];
#pragma unroll
      for (int i = 1; i < Layout::kGranuleStages; ++i) {
        stage = block * 16 >= i * Layout::kStageKeys ? stages[i] : stage;
      }
      const int row = block * 16 % Layout::kStageKeys;
      keys[t] = smem_ + Layout::kRing + stage * Layout::kStageBytes +
                static_cast<uint32_t>((row + lane_ % 16) * Layout::kRowBytes + (lane_ / 16 ^ lane_ % 8) * 16);
#pragma unroll
      for (auto& eight : s[t]) {
#pragma unroll
        for (float& x : eight) {
          x = 0.0F;
        }
      }
    }
    [[maybe_unused]] float first_head[kTiles][kEights][4];  // with two heads: products of the first one
    // Of Q, matrices of eight rows: halves of two steps, or of one step and two eights.
    const uint32_t queries =
        smem_ + Layout::kQ +
        static_cast<uint32_t>(kEights == 1 ? lane_ % 8 * Layout::kRowBytes + (lane_ / 8 ^ lane_ % 8) * 16
                                           : (lane_ % 8 + lane_ / 16 * 8) * Layout::kRowBytes +
                                                 (lane_ / 8 % 2 ^ lane_ % 8) * 16);
#pragma unroll
    for (int step = 0; step < Layout::kHeadDim / 16; step += 2) {
      if constexpr (kTwin) {
        if (step == Layout::kHeadDim / 32) {
          restart(s, first_head);
        }
      }
      uint32_t b[4];
      uint32_t b_second[4];
      load_matrices(b, at_step(queries, step));
      if constexpr (kEights == 2) {
        load_matrices(b_second, at_step(queries, step + 1));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          uint32_t a[4];
          load_matrices(a, at_step(keys[t], step + half));
          if constexpr (kEights == 1) {
            multiply_block<kBf16>(s[t][0], a, b[2 * half], b[2 * half + 1]);
          } else {
            const uint32_t(&both)[4] = half == 0 ? b : b_second;
            multiply_block<kBf16>(s[t][0], a, both[0], both[1]);
            multiply_block<kBf16>(s[t][kEights - 1], a, both[2], both[3]);
          }
        }
      }
    }
#pragma unroll
    for (const uint32_t stage : stages) {
      barrier_arrive(smem_ + Layout::kEmpty + 8 * stage);
    }
    if constexpr (kTwin) {
      choose(s, first_head);
    }
    if constexpr (kModified) {
      if (args_.natural != 0) {
        make_natural(s, first_key);
      }
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
#pragma unroll
        for (int n = 0; n < 2 * kTiles; ++n) {
          float& x = s[n / 2][i / 2][2 * (n % 2) + i % 2];
          x = (sees >> (2 * kTiles * i + n) & 1U) != 0 ? x : minus_infinity();
        }
      }
    } else {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int key = first_key + 16 * (warp_ + kAloneWarps * t) + e_;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const bool there = pages.exists(entries[t][h]);
#pragma unroll
          for (int i = 0; i < 2 * kEights; ++i) {
            float& x = s[t][i / 2][2 * h + i % 2];
            x = there && visible_.sees(i, key + 8 * h) ? x : minus_infinity();
          }
        }
      }
    }
  }

  // With two heads: products of the first one are kept apart, so that no number of a head, not even a NaN, gets into
  // the other's; then every row takes its own head's.
  static __device__ __forceinline__ void restart(float (&s)[kTiles][kEights][4],
                                                 float (&first_head)[kTiles][kEights][4]) {
#pragma unroll
    for (int n = 0; n < kTiles * kEights * 4; ++n) {
      first_head[n / 4 / kEights][n / 4 % kEights][n % 4] = s[n / 4 / kEights][n / 4 % kEights][n % 4];
      s[n / 4 / kEights][n / 4 % kEights][n % 4] = 0.0F;
    }
  }
  __device__ __forceinline__ void choose(float (&s)[kTiles][kEights][4],
                                         const float (&first_head)[kTiles][kEights][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles * kEights * 4; ++n) {
      const int eight = n / 4 % kEights;
      float& x = s[n / 4 / kEights][eight][n % 4];
      x = second_[2 * eight + n % 2] ? x : first_head[n / 4 / kEights][eight][n % 4];
    }
  }

  // R2 with custom bits: which of the lane's scores are seen, bit 2 kTiles i + n of row i and the n-th of the lane's
  // keys.
  __device__ __forceinline__ uint32_t sight(const Pages& pages, const int32_t (&entries)[kTiles][2], int first_key) {
    constexpr int kKeys = 2 * kTiles;
    const VisibleKeys<kRows> visible = modifiers_.template visible<kRows>(args_);
    int keys[kKeys];
    uint32_t sees = 0;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      keys[n] = first_key + 16 * (warp_ + kAloneWarps * (n / 2)) + e_ + 8 * (n % 2);
      const bool there = pages.exists(entries[n / 2][n % 2]);
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
        sees |= static_cast<uint32_t>(there && visible.sees(i, keys[n])) << (kKeys * i + n);
      }
    }
    if (modifiers_.covers(first_key + Layout::kGranule)) {
#pragma unroll
      for (int i = 0; i < 2 * kEights; ++i) {
        const typename Modifiers::Row row = modifiers_.row(args_, 8 * (i / 2) + 2 * q_ + i % 2);
        sees &= ~(modifiers_.hidden(row, keys, sees >> (kKeys * i)) << (kKeys * i));
      }
    }
    seen_ = 0;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      seen_ |= sees >> (kKeys * i);
    }
    // What rows of other lanes see.
    seen_ |= __shfl_xor_sync(kAllLanes, seen_, 1);
    seen_ |= __shfl_xor_sync(kAllLanes, seen_, 2);
    return sees;
  }

  // Softcap and ALiBi of R1.
  __device__ __forceinline__ void make_natural(float (&s)[kTiles][kEights][4], int first_key) const {
    constexpr int kQuads = kTiles * kEights;
    constexpr int kAtOnce = kQuads < 2 ? 1 : 2;
    // Registers cannot be indexed: the loop works on the first ones, and the others move round.
#pragma unroll 1
    for (int n = 0; n < kQuads; n += kAtOnce) {
      float x[4 * kAtOnce];
#pragma unroll
      for (int i = 0; i < 4 * kAtOnce; ++i) {
        x[i] = __fmul_rn(s[i / 4 / kEights][i / 4 % kEights][i % 4], args_.softmax_scale);
      }
      if (args_.softcap != 0.0F) {
        cap_scores(x, args_.softcap, args_.softcap_inverse);
      }
      if (args_.alibi_slopes != nullptr) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int key = first_key + 16 * (warp_ + kAloneWarps * ((n + i) / kEights)) + e_;
          const int in_tile = 8 * ((n + i) % kEights) + 2 * q_;
          const typename Modifiers::Row rows[] = {modifiers_.row(args_, in_tile), modifiers_.row(args_, in_tile + 1)};
          modifiers_.add_slopes(rows, key, x + 4 * i);
        }
      }
#pragma unroll
      for (int i = 0; i < 4 * kAtOnce; ++i) {
        s[i / 4 / kEights][i / 4 % kEights][i % 4] = x[i];
      }
      if (kQuads > kAtOnce) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          rotate(s);
        }
      }
    }
  }
  static __device__ __forceinline__ void rotate(float (&s)[kTiles][kEights][4]) {
    constexpr int kQuads = kTiles * kEights;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float first = s[0][0][i];
#pragma unroll
      for (int n = 0; n + 1 < kQuads; ++n) {
        s[n / kEights][n % kEights][i] = s[(n + 1) / kEights][(n + 1) % kEights][i];
      }
      s[kTiles - 1][kEights - 1][i] = first;
    }
  }

  // R3: what happens to m in the granule.
  __device__ __forceinline__ void maxima(const float (&s)[kTiles][kEights][4], float (&a)[2 * kEights],
                                         float (&offset)[2 * kEights], int granule) {
    // Two places per group: a warp writes the next ones while others may still read.
    const uint32_t place = kGroups == 1 ? turn_.stage : 2 * turn_.stage + turn_.parity;
    const uint32_t maxima_at = smem_ + Layout::kMaxima + place * Layout::kMaximaBytes;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float2 mu = {fmaxf(s[0][i][0], s[0][i][2]), fmaxf(s[0][i][1], s[0][i][3])};
#pragma unroll
      for (int t = 1; t < kTiles; ++t) {
        mu = {fmaxf(mu.x, fmaxf(s[t][i][0], s[t][i][2])), fmaxf(mu.y, fmaxf(s[t][i][1], s[t][i][3]))};
      }
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        mu.x = fmaxf(mu.x, __shfl_xor_sync(kAllLanes, mu.x, lanes));
        mu.y = fmaxf(mu.y, __shfl_xor_sync(kAllLanes, mu.y, lanes));
      }
      if (e_ == 0) {
        store_pair(maxima_at + static_cast<uint32_t>(4 * (warp_ * kRows + 8 * i + 2 * q_)), mu);
      }
    }
    meet();
    float u[2 * kEights];
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      float2 mu = load_pair(maxima_at + static_cast<uint32_t>(4 * (8 * i + 2 * q_)));
#pragma unroll
      for (int w = 1; w < kAloneWarps; ++w) {
        const float2 part = load_pair(maxima_at + static_cast<uint32_t>(4 * (w * kRows + 8 * i + 2 * q_)));
        mu = {fmaxf(mu.x, part.x), fmaxf(mu.y, part.y)};
      }
      u[2 * i] = integer_above(mu.x, args_.c);
      u[2 * i + 1] = integer_above(mu.y, args_.c);
    }
    if constexpr (Layout::kShare > 1) {
      send_highest(u);
      replay_others(granule);
    } else if (kGroups > 1 && granule > 0) {
      take_running();
    }
    float before[2 * kEights];
#pragma unroll
    for (int row = 0; row < 2 * kEights; ++row) {
      before[row] = m_[row];
      m_[row] = u[row] > __fadd_rn(before[row], kLazyThreshold) ? u[row] : before[row];
    }
    if (kGroups > 1 && Layout::kShare == 1) {
      leave_running();
    }
#pragma unroll
    for (int row = 0; row < 2 * kEights; ++row) {
      // O and l are zero before
      a[row] = before[row] == minus_infinity() ? 1.0F : drop_weight(__fsub_rn(m_[row], before[row]));
      offset[row] = __fsub_rn(args_.bias, m_[row] == minus_infinity() ? 0.0F : m_[row]);
    }
  }

  // m of R3 goes from group to group. A place is written again when all warps of the other group have left theirs of
  // the granule between, which is behind their look at it.
  __device__ __forceinline__ void take_running() {
    const uint32_t other = group_ ^ 1U;
    const uint32_t parity = group_ == 0 ? turn_.parity ^ 1U : turn_.parity;
    barrier_wait(smem_ + Layout::kRunningFull + 8 * other, parity);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float2 m = load_pair(running(other, i));
      m_[2 * i] = m.x;
      m_[2 * i + 1] = m.y;
    }
  }
  __device__ __forceinline__ void leave_running() const {
    if (warp_ == 0 && e_ == 0) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        store_pair(running(group_, i), {m_[2 * i], m_[2 * i + 1]});
      }
    }
    barrier_arrive(smem_ + Layout::kRunningFull + 8 * group_);
  }

  // Where blocks share a unit: u of the granule, to all of them; and R3 over those since the group's last one.
  __device__ __forceinline__ void send_highest(const float (&u)[2 * kEights]) const {
    if (warp_ == 0 && e_ < Layout::kShare) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        send(in_block(running(slot_, i), static_cast<uint32_t>(e_)),
             in_block(smem_ + Layout::kRunningFull + 8 * slot_, static_cast<uint32_t>(e_)),
             make_float2(u[2 * i], u[2 * i + 1]));
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void replay_others(int granule) {
#pragma unroll 1
    for (; next_ < granule; ++next_) {
      barrier_wait(smem_ + Layout::kRunningFull + 8 * static_cast<uint32_t>(next_), 0);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const float2 u = load_pair(running(static_cast<uint32_t>(next_), i));
        m_[2 * i] = u.x > __fadd_rn(m_[2 * i], kLazyThreshold) ? u.x : m_[2 * i];
        m_[2 * i + 1] = u.y > __fadd_rn(m_[2 * i + 1], kLazyThreshold) ? u.y : m_[2 * i + 1];
      }
    }
    ++next_;
  }

  // `group`, or the granule.
  __device__ __forceinline__ uint32_t running(uint32_t group, int eight) const {
    return smem_ + Layout::kRunning + group * (4 * kRows) + static_cast<uint32_t>(4 * (8 * eight + 2 * q_));
  }

  // R4, R5, and t of R7.
  __device__ __forceinline__ void weigh(const float (&s)[kTiles][kEights][4],
                                        const float (&offset)[2 * kEights]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int block = warp_ + kAloneWarps * t;
      if constexpr (kModified) {
        if (q_ < 2) {
          store_half(slot() + Layout::kSeen + static_cast<uint32_t>(2 * (16 * block + e_ + 8 * q_)),
                     (seen_ >> (2 * t + q_) & 1U) != 0 ? 0xffffU : 0U);
        }
      }
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float p[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          p[n] = exp2_approx(__fmaf_rn(s[t][i][n], args_.c, offset[2 * i + n % 2]));
        }
        store_pair(slot() + Layout::kSums +
                       static_cast<uint32_t>(4 * ((block * kDecodeClasses + e_) * kRows + 8 * i + 2 * q_)),
                   {__fadd_rn(p[0], p[2]), __fadd_rn(p[1], p[3])});
        store_transposed(slot() + Layout::kP + static_cast<uint32_t>(block * 32 * kRows + 256 * i + lane_ % 16 * 16),
                         round_pair<kElementOf<kBf16>>(p[0], p[1]), round_pair<kElementOf<kBf16>>(p[2], p[3]));
      }
    }
  }

  __device__ __forceinline__ uint32_t slot() const {
    return smem_ + Layout::kSlots + slot_ * Layout::kSlotBytes;
  }

  // a and m go with the weights.
  __device__ __forceinline__ void hand_over(const float (&a)[2 * kEights]) {
    if (warp_ == 0 && e_ == 0) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const uint32_t rows = slot() + static_cast<uint32_t>(4 * (8 * i + 2 * q_));
        store_pair(rows + Layout::kFactors, {a[2 * i], a[2 * i + 1]});
        store_pair(rows + Layout::kMaximum, {m_[2 * i], m_[2 * i + 1]});
      }
    }
    if (Layout::kShare > 1) {
      fence_async_proxy();
    }
    barrier_arrive(smem_ + Layout::kSlotFull + 8 * slot_);
    if (Layout::kShare > 1 && warp_ == 0) {
      barrier_wait(smem_ + Layout::kSlotFull + 8 * slot_, 0);
      if (lane_ == 0) {
        const uint32_t other = cluster_rank() ^ 1U;
        copy_to_block(in_block(slot(), other), slot(), Layout::kSlotBytes,
                      in_block(smem_ + Layout::kSlotFull + 8 * slot_, other));
      }
      __syncwarp();
    }
  }

  // Stages that are not for these warps: V of the granule before, or of the last one (alone_copy.cuh); K of the other
  // group.
  __device__ __forceinline__ void skip() {
#pragma unroll
    for (int i = 0; i < Layout::kGranuleStages; ++i) {
      at_.advance();
    }
  }

  const DecodeArguments& args_;
  uint32_t smem_;
  int warp_;  // of the group
  uint32_t group_;
  int lane_, e_, q_;
  StageAt<Layout::kStages> at_;
  StageAt<2> turn_;    // of the groups, or slots
  uint32_t slot_ = 0;  // of the granule
  int next_ = 0;       // granule whose u is not in m yet
  std::conditional_t<kModified, None, VisibleKeys<kRows>> visible_;
  std::conditional_t<kModified, Modifiers, None> modifiers_;
  std::conditional_t<kTwin, bool[2 * kEights], None> second_;  // whether the lane's rows are the second head's
  uint32_t seen_;  // of modified scores: bit n, some row sees the n-th of the lane's keys
  float m_[2 * kEights];
};

}  // namespace tessera::sm90
