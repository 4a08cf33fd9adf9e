#include "gate/kernel_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/numeric_types.h"

namespace tessera {
namespace {

// splitmix64: one round per part of the place.
uint64_t mix(uint64_t h, uint64_t value) {
  h += value + 0x9e3779b97f4a7c15;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
  h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
  return h ^ (h >> 31);
}

// Roughly normal, variance 1: the sum of four uniform numbers.
float normal(uint64_t h) {
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<float>((h >> (16 * i)) & 0xffff) * 0x1p-16F - 0.5F;
  }
  return sum * 1.7320508F;
}

size_t bytes_of(tessera_dtype dtype) {
  return dtype == TESSERA_F32 ? 4 : 2;
}

void store(tessera_dtype dtype, float value, std::byte* at) {
  if (dtype == TESSERA_F32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const uint16_t bits = dtype == TESSERA_F16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(at, &bits, sizeof(bits));
}

float round_to(tessera_dtype dtype, float value) {
  return dtype == TESSERA_F32   ? value
         : dtype == TESSERA_F16 ? f16_to_f32(f32_to_f16(value))
                                : bf16_to_f32(f32_to_bf16(value));
}

}  // namespace

CaseRow::CaseRow(const KernelCase& problem, char tensor, int64_t sequence, int64_t token, int64_t head)
    : dtype_(problem.dtype), hash_(mix(problem.seed, static_cast<uint64_t>(tensor))) {
  for (const int64_t part : {sequence, token, head}) {
    hash_ = mix(hash_, static_cast<uint64_t>(part));
  }
}

float CaseRow::operator[](int64_t dim) const {
  return round_to(dtype_, normal(mix(hash_, static_cast<uint64_t>(dim))));
}

float case_sink(const KernelCase& c, int64_t head) {
  return 1.0F + normal(mix(mix(c.seed, 's'), static_cast<uint64_t>(head)));
}

std::vector<KernelCase> built_in_grid(tessera_device device) {
  std::vector<KernelCase> grid;
  const auto add = [&](const char* what, KernelCase c) {
    const bool gpu = device == TESSERA_DEVICE_CUDA;
    const std::vector<tessera_dtype> dtypes =
        gpu ? std::vector{TESSERA_F16, TESSERA_BF16} : std::vector{TESSERA_F32, TESSERA_F16, TESSERA_BF16};
    for (const tessera_dtype dtype : dtypes) {
      c.dtype = dtype;
      c.name = fmt::format("{} {}", what, dtype == TESSERA_F32 ? "f32" : dtype == TESSERA_F16 ? "f16" : "bf16");
      c.seed = 1 + grid.size();
      grid.push_back(c);
    }
  };
  add("one key", {.seqlen_q = 1, .seqlen_k = 1});
  add("tail tile", {.seqlen_q = 7, .seqlen_k = 77, .causal = false});
  add("tail tile, fp32 output", {.o_f32 = true, .seqlen_q = 7, .seqlen_k = 141, .causal = false});
  add("causal", {.seqlen_q = 130, .seqlen_k = 130});
  add("causal, prefix", {.o_f32 = true, .seqlen_q = 33, .seqlen_k = 300});
  add("sinks", {.seqlen_q = 9, .seqlen_k = 120, .sinks = true});
  add("window", {.seqlen_q = 40, .seqlen_k = 200, .window_left = 63});
  add("softcap", {.seqlen_q = 12, .seqlen_k = 90, .softcap = 8});
  add("decode, pages", {.batch = 3, .seqlen_q = 1, .seqlen_k = 515, .page_size = 16});
  add("chunk edge", {.heads_q = 2, .heads_kv = 1, .batch = 1, .seqlen_q = 3, .seqlen_k = 2049});
  add("three chunks", {.o_f32 = true, .heads_q = 2, .heads_kv = 1, .batch = 1, .seqlen_q = 2, .seqlen_k = 5000});
  add("head dim 128", {.head_dim = 128, .seqlen_q = 20, .seqlen_k = 260});
  return grid;
}

CaseTensors::CaseTensors(const KernelCase& problem, const CaseView& view)
    : c_(problem),
      first_sequence_(view.first_sequence),
      sequences_(view.sequences < 0 ? problem.batch - view.first_sequence : view.sequences),
      first_token_(view.first_token),
      tokens_(view.tokens < 0 ? problem.seqlen_q - view.first_token : view.tokens),
      page_size_(view.page_size < 0 ? problem.page_size : view.page_size) {
  const size_t element = bytes_of(c_.dtype);
  const int64_t d = c_.head_dim;
  const auto put_row = [&](const CaseRow& row, std::byte* at) {
    for (int64_t i = 0; i < d; ++i) {
      store(c_.dtype, row[i], at + static_cast<size_t>(i) * element);
    }
  };
  const size_t row_bytes = static_cast<size_t>(d) * element;
  q_.resize(static_cast<size_t>(sequences_ * tokens_ * c_.heads_q) * row_bytes);
  for (int64_t i = 0; i < sequences_ * tokens_ * c_.heads_q; ++i) {
    const int64_t token = i / c_.heads_q % tokens_;
    const int64_t b = i / c_.heads_q / tokens_;
    put_row({c_, 'q', first_sequence_ + b, first_token_ + token, i % c_.heads_q},
            q_.data() + static_cast<size_t>(i) * row_bytes);
  }
  // Keys lie in pages of page_size, or, contiguous, in one page per sequence that has their number.
  const int64_t page = page_size_ > 0 ? page_size_ : c_.seqlen_k;
  const int64_t per_sequence = (c_.seqlen_k + page - 1) / page;
  const int64_t spare = page_size_ > 0 ? 2 : 0;
  const int64_t pool = sequences_ * per_sequence + spare;
  for (int64_t i = 0; i < pool; ++i) {
    pages_.push_back(static_cast<int32_t>(i));
  }
  if (page_size_ > 0) {
    std::mt19937_64 random(c_.seed);
    for (size_t i = pages_.size(); i > 1; --i) {
      std::swap(pages_[i - 1], pages_[random() % i]);
    }
  }
  std::vector<std::byte> nan(element);
  store(c_.dtype, std::numeric_limits<float>::quiet_NaN(), nan.data());
  for (std::vector<std::byte>* side : {&k_, &v_}) {
    side->resize(static_cast<size_t>(pool * page * c_.heads_kv * d) * element);
    for (size_t at = 0; at < side->size(); at += element) {
      std::memcpy(side->data() + at, nan.data(), element);
    }
    for (int64_t i = 0; i < sequences_ * c_.seqlen_k * c_.heads_kv; ++i) {
      const int64_t head = i % c_.heads_kv;
      const int64_t j = i / c_.heads_kv % c_.seqlen_k;
      const int64_t b = i / c_.heads_kv / c_.seqlen_k;
      const int64_t slot = pages_[static_cast<size_t>(b * per_sequence + j / page)] * page + j % page;
      put_row({c_, side == &k_ ? 'k' : 'v', first_sequence_ + b, j, head},
              side->data() + static_cast<size_t>(slot * c_.heads_kv + head) * row_bytes);
    }
  }
  for (int64_t h = 0; h < c_.heads_q && c_.sinks; ++h) {
    sinks_.push_back(case_sink(c_, h));
  }
  if (first_token_ != 0 || tokens_ != c_.seqlen_q) {
    positions_.assign(static_cast<size_t>(sequences_), static_cast<int32_t>(c_.seqlen_k - c_.seqlen_q + first_token_));
  }
}

size_t CaseTensors::o_bytes() const {
  return static_cast<size_t>(sequences_ * tokens_ * c_.heads_q * c_.head_dim) * bytes_of(c_.o_dtype());
}

size_t CaseTensors::lse_bytes() const {
  return static_cast<size_t>(sequences_ * tokens_ * c_.heads_q) * sizeof(float);
}

tessera_fmha_params CaseTensors::params(const Place& place, void* o, float* lse) const {
  const auto put = [&](const auto& list) {
    return const_cast<void*>(place(list.data(), list.size() * sizeof(list[0])));
  };
  const int64_t d = c_.head_dim;
  tessera_fmha_params p{};
  p.struct_size = sizeof(p);
  p.dtype = c_.dtype;
  p.o_dtype = c_.o_dtype();
  p.head_dim_qk = c_.head_dim;
  p.head_dim_v = c_.head_dim;
  p.num_heads_q = c_.heads_q;
  p.num_heads_kv = c_.heads_kv;
  p.batch = sequences_;
  p.q = {put(q_), tokens_ * c_.heads_q * d, c_.heads_q * d, d, 1};
  p.seqlen_q = tokens_;
  p.num_segments = 1;
  tessera_kv_segment& s = p.segments[0];
  const int64_t page = page_size_ > 0 ? page_size_ : c_.seqlen_k;
  s.k = {put(k_), page * c_.heads_kv * d, c_.heads_kv * d, d, 1};
  s.v = {put(v_), page * c_.heads_kv * d, c_.heads_kv * d, d, 1};
  s.seqlen_k = c_.seqlen_k;
  if (page_size_ > 0) {
    s.page_table = static_cast<const int32_t*>(put(pages_));
    s.page_table_stride = (c_.seqlen_k + page - 1) / page;
    s.page_size = static_cast<int32_t>(page);
    s.num_pages = static_cast<int64_t>(pages_.size());
  }
  s.causal = c_.causal ? 1 : 0;
  s.window_left = c_.window_left;
  s.window_right = -1;
  s.q_positions = positions_.empty() ? nullptr : static_cast<const int32_t*>(put(positions_));
  p.softmax_scale = 1 / std::sqrt(static_cast<float>(d));
  p.softcap = c_.softcap;
  p.sinks = sinks_.empty() ? nullptr : static_cast<const float*>(put(sinks_));
  p.o = {o, tokens_ * c_.heads_q * d, c_.heads_q * d, d, 1};
  p.lse_natural_no_sink = {lse, tokens_ * c_.heads_q, c_.heads_q, 1};
  p.device = TESSERA_DEVICE_CPU;
  return p;
}

}  // namespace tessera
