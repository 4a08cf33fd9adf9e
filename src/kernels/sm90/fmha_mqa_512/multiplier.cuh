// A warpgroup that multiplies: 256 columns of O over all granules (R6), chunks one behind the other (R8).
#pragma once

#include "kernels/sm90/fmha_mqa_512/finish.cuh"
#include "kernels/sm90/smem_tile.cuh"
#include "kernels/sm90/softmax.cuh"
#include "kernels/sm90/wgmma_values.cuh"

namespace tessera::sm90 {

template <class Tag>
class MqaMultiplier {
  using Layout = MqaLayout<Tag::kHeadDim>;
  using Words = MqaTileWords;
  using Flags = MqaGranuleFlags;
  using Chain = MqaChain<Tag>;
  static constexpr Element kElement = Tag::kBf16 ? Element::kBf16 : Element::kF16;
  static constexpr int kBlocks = Layout::kGranule / 16;  // k16 blocks of a granule
  // O as two accumulators: ptxas has no room for one of 256 columns beside what a block of 512 threads starts with.
  static constexpr int kParts = Layout::kOwnGroups;
  static constexpr int kAhead = 1;
  using Outputs = float[Layout::kColumns / 2];
  using Part = float[Layout::kColumns / 2 / kParts];

 public:
  __device__ __forceinline__ MqaMultiplier(const MqaArguments& args, uint32_t shared, int multiplier)
      : args_(args), shared_(shared), multiplier_(multiplier) {}

  __device__ __forceinline__ void run() const {
    uint32_t granules = 0;  // so far
    Outputs o;              // of the chunk
    const Chain chain(args_, multiplier_);
#pragma unroll 1
    for (uint32_t round = 0; static_cast<int>(blockIdx.x + round * gridDim.x) < args_.total_items; ++round) {
      const uint32_t slot = round % Layout::kTileSlots;
      barrier_wait(base() + Layout::kTileFull + 8 * slot, round / Layout::kTileSlots % 2);
      const MqaTile tile = MqaTile::at<Layout>(shared_, round);
      const int work = uniform(tile.get(Words::kWork));
      if (work != Words::kOthers) {
        uint32_t used = 0;
        int to = kMqaFinish;
#pragma unroll 1
        do {
          StateRows rows;
          rows.clear();
          const bool has_keys = work == Words::kKeys;
          if (has_keys) {
            to = chunk(o, rows, granules);
          }
          const uint32_t buffer = (granules - 1) % Layout::kBuffers;
          chain.close(o, rows, to, used, tile, has_keys, values_at(buffer), [&] {
            if (has_keys) {
              release(buffer, 0);
              release(buffer, 1);
            }
          });
        } while (to != kMqaFinish);
      }
      barrier_arrive(base() + Layout::kTileEmpty + 8 * slot);
    }
  }

 private:
  // The granules of a chunk, all of which but the last one are given back; m and l of its rows; returns where it goes.
  __device__ __forceinline__ int chunk(Outputs& o, StateRows& rows, uint32_t& granules) const {
    int ends;
    uint32_t buffer;
#pragma unroll 1
    while (true) {
      buffer = granules % Layout::kBuffers;
      const uint32_t parity = granules / Layout::kBuffers % 2;
      barrier_wait(base() + Layout::kMoved + 8 * buffer, parity);
      ++granules;
      const int flags = uniform(load_shared(base() + Layout::kFlags + buffer * 16));
      const bool keep = (flags & Flags::kFresh) == 0;
      if (keep) {
        const float2 a = load_pair(base() + Layout::kFactors + buffer * Layout::kFactorBytes + thread() / 4 * 8);
        if (__any_sync(kAllLanes, a.x != 1.0F || a.y != 1.0F)) {
          const float factors[kRowsPerThread] = {a.x, a.y};
          rescale_output(o, factors);
        }
      }
      ends = flags >> Flags::kEndShift;
      barrier_wait(base() + Layout::kWeighed + 8 * buffer, parity);
      multiply(o, buffer, keep, ends == 0);
      if (ends != 0) {
        break;
      }
    }
    const uint4 closed = load_piece(base() + Layout::kClosed + buffer * Layout::kClosedBytes + thread() / 4 * 16);
    rows = {{__uint_as_float(closed.x), __uint_as_float(closed.y)},
            {__uint_as_float(closed.z), __uint_as_float(closed.w)}};
    return ends - 1;
  }
  // Gives back the group of a buffer that is a part of the own columns; every lane for what it has read: racecheck
  // orders an arrival by nothing else.
  __device__ __forceinline__ void release(uint32_t buffer, int part) const {
    barrier_arrive(base() + Layout::kEmpty + 8 * (Layout::kGroups * buffer + Layout::group_of_part(multiplier_, part)));
  }

  // R6 of a granule, which is given back group by group unless it has to be `done` with later. `keep`: it is not the
  // first one of its chunk.
  __device__ __forceinline__ void multiply(Outputs& o, uint32_t buffer, bool keep, bool done) const {
    using Values = MnMajorTile<Layout::kGranule>;
    const uint64_t p = tile_descriptor<KMajorTile>(base() + Layout::kWeights + buffer * Layout::kWeightStep);
    static_assert(kParts == 2);
    const uint64_t v = tile_descriptor<Values>(values_at(buffer));
    const auto multiply_blocks = [&](int part, int first, int end) {
      const uint64_t columns = v + static_cast<uint64_t>(Layout::group_of_part(0, part) * Layout::kGroupBytes >> 4);
#pragma unroll
      for (int block = first; block < end; ++block) {
        wgmma_ss_values<kElement>(part_of(o, part), KMajorTile::step(p, Layout::kRows, block),
                                  Values::step(columns, block), block > 0 || keep);
      }
      wgmma_commit();
    };
    wgmma_fence();
    multiply_blocks(0, 0, kBlocks);
    multiply_blocks(1, 0, kAhead);
    wgmma_wait<1>();
    pin_registers(part_of(o, 0));
    if (done) {
      release(buffer, 0);
    }
    multiply_blocks(1, kAhead, kBlocks);
    wgmma_wait<0>();
    pin_registers(part_of(o, 1));
    if (done) {
      release(buffer, 1);
    }
  }

  // The own columns of a buffer.
  __device__ __forceinline__ uint32_t values_at(uint32_t buffer) const {
    return base() + Layout::kKeys + buffer * Layout::kBufferBytes +
           Layout::group_of_part(multiplier_, 0) * Layout::kGroupBytes;
  }
  __device__ __forceinline__ static Part& part_of(Outputs& o, int part) {
    return reinterpret_cast<Part&>(o[part * int{sizeof(Part) / sizeof(float)}]);
  }
  // Opaque, so that addresses are computed where they are used rather than kept.
  __device__ __forceinline__ uint32_t base() const {
    return static_cast<uint32_t>(opaque(static_cast<int>(shared_)));
  }
  __device__ __forceinline__ static int thread() {
    return thread_index() & 127;  // and not %, which minds negative numbers
  }

  const MqaArguments& args_;
  uint32_t shared_;
  int multiplier_;
};

}  // namespace tessera::sm90
