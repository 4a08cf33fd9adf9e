#!/bin/bash
# The experiments of lab/ about stages, query tiles and a staging warp, on a GPU:
#
#     stage_experiments.sh TESSERA LIBRARY [NUMBER ..]
#
# TESSERA is the program and LIBRARY the target tessera_sm80_schedules. Works in the current folder: makes lab/ there, the
# copies of LIBRARY that are named after schedules, and the grids; opens every experiment and makes its first attempt, the
# given ones only if numbers are named. What they end with, and lessons, are written by hand: tessera lab close. The file
# `schedule` names the one that is under test; after a revert it gets the name of the base, then tessera lab verify-revert.
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
  local base=d128_$2 candidate=d128_$3 opened
  cp "$library" "$base.so" && cp "$library" "$candidate.so"
  echo "$candidate" >schedule
  local pair="--a device=cuda,library=./$base.so --b device=cuda,library=./\$(cat schedule).so"
  opened=$("$tessera" lab new "$1" --class bit-neutral --expect "$4" --hypothesis "$5" --background "$background" --json \
    --identity "\"\$TESSERA\" gate identity $pair --grid stages_identity.json --json" \
    --perf "\"\$TESSERA\" gate perf $pair --grid stages_perf.json --expect faster --blocks 16 --json" \
    --reference "$base.so" --reference stages_identity.json --reference stages_perf.json --subject schedule --subject "$candidate.so" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["number"])') || exit 3
  "$tessera" lab attempt "$opened" -q --limit 30 --change "$6${TESSERA_COMMIT:+ Commit $TESSERA_COMMIT.}" | head -n 1
}

wanted=("$@") number=0
background="sm80_fmha, fp16, head dim 128. The two libraries are one file: it holds every schedule and runs the one that it is named after (w: warps of 16 query rows, t: keys of a stage, s: stages, x: a refill half a phase later, g: a staging warp, G: a staging warpgroup). Base: 64 query rows, one stage of a whole granule of 128 keys for K and one for V, two blocks per multiprocessor."
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
experiment "Query tile of 128 rows, warps that do not wait for the slowest" w4_t128_s1 w8_t128_s1x 2 \
  "Eight warps share every copy of K and V, which halves the traffic from L2; without barriers of the block eight warps may drift as two blocks of four do." \
  "warps 4 -> 8, blocks_per_sm 2 -> 1, refill half a phase later."
experiment "A staging warp beside a query tile of 48 rows" w3_t64_s2 w3_t64_s2g 10 \
  "With mbarriers nobody waits for the slowest warp, and the warps that multiply issue no copies." \
  "One warp more, which copies K and V; mbarriers for full and empty stages in place of barriers of the block."
experiment "Warps that do not wait for the slowest" w4_t128_s1 w4_t128_s1x 8 \
  "What helped the staging warp is that warps drift, not who copies: every thread copies its share as before, but a warp says that it has read a stage, goes on with the next phase, and fills its share half a phase later." \
  "refill: at once behind a barrier of the block -> half a phase later behind an mbarrier; four barriers of the block per granule become none."
experiment "A staging warpgroup" w4_t128_s1 w4_t128_s1G 10 \
  "The staging warp gained 28 % at 48 rows because the warps that multiply no longer compute addresses and ask for copies. Beside four warps a fifth leaves only 168 registers a thread; a whole warpgroup can give its registers away (setmaxnreg: 40 and 216), and then two blocks of 64 rows stay." \
  "staging_warps 0 -> 4, mbarriers for full and empty stages, no barrier of the block between granules."
experiment "Two stages and a query tile of 128 rows beside a staging warpgroup" w4_t128_s1G w8_t128_s2G 3 \
  "One block of eight warps has room for two stages of whole granules, and every copy serves 128 rows." \
  "warps 4 -> 8, stages 1 -> 2, blocks_per_sm 2 -> 1."
experiment "A staging warpgroup that the memory checkers can follow" w4_t128_s1 w4_t128_s1G 10 \
  "The staging warpgroup of before met the other warps at barriers of the block, and one lane arrived for its warp; racecheck and synccheck do not follow that. If every thread arrives for what it has read or stored, and mbarriers that live as long as the block are the only place where the two meet, the gain stays: arrivals are few, and the staging warps can ask for the next tile's keys while the others still write." \
  "32 arrivals per warp and stage in place of one, mbarriers made once per block with phases that go on over segments and query tiles, Q loaded by those who own it, no barrier of the block behind the first."
experiment "Query tile of 128 rows beside a staging warpgroup, one stage" w4_t128_s1G w8_t128_s1G 2 \
  "Two stages of 144 KiB are not what a query tile of 128 rows needs: the staging warps are ahead anyway. One stage leaves the rest of the memory to L1, and every copy serves 128 rows." \
  "warps 4 -> 8, blocks_per_sm 2 -> 1."
