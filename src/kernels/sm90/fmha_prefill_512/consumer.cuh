// A consumer: 64 query rows, the scores of one granule of every pair, and 256 output columns. Its counterpart in the
// other block has the same rows, the other granules and the other columns.
//
// S of the next pair is issued before P V of the current one; its softmax happens beside that P V.
#pragma once

#include "kernels/sm90/fmha_prefill_512/finish.cuh"
#include "kernels/sm90/fmha_prefill_512/sums.cuh"
#include "kernels/sm90/fmha_prefill_512/tiles.cuh"
#include "kernels/sm90/fmha_prefill_512/wgmma_values.cuh"
#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

template <class Tag>
class Consumer512 {
  using Layout = Layout512;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kSlices = Layout::kSlices;
  static constexpr int kBlocks = Layout::kGranule / 16;     // k16 blocks of a granule
  static constexpr int kStepsOfSlice = kPanelColumns / 16;  // k16 steps of a slice of K
  static constexpr int kScores = Layout::kGranule / 2;      // fp32 per thread
  static constexpr int kOutputs = Layout::kColumns / 2;     // fp32 per thread
  static constexpr int kSendSlice = 5;                      // of S: the other block has room for weights by then
  static constexpr int kPending = 2;                        // slices whose products may be under way
  static constexpr uint32_t kOwnBarrier = 1;                // named barrier 1 + w is warpgroup w alone
  static constexpr uint32_t kCleanBarrier = 3;              // of both warpgroups
  static constexpr uint32_t kWeightsArrive = Layout::kWeightBytes + Layout::kSumBytes;

  using Sums = float[kRowsPerThread][kClassesPerThread];
  struct Fragments {
    float s[kScores];        // S of a pair on its way
    float x[kScores];        // complete, then p
    uint32_t p[kBlocks][4];  // P of the current pair
    float o[kOutputs];
    float m[kRowsPerThread];  // R3, of the newest pair
    ChunkRows own;            // m: after the own granule of that pair
  };

 public:
  __device__ __forceinline__ Consumer512(const Arguments512& args, uint32_t shared, int warpgroup, int rank)
      : args_(args), shared_(shared), w_(warpgroup), rank_(rank) {}

  __device__ __forceinline__ void run() {
    Fragments f;
    const Chain512<Tag> chain(args_, shared_, w_, rank_);
    if (thread() == 0) {
      barrier_arrive_expect(weights_full(), kWeightsArrive);
    }
#pragma unroll 1
    while (true) {
      take_tile(base(), round_);
      if (uniform(tile().get(Tile512::kBatch)) < 0) {
        break;
      }
      const int first = uniform(tile().get(Tile512::kFirstPair));
      end_ = uniform(tile().get(Tile512::kEndPair));
      open_first_ = uniform(tile().get(Tile512::kOpenFirst));
      open_end_ = uniform(tile().get(Tile512::kOpenEnd));
      if (args_.packed == 1) {
        barrier_wait(base() + Layout::kQFull + 8 * w_, round_ % 2);
      } else {
        fetch_queries();
      }
      if (first < end_) {
        attend(f, chain, first);
        chain.finish(f.o, closed_rows({f.m[0], f.m[1]}, chunk_of(end_ - 1)), tile());
      } else {
        chain.store_nothing(tile());
        named_barrier_sync(kOwnBarrier + w_, 128);  // all have seen Q full
        chain.give_query_back();
      }
      named_barrier_sync(kOwnBarrier + w_, 128);  // all have read what the tile is
      if (thread() == 0) {
        leave_tile(base(), round_);
      }
      ++round_;
    }
  }

 private:
  __device__ __forceinline__ static int thread() {
    return thread_index() % 128;
  }
  __device__ __forceinline__ static bool begins_chunk(int pair) {
    return Tag::kChunks && pair % Layout::kChunkPairs == 0;
  }
  __device__ __forceinline__ static int chunk_of(int pair) {
    return Tag::kChunks ? pair / Layout::kChunkPairs : 0;
  }
  // Opaque, so that addresses are computed where they are used rather than kept.
  __device__ __forceinline__ uint32_t base() const {
    return static_cast<uint32_t>(opaque(static_cast<int>(shared_)));
  }
  // For matrix descriptors: in a cluster, addresses of shared memory carry the block's rank above bit 17, which would
  // land in the leading offset.
  __device__ __forceinline__ uint32_t operands() const {
    return base() & 0x3ffffU;
  }
  __device__ __forceinline__ uint32_t weights_full() const {
    return base() + Layout::kWeightsFull + 8 * w_;
  }
  __device__ __forceinline__ uint32_t maxima_full() const {
    return base() + Layout::kMaximaFull + 8 * w_;
  }
  __device__ __forceinline__ uint32_t peer(uint32_t address) const {
    return in_block(address, static_cast<uint32_t>(1 - rank_));
  }

  // A lane of every warp speaks for it.
  __device__ __forceinline__ static void release(uint32_t barrier) {
    if (thread() % 32 == 0) {
      barrier_arrive(barrier);
    }
  }
  // Turns of the ring: K of the first pair of a tile, then K of the next one and V of the current one by turns.
  __device__ __forceinline__ void wait_slice(int slice, uint32_t parity) const {
    barrier_wait(base() + Layout::kFull + 8 * slice, parity);
  }
  __device__ __forceinline__ void release_slice(int slice) const {
    release(base() + Layout::kEmpty + 8 * slice);
  }

  // ---------------------------------------------------------------- matrix work

  // R1 for 64 dims of the own granule.
  __device__ __forceinline__ void issue_scores(Fragments& f, int slice) const {
    const uint64_t q = tile_descriptor<KMajorTile>(operands() + Layout::kQ + w_ * Layout::kQBytes +
                                                   slice * panel_bytes(Layout::kRows));
    const uint64_t k = tile_descriptor<KMajorTile>(operands() + Layout::kRing + slice * Layout::kSliceBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepsOfSlice; ++step) {
      if (slice == 0 && step == 0) {
        wgmma_ss_first<kElement>(f.s, q, k);
      } else {
        wgmma_ss_next<kElement>(f.s, KMajorTile::step(q, Layout::kRows, step),
                                KMajorTile::step(k, Layout::kGranule, step));
      }
    }
    wgmma_commit();
  }

  // R6 for 16 keys: the first half of the slices are the even granule.
  __device__ __forceinline__ void issue_output(Fragments& f, int slice, bool keep) const {
    using VTile = MnMajorTile<Layout::kSliceKeys>;
    const uint64_t v = tile_descriptor<VTile>(operands() + Layout::kRing + slice * Layout::kSliceBytes);
    const int block = slice % kBlocks;
    if (slice / kBlocks == rank_) {  // ptxas wants the whole stage in either branch
      wgmma_fence();
      wgmma_rs<kElement>(f.o, f.p[block], v, keep);
      wgmma_commit();
    } else {
      const uint64_t p = tile_descriptor<KMajorTile>(operands() + Layout::kWeights + w_ * Layout::kWeightBytes);
      wgmma_fence();
      wgmma_ss_values<kElement>(f.o, KMajorTile::step(p, Layout::kRows, block), v, keep);
      wgmma_commit();
    }
  }

  // ---------------------------------------------------------------- softmax

  // S is complete. Copies, because ptxas would have every product wait for the one before if accumulators changed while
  // others are to be issued.
  __device__ __forceinline__ static void take_scores(Fragments& f) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      asm volatile("mov.f32 %0, %1;" : "=f"(f.x[i]) : "f"(f.s[i]));
    }
  }

  // Bits of eight keys each of the own granule of pair number `count` that have no page. The first lane of a warp reads
  // them for all, because it is the one that gives the slices back, behind which they change.
  __device__ __forceinline__ int absent_keys(uint32_t count) const {
    if (args_.ragged.page_table == nullptr) {
      return 0;
    }
    int absent = 0;
    if (thread() % 32 == 0) {
      absent = load_shared(base() + Layout::kAbsent + 4 * (count % Layout::kAbsentWords));
    }
    return uniform(absent);
  }
  // Whether some row of the tile does not see all of a pair, which is number `count`.
  __device__ __forceinline__ bool is_masked(int pair, uint32_t count) const {
    return pair < open_first_ || pair >= open_end_ || absent_keys(count) != 0;
  }
  // R2 of the own granule of a pair.
  __device__ __forceinline__ void mask(Fragments& f, int pair, int absent) const {
    const int t = thread();
    const RaggedSight sight = tile().sight(args_.ragged);
    const int row = tile().get(Tile512::kFirstRow) + w_ * Layout::kRows + t / 32 * 16 + t % 32 / 4;
    const int first_key = pair * Layout::kPairKeys + rank_ * Layout::kGranule + t % 4 * 2;
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      const int token = (row + 8 * h) / args_.packed;
      const int begin = sight.begin(token) - first_key;
      const int end = sight.end(token) - first_key;
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const int key = i / 2 * 8 + i % 2;
        float& s = f.x[i / 2 * 4 + 2 * h + i % 2];
        s = key >= begin && key < end && (absent >> (i / 2) & 1) == 0 ? s : minus_infinity();
      }
    }
  }
  // R3's maxima, to the other block as well.
  __device__ __forceinline__ void find_maxima(Fragments& f, float (&mu)[kRowsPerThread]) const {
    const int t = thread();
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      float largest[2] = {fmaxf(f.x[2 * h], f.x[2 * h + 1]), fmaxf(f.x[4 + 2 * h], f.x[5 + 2 * h])};
#pragma unroll
      for (int n = 2; n < kScores / 4; ++n) {
        largest[n % 2] = fmaxf(largest[n % 2], fmaxf(f.x[4 * n + 2 * h], f.x[4 * n + 2 * h + 1]));
      }
      mu[h] = fmaxf(largest[0], largest[1]);
#pragma unroll
      for (int lanes = 1; lanes <= 2; lanes *= 2) {
        mu[h] = fmaxf(mu[h], __shfl_xor_sync(kAllLanes, mu[h], lanes));
      }
    }
    if (t == 0) {
      barrier_arrive_expect(maxima_full(), Layout::kMaximaBytes);
    }
    if (t % 4 == 0) {
      send(peer(base() + Layout::kMaxima + w_ * Layout::kMaximaBytes + t / 4 * 8), peer(maxima_full()),
           make_float2(mu[0], mu[1]));
    }
  }

  // R3 over both granules of pair `pair`, the number `count` of all that the consumer has had.
  __device__ __forceinline__ void move_maxima(Fragments& f, bool fresh, uint32_t count,
                                              const float (&mu)[kRowsPerThread]) {
    barrier_wait(maxima_full(), count % 2);
    const float2 others = load_pair(base() + Layout::kMaxima + w_ * Layout::kMaximaBytes + thread() / 4 * 8);
    bool moved = false;
    Sums a;
    if (fresh && thread() % 4 == 0) {
      store_pair(closed_at(), make_float2(f.m[0], f.m[1]));
    }
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      float m = fresh ? minus_infinity() : f.m[h];
      const float theirs = h == 0 ? others.x : others.y;
#pragma unroll
      for (int granule = 0; granule < 2; ++granule) {
        const float u = ceil_of_product(granule == rank_ ? mu[h] : theirs, args_.c);
        const float after = u > __fadd_rn(m, kLazyThreshold) ? u : m;
        // Without any key so far O and l are 0, whatever they are multiplied with.
        a[granule][h] = after == minus_infinity() ? 1.0F : power_of_drop(__fsub_rn(m, after));
        moved |= a[granule][h] != 1.0F && !(fresh && granule == 0);
        m = after;
        if (granule == rank_) {
          f.own.m[h] = m;
        }
      }
      f.m[h] = m;
    }
    __syncwarp();  // all have read those of the pair before
    if (thread() % 4 == 0) {
      keep_sums(factors_at(), a);
    }
    moved_ = any_of_warpgroup(kOwnBarrier + w_, moved) ? 1 : 0;
  }

  // R4 of the own granule, x := p unrounded, and R7's sums of it; between(block) comes after each k16 block.
  template <class Between>
  __device__ __forceinline__ void weigh(Fragments& f, const Between& between) const {
    GranuleSums sums;
    float offset[kRowsPerThread];
    weight_offsets(f.own, args_.bias, offset);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      weigh_block(&f.x[8 * block], block == 0, offset, args_.c, sums);
      between(block);
    }
    keep_sums(own_sums_at(), sums.g);
  }

  // P and its sums to the other block.
  __device__ __forceinline__ void send_weights(const Fragments& f, uint32_t count) const {
    barrier_wait(base() + Layout::kPeerFree + 8 * w_, count % 2 ^ 1U);
    const int t = thread();
    const int row = t / 32 * 16 + t % 32 / 4;
    const uint32_t full = peer(weights_full());
    const uint32_t weights = peer(base() + Layout::kWeights + w_ * Layout::kWeightBytes);
    // All four at once, because each step waits for shuffles.
    uint4 pieces[2 * kRowsPerThread];
#pragma unroll
    for (int i = 0; i < 2 * kRowsPerThread; ++i) {
      const int h = i / 2;
      const int block = i % 2 * 2;
      pieces[i] = make_uint4(f.p[block][h], f.p[block][2 + h], f.p[block + 1][h], f.p[block + 1][2 + h]);
    }
    transpose_quads(pieces);
#pragma unroll
    for (int i = 0; i < 2 * kRowsPerThread; ++i) {
      send(weights + swizzled_offset(Layout::kRows, row + 8 * (i / 2), 8 * (4 * (i % 2) + t % 4)), full, pieces[i]);
    }
    send(peer(base() + Layout::kSums + w_ * Layout::kSumBytes + 16 * t), full, load_piece(own_sums_at()));
  }

  // R7, once the other block's weights and sums are here.
  __device__ __forceinline__ void add_pair_sums(bool fresh) const {
    GranuleSums sums[2];
    load_sums(sums_at(rank_ == 0 ? Layout::kOwnSums : Layout::kSums), sums[0].g);
    load_sums(sums_at(rank_ == 0 ? Layout::kSums : Layout::kOwnSums), sums[1].g);
    Sums a;
    load_sums(factors_at(), a);
    ChunkRows rows;
    load_sums(row_sums_at(), rows.l);
    if (fresh) {
#pragma unroll
      for (auto& l : rows.l) {
        l[0] = l[1] = 0.0F;
      }
    }
#pragma unroll
    for (int granule = 0; granule < 2; ++granule) {
      add_sums(rows, a[granule], sums[granule]);
    }
    keep_sums(row_sums_at(), rows.l);
  }
  // Sums of a thread's rows and classes lie in shared memory, because registers have no room for them.
  __device__ __forceinline__ uint32_t sums_at(int place) const {
    return base() + place + w_ * Layout::kSumBytes + 16 * thread();
  }
  __device__ __forceinline__ uint32_t row_sums_at() const {
    return sums_at(Layout::kRowSums);
  }
  // The a of R3, by granule and row, and the maxima of the chunk that ends, for the four threads of a row.
  __device__ __forceinline__ uint32_t factors_at() const {
    return base() + Layout::kFactors + w_ * Layout::kFactorBytes + thread() / 4 * 16;
  }
  __device__ __forceinline__ uint32_t closed_at() const {
    return base() + Layout::kClosed + w_ * Layout::kMaximaBytes + thread() / 4 * 8;
  }
  __device__ __forceinline__ uint32_t own_sums_at() const {
    return sums_at(Layout::kOwnSums);
  }

  // ---------------------------------------------------------------- tiles

  __device__ __forceinline__ Tile512 tile() const {
    return tile_at(base(), round_);
  }
  // Q of packed heads, whose rows no box of the copy engine holds. Nothing is under way.
  __device__ __forceinline__ void fetch_queries() const {
    constexpr int kPieces = Layout::kDims / 8;          // of 16 bytes, per row
    const int4 place = tile().vector(Tile512::kBatch);  // batch, head, first row, rows
    const auto* const q = static_cast<const uint16_t*>(args_.q) +
                          (args_.ragged.cu_seqlens_q != nullptr ? 0 : place.x) * args_.q_stride_batch;
    const int first_row = place.z + w_ * Layout::kRows;
#pragma unroll 8
    for (int i = 0; i < Layout::kRows * kPieces / 128; ++i) {
      const int row = (i * 128 + thread()) / kPieces;
      const int dim = thread() % kPieces * 8;
      uint4 piece{};
      if (first_row + row < place.w && dim < args_.dims_qk) {
        const int token = (first_row + row) / args_.packed;
        const int head = place.y + (first_row + row) - token * args_.packed;
        piece = __ldg(reinterpret_cast<const uint4*>(
            q + (int64_t{tile().get(Tile512::kFirstToken)} + token) * args_.q_stride_token +
            head * args_.q_stride_head + dim));
      }
      store_piece(base() + Layout::kQ + w_ * Layout::kQBytes + swizzled_offset(Layout::kRows, row, dim), piece);
    }
    fence_async_proxy();
    named_barrier_sync(kOwnBarrier + w_, 128);
  }
  __device__ __forceinline__ typename Chain512<Tag>::Closed closed_rows(float2 m, int chunk) const {
    typename Chain512<Tag>::Closed closed{{m.x, m.y}, {}, chunk, chunk_of(tile().get(Tile512::kFirstPair))};
    load_sums(row_sums_at(), closed.l);
    return closed;
  }

  // The other block's weights are multiplied: there is room for the next ones.
  __device__ __forceinline__ void free_weights() const {
    if (thread() == 0) {
      barrier_arrive_expect(weights_full(), kWeightsArrive);
    }
    if (thread() % 32 == 0) {
      arrive_in_block(base() + Layout::kPeerFree + 8 * w_, static_cast<uint32_t>(1 - rank_));
    }
  }

  // Rows of V that no row of the tile sees may hold NaN, and 0 times NaN is NaN. The copy engine cuts off those behind
  // the last key that is seen, or those before the first one, but not both of one box; the consumers then do the latter
  // together. It is the tile's only pair.
  __device__ __forceinline__ void clean_values(uint32_t turn) const {
    const int begin = tile().get(Tile512::kFirstKey);
    const int slice = begin % Layout::kPairKeys / Layout::kSliceKeys;
    const int rows = begin % Layout::kSliceKeys;
    if (rows == 0 || tile().get(Tile512::kStopKey) - begin + rows > Layout::kSliceKeys) {
      return;
    }
    wait_slice(slice, turn);
    const uint32_t panels = base() + Layout::kRing + slice * Layout::kSliceBytes;
    const int pieces = rows * (kPanelRowBytes / 16);
#pragma unroll 1
    for (int at = thread(); at < Layout::kSlicePanels * pieces; at += 128) {
      store_piece(panels + at / pieces * panel_bytes(Layout::kSliceKeys) + at % pieces * 16, {});
    }
    fence_async_proxy();
    named_barrier_sync(kCleanBarrier, 128 * Layout::kConsumers);
  }

  // P V of the pair before `pair` is complete, and nothing else is under way.
  __device__ __forceinline__ void end_output(Fragments& f, const Chain512<Tag>& chain, int pair) {
    pin_registers(f.o);
    if (pair < end_ && begins_chunk(pair)) {
      chain.put_away(f.o, closed_rows(load_pair(closed_at()), chunk_of(pair) - 1));
    } else if (pair < end_ && moved_ != 0) {
      Sums a;
      load_sums(factors_at(), a);
      rescale_output(f.o, a[0]);
    }
  }

  // R1 of a pair. `first`: nothing is under way before it, and nothing has to be sent.
  __device__ __forceinline__ void score(Fragments& f, bool first) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      wait_slice(slice, first ? 0 : 1);
      issue_scores(f, slice);
      if (slice == kSendSlice && !first) {
        send_weights(f, count_);
      }
      if (slice >= kPending) {
        wgmma_wait<kPending>();
        release_slice(slice - kPending);
      }
    }
  }

  __device__ __forceinline__ void attend(Fragments& f, const Chain512<Tag>& chain, int first) {
    score(f, true);
    wgmma_wait<0>();
    release_slice(kSlices - 2);
    release_slice(kSlices - 1);
    f.m[0] = f.m[1] = minus_infinity();  // rather than keep those of the tile before
    weigh_next(f, first, true, count_);
    bool fresh = true;  // pair i is the first one of its chunk that the rows see
#pragma unroll 1
    for (int i = first; i < end_; ++i) {
      round_weights<kElement>(f.x, f.p);
      const bool next = i + 1 < end_;
      if (next) {
        score(f, false);
      } else {
        chain.fetch_ahead(chunk_of(end_ - 1), chunk_of(tile().get(Tile512::kFirstPair)));
        send_weights(f, count_);
      }
      multiply(f, i, next, fresh);
      end_output(f, chain, i + 1);
      fresh = begins_chunk(i + 1);
    }
  }

  __device__ __forceinline__ void wait_weights() const {
    barrier_wait(weights_full(), count_ % 2);
    fence_async_proxy();
  }

  // P V of pair i; the softmax of the next pair, whose S is under way, beside it.
  __device__ __forceinline__ void multiply(Fragments& f, int i, bool next, bool fresh) {
    const bool fresh_next = begins_chunk(i + 1);
    // Nor may S change while products are still to be issued: ptxas would have each wait for the one before.
    const bool apart = !next || moved_ != 0 || is_masked(i + 1, count_ + 1);
    if (rank_ == 1 || apart) {
      wait_weights();
    }
    if (apart) {
      add_pair_sums(fresh);
      multiply_apart(f, i, next, fresh, fresh_next);
      return;
    }
    float mu[kRowsPerThread];
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      wait_slice(slice, 0);
      issue_output(f, slice, slice > 0 || !fresh);
      if (slice == kPending - 1) {
        if (rank_ == 0) {
          wait_weights();  // the other block's are of the second granule
        }
        add_pair_sums(fresh);
        wgmma_wait<kPending>();
        release_slice(kSlices - 2);
        release_slice(kSlices - 1);
        take_scores(f);
        find_maxima(f, mu);
      }
      if (slice >= 3 && slice <= kBlocks + 1) {
        wgmma_wait<3>();
        release_slice(slice - 3);
      }
      if (slice == kBlocks + 1) {
        move_maxima(f, fresh_next, count_ + 1, mu);
      }
    }
    // Products may be waited for in any step between here and the last one.
    weigh(f, [&](int block) {
      if (block == 0) {
        wgmma_wait<4>();
        release_slice(3);
        if (rank_ == 1) {
          free_weights();  // the own granule is the second one
        }
      } else if (block == 1) {
        wgmma_wait<3>();
        release_slice(4);
      } else if (block == 2) {
        wgmma_wait<2>();
        release_slice(5);
      }
    });
    wgmma_wait<0>();
    release_slice(kSlices - 2);
    release_slice(kSlices - 1);
    if (rank_ == 0) {
      free_weights();
    }
    ++count_;
  }
  // The same where O changes between the granules: step by step.
  __device__ __forceinline__ void multiply_apart(Fragments& f, int i, bool next, bool fresh, bool fresh_next) {
    const uint32_t turn = next ? 0 : 1;
    wgmma_wait<0>();
    pin_registers(f.o);
    if (args_.clipped && !next) {
      clean_values(turn);
    }
    if (next) {
      release_slice(kSlices - 2);
      release_slice(kSlices - 1);
    }
#pragma unroll
    for (int slice = 0; slice < kBlocks; ++slice) {
      wait_slice(slice, turn);
      issue_output(f, slice, slice > 0 || !fresh);
    }
    wgmma_wait<0>();
    pin_registers(f.o);
    if (moved_ != 0) {
      Sums a;
      load_sums(factors_at(), a);
      rescale_output(f.o, a[1]);
    }
#pragma unroll
    for (int slice = kBlocks; slice < kSlices; ++slice) {
      wait_slice(slice, turn);
      issue_output(f, slice, true);
    }
    wgmma_wait<0>();
    pin_registers(f.o);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      release_slice(slice);
    }
    if (next) {
      weigh_next(f, i + 1, fresh_next, count_ + 1);
    }
    free_weights();
    ++count_;
  }

  // R2 to R5 of a pair whose S is complete.
  __device__ __forceinline__ void weigh_next(Fragments& f, int pair, bool fresh, uint32_t count) {
    float mu[kRowsPerThread];
    take_scores(f);
    if (is_masked(pair, count)) {
      mask(f, pair, absent_keys(count));
    }
    find_maxima(f, mu);
    move_maxima(f, fresh, count, mu);
    weigh(f, [](int) {});
  }

  const Arguments512& args_;
  uint32_t shared_;
  int w_, rank_;
  uint32_t round_ = 0;                 // tiles so far
  int end_ = 0;                        // behind the pairs of the current one
  int open_first_ = 0, open_end_ = 0;  // its pairs that all rows see whole
  uint32_t count_ = 0;                 // pairs so far
  int moved_ = 0;                      // some row of the warpgroup changed its maximum in the newest pair
};

}  // namespace tessera::sm90
