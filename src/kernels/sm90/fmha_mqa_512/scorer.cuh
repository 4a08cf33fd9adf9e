// The warpgroup that scores: R1 to R5 and R7 of every granule, one behind the other.
#pragma once

#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/softmax.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace tessera::sm90 {

// Four 8 by 8 matrices of 16-bit elements; lane 8 j + r gives the address of row r of matrix j.
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}

template <class Tag>
class MqaScorer {
  using Layout = MqaLayout<Tag::kHeadDim>;
  using Words = MqaTileWords;
  using Flags = MqaGranuleFlags;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kBlocks = Layout::kGranule / 16;  // k16 blocks of a granule
  static constexpr int kScores = Layout::kGranule / 2;   // fp32 per thread
  static constexpr int kStepsOfPanel = kPanelColumns / 16;
  static constexpr uint32_t kBarrier = 2;  // named barrier of the warpgroup

  using Scores = float[kScores];  // S, then p

 public:
  __device__ __forceinline__ MqaScorer(const MqaArguments& args, uint32_t shared) : args_(args), shared_(shared) {}

  __device__ __forceinline__ void run() {
    uint32_t granules = 0;  // so far
    ChunkRows rows;
#pragma unroll 1
    for (uint32_t round = 0; static_cast<int>(blockIdx.x + round * gridDim.x) < args_.total_items; ++round) {
      barrier_wait(shared_ + Layout::kQFull, round % 2);
      fence_async_proxy();
      tile_ = MqaTile::at<Layout>(shared_, round);
      if (uniform(tile_.get(Words::kWork)) != Words::kKeys) {
        barrier_arrive(shared_ + Layout::kQEmpty);
        continue;
      }
      int ends;
#pragma unroll 1
      do {
        ends = granule(rows, granules % Layout::kBuffers, granules / Layout::kBuffers % 2);
        ++granules;
      } while (ends != 1 + kMqaFinish);
    }
  }

 private:
  __device__ __forceinline__ static int thread() {
    return thread_index() & 127;  // and not %, which minds negative numbers
  }

  // The granule in a buffer; returns 1 + where the chunk goes that ends with it.
  __device__ __forceinline__ int granule(ChunkRows& rows, uint32_t buffer, uint32_t parity) const {
    Scores s;
    score(s, buffer, parity);
    const int4 description = load_shared_int4(shared_ + Layout::kGranules + buffer * 16);
    const int flags = uniform(description.x);
    const int ends = flags >> Flags::kEndShift;
    if (ends == 1 + kMqaFinish) {
      barrier_arrive(shared_ + Layout::kQEmpty);
    }
    if ((flags & Flags::kMasked) != 0) {
      mask(s, description.y, description.z, buffer);
    }
    if ((flags & Flags::kFresh) != 0) {
      rows.clear();
    }
    weigh(s, rows, flags, buffer);
    return ends;
  }

  // R1.
  __device__ __forceinline__ void score(Scores& s, uint32_t buffer, uint32_t parity) const {
    const uint64_t q = tile_descriptor<KMajorTile>(shared_ + Layout::kQ);
    const uint64_t k = tile_descriptor<KMajorTile>(shared_ + Layout::kKeys + buffer * Layout::kBufferBytes);
    const uint32_t full = shared_ + Layout::kFull + 8 * Layout::kGroups * buffer;
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      if (Layout::begins_group(panel)) {
        barrier_wait(full + 8 * Layout::group_of(panel), parity);
        fence_async_proxy();
        wgmma_fence();
      }
#pragma unroll
      for (int i = 0; i < kStepsOfPanel; ++i) {
        const int step = panel * kStepsOfPanel + i;
        if (step == 0) {
          wgmma_ss_first<kElement>(s, q, k);
        } else {
          wgmma_ss_next<kElement>(s, KMajorTile::step(q, Layout::kRows, step),
                                  KMajorTile::step(k, Layout::kGranule, step));
        }
      }
      if (Layout::ends_group(panel)) {
        wgmma_commit();
      }
    }
    wgmma_wait<0>();
    pin_registers(s);
  }

  // One step of R3 with a granule's largest score: m moves on; returns a.
  __device__ __forceinline__ float move(float& m, float mu) const {
    const float u = ceil_of_product(mu, args_.c);
    const float after = u > __fadd_rn(m, kLazyThreshold) ? u : m;
    // Without any key so far O and l are 0, whatever they are multiplied with.
    const float a = after == minus_infinity() ? 1.0F : power_of_drop(__fsub_rn(m, after));
    m = after;
    return a;
  }

  // R3 to R5 and R7; P, a of R3, the flags, and m and l of a chunk that ends go to shared memory.
  __device__ __forceinline__ void weigh(Scores& s, ChunkRows& rows, int flags, uint32_t buffer) const {
    float mu[kRowsPerThread];
    find_maxima(s, mu);
    const float a[kRowsPerThread] = {move(rows.m[0], mu[0]), move(rows.m[1], mu[1])};
    float offset[kRowsPerThread];
    weight_offsets(rows, args_.bias, offset);
    GranuleSums sums;
    const int t = thread();
    const int lane = t % 32;
    const uint32_t weights = shared_ + Layout::kWeights + buffer * Layout::kWeightStep;
    const int row = t / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
    if (Layout::kWeightsOverKeys) {
      named_barrier_sync(kBarrier, 128);  // all warps have their scores
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      weigh_block(&s[8 * block], block == 0, offset, args_.c, sums);
      uint32_t p[4];
      round_block<kElement>(&s[8 * block], p);
      store_matrices(weights + swizzled_offset(Layout::kRows, row, 16 * block + lane / 16 * 8), p);
    }
    add_sums(rows, a, sums);
    if (t % 4 == 0) {
      store_pair(shared_ + Layout::kFactors + buffer * Layout::kFactorBytes + t / 4 * 8, make_float2(a[0], a[1]));
    }
    if (t == 0) {
      store_shared(shared_ + Layout::kFlags + buffer * 16, flags);
    }
    if (flags >> Flags::kEndShift != 0) {
      const float l[kRowsPerThread] = {sum_classes(rows.l[0]), sum_classes(rows.l[1])};
      if (t % 4 == 0) {
        store_piece(shared_ + Layout::kClosed + buffer * Layout::kClosedBytes + t / 4 * 16,
                    make_uint4(__float_as_uint(rows.m[0]), __float_as_uint(rows.m[1]), __float_as_uint(l[0]),
                               __float_as_uint(l[1])));
      }
    }
    fence_async_proxy();
    barrier_arrive(shared_ + Layout::kWeightsFull + 8 * buffer);
  }

  // Which of a thread's keys, 8 j + e (e = 0, 1) from its first one on, lie before `end`: bits 2 j + e.
  __device__ __forceinline__ static uint32_t keys_before(int end) {
    const int inside = min(max(end, 0), Layout::kGranule);
    return (1U << (inside / 8 * 2 + min(inside % 8, 2))) - 1U;
  }
  // R2 of a granule of which some row does not see all.
  __device__ __forceinline__ void mask(Scores& s, int number, int granule, uint32_t buffer) const {
    const MqaSegment& segment = args_.segments[number];
    const int t = thread();
    uint32_t present = ~0U;
    if (segment.page_table != nullptr && segment.sorted == nullptr) {
      const uint32_t absent = shared_ + Layout::kAbsent + buffer * Layout::kAbsentBytes + t % 4 * 2;
#pragma unroll
      for (int j = 0; j < Layout::kGranule / 8; ++j) {
        uint16_t bytes;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bytes) : "r"(absent + 8 * j) : "memory");
        present &= ~(((bytes & 1U) | (bytes >> 7 & 2U)) << 2 * j);
      }
    }
    const int first_key = granule * Layout::kGranule + t % 4 * 2;
    MqaSight sight{tile_.get(number, Words::kFirstKey), tile_.get(number, Words::kStopKey)};
    const bool alone = uniform(tile_.get(Words::kAlone)) != 0;
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      if (!alone) {
        const int row = tile_.get(Words::kFirstRow) + t / 32 * 16 + t % 32 / 4 + 8 * h;
        const int64_t token = tile_.get(Words::kToken) + divide(row, args_.heads);
        sight = mqa_sight(segment, tile_.get(number, Words::kPosition) + token, tile_.get(number, Words::kLength));
      }
      const uint32_t seen = present & keys_before(sight.end - first_key) & ~keys_before(sight.first - first_key);
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        float& x = s[i / 2 * 4 + 2 * h + i % 2];
        x = (seen >> i & 1U) != 0 ? x : minus_infinity();
      }
    }
  }

  __device__ __forceinline__ static void find_maxima(const Scores& s, float (&mu)[kRowsPerThread]) {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      float largest[2] = {fmaxf(s[2 * h], s[2 * h + 1]), fmaxf(s[4 + 2 * h], s[5 + 2 * h])};
#pragma unroll
      for (int n = 2; n < kScores / 4; ++n) {
        largest[n % 2] = fmaxf(largest[n % 2], fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
      }
      mu[h] = fmaxf(largest[0], largest[1]);
#pragma unroll
      for (int lanes = 1; lanes <= 2; lanes *= 2) {
        mu[h] = fmaxf(mu[h], __shfl_xor_sync(kAllLanes, mu[h], lanes));
      }
    }
  }

  const MqaArguments& args_;
  uint32_t shared_;
  MqaTile tile_{};
};

}  // namespace tessera::sm90
