// A consumer: the scores of every other granule, and 256 output columns over all of them. Which granules and columns is
// known at compile time only where that changes instructions: both consumers run what else there is, so that it is in
// the instruction cache once.
#pragma once

#include "kernels/sm90/fmha_mqa_512/finish.cuh"
#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/softmax.cuh"
#include "kernels/sm90/wgmma_values.cuh"

namespace tessera::sm90 {

// Four 8 by 8 matrices of 16-bit elements; lane 8 j + r gives the address of row r of matrix j.
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}

template <class Tag>
class MqaConsumer {
  using Layout = MqaLayout<Tag::kHeadDim>;
  using Words = MqaTileWords;
  using Flags = MqaPairFlags;
  using Chain = MqaChain<Tag>;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kBlocks = Layout::kGranule / 16;  // k16 blocks of a granule
  static constexpr int kScores = Layout::kGranule / 2;   // fp32 per thread
  static constexpr int kOutputs = Layout::kColumns / 2;  // fp32 per thread
  static constexpr int kStepsOfPanel = kPanelColumns / 16;
  static constexpr uint32_t kBarrier = 2;  // named barrier of the first consumer's warpgroup

  using Sums = float[kRowsPerThread][kClassesPerThread];
  using Scores = float[kScores];  // of the own granule: S, then p
  struct Fragments {
    float o[kOutputs];  // of the chunk
    MqaClosed rows;     // of the chunk: m = -Inf: none
  };

 public:
  __device__ __forceinline__ MqaConsumer(const MqaArguments& args, uint32_t shared, int consumer)
      : args_(args), shared_(shared), consumer_(consumer) {}

  __device__ __forceinline__ void run() {
    Fragments f;
    const Chain chain(args_, shared_, consumer_);
#pragma unroll 1
    for (uint32_t round = 0; static_cast<int>(blockIdx.x + round * gridDim.x) < args_.total_items; ++round) {
      barrier_wait(base() + Layout::kQFull, round % 2);
      fence_async_proxy();
      tile_ = MqaTile::at<Layout>(base(), round);
      const int work = uniform(tile_.get(Words::kWork));
      if (work == Words::kKeys) {
        attend(f, chain);
      } else {
        release(base() + Layout::kQEmpty);
        if (work == Words::kNothing) {
          chain.store_nothing(tile_);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static int thread() {
    return thread_index() & 127;  // and not %, which minds negative numbers
  }
  // Opaque, so that addresses are computed where they are used rather than kept.
  __device__ __forceinline__ uint32_t base() const {
    return static_cast<uint32_t>(opaque(static_cast<int>(shared_)));
  }
  __device__ __forceinline__ uint32_t first_turn() const {
    return bits_ & 1U;
  }
  // Every lane for what it has read or stored: racecheck orders an arrival by nothing else.
  __device__ __forceinline__ static void release(uint32_t barrier) {
    barrier_arrive(barrier);
  }
  __device__ __forceinline__ uint32_t weights_full(int buffer) const {
    return base() + Layout::kWeightsFull + 8 * buffer;
  }
  // For the four threads of two rows.
  __device__ __forceinline__ uint32_t maxima_at(int buffer) const {
    return base() + Layout::kMaxima + buffer * Layout::kMaximaBytes + thread() / 4 * 16;
  }
  __device__ __forceinline__ uint32_t sums_at(int buffer) const {
    return base() + Layout::kSums + buffer * Layout::kSumBytes + 16 * thread();
  }

  __device__ __forceinline__ void attend(Fragments& f, const Chain& chain) {
    bits_ &= kTurns;
    int to;
#pragma unroll 1
    do {
#pragma unroll
      for (int h = 0; h < kRowsPerThread; ++h) {
        f.rows.m[h] = minus_infinity();
        f.rows.l[h][0] = f.rows.l[h][1] = 0.0F;
      }
      to = consumer_ == 0 ? chunk<0>(f) : chunk<1>(f);
      close(f, chain, to);
    } while (to != Chain::kFinish);
  }

  // The pairs of a chunk (R8); returns where it goes.
  template <int kConsumer>
  __device__ __forceinline__ int chunk(Fragments& f) {
    int to;
    bool keep = false;
#pragma unroll 1
    do {
      const int4 pair = describe();
      const int flags = uniform(pair.x);
      const bool second = (flags & Flags::kSecond) != 0;
      Scores s;
      if (kConsumer == 0) {
        score<0>(s, flags);
        weigh<0>(s, f.rows, (flags & Flags::kFirstMasked) != 0, pair.y, pair.z, [] {});
        multiply_own<0>(f, s, keep);
        end(f, 0, 0);
        if (second) {
          multiply_other<0>(f, true);
          end(f, 1, 0);
        }
      } else if (second) {
        score<1>(s, flags);
        multiply_other<1>(f, keep);
        weigh<1>(s, f.rows, (flags & Flags::kSecondMasked) != 0, pair.y, pair.z + 1, [&] { end(f, 0, 1); });
        multiply_own<1>(f, s, true);
        end(f, 1, 1);
      } else {
        release_queries(flags);
        multiply_other<1>(f, keep);
        end(f, 0, 1);
      }
      keep = true;
      to = behind(flags);
    } while (to < 0);
    return to;
  }

  // The description of the pair that follows what has been given back.
  __device__ __forceinline__ int4 describe() const {
    barrier_wait(base() + Layout::kPairFull + 8 * first_turn(), bits_ >> kPairShift & 1U);
    return load_shared_int4(base() + Layout::kPairs + first_turn() * 16);
  }
  // Where the chunk goes if a pair with these flags was its last one, else negative.
  __device__ __forceinline__ int behind(int flags) const {
    if ((flags & Flags::kLast) != 0) {
      return Chain::kFinish;
    }
    return (uniform(describe().x) >> Flags::kLevelShift) - 1;
  }
  __device__ __forceinline__ void release_queries(int flags) const {
    if ((flags & Flags::kLast) != 0) {
      release(base() + Layout::kQEmpty);
    }
  }
  __device__ __forceinline__ void close(Fragments& f, const Chain& chain, int to) {
    uint32_t used = bits_ >> kUsedShift;
    chain.close(f.o, f.rows, to, used, tile_);
    bits_ = (bits_ & kTurns) | used << kUsedShift;
  }

  // R1 of the own granule, behind which Q is given back if the pair with these flags is the tile's last one.
  template <int kConsumer>
  __device__ __forceinline__ void score(Scores& s, int flags) const {
    const uint64_t q = tile_descriptor<KMajorTile>(base() + Layout::kQ);
    const uint64_t k = tile_descriptor<KMajorTile>(base() + Layout::kKeys + kConsumer * Layout::kBufferBytes);
    const uint32_t full = base() + Layout::kFull + 8 * Layout::kGroups * kConsumer;
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      if (Layout::begins_group(panel)) {
        barrier_wait(full + 8 * Layout::group_of(panel), bits_ >> kConsumer & 1U);
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
    release_queries(flags);
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

  // R2 to R5 of the own granule; P, its sums, and m and a of R3 go to shared memory. between() comes before R4.
  template <int kConsumer, class Between>
  __device__ __forceinline__ void weigh(Scores& s, const MqaClosed& before, bool masked, int segment, int granule,
                                        const Between& between) const {
    if (masked) {
      mask<kConsumer>(s, segment, granule);
    }
    float mu[kRowsPerThread];
    find_maxima(s, mu);
    ChunkRows rows;
    rows.m[0] = before.m[0];
    rows.m[1] = before.m[1];
    const float a[kRowsPerThread] = {move(rows.m[0], mu[0]), move(rows.m[1], mu[1])};
    if (thread() % 4 == 0) {
      store_piece(maxima_at(kConsumer), make_uint4(__float_as_uint(rows.m[0]), __float_as_uint(rows.m[1]),
                                                   __float_as_uint(a[0]), __float_as_uint(a[1])));
    }
    between();
    float offset[kRowsPerThread];
    weight_offsets(rows, args_.bias, offset);
    GranuleSums sums;
    const int lane = thread() % 32;
    const uint32_t weights = base() + Layout::kWeights + kConsumer * Layout::kWeightStep;
    const int row = thread() / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
    if (Layout::kWeightsOverKeys) {
      named_barrier_sync(kBarrier + kConsumer, 128);  // all warps have their scores
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      weigh_block(&s[8 * block], block == 0, offset, args_.c, sums);
      uint32_t p[4];
      round_block<kElement>(&s[8 * block], p);
      store_matrices(weights + swizzled_offset(Layout::kRows, row, 16 * block + lane / 16 * 8), p);
    }
    store_piece(sums_at(kConsumer), make_uint4(__float_as_uint(sums.g[0][0]), __float_as_uint(sums.g[0][1]),
                                               __float_as_uint(sums.g[1][0]), __float_as_uint(sums.g[1][1])));
    fence_async_proxy();
    release(weights_full(kConsumer));
  }

  // Which of a thread's keys, 8 j + e (e = 0, 1) from its first one on, lie before `end`: bits 2 j + e.
  __device__ __forceinline__ static uint32_t keys_before(int end) {
    const int inside = min(max(end, 0), Layout::kGranule);
    return (1U << (inside / 8 * 2 + min(inside % 8, 2))) - 1U;
  }
  // R2 of a granule of which some row does not see all.
  template <int kConsumer>
  __device__ __forceinline__ void mask(Scores& s, int number, int granule) const {
    const MqaSegment& segment = args_.segments[number];
    const int t = thread();
    uint32_t present = ~0U;
    if (segment.page_table != nullptr && segment.sorted == nullptr) {
      const uint32_t absent = base() + Layout::kAbsent + kConsumer * Layout::kAbsentBytes + t % 4 * 2;
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

  // R3 and R7 of the granule in a buffer. `keep`: it is not the first one of its chunk.
  __device__ __forceinline__ void take(Fragments& f, int buffer, bool keep) const {
    const uint4 g = load_piece(sums_at(buffer));
    const uint4 r = load_piece(maxima_at(buffer));
    const float a[kRowsPerThread] = {__uint_as_float(r.z), __uint_as_float(r.w)};
    f.rows.m[0] = __uint_as_float(r.x);
    f.rows.m[1] = __uint_as_float(r.y);
    f.rows.l[0][0] = __fmaf_rn(f.rows.l[0][0], a[0], __uint_as_float(g.x));
    f.rows.l[0][1] = __fmaf_rn(f.rows.l[0][1], a[0], __uint_as_float(g.y));
    f.rows.l[1][0] = __fmaf_rn(f.rows.l[1][0], a[1], __uint_as_float(g.z));
    f.rows.l[1][1] = __fmaf_rn(f.rows.l[1][1], a[1], __uint_as_float(g.w));
    if (keep && __any_sync(kAllLanes, a[0] != 1.0F || a[1] != 1.0F)) {
      rescale_output(f.o, a);
    }
  }
  template <int kConsumer>
  __device__ __forceinline__ uint64_t values_of(int buffer) const {
    return tile_descriptor<MnMajorTile<Layout::kGranule>>(base() + Layout::kKeys + buffer * Layout::kBufferBytes +
                                                          kConsumer * (Layout::kValuePanels / Layout::kHalves) *
                                                              panel_bytes(Layout::kGranule));
  }
  // R3, R6 and R7 of the own granule, whose p are in `s`, up to end().
  template <int kConsumer>
  __device__ __forceinline__ void multiply_own(Fragments& f, const Scores& s, bool keep) const {
    uint32_t p[kBlocks][4];
    round_weights<kElement>(s, p);
    __syncwarp();
    take(f, kConsumer, keep);
    const uint64_t v = values_of<kConsumer>(kConsumer);
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      wgmma_rs<kElement>(f.o, p[block], MnMajorTile<Layout::kGranule>::step(v, block), block > 0 || keep);
    }
    wgmma_commit();
  }
  // The same of the other consumer's granule, once it has been weighed.
  template <int kConsumer>
  __device__ __forceinline__ void multiply_other(Fragments& f, bool keep) const {
    constexpr int kBuffer = 1 - kConsumer;
    barrier_wait(weights_full(kBuffer), bits_ >> kBuffer & 1U);
    fence_async_proxy();
    take(f, kBuffer, keep);
    const uint64_t p = tile_descriptor<KMajorTile>(base() + Layout::kWeights + kBuffer * Layout::kWeightStep);
    const uint64_t v = values_of<kConsumer>(kBuffer);
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      wgmma_ss_values<kElement>(f.o, KMajorTile::step(p, Layout::kRows, block),
                                MnMajorTile<Layout::kGranule>::step(v, block), block > 0 || keep);
    }
    wgmma_commit();
  }
  // The products with a buffer's granule are done: it is given back.
  __device__ __forceinline__ void end(Fragments& f, int buffer, int consumer) {
    wgmma_wait<0>();
    pin_registers(f.o);
    release(base() + Layout::kEmpty + 8 * (Layout::kHalves * buffer + consumer));
    bits_ ^= (bits_ & 1U) != 0 && buffer == 0 ? 1U | 1U << kPairShift : 1U << buffer;
  }

  const MqaArguments& args_;
  uint32_t shared_;
  int consumer_;
  MqaTile tile_{};
  // Bit b: parity of the use of buffer b; that of the use of a pair's description; from kUsedShift on, levels of the
  // chain that are used. One register.
  static constexpr int kPairShift = 2;
  static constexpr uint32_t kTurns = 7;
  static constexpr int kUsedShift = 3;
  uint32_t bits_ = 0;
};

}  // namespace tessera::sm90
