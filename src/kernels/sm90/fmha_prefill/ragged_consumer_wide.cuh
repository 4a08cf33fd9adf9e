// A ragged consumer of head dim 256: S of the next granule is in flight beside P V of the current one, as in the
// ordinary wide consumer.
#pragma once

#include "kernels/sm90/fmha_prefill/ragged_consumer.cuh"

namespace tessera::sm90 {

template <class Tag>
struct RaggedWideConsumer : RaggedConsumer<Tag> {
  using Base = RaggedConsumer<Tag>;
  using Base::args;
  using Base::k_ring, Base::v_ring;
  using Base::kChunkTiles, Base::kElement, Base::kLast, Base::kMasked, Base::kSchedule;
  using Base::kind_of, Base::late_chunk, Base::slot_of, Base::thread;
  using typename Base::Fragments, typename Base::LateChunk, typename Base::Position;

  __device__ __forceinline__ void consume(int warpgroup) const { Base::consume_by(*this, warpgroup); }

  // As attend() of the ordinary wide consumer.
  __device__ __forceinline__ void attend(Fragments& f, int warpgroup, Position& at) const {
    const bool leader = thread() == 0;
    int j = uniform(slot_of(at).walk(warpgroup).first);
    k_ring().wait_full(at);  // producer: the first K
    uint32_t kind = 0;
    bool proven = false;
#pragma unroll 1
    while (!proven) {
      kind = kind_of(warpgroup, j, at);
      Base::start_scores(f, opaque(warpgroup), uniform(at.stage()));
      wgmma_wait<0>();
      pin_registers(f.s);
      pin_registers(f.o);
      mask(f, warpgroup, j, kind, at);
      float rescale[kRowsPerThread];
      if (Base::move(f, kind, rescale)) {
        rescale_output(f.o, rescale);
      }
      Base::weigh_exactly(f, rescale);
      release_query(warpgroup, kind, leader);
      Base::release_keys_by_warps(at);
      round_weights<kElement>(f.s, f.p);
#pragma unroll 1
      while (true) {
        proven = true;
        if constexpr (!kSchedule.modifiers) {
          const int end = plain_end(warpgroup, j, at);
#pragma unroll 1
          while (j + 1 < end) {
            k_ring().wait_full(at.next());  // producer: K_{j+1}
            const uint32_t absent_next = Base::absent_boxes(at.next());
            start_both(f, warpgroup, kind, at);
            const uint32_t absent = uniform(absent_next);
            ++j;
            kind = 0;
            await_scores(f, warpgroup);
            if (absent != 0) {
              mask_absent(args, f.s, absent);
            }
            if (!Base::template weigh_ahead<true>(f, warpgroup)) {
              Base::complete_output(f, leader, at);
              __syncwarp();
              proven = false;
              break;
            }
            Base::end_granule(f, warpgroup, leader, at);
          }
        }
        if (!proven || (kind & kLast) != 0) {
          break;
        }
        k_ring().wait_full(at.next());
        const uint32_t next = kind_of(warpgroup, j + 1, at.next());
        start_both(f, warpgroup, kind, at);
        ++j;
        kind = next;
        await_scores(f, warpgroup);
        mask(f, warpgroup, j, kind, at);
        if (j % kChunkTiles == 0) {
          Base::close_rows(f);
          Base::move(f, kind, rescale);
          const LateChunk ended = late_chunk(warpgroup, j / kChunkTiles - 1, at);
          const auto first = Base::fetch_first(warpgroup, ended);
          Base::weigh_exactly(f, rescale);
          release_query(warpgroup, kind, leader);
          Base::end_granule(f, warpgroup, leader, at);
          Base::put_away(f, warpgroup, ended, false, first);
          stamp<Tag>(*this, warpgroup, Event::kChunkDone);
          continue;
        }
        if constexpr (kSchedule.modifiers) {
          const bool moves = Base::move(f, kind, rescale);
          wgmma_wait<0>();  // all warps or none: `moves` is of one warp
          pin_registers(f.o);
          if (moves) {
            rescale_output(f.o, rescale);
          }
          Base::weigh_exactly(f, rescale);
        } else if (!Base::template weigh_ahead<false>(f, warpgroup)) {
          Base::complete_output(f, leader, at);
          __syncwarp();
          proven = false;
          break;
        }
        release_query(warpgroup, kind, leader);
        Base::end_granule(f, warpgroup, leader, at);
      }
    }
    v_ring().wait_full(at);  // producer: the last V
    Base::start_output(f, warpgroup, kind, at);
    const LateChunk chunk = late_chunk(warpgroup, j / kChunkTiles, at);
    Base::close_rows(f);
    Base::fetch_last(f, warpgroup, chunk);
    wgmma_wait<0>();
    pin_registers(f.o);
    if (leader) {
      v_ring().release(at);
    }
    at.advance();
    if (Base::in_memory(chunk)) {
      Base::put_away(f, warpgroup, chunk, true);
    }
  }

  // Issues S of the next granule, whose K has been seen, and P V of the current one, and goes on to the next one.
  __device__ __forceinline__ void start_both(Fragments& f, int warpgroup, uint32_t kind, Position& at) const {
    Base::start_scores(f, opaque(warpgroup), uniform(at.next().stage()));
    v_ring().wait_full(at);  // producer: V_j
    Base::start_output(f, warpgroup, kind, at);
    at.advance();
  }
  __device__ __forceinline__ void await_scores(Fragments& f, int warpgroup) const {
    wgmma_wait<1>();
    pin_registers(f.s);
    stamp<Tag>(*this, warpgroup, Event::kScoresDone);
  }
  // Of the granules that follow granule j, those before plain_end(j) are neither the first ones of their chunk nor the
  // last one of the tile, and masked only where keys have no page.
  __device__ __forceinline__ int plain_end(int warpgroup, int j, const Position& at) const {
    const RaggedWalk walk = slot_of(at).walk(warpgroup);
    const int end = min(min(walk.open_end, walk.end - 1), (j / kChunkTiles + 1) * kChunkTiles);
    return uniform(j + 1 < walk.open_first ? j : end);
  }
  __device__ __forceinline__ void mask(Fragments& f, int warpgroup, int j, uint32_t kind, const Position& at) const {
    if ((kind & kMasked) != 0) {
      Base::mask(f, warpgroup, j, kind, at);
    }
  }
  // No further S of this tile, unless it is computed again.
  __device__ __forceinline__ void release_query(int warpgroup, uint32_t kind, bool leader) const {
    if (leader && (kind & kLast) != 0) {
      Base::release_query(warpgroup);
    }
  }
};

}  // namespace tessera::sm90
