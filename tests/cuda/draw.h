// Random attention problems for the CUDA kernels: fp16 or bf16, from a fixed seed.
#pragma once

#include <cstdint>

#include "fmha/problem.h"

namespace tessera::test {

// A mix of all features that the contract has for 16-bit inputs.
FmhaSpec draw_mix(uint64_t seed, tessera_dtype dtype);

// What a prefill kernel takes: one length of queries and one of keys for all sequences, causal or not, rows aligned to
// 16 bytes, any GQA ratio, dims `head_dim`.
FmhaSpec draw_prefill(uint64_t seed, tessera_dtype dtype, int32_t head_dim);

// What a ragged prefill kernel takes: every feature but several segments, rows aligned to 16 bytes, head dims and page
// sizes in steps of 8, queries of several tiles and keys of several granules or chunks.
FmhaSpec draw_ragged(uint64_t seed, tessera_dtype dtype);

// What the prefill kernel of head dim 512 takes: the same with head dims above 256, without softcap, ALiBi and custom
// bits.
FmhaSpec draw_wide(uint64_t seed, tessera_dtype dtype);

// What the kernel for one K/V head of dim 512 whose V is K takes: several segments of any kind but gathered keys.
FmhaSpec draw_mqa(uint64_t seed, tessera_dtype dtype);

// The same with FP8 rows of either format in most segments, some of them gathered.
FmhaSpec draw_mqa_fp8(uint64_t seed);

}  // namespace tessera::test
