#!/bin/bash
# The experiments of lab/ about stages, query tiles and a staging warp, on a GPU:
#
#     stage_experiments.sh TESSERA LIBRARY [NUMBER ..]
#
# TESSERA is the program and LIBRARY the target tessera_sm80_schedules. Works in the current folder: makes lab/ there, the
# copies of LIBRARY that are named after schedules, and the grids; opens every experiment and makes its first attempt, the
# given ones only if numbers are named. What they end with, and lessons, are written by hand: tessera lab close.
set -u
tessera=$(realpath "$1") library=$(realpath "$2")
shift 2
here=$(dirname "$(realpath "$0")")
cp "$here"/stages_identity.json "$here"/stages_perf.json .
export TESSERA_LAB=lab

# title, base, candidate, expected percent, hypothesis, change
experiment() {
  number=$((number + 1))
  if [ ${#wanted[@]} -gt 0 ] && [[ ! " ${wanted[*]} " == *" $number "* ]]; then return; fi
  local base=d128_$2 candidate=d128_$3
  cp "$library" "$base.so" && cp "$library" "$candidate.so"
  local pair="--a device=cuda,library=./$base.so --b device=cuda,library=./$candidate.so"
  "$tessera" lab new "$1" --class bit-neutral --expect "$4" --hypothesis "$5" --background "$background" \
    --identity "\"\$TESSERA\" gate identity $pair --grid stages_identity.json --json" \
    --perf "\"\$TESSERA\" gate perf $pair --grid stages_perf.json --expect faster --blocks 16 --json" \
    --reference "$base.so" --reference stages_identity.json --reference stages_perf.json --subject "$candidate.so" >/dev/null || exit 3
  opened=$((opened + 1))
  "$tessera" lab attempt "$opened" -q --limit 30 --change "$6" | head -n 1
}

wanted=("$@") number=0 opened=0
background="sm80_fmha, fp16, head dim 128. The two libraries are one file: it holds every schedule and runs the one that it is named after (w: warps of 16 query rows, t: keys of a stage, s: stages, g: a staging warp, b: blocks per multiprocessor). Base: 64 query rows, one stage of a whole granule of 128 keys for K and one for V, two blocks per multiprocessor."
[ -d lab ] || "$tessera" lab init --identity true --perf true >/dev/null || exit 3

experiment "Two stages of whole granules" w4_t128_s1 w4_t128_s2 3 \
  "A granule is asked for and waited for with nothing in between but the other tensor; a second stage hides the latency of memory." \
  "stages 1 -> 2; 144 KiB of shared memory, so one block per multiprocessor instead of two."
experiment "Two stages of half granules in the memory of one" w4_t128_s1 w4_t64_s2 4 \
  "Two stages of 64 keys need the shared memory of one of 128, so both blocks stay; the max is still taken over the granule of 128 keys (R3), so no bit moves." \
  "tile_keys 128 -> 64, stages 1 -> 2; a stage is filled behind the barrier that opens the next tile, two barriers less per granule."
experiment "Three stages of half granules" w4_t64_s2 w4_t64_s3 1 \
  "A third stage is asked for one tile earlier; 112 KiB still leave two blocks." \
  "stages 2 -> 3."
experiment "Query tile of 48 rows, two stages of 32 keys, a staging warp" w4_t128_s1 w3_t32_s2g 2 \
  "The geometry of the reverted experiment that this one repeats: three warps own rows, a fourth one only copies, so that no warp that multiplies waits for an address." \
  "warps 4 -> 3 and a staging warp with mbarriers, tile_keys 128 -> 32, stages 1 -> 2."
experiment "Query tile of 128 rows, three stages of half granules" w4_t128_s1 w8_t64_s3 2 \
  "Eight warps share every copy of K and V, which halves the traffic from L2; one block of eight warps has as many warps as two of four." \
  "warps 4 -> 8, tile_keys 128 -> 64, stages 1 -> 3, blocks_per_sm 2 -> 1."
experiment "Three blocks per multiprocessor" w4_t128_s1 w4_t32_s3 8 \
  "Twelve warps hide more of the latency of shared memory and of the barriers than eight; three stages of 32 keys and 168 registers a thread leave room for a third block." \
  "tile_keys 128 -> 32, stages 1 -> 3, blocks_per_sm 2 -> 3, row sums kept in shared memory between granules."
