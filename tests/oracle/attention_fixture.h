// Builds attention problems for the oracle's tests: owned tensors in (batch, token, head, dim) order, outputs that
// start out as NaN bytes so that an unwritten row shows, and row-wise comparison by bytes.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/numeric_types.h"
#include "contract/plan.h"
#include "oracle/oracle.h"
#include "probe/vector_cases.h"
#include "tessera/tessera.h"

namespace tessera {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline size_t dtype_size(tessera_dtype dtype) {
  return dtype == TESSERA_F32 ? 4 : 2;
}

// The value that a tensor of this dtype holds for x.
inline float as_stored(tessera_dtype dtype, float x) {
  return dtype == TESSERA_F32 ? x : dtype == TESSERA_F16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
}

class Tensor {
 public:
  Tensor() = default;
  Tensor(tessera_dtype dtype, int64_t batch, int64_t tokens, int64_t heads, int64_t dim)
      : dtype_(dtype),
        tokens_(tokens),
        heads_(heads),
        dim_(dim),
        bytes_(static_cast<size_t>(batch * tokens * heads * dim) * dtype_size(dtype)) {}

  // Normally distributed values.
  void fill(uint32_t seed, float spread, float mean = 0.0F) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(mean, spread);
    for (size_t i = 0; i < bytes_.size() / dtype_size(dtype_); ++i) {
      put(static_cast<int64_t>(i), normal(random));
    }
  }
  // Values in [-spread, spread) that are the same on every machine (the library's distributions are not).
  void fill_fixed(uint32_t seed, float spread) {
    for (size_t i = 0; i < bytes_.size() / dtype_size(dtype_); ++i) {
      const uint64_t r = mix64(static_cast<uint64_t>(seed) << 40 | i);
      put(static_cast<int64_t>(i), spread * (static_cast<float>(r >> 40) * 0x1p-23F - 1.0F));
    }
  }
  void fill_with(float x) {
    for (size_t i = 0; i < bytes_.size() / dtype_size(dtype_); ++i) {
      put(static_cast<int64_t>(i), x);
    }
  }

  float at(int64_t b, int64_t t, int64_t h, int64_t d) const { return get(index(b, t, h, d)); }
  void set(int64_t b, int64_t t, int64_t h, int64_t d, float x) { put(index(b, t, h, d), x); }
  void set_row(int64_t b, int64_t t, int64_t h, float x) {
    for (int64_t d = 0; d < dim_; ++d) {
      set(b, t, h, d, x);
    }
  }
  // Copies all heads of one token.
  void copy_token(int64_t b, int64_t t, const Tensor& from, int64_t from_b, int64_t from_t) {
    std::memcpy(bytes_.data() + index(b, t, 0, 0) * static_cast<int64_t>(dtype_size(dtype_)),
                from.bytes_.data() + from.index(from_b, from_t, 0, 0) * static_cast<int64_t>(dtype_size(dtype_)),
                static_cast<size_t>(heads_ * dim_) * dtype_size(dtype_));
  }

  tessera_tensor view() { return {bytes_.data(), tokens_ * heads_ * dim_, heads_ * dim_, dim_, 1}; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  std::vector<uint8_t>& bytes() { return bytes_; }
  int64_t dim() const { return dim_; }
  int64_t heads() const { return heads_; }
  int64_t tokens() const { return tokens_; }

  std::vector<uint8_t> row_bytes(int64_t b, int64_t t, int64_t h) const {
    const auto size = static_cast<int64_t>(dtype_size(dtype_));
    const auto first = bytes_.begin() + index(b, t, h, 0) * size;
    return {first, first + dim_ * size};
  }

 private:
  int64_t index(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return ((b * tokens_ + t) * heads_ + h) * dim_ + d;
  }
  float get(int64_t i) const {
    if (dtype_ == TESSERA_F32) {
      float x;
      std::memcpy(&x, bytes_.data() + i * 4, 4);
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes_.data() + i * 2, 2);
    return dtype_ == TESSERA_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  void put(int64_t i, float x) {
    if (dtype_ == TESSERA_F32) {
      std::memcpy(bytes_.data() + i * 4, &x, 4);
      return;
    }
    const uint16_t bits = dtype_ == TESSERA_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    std::memcpy(bytes_.data() + i * 2, &bits, 2);
  }

  tessera_dtype dtype_ = TESSERA_F32;
  int64_t tokens_ = 0, heads_ = 0, dim_ = 0;
  std::vector<uint8_t> bytes_;
};

struct Numerics {
  Arithmetic arithmetic;
  tessera_dtype dtype;
};
inline std::string name_of(Numerics n) {
  return std::string(n.arithmetic == Arithmetic::kHopperK16F25 ? "hopper_" : "cpu_") + dtype_name(n.dtype);
}
inline const std::vector<Numerics>& all_numerics() {
  static const std::vector<Numerics> list = {{Arithmetic::kCpuFma32, TESSERA_F32},
                                             {Arithmetic::kCpuFma32, TESSERA_F16},
                                             {Arithmetic::kCpuFma32, TESSERA_BF16},
                                             {Arithmetic::kHopperK16F25, TESSERA_F16},
                                             {Arithmetic::kHopperK16F25, TESSERA_BF16}};
  return list;
}
inline constexpr Numerics kCpuF32{Arithmetic::kCpuFma32, TESSERA_F32};
inline constexpr Numerics kHopperF16{Arithmetic::kHopperK16F25, TESSERA_F16};
inline constexpr Numerics kHopperBf16{Arithmetic::kHopperK16F25, TESSERA_BF16};

struct Shape {
  int64_t batch = 1, sq = 1, sk = 1;
  int32_t hq = 1, hk = 1, dqk = 16, dv = 16;
};

// One problem with one dense segment to start from; tests change `params` as they need.
class Attention {
 public:
  Attention(Numerics types, Shape sizes, uint32_t seed = 1, float spread = 1.0F)
      : numerics(types),
        shape(sizes),
        q(types.dtype, sizes.batch, sizes.sq, sizes.hq, sizes.dqk),
        k(types.dtype, sizes.batch, sizes.sk, sizes.hk, sizes.dqk),
        v(types.dtype, sizes.batch, sizes.sk, sizes.hk, sizes.dv) {
    q.fill(seed, spread);
    k.fill(seed + 1, 1.0F);
    v.fill(seed + 2, 1.0F);
    params.struct_size = sizeof(params);
    params.dtype = types.dtype;
    params.o_dtype = TESSERA_F32;
    params.head_dim_qk = sizes.dqk;
    params.head_dim_v = sizes.dv;
    params.num_heads_q = sizes.hq;
    params.num_heads_kv = sizes.hk;
    params.batch = sizes.batch;
    params.q = q.view();
    params.seqlen_q = sizes.sq;
    params.num_segments = 1;
    params.segments[0] = segment(k, v, sizes.sk);
    params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(sizes.dqk));
  }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  static tessera_kv_segment segment(Tensor& keys, Tensor& values, int64_t length) {
    tessera_kv_segment s{};
    s.k = keys.view();
    s.v = values.view();
    s.seqlen_k = length;
    s.window_left = s.window_right = -1;
    return s;
  }

  // All scores become zero, so that a row's sum counts its visible keys (times 2^b).
  void zero_queries() { q.fill_with(0.0F); }

  Status try_run(int threads = 1) {
    const int64_t tokens = params.cu_seqlens_q != nullptr ? params.cu_seqlens_q[params.batch] : shape.sq;
    const int64_t batch = params.cu_seqlens_q != nullptr ? 1 : shape.batch;
    o = Tensor(params.o_dtype, batch, tokens, shape.hq, shape.dv);
    std::fill(o.bytes().begin(), o.bytes().end(), uint8_t{0xff});
    lse.assign(static_cast<size_t>(batch * tokens * shape.hq), kNan);
    row_max = row_sum = lse;
    params.o = o.view();
    params.lse_natural_no_sink = scalars(lse, tokens);
    params.row_max_log2 = scalars(row_max, tokens);
    params.row_sum = scalars(row_sum, tokens);
    if (params.cu_seqlens_q != nullptr) {
      params.o.stride_batch = params.q.stride_batch = 0;
      for (auto* s : {&params.lse_natural_no_sink, &params.row_max_log2, &params.row_sum}) {
        s->stride_batch = 0;
      }
    }
    return oracle_fmha(numerics.arithmetic, params, threads);
  }
  void run(int threads = 1) {
    const Status status = try_run(threads);
    ASSERT_TRUE(status.ok()) << status.text();
  }

  size_t scalar_index(int64_t b, int64_t t, int64_t h) const {
    return static_cast<size_t>((b * o.tokens() + t) * shape.hq + h);
  }
  float lse_at(int64_t b, int64_t t, int64_t h) const { return lse[scalar_index(b, t, h)]; }
  float max_at(int64_t b, int64_t t, int64_t h) const { return row_max[scalar_index(b, t, h)]; }
  float sum_at(int64_t b, int64_t t, int64_t h) const { return row_sum[scalar_index(b, t, h)]; }

  // Visible keys of a row of an Attention with zero queries.
  int64_t visible_keys(int64_t b, int64_t t, int64_t h) const {
    const float bias = plan_for(numerics.arithmetic, numerics.dtype, shape.dqk, shape.dv).value().bias;
    return std::lround(std::ldexp(sum_at(b, t, h), -static_cast<int>(bias)));
  }

  // Bytes of O and of the three scalars of one row.
  std::vector<uint8_t> row(int64_t b, int64_t t, int64_t h) const {
    std::vector<uint8_t> bytes = o.row_bytes(b, t, h);
    for (const float x : {lse_at(b, t, h), max_at(b, t, h), sum_at(b, t, h)}) {
      const auto* raw = reinterpret_cast<const uint8_t*>(&x);
      bytes.insert(bytes.end(), raw, raw + sizeof x);
    }
    return bytes;
  }

  // Everything written, for whole-problem comparison.
  std::vector<uint8_t> all() const {
    std::vector<uint8_t> bytes;
    for (int64_t r = 0; r < static_cast<int64_t>(lse.size()); ++r) {
      const std::vector<uint8_t> one = row(0, r / shape.hq, r % shape.hq);
      bytes.insert(bytes.end(), one.begin(), one.end());
    }
    return bytes;
  }

  Numerics numerics;
  Shape shape;
  Tensor q, k, v, o;
  std::vector<float> lse, row_max, row_sum;
  tessera_fmha_params params{};

 private:
  tessera_row_scalars scalars(std::vector<float>& values, int64_t tokens) const {
    return {values.data(), tokens * shape.hq, shape.hq, 1};
  }
};

}  // namespace tessera
