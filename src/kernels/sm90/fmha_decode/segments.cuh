// The kernels for several segments (R10): a block takes units of one of them, as if it were alone; the second kernel
// chains chunks inside segments and the segments' states in their order.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_decode/alone.cuh"
#include "kernels/sm90/fmha_decode/combine.cuh"
#include "kernels/sm90/ptx.cuh"

namespace tessera::sm90 {

template <class Tag>
__global__ void __launch_bounds__(AloneLayout<Tag>::kThreads, AloneLayout<Tag>::kResident)
    fmha_decode_segments_sm90(const __grid_constant__ SegmentedArguments args) {
  int segment = 0;
  while (segment + 1 < args.count && static_cast<int>(blockIdx.x) >= args.segments[segment + 1].first_block) {
    ++segment;
  }
  run_alone<Tag>(args.segments[segment]);
}

template <class Tag>
__global__ void __launch_bounds__(combine_warps(Tag::kValueDim) * 32)
    combine_segments_sm90(const __grid_constant__ SegmentedArguments args) {
  const DecodeArguments& first = args.segments[0];
  const int batch = divide(static_cast<int>(blockIdx.x), first.heads);
  const int head = static_cast<int>(blockIdx.x) - batch * static_cast<int>(first.heads.value);
  const PartOfState part = part_to_chain<Tag>(first);
  wait_for_primary();
  StatePart total;
  total.clear();
  Unit unit{};
#pragma unroll 1
  for (int i = 0; i < args.count; ++i) {
    const DecodeArguments& segment = args.segments[i];
    unit = UnitFinder<Tag>(segment).first_of(batch, head);
    total.chain(chain_chunks<Tag, kStatesAhead>(segment, unit, part, true));
  }
  finish_rows<Tag>(first, unit, part, RowPlaces<Tag>(first, unit, part), total);
}

}  // namespace tessera::sm90
