// The matrix product and its weight formats written down a second time, scalar and from GGUF bytes, straight from the
// text of contract.md ("Rules of matrix products and row operations"). Shares no code with the kernels.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::gemm_test {

inline constexpr tessera_weight_type kAllTypes[] = {TESSERA_WEIGHT_F32,  TESSERA_WEIGHT_F16,  TESSERA_WEIGHT_BF16,
                                                    TESSERA_WEIGHT_Q4_0, TESSERA_WEIGHT_Q4_1, TESSERA_WEIGHT_Q5_0,
                                                    TESSERA_WEIGHT_Q5_1, TESSERA_WEIGHT_Q8_0, TESSERA_WEIGHT_Q4_K,
                                                    TESSERA_WEIGHT_Q5_K, TESSERA_WEIGHT_Q6_K};

const char* type_name(tessera_weight_type type);
int64_t block_elements(tessera_weight_type type);
int64_t block_bytes(tessera_weight_type type);
bool is_quantized(tessera_weight_type type);

// An (n, k) matrix of random blocks in GGUF layout: uniform quants, scales that give weights of about +-1.
std::vector<uint8_t> random_matrix(tessera_weight_type type, int64_t n, int64_t k, uint32_t seed);

// Weights of one row, split the way M2 and M3 use them.
struct DecodedRow {
  std::vector<int> quant;    // M2's w, [k]; quantised types
  std::vector<float> ds;     // [k / step]
  std::vector<float> mn;     // [k / 32]; affine types
  std::vector<float> value;  // "Rows of W as fp32", [k]
  int64_t step = 32;         // k of one step of M3
  bool affine = false;
};
DecodedRow decode_row(tessera_weight_type type, const uint8_t* row, int64_t k);

// y[r, o] by rules M1..M5, for one row of x and one row of W.
float reference_dot(tessera_weight_type type, const DecodedRow& weights, const float* x, int64_t k, const float* bias);

// All of it: y is (m, n), contiguous. stride_x in elements.
std::vector<float> reference_gemm(tessera_weight_type type, const std::vector<uint8_t>& matrix, int64_t m, int64_t n,
                                  int64_t k, const float* x, int64_t stride_x, const float* bias);

}  // namespace tessera::gemm_test
