// The cleaner of a ragged kernel, one warp of the producer warpgroup. V rows that no query sees may hold NaN, and 0
// times NaN is NaN. Mostly the copy engine cuts such rows off; where it cannot (RaggedSlot::kUnclean), V arrives for
// the cleaner, who hands it on to the consumers.
#pragma once

#include "kernels/sm90/fmha_prefill/ragged_producer.cuh"

namespace tessera::sm90 {

template <class Tag>
struct RaggedCleaner : RaggedProducer<Tag> {
  using Base = RaggedProducer<Tag>;
  using Base::args, Base::shared;
  using Base::lane, Base::v_ring;
  using typename Base::Layout, typename Base::Position, typename Base::TilePosition;

  __device__ __forceinline__ void clean() const {
    TilePosition tile_at;
    Position at;
    uint32_t phases = 0;  // bit s: parity of the next use of raw(s), which only unclean tiles use
#pragma unroll 1
    for (RaggedSlot slot = Base::take(tile_at); slot.address != 0; slot = Base::take(tile_at)) {
      const uint32_t granules = slot.get(RaggedSlot::kEndGranule) - slot.get(RaggedSlot::kFirstGranule);
      const uint32_t end = at.use + granules;
      if (slot.get(RaggedSlot::kUnclean) != 0) {
#pragma unroll 1
        for (; at.use != end; at.advance()) {
          hand_over(at.stage(), phases);
        }
      }
      at.use = end;
      Base::give_back(tile_at);
    }
  }

  // Head dim 256, where V has a warp of its own: the same one cleans it.
  __device__ __forceinline__ void feed_values() const {
    uint32_t phases = 0;
    Base::template produce<false, true>([&](uint32_t stage) { hand_over(stage, phases); });
  }

 private:
  // V of `stage` has arrived for the cleaner: to the consumers.
  __device__ __forceinline__ void hand_over(uint32_t stage, uint32_t& phases) const {
    barrier_wait(Base::raw(stage), phases >> stage & 1U);
    phases ^= 1U << stage;
    clean_stage(shared + Layout::kV + stage * Layout::kKvBytes);
    __syncwarp();
    if (lane() == 0) {
      barrier_arrive(v_ring().full + 8 * stage);
    }
  }
  // Inputs are finite (docs/contract.md), so what is not becomes zero.
  __device__ __forceinline__ static int finite_or_zero(int pair) {
    constexpr uint32_t kExponent = Tag::kNumbers.bf16 ? 0x7f80U : 0x7c00U;
    const auto bits = static_cast<uint32_t>(pair);
    const uint32_t low = (bits & kExponent) == kExponent ? 0U : bits & 0xffffU;
    const uint32_t high = (bits >> 16 & kExponent) == kExponent ? 0U : bits & 0xffff0000U;
    return static_cast<int>(high | low);
  }
  __device__ __forceinline__ void clean_stage(uint32_t values) const {
    const uint32_t end = values + args.ragged.v_panels * panel_bytes(Base::kTileKeys);
#pragma unroll 2
    for (uint32_t at = values + 16 * lane(); at < end; at += 16 * 32) {
      const int4 x = load_shared_int4(at);
      const int4 y = make_int4(finite_or_zero(x.x), finite_or_zero(x.y), finite_or_zero(x.z), finite_or_zero(x.w));
      if (x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w) {
        store_shared(at, y);
      }
    }
    fence_async_proxy();  // consumers read it by wgmma
  }
};

}  // namespace tessera::sm90
