// A warpgroup that fetches and scores every other granule of a block: R1 to R5 and R7. While it weighs one, the other
// scorer's granule is multiplied with Q; m and l go back and forth between the two.
#pragma once

#include "kernels/sm90/fmha_mqa_512/fetch.cuh"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/softmax.cuh"
#include "kernels/sm90/wgmma.cuh"

namespace tessera::sm90 {

template <class Tag>
class MqaScorer {
  using Layout = MqaLayout<Tag::kHeadDim>;
  using Words = MqaTileWords;
  using Flags = MqaGranuleFlags;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kBlocks = Layout::kGranule / 16;  // k16 blocks of a granule
  static constexpr int kScores = Layout::kGranule / 2;   // fp32 per thread
  static constexpr int kStepsOfPanel = kPanelColumns / 16;

  using Fetch = MqaFetch<Layout, Tag::kFp8>;
  using RowTable = MqaRowTable<Layout, Tag::kFp8>;
  using Scores = float[kScores];  // S, then p

 public:
  __device__ __forceinline__ MqaScorer(const MqaArguments& args, uint32_t shared, int scorer)
      : args_(args),
        shared_(shared),
        buffer_(static_cast<uint32_t>(scorer)),
        fetch_(args, shared, buffer_),
        table_(args, shared, buffer_) {}

  __device__ __forceinline__ void run() {
    uint32_t granules = 0;  // so far, of both scorers
    uint32_t tiles = 0;     // with keys
    // One round more than there are, before the first, describes that one: the code is there once.
#pragma unroll 1
    for (int round = -1; round < 0 || index_of(round) < args_.total_items; ++round) {
      const uint32_t slot = static_cast<uint32_t>(round) % Layout::kTileSlots;
      bool keys = false;
      if (round >= 0) {
        barrier_wait(base() + Layout::kTileFull + 8 * slot, static_cast<uint32_t>(round) / Layout::kTileSlots % 2);
        tile_ = MqaTile::at<Layout>(base(), static_cast<uint32_t>(round));
        keys = uniform(tile_.get(Words::kWork)) == Words::kKeys;
      }
      if (keys) {
        barrier_wait(base() + Layout::kQEmpty, tiles % 2 ^ 1U);
        fetch_.fetch_queries(tile_);
        arrive_behind_copies(base() + Layout::kQFull);
        ++tiles;
      }
      attend(keys, granules, tiles, round);
      if (opaque(round) >= 0) {  // asked again rather than kept
        barrier_arrive(base() + Layout::kTileEmpty + 8 * slot);
      }
    }
  }

 private:
  // Opaque, so that addresses are computed where they are used rather than kept.
  __device__ __forceinline__ uint32_t base() const {
    return static_cast<uint32_t>(opaque(static_cast<int>(shared_)));
  }
  __device__ __forceinline__ static int thread() {
    return thread_index() & 127;  // and not %, which minds negative numbers
  }
  __device__ __forceinline__ static int index_of(int round) {
    return static_cast<int>(blockIdx.x) + round * static_cast<int>(gridDim.x);
  }

  // The tile of a round, if there is one, by the first scorer's first warp.
  __device__ __forceinline__ void describe(int round) const {
    if (buffer_ != 0 || uniform(thread() / 32) != 0 || index_of(round) >= args_.total_items) {
      return;
    }
    const uint32_t slot = static_cast<uint32_t>(round) % Layout::kTileSlots;
    barrier_wait(base() + Layout::kTileEmpty + 8 * slot, static_cast<uint32_t>(round) / Layout::kTileSlots % 2 ^ 1U);
    describe_tile(args_, MqaTile::at<Layout>(base(), static_cast<uint32_t>(round)), MqaItem::at(args_, index_of(round)),
                  thread());
    barrier_arrive(base() + Layout::kTileFull + 8 * slot);
  }

  // The own granules of a tile, if it has `keys`; the next tile is described while the first ones' tables are read.
  __device__ __forceinline__ void attend(bool keys, uint32_t& granules, uint32_t tiles, int round) {
    const MqaWalk walk(tile_, args_.count);
    MqaPlace place = keys ? walk.first() : MqaPlace{0, 0, 0};
    if (keys && granules % Layout::kScorers != buffer_) {
      place = skip(walk, place, granules);
    }
    const int32_t first_entry = table_.ask(tile_, place);
    describe(round + 1);
    table_.settle(tile_, place, first_entry, granules);
    named_barrier_sync(1 + buffer_, 128);
    if (keys && !place.valid()) {  // no granule of the tile is the own one
      barrier_arrive(base() + Layout::kQEmpty);
    }
#pragma unroll 1
    while (place.valid()) {
      const MqaPlace next = walk.next(place);
      uint32_t following = granules + 1;
      const MqaPlace own = next.valid() ? skip(walk, next, following) : next;
      const int32_t entry = table_.ask(tile_, own);
      fetch_.fetch_granule(table_, Tag::kFp8 && args_.segments[place.segment].fp8, granules / Layout::kBuffers % 2);
      barrier_wait(base() + Layout::kQFull, tiles % 2 ^ 1U);
      granule(walk, place, next, granules, !own.valid(), [&] { table_.settle(tile_, own, entry, following); });
      granules = following;
      place = own;
    }
  }
  // Past a granule of the other scorer's.
  __device__ __forceinline__ static MqaPlace skip(const MqaWalk& walk, const MqaPlace& place, uint32_t& granules) {
    ++granules;
    return walk.next(place);
  }

  // A granule, of number `number` in the block and followed by `next`. `last`: the own one of the tile. All threads
  // call meanwhile() between two barriers of the warpgroup, when copies of the granule have been asked for.
  template <class Meanwhile>
  __device__ __forceinline__ void granule(const MqaWalk& walk, const MqaPlace& place, const MqaPlace& next,
                                          uint32_t number, bool last, const Meanwhile& meanwhile) const {
    const MqaSegment& segment = args_.segments[place.segment];
    const bool masked = walk.is_masked(segment, place);
    const uint32_t seen = masked ? seen_keys(place) : 0U;  // need not wait for keys
    const int to = !next.valid() ? kMqaFinish : walk.is_fresh(next) ? level_between(place, next) : -1;
    const int flags = uniform(opaque((walk.is_fresh(place) ? Flags::kFresh : 0) | (to + 1) << Flags::kEndShift));
    Scores s;
    score(s, Tag::kFp8 && segment.fp8, meanwhile);
    if (last) {
      barrier_arrive(base() + Layout::kQEmpty);
    }
    if (masked) {
      mask(s, segment.page_table != nullptr && segment.sorted == nullptr ? seen & present_keys(number) : seen);
    }
    weigh(s, number, flags);
  }
  // Where the chunk that ends with granule `last` goes when the next one begins with `next`.
  __device__ __forceinline__ static int level_between(const MqaPlace& last, const MqaPlace& next) {
    constexpr int kSuperchunkGranules = Layout::kChunkGranules * kSuperchunkChunks;
    return last.segment != next.segment                                               ? 2
           : last.granule / kSuperchunkGranules != next.granule / kSuperchunkGranules ? 1
                                                                                      : 0;
  }

  // R1 of the granule on its way to the own buffer.
  template <class Meanwhile>
  __device__ __forceinline__ void score(Scores& s, bool fp8, const Meanwhile& meanwhile) const {
    const uint64_t q = tile_descriptor<KMajorTile>(base() + Layout::kQ);
    const uint64_t k = tile_descriptor<KMajorTile>(base() + Layout::kKeys + buffer_ * Layout::kBufferBytes);
    score_half<0>(s, q, k, fp8);
    meanwhile();
    score_half<1>(s, q, k, fp8);
    wgmma_wait<0>();
    pin_registers(s);
  }
  // The steps over half of the groups, once all threads' copies of them have landed. (Group by group would begin
  // sooner, and wait for threads more often.)
  template <int kHalf>
  __device__ __forceinline__ void score_half(Scores& s, uint64_t q, uint64_t k, bool fp8) const {
    constexpr int kGroups = Layout::kGroups / 2;
    wait_copies<kHalf == 0 ? kGroups : 0>();
    if (Tag::kFp8 && fp8) {
#pragma unroll 1
      for (int group = kHalf * kGroups; group < (kHalf + 1) * kGroups; ++group) {
        fetch_.convert_group(group);
      }
    }
    fence_async_proxy();
    named_barrier_sync(1 + buffer_, 128);
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
#pragma unroll
      for (int i = 0; i < kStepsOfPanel; ++i) {
        const int step = panel * kStepsOfPanel + i;
        if (Layout::group_of(panel) / kGroups == kHalf && step == 0) {
          wgmma_ss_first<kElement>(s, q, k);
        } else if (Layout::group_of(panel) / kGroups == kHalf) {
          wgmma_ss_next<kElement>(s, KMajorTile::step(q, Layout::kRows, step),
                                  KMajorTile::step(k, Layout::kGranule, step));
        }
      }
    }
    wgmma_commit();
  }

  // One step of R3 with a granule's largest score: m moves on; returns a.
  __device__ __forceinline__ float move(float& m, float mu) const {
    const float u = ceil_of_product(mu, args_.c);
    const float after = u > __fadd_rn(m, kLazyThreshold) ? u : m;
    // Without any key so far O and l are 0, whatever they are multiplied with.
    float drop;  // power_of_drop(m - after), said in assembly, because ptxas makes branches of it otherwise
    asm volatile(
        "{\n"
        ".reg .pred small;\n"
        "setp.ge.f32 small, %1, %2;\n"
        "ex2.approx.ftz.f32 %0, %1;\n"
        "selp.f32 %0, %0, 0f00000000, small;\n"
        "}\n"
        : "=&f"(drop)
        : "f"(__fsub_rn(m, after)), "f"(-kLargestDrop));
    const float a = after == minus_infinity() ? 1.0F : drop;
    m = after;
    return a;
  }

  // For the four threads of two rows, and for the thread.
  __device__ __forceinline__ uint32_t maxima_at(uint32_t buffer) const {
    return base() + Layout::kMaxima + buffer * Layout::kMaximaBytes + thread() / 4 * 8;
  }
  __device__ __forceinline__ uint32_t sums_at(uint32_t buffer) const {
    return base() + Layout::kSums + buffer * Layout::kSumBytes + thread() * 16;
  }

  // R3 to R5 and R7 of the granule of number `number` in the block. The other scorer gets m, then l; multipliers get P,
  // a, `flags`, and m and l of a chunk that ends.
  __device__ __forceinline__ void weigh(Scores& s, uint32_t number, int flags) const {
    const uint32_t other = buffer_ ^ 1U;
    const uint32_t parity = (number - 1) / Layout::kBuffers % 2;  // of the granule before
    const bool fresh = (flags & Flags::kFresh) != 0;
    float mu[kRowsPerThread];
    find_maxima(s, mu);
    ChunkRows rows;
    rows.clear();
    if (number > 0) {
      barrier_wait(base() + Layout::kMoved + 8 * other, parity);
    }
    if (!fresh) {
      const float2 m = load_pair(maxima_at(other));
      rows.m[0] = m.x;
      rows.m[1] = m.y;
    }
    const float a[kRowsPerThread] = {move(rows.m[0], mu[0]), move(rows.m[1], mu[1])};
    const int t = thread();
    if (t % 4 == 0) {
      store_pair(maxima_at(buffer_), make_float2(rows.m[0], rows.m[1]));
      store_pair(base() + Layout::kFactors + buffer_ * Layout::kFactorBytes + t / 4 * 8, make_float2(a[0], a[1]));
    }
    if (t == 0) {
      store_shared(base() + Layout::kFlags + buffer_ * 16, flags);
    }
    barrier_arrive(base() + Layout::kMoved + 8 * buffer_);
    float offset[kRowsPerThread];
    weight_offsets(rows, args_.bias, offset);
    GranuleSums sums;
    const int lane = t % 32;
    const uint32_t weights = base() + Layout::kWeights + buffer_ * Layout::kWeightStep;
    const int row = t / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
    if (Layout::kWeightsOverKeys) {
      named_barrier_sync(1 + buffer_, 128);  // all warps have their scores
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      weigh_block(&s[8 * block], block == 0, offset, args_.c, sums);
      uint32_t p[4];
      round_block<kElement>(&s[8 * block], p);
      store_matrices(weights + swizzled_offset(Layout::kRows, row, 16 * block + lane / 16 * 8), p);
    }
    const bool ends = flags >> Flags::kEndShift != 0;
    if (!ends) {
      hand_over();
    }
    if (number > 0) {
      barrier_wait(base() + Layout::kSummed + 8 * other, parity);
    }
    if (!fresh) {
      const uint4 l = load_piece(sums_at(other));
      rows.l[0][0] = __uint_as_float(l.x);
      rows.l[0][1] = __uint_as_float(l.y);
      rows.l[1][0] = __uint_as_float(l.z);
      rows.l[1][1] = __uint_as_float(l.w);
    }
    add_sums(rows, a, sums);
    store_piece(sums_at(buffer_), make_uint4(__float_as_uint(rows.l[0][0]), __float_as_uint(rows.l[0][1]),
                                             __float_as_uint(rows.l[1][0]), __float_as_uint(rows.l[1][1])));
    barrier_arrive(base() + Layout::kSummed + 8 * buffer_);
    if (ends) {
      const float l[kRowsPerThread] = {sum_classes(rows.l[0]), sum_classes(rows.l[1])};
      if (t % 4 == 0) {
        store_piece(base() + Layout::kClosed + buffer_ * Layout::kClosedBytes + t / 4 * 16,
                    make_uint4(__float_as_uint(rows.m[0]), __float_as_uint(rows.m[1]), __float_as_uint(l[0]),
                               __float_as_uint(l[1])));
      }
      hand_over();
    }
  }
  __device__ __forceinline__ void hand_over() const {
    fence_async_proxy();  // P is read by descriptor
    barrier_arrive(base() + Layout::kWeighed + 8 * buffer_);
  }

  // Which of a thread's keys, 8 j + e (e = 0, 1) from its first one on, lie before `end`: bits 2 j + e.
  __device__ __forceinline__ static uint32_t keys_before(int end) {
    const int inside = min(max(end, 0), Layout::kGranule);
    return (1U << (inside / 8 * 2 + min(inside % 8, 2))) - 1U;
  }
  // R2: which of its keys a thread's rows see, 16 bits as above for each.
  __device__ __forceinline__ uint32_t seen_keys(const MqaPlace& place) const {
    const int t = thread();
    const int first_key = place.granule * Layout::kGranule + t % 4 * 2;
    MqaSight sight{tile_.get(place.segment, Words::kFirstKey), tile_.get(place.segment, Words::kStopKey)};
    const bool alone = uniform(tile_.get(Words::kAlone)) != 0;
    uint32_t seen = 0;
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      if (!alone) {
        const int row = tile_.get(Words::kFirstRow) + t / 32 * 16 + t % 32 / 4 + 8 * h;
        const int64_t token = tile_.get(Words::kToken) + divide(row, args_.heads);
        sight = mqa_sight(args_.segments[place.segment], tile_.get(place.segment, Words::kPosition) + token,
                          tile_.get(place.segment, Words::kLength));
      }
      seen |= (keys_before(sight.end - first_key) & ~keys_before(sight.first - first_key)) << kScores / 2 * h;
    }
    return seen;
  }
  // Which of them have a page; once all warps have fetched.
  __device__ __forceinline__ uint32_t present_keys(uint32_t number) const {
    const uint32_t absent = table_.absent_at(number) + thread() % 4 * 2;
    uint32_t present = ~0U;
#pragma unroll
    for (int j = 0; j < Layout::kGranule / 8; ++j) {
      uint16_t bytes;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bytes) : "r"(absent + 8 * j) : "memory");
      const uint32_t missing = ((bytes & 1U) | (bytes >> 7 & 2U)) << 2 * j;
      present &= ~(missing | missing << kScores / 2);
    }
    return present;
  }
  __device__ __forceinline__ static void mask(Scores& s, uint32_t seen) {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        float& x = s[i / 2 * 4 + 2 * h + i % 2];
        x = (seen >> (kScores / 2 * h + i) & 1U) != 0 ? x : minus_infinity();
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
  uint32_t buffer_;  // and number of the scorer
  Fetch fetch_;
  RowTable table_;
  MqaTile tile_{};
};

}  // namespace tessera::sm90
