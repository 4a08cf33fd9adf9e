// The inner sums of R1 and R6 for both arithmetics: the only part of the oracle that is shaped for speed. Each is
// compiled twice, for the baseline and for AVX2 with FMA, and chosen by what the machine has; the bits are the same,
// since one is integer arithmetic and the other has every fma spelled out.
#pragma once

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera {

// Decoded fp16 or bf16 operands (contract/mma_model.h): significands and exponents, equally indexed.
struct DecodedSpan {
  const int16_t* significands;
  const int16_t* exponents;
};

// R1, hopper: scores[j] = fdot chain over `steps` k16 steps from +0, for the keys with visible[j] != 0 of `count` keys.
// q: (16 * steps), k: (count, 16 * steps). dtype is TESSERA_F16 or TESSERA_BF16.
void hopper_scores(tessera_dtype dtype, DecodedSpan q, DecodedSpan k, int64_t steps, const uint8_t* visible,
                   int64_t count, float* scores);

// R6, hopper: o[d] = fdot(o[d]; p[0..16), v[d][0..16)) for one k16 block of keys. v: (dims, 16), o: (dims).
void hopper_accumulate(tessera_dtype dtype, DecodedSpan p, DecodedSpan v, int64_t dims, float* o);

// R1, cpu-fma32: 16 classes and the halving tree, for the visible keys of `count`. q: (dims), k: (count, dims).
void fma32_scores(const float* q, const float* k, int64_t dims, const uint8_t* visible, int64_t count, float* scores);

// R6, cpu-fma32: o[d] = fma(p, v[d], o[d]) for one key. v, o: (dims).
void fma32_accumulate(float p, const float* v, int64_t dims, float* o);

}  // namespace tessera
