#include "oracle/steps.h"

#include "base/host_device.h"
#include "contract/mma_model.h"

namespace tessera {
namespace {

template <class Format>
TESSERA_HD void hopper_scores_body(DecodedSpan q, DecodedSpan k, int64_t steps, const uint8_t* visible, int64_t count,
                                   float* scores) {
  for (int64_t j = 0; j < count; ++j) {
    if (visible[j] != 0) {
      const int64_t at = j * steps * kStepTerms;
      scores[j] =
          fdot_chain_decoded<Format>(0.0F, q.significands, q.exponents, k.significands + at, k.exponents + at, steps);
    }
  }
}

template <class Format>
TESSERA_HD void hopper_accumulate_body(DecodedSpan p, DecodedSpan v, int64_t dims, float* o) {
  for (int64_t d = 0; d < dims; ++d) {
    o[d] = fdot_decoded<Format>(o[d], p.significands, p.exponents, v.significands + d * kStepTerms,
                                v.exponents + d * kStepTerms);
  }
}

TESSERA_HD float fma32_dot(const float* a, const float* b, int64_t dims) {
  float acc[16] = {};
  const int64_t whole = dims / 16 * 16;
  for (int64_t d = 0; d < whole; d += 16) {
    for (int t = 0; t < 16; ++t) {
      acc[t] = fma_rn(a[d + t], b[d + t], acc[t]);
    }
  }
  for (int64_t d = whole; d < dims; ++d) {
    acc[d - whole] = fma_rn(a[d], b[d], acc[d - whole]);
  }
  for (int width = 8; width >= 1; width /= 2) {
    for (int t = 0; t < width; ++t) {
      acc[t] = acc[t] + acc[t + width];
    }
  }
  return acc[0];
}

TESSERA_HD void fma32_scores_body(const float* q, const float* k, int64_t dims, const uint8_t* visible, int64_t count,
                                  float* scores) {
  for (int64_t j = 0; j < count; ++j) {
    if (visible[j] != 0) {
      scores[j] = fma32_dot(q, k + j * dims, dims);
    }
  }
}

TESSERA_HD void fma32_accumulate_body(float p, const float* v, int64_t dims, float* o) {
  for (int64_t d = 0; d < dims; ++d) {
    o[d] = fma_rn(p, v[d], o[d]);
  }
}

#if defined(__x86_64__)
#define TESSERA_WIDE __attribute__((target("avx2,fma,bmi,bmi2,lzcnt")))
bool wide() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#else
#define TESSERA_WIDE
bool wide() {
  return false;
}
#endif

TESSERA_WIDE void hopper_scores_wide(tessera_dtype dtype, DecodedSpan q, DecodedSpan k, int64_t steps,
                                     const uint8_t* visible, int64_t count, float* scores) {
  if (dtype == TESSERA_F16) {
    hopper_scores_body<F16Format>(q, k, steps, visible, count, scores);
  } else {
    hopper_scores_body<Bf16Format>(q, k, steps, visible, count, scores);
  }
}
TESSERA_WIDE void hopper_accumulate_wide(tessera_dtype dtype, DecodedSpan p, DecodedSpan v, int64_t dims, float* o) {
  if (dtype == TESSERA_F16) {
    hopper_accumulate_body<F16Format>(p, v, dims, o);
  } else {
    hopper_accumulate_body<Bf16Format>(p, v, dims, o);
  }
}
TESSERA_WIDE void fma32_scores_wide(const float* q, const float* k, int64_t dims, const uint8_t* visible, int64_t count,
                                    float* scores) {
  fma32_scores_body(q, k, dims, visible, count, scores);
}
TESSERA_WIDE void fma32_accumulate_wide(float p, const float* v, int64_t dims, float* o) {
  fma32_accumulate_body(p, v, dims, o);
}

}  // namespace

void hopper_scores(tessera_dtype dtype, DecodedSpan q, DecodedSpan k, int64_t steps, const uint8_t* visible,
                   int64_t count, float* scores) {
  if (wide()) {
    hopper_scores_wide(dtype, q, k, steps, visible, count, scores);
  } else if (dtype == TESSERA_F16) {
    hopper_scores_body<F16Format>(q, k, steps, visible, count, scores);
  } else {
    hopper_scores_body<Bf16Format>(q, k, steps, visible, count, scores);
  }
}

void hopper_accumulate(tessera_dtype dtype, DecodedSpan p, DecodedSpan v, int64_t dims, float* o) {
  if (wide()) {
    hopper_accumulate_wide(dtype, p, v, dims, o);
  } else if (dtype == TESSERA_F16) {
    hopper_accumulate_body<F16Format>(p, v, dims, o);
  } else {
    hopper_accumulate_body<Bf16Format>(p, v, dims, o);
  }
}

void fma32_scores(const float* q, const float* k, int64_t dims, const uint8_t* visible, int64_t count, float* scores) {
  if (wide()) {
    fma32_scores_wide(q, k, dims, visible, count, scores);
  } else {
    fma32_scores_body(q, k, dims, visible, count, scores);
  }
}

void fma32_accumulate(float p, const float* v, int64_t dims, float* o) {
  if (wide()) {
    fma32_accumulate_wide(p, v, dims, o);
  } else {
    fma32_accumulate_body(p, v, dims, o);
  }
}

}  // namespace tessera
