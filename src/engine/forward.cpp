#include "engine/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/numeric_types.h"

namespace tessera {
namespace {

// Rows that go through the products of a layer together: memory grows with the batch by the narrow activations only
// (SmolLM2-135M, 512 tokens: 10 MB less than without blocks, for 6 % of the prefill speed). Moves no bit.
constexpr int64_t kBlockRows = 128;

Status from_api(tessera_status code, const tessera_error& error) {
  return code == TESSERA_OK ? Status() : Status(static_cast<Code>(code), error.text);
}

tessera_gemm_weight product(const Matrix& w, const Vector& bias, float* y) {
  return {w.type, w.n, w.packed, bias.empty() ? nullptr : bias.data(), y, w.n};
}

// dst[i] = src[i] in `dtype`, rounded to nearest even.
void round_row(tessera_dtype dtype, const float* src, int64_t n, std::byte* dst) {
  if (dtype == TESSERA_F32) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = dtype == TESSERA_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
    std::memcpy(dst + 2 * i, &bits, sizeof(bits));
  }
}

}  // namespace

void Forward::set_kernels(std::string fmha, std::string gemm) {
  fmha_kernel_ = std::move(fmha);
  gemm_kernel_ = std::move(gemm);
}

Result<std::string> Forward::contract_id() const {
  const tessera_fmha_params p = attention_params(0);
  tessera_error error;
  char attention[128];
  size_t length = 0;
  TESSERA_RETURN_IF_ERROR(
      from_api(attention_calls_.contract_id(&p, attention, sizeof(attention), &length, &error), error));
  for (int32_t i = 0; i < tessera_kernel_count(); ++i) {
    tessera_kernel_info info;
    TESSERA_RETURN_IF_ERROR(from_api(tessera_kernel_get(i, &info, &error), error));
    if (info.operation == TESSERA_OP_GEMM && info.available != 0) {
      return fmt::format("{} + {}/{}", attention, tessera_contract_version(), info.arithmetic);
    }
  }
  return Status(Code::kUnsupported, "no matrix product kernel of this build runs on this machine");
}

Status Forward::run(std::span<const BatchItem> items, std::vector<float>* logits) {
  TESSERA_RETURN_IF_ERROR(check(items));
  logits->clear();
  if (rows_ == 0) {
    return {};
  }
  Status status = compute(items, logits);
  for (size_t i = 0; i < items.size(); ++i) {
    const SequenceId id = items[i].sequence;
    cache_.set_length(id, status.ok() ? seqlens_k_[i] : cache_.length(id));  // on failure: gives reserved pages back
  }
  return status;
}

Status Forward::compute(std::span<const BatchItem> items, std::vector<float>* logits) {
  TESSERA_RETURN_IF_ERROR(prepare(items));
  TESSERA_RETURN_IF_ERROR(embed(items));
  for (int64_t i = 0; i < c_.n_layers; ++i) {
    TESSERA_RETURN_IF_ERROR(layer(i, items));
    if (observer_) {
      observer_(i, {x_, static_cast<size_t>(rows_ * c_.hidden)});
    }
  }
  return output(items, logits);
}

Status Forward::check(std::span<const BatchItem> items) {
  rows_ = 0;
  max_seqlen_q_ = 0;
  positions_.clear();
  item_of_row_.clear();
  cu_seqlens_q_.assign(1, 0);
  seqlens_k_.clear();
  std::vector<SequenceId> seen;
  for (const BatchItem& item : items) {
    if (!cache_.contains(item.sequence)) {
      return Status(Code::kInvalidArgument, fmt::format("batch: sequence {} does not exist", item.sequence));
    }
    seen.push_back(item.sequence);
    const auto n = static_cast<int64_t>(item.tokens.size());
    if (item.num_logits < 0 || item.num_logits > n) {
      return Status(Code::kInvalidArgument,
                    fmt::format("batch: num_logits of sequence {}: got {}; allowed 0 to its {} tokens", item.sequence,
                                item.num_logits, n));
    }
    for (const int32_t token : item.tokens) {
      if (token < 0 || token >= c_.vocab_size) {
        return Status(Code::kInvalidArgument, fmt::format("batch: token of sequence {}: got {}; allowed 0 to {}",
                                                          item.sequence, token, c_.vocab_size - 1));
      }
    }
    const int64_t begin = cache_.length(item.sequence);
    if (begin + n > rope_.max_positions()) {
      return Status(Code::kUnsupported,
                    fmt::format("context: sequence {} would reach {} tokens; allowed {}; use a larger --context or a "
                                "shorter prompt",
                                item.sequence, begin + n, rope_.max_positions()));
    }
    rope_.grow(begin + n);
    for (int64_t t = 0; t < n; ++t) {
      positions_.push_back(static_cast<int32_t>(begin + t));
      item_of_row_.push_back(static_cast<int32_t>(seqlens_k_.size()));
    }
    rows_ += n;
    max_seqlen_q_ = std::max(max_seqlen_q_, n);
    cu_seqlens_q_.push_back(static_cast<int32_t>(rows_));
    seqlens_k_.push_back(static_cast<int32_t>(begin + n));
  }
  std::sort(seen.begin(), seen.end());
  if (const auto twice = std::adjacent_find(seen.begin(), seen.end()); twice != seen.end()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("batch: sequence {} occurs more than once; join its tokens into one item", *twice));
  }
  return {};
}

// Takes pages, lays out the page table and the activations.
Status Forward::prepare(std::span<const BatchItem> items) {
  page_table_stride_ = 1;
  for (size_t i = 0; i < items.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(cache_.reserve(items[i].sequence, seqlens_k_[i]));
    page_table_stride_ = std::max(page_table_stride_, static_cast<int64_t>(cache_.pages(items[i].sequence).size()));
  }
  page_table_.assign(items.size() * static_cast<size_t>(page_table_stride_), 0);
  for (size_t i = 0; i < items.size(); ++i) {
    const std::span<const int32_t> pages = cache_.pages(items[i].sequence);
    std::copy(pages.begin(), pages.end(), page_table_.begin() + static_cast<int64_t>(i) * page_table_stride_);
  }

  const bool rounded = cache_.dtype() != TESSERA_F32;
  const int64_t block = std::min(rows_, kBlockRows);
  float* queries = nullptr;
  struct Part {
    float** at;
    int64_t floats;
  };
  const Part parts[] = {{&x_, rows_ * c_.hidden},
                        {&queries, rounded ? (rows_ * c_.q_dim() + 1) / 2 : rows_ * c_.q_dim()},
                        {&attention_out_, rows_ * c_.q_dim()},
                        {&h_, block * c_.hidden},
                        {&q_, rounded ? block * c_.q_dim() : 0},
                        {&k_, block * c_.kv_dim()},
                        {&v_, block * c_.kv_dim()},
                        {&gate_, block * c_.ffn},
                        {&up_, block * c_.ffn}};
  const auto padded = [](int64_t floats) { return (floats + 15) / 16 * 16; };  // keeps every part 64-byte aligned
  int64_t floats = 0;
  for (const Part& p : parts) {
    floats += padded(p.floats);
  }
  TESSERA_RETURN_IF_ERROR(scratch_.ensure(static_cast<size_t>(floats) * sizeof(float), "activations"));
  float* at = scratch_.as<float>();
  for (const Part& p : parts) {
    *p.at = at;
    at += padded(p.floats);
  }
  queries_ = reinterpret_cast<std::byte*>(queries);
  return {};
}

Status Forward::embed(std::span<const BatchItem> items) {
  float* row = x_;
  tessera_error error;
  for (const BatchItem& item : items) {
    for (const int32_t token : item.tokens) {
      TESSERA_RETURN_IF_ERROR(from_api(tessera_gemm_unpack_row(w_.token_embd.type, c_.vocab_size, c_.hidden,
                                                               w_.token_embd.packed, token, row, &error),
                                       error));
      row += c_.hidden;
    }
  }
  return {};
}

Status Forward::layer(int64_t index, std::span<const BatchItem> items) {
  for (int64_t begin = 0; begin < rows_; begin += kBlockRows) {
    TESSERA_RETURN_IF_ERROR(queries_and_keys(index, items, begin, std::min(kBlockRows, rows_ - begin)));
  }
  TESSERA_RETURN_IF_ERROR(attention(index));
  for (int64_t begin = 0; begin < rows_; begin += kBlockRows) {
    TESSERA_RETURN_IF_ERROR(feed_forward(index, begin, std::min(kBlockRows, rows_ - begin)));
  }
  return {};
}

Status Forward::queries_and_keys(int64_t index, std::span<const BatchItem> items, int64_t begin, int64_t rows) {
  const LayerWeights& l = w_.layers[static_cast<size_t>(index)];
  if (cache_.dtype() == TESSERA_F32) {
    q_ = reinterpret_cast<float*>(queries_) + begin * c_.q_dim();
  }
  TESSERA_RETURN_IF_ERROR(rms_norm(rows, c_.hidden, x_ + begin * c_.hidden, l.attn_norm, h_));
  const tessera_gemm_weight qkv[] = {product(l.q, l.q_bias, q_), product(l.k, l.k_bias, k_),
                                     product(l.v, l.v_bias, v_)};
  TESSERA_RETURN_IF_ERROR(gemm(rows, h_, c_.hidden, qkv));
  if (c_.qk_norm) {
    TESSERA_RETURN_IF_ERROR(rms_norm(rows * c_.num_heads_q, c_.head_dim, q_, l.q_norm, q_));
    TESSERA_RETURN_IF_ERROR(rms_norm(rows * c_.num_heads_kv, c_.head_dim, k_, l.k_norm, k_));
  }
  TESSERA_RETURN_IF_ERROR(rotate(begin, rows, c_.num_heads_q, q_));
  TESSERA_RETURN_IF_ERROR(rotate(begin, rows, c_.num_heads_kv, k_));
  store_kv(index, items, begin, rows);
  return {};
}

Status Forward::feed_forward(int64_t index, int64_t begin, int64_t rows) {
  const LayerWeights& l = w_.layers[static_cast<size_t>(index)];
  const tessera_stream stream{pool_->executor(), nullptr};
  tessera_error error;
  float* const x = x_ + begin * c_.hidden;

  const tessera_gemm_weight out[] = {product(l.attn_out, {}, h_)};
  TESSERA_RETURN_IF_ERROR(gemm(rows, attention_out_ + begin * c_.q_dim(), c_.q_dim(), out));
  add_residual(rows, x);

  TESSERA_RETURN_IF_ERROR(rms_norm(rows, c_.hidden, x, l.ffn_norm, h_));
  const tessera_gemm_weight gate_up[] = {product(l.gate, {}, gate_), product(l.up, {}, up_)};
  TESSERA_RETURN_IF_ERROR(gemm(rows, h_, c_.hidden, gate_up));
  TESSERA_RETURN_IF_ERROR(
      from_api(tessera_swiglu(rows, c_.ffn, gate_, c_.ffn, up_, c_.ffn, gate_, c_.ffn, &stream, &error), error));
  const tessera_gemm_weight down[] = {product(l.down, {}, h_)};
  TESSERA_RETURN_IF_ERROR(gemm(rows, gate_, c_.ffn, down));
  add_residual(rows, x);
  return {};
}

// Rotary embedding of x (rows, heads, head_dim), the rows from `begin` on.
Status Forward::rotate(int64_t begin, int64_t rows, int32_t heads, float* x) {
  const tessera_stream stream{pool_->executor(), nullptr};
  tessera_error error;
  return from_api(
      tessera_rope(rows, heads, c_.head_dim, c_.rotary_dim, c_.rope_pairing, positions_.data() + begin, rope_.cos(),
                   rope_.sin(), rope_.num_positions(), x, int64_t{heads} * c_.head_dim, c_.head_dim, &stream, &error),
      error);
}

// Rounds the block's K and V rows into the cache and, unless the cache is fp32, its queries to the same dtype (round
// to nearest even): attention takes one dtype.
void Forward::store_kv(int64_t index, std::span<const BatchItem> items, int64_t begin, int64_t rows) {
  struct Job {
    const Forward* f;
    int64_t layer;
    std::span<const BatchItem> items;
    int64_t begin;
  } job{this, index, items, begin};
  pool_->parallel_for(
      rows,
      [](void* arg, int64_t r, int32_t) {
        const Job& j = *static_cast<Job*>(arg);
        const Forward& f = *j.f;
        const int64_t kv = f.c_.kv_dim();
        const int64_t q = f.c_.q_dim();
        const tessera_dtype dtype = f.cache_.dtype();
        const auto row = static_cast<size_t>(j.begin + r);
        const SequenceId id = j.items[static_cast<size_t>(f.item_of_row_[row])].sequence;
        const int64_t position = f.positions_[row];
        const int64_t dim = f.c_.head_dim;
        for (int64_t head = 0; head < f.c_.num_heads_kv; ++head) {
          round_row(dtype, f.k_ + r * kv + head * dim, dim, f.cache_.k_row(j.layer, id, position, head));
          round_row(dtype, f.v_ + r * kv + head * dim, dim, f.cache_.v_row(j.layer, id, position, head));
        }
        if (dtype != TESSERA_F32) {
          round_row(dtype, f.q_ + r * q, q, f.queries_ + (j.begin + r) * q * element_bytes(dtype));
        }
      },
      &job);
}

tessera_fmha_params Forward::attention_params(int64_t index) const {
  tessera_fmha_params p{};
  p.struct_size = sizeof(p);
  p.dtype = cache_.dtype();
  p.o_dtype = TESSERA_F32;
  p.head_dim_qk = c_.head_dim;
  p.head_dim_v = c_.head_dim;
  p.num_heads_q = c_.num_heads_q;
  p.num_heads_kv = c_.num_heads_kv;
  p.batch = static_cast<int64_t>(seqlens_k_.size());
  p.q = {queries_, 0, c_.q_dim(), c_.head_dim, 1};
  p.seqlen_q = max_seqlen_q_;
  p.cu_seqlens_q = cu_seqlens_q_.data();
  p.num_segments = 1;
  tessera_kv_segment& s = p.segments[0];
  s.k = {cache_.k_pool(index), cache_.stride_page(), c_.head_dim, cache_.stride_head(), 1};
  s.v = {cache_.v_pool(index), cache_.stride_page(), c_.head_dim, cache_.stride_head(), 1};
  s.seqlen_k = seqlens_k_.empty() ? 0 : *std::max_element(seqlens_k_.begin(), seqlens_k_.end());
  s.seqlens_k = seqlens_k_.data();
  s.page_table = page_table_.data();
  s.page_table_stride = page_table_stride_;
  s.page_size = static_cast<int32_t>(cache_.page_size());
  s.num_pages = cache_.num_pages();
  s.causal = 1;
  s.window_left = -1;
  s.window_right = -1;
  p.softmax_scale = c_.softmax_scale;
  p.o = {attention_out_, 0, c_.q_dim(), c_.head_dim, 1};
  p.force_kernel = fmha_kernel_.empty() ? nullptr : fmha_kernel_.c_str();
  return p;
}

Status Forward::attention(int64_t index) {
  const tessera_fmha_params p = attention_params(index);
  tessera_error error;
  size_t bytes = 0;
  TESSERA_RETURN_IF_ERROR(from_api(attention_calls_.workspace_size(&p, pool_->num_threads(), &bytes, &error), error));
  TESSERA_RETURN_IF_ERROR(workspace_.ensure(bytes, "attention workspace"));
  const tessera_stream stream{pool_->executor(), nullptr};
  return from_api(attention_calls_.run(&p, workspace_.data(), workspace_.size(), &stream, &error), error);
}

// Gathers the rows whose logits are wanted, then norm and vocabulary product on those only.
Status Forward::output(std::span<const BatchItem> items, std::vector<float>* logits) {
  int64_t wanted = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    for (int64_t r = cu_seqlens_q_[i + 1] - items[i].num_logits; r < cu_seqlens_q_[i + 1]; ++r) {
      std::copy_n(x_ + r * c_.hidden, c_.hidden, x_ + wanted * c_.hidden);  // wanted <= r
      ++wanted;
    }
  }
  logits->resize(static_cast<size_t>(wanted * c_.vocab_size));
  for (int64_t begin = 0; begin < wanted; begin += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, wanted - begin);
    TESSERA_RETURN_IF_ERROR(rms_norm(rows, c_.hidden, x_ + begin * c_.hidden, w_.output_norm, h_));
    const tessera_gemm_weight out[] = {product(w_.output, {}, logits->data() + begin * c_.vocab_size)};
    TESSERA_RETURN_IF_ERROR(gemm(rows, h_, c_.hidden, out));
  }
  return {};
}

Status Forward::gemm(int64_t m, const float* x, int64_t k, std::span<const tessera_gemm_weight> weights) {
  tessera_gemm_params p{};
  p.struct_size = sizeof(p);
  p.m = m;
  p.k = k;
  p.x = x;
  p.stride_x = k;
  p.num_weights = static_cast<int32_t>(weights.size());
  std::copy(weights.begin(), weights.end(), p.weights);
  p.force_kernel = gemm_kernel_.empty() ? nullptr : gemm_kernel_.c_str();
  tessera_error error;
  size_t bytes = 0;
  TESSERA_RETURN_IF_ERROR(from_api(tessera_gemm_workspace_size(&p, pool_->num_threads(), &bytes, &error), error));
  TESSERA_RETURN_IF_ERROR(workspace_.ensure(bytes, "matrix product workspace"));
  const tessera_stream stream{pool_->executor(), nullptr};
  return from_api(tessera_gemm_run(&p, workspace_.data(), workspace_.size(), &stream, &error), error);
}

Status Forward::rms_norm(int64_t rows, int64_t dim, const float* x, const Vector& weight, float* y) {
  const tessera_stream stream{pool_->executor(), nullptr};
  tessera_error error;
  return from_api(tessera_rms_norm(rows, dim, x, dim, weight.data(), c_.rms_eps, y, dim, &stream, &error), error);
}

// x := RN(x + h_), element by element.
void Forward::add_residual(int64_t rows, float* x) {
  struct Job {
    float* x;
    const float* h;
    int64_t dim;
  } job{x, h_, c_.hidden};
  pool_->parallel_for(
      rows,
      [](void* arg, int64_t row, int32_t) {
        const Job& j = *static_cast<Job*>(arg);
        float* to = j.x + row * j.dim;
        const float* h = j.h + row * j.dim;
        for (int64_t i = 0; i < j.dim; ++i) {
          to[i] += h[i];
        }
      },
      &job);
}

}  // namespace tessera
