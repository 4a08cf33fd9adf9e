// The forward pass: tokens of any number of sequences in, logits out. Sees the public API only; every operation is one
// library call, the same for prefill and decode.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/aligned_buffer.h"
#include "engine/config.h"
#include "engine/kv_cache.h"
#include "engine/rope_table.h"
#include "engine/thread_pool.h"
#include "engine/weights.h"

namespace tessera {

// The next tokens of one sequence. Logits are wanted for the last num_logits of them (0 .. tokens.size()).
struct BatchItem {
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;
  int64_t num_logits = 0;
};

// The attention that the layers call: this library's, or another with the same C interface. Gates put another build or
// a control in its place.
struct AttentionCalls {
  decltype(&tessera_fmha_workspace_size) workspace_size = &tessera_fmha_workspace_size;
  decltype(&tessera_fmha_run) run = &tessera_fmha_run;
  decltype(&tessera_fmha_contract_id) contract_id = &tessera_fmha_contract_id;
};

// Sees the residual stream (rows, hidden) of the batch in flight behind every layer.
using LayerObserver = std::function<void(int64_t layer, std::span<const float> x)>;

class Forward {
 public:
  Forward(const ModelConfig& config, const Weights& weights, RopeTable& rope, KvCache& cache)
      : c_(config), w_(weights), rope_(rope), cache_(cache) {}

  // Threads for the calls that follow. `pool` outlives them.
  void set_pool(ThreadPool* pool) { pool_ = pool; }
  // Names from tessera_kernel_get to force, empty: the registry's choice. No kernel moves a bit; gates use this.
  void set_kernels(std::string fmha, std::string gemm);
  std::string forced_kernel() const { return fmha_kernel_ + gemm_kernel_; }
  void set_attention(const AttentionCalls& calls) { attention_calls_ = calls; }
  const AttentionCalls& attention_calls() const { return attention_calls_; }
  void set_layer_observer(LayerObserver observer) { observer_ = std::move(observer); }  // empty: none
  // Identities of the arithmetic behind the logits: attention's, then that of the matrix products.
  Result<std::string> contract_id() const;

  // Appends every item's tokens to its sequence in the cache and writes logits, (rows, vocab) in item order, into
  // `logits`. A failure leaves the sequences as they were. A sequence may occur once.
  Status run(std::span<const BatchItem> items, std::vector<float>* logits);

 private:
  Status check(std::span<const BatchItem> items);
  Status compute(std::span<const BatchItem> items, std::vector<float>* logits);
  Status prepare(std::span<const BatchItem> items);
  Status embed(std::span<const BatchItem> items);
  Status layer(int64_t index, std::span<const BatchItem> items);
  // The parts of a layer before and after attention, for rows [begin, begin + rows), rows <= kBlockRows.
  Status queries_and_keys(int64_t index, std::span<const BatchItem> items, int64_t begin, int64_t rows);
  Status feed_forward(int64_t index, int64_t begin, int64_t rows);
  Status rotate(int64_t begin, int64_t rows, int32_t heads, float* x);
  void store_kv(int64_t index, std::span<const BatchItem> items, int64_t begin, int64_t rows);
  Status attention(int64_t index);
  tessera_fmha_params attention_params(int64_t index) const;
  Status output(std::span<const BatchItem> items, std::vector<float>* logits);
  Status gemm(int64_t m, const float* x, int64_t k, std::span<const tessera_gemm_weight> weights);
  Status rms_norm(int64_t rows, int64_t dim, const float* x, const Vector& weight, float* y);
  void add_residual(int64_t rows, float* x);

  const ModelConfig& c_;
  const Weights& w_;
  RopeTable& rope_;
  KvCache& cache_;
  ThreadPool* pool_ = nullptr;
  std::string fmha_kernel_;
  std::string gemm_kernel_;
  AttentionCalls attention_calls_;
  LayerObserver observer_;

  // Of the batch in flight.
  int64_t rows_ = 0;  // tokens of all items
  int64_t max_seqlen_q_ = 0;
  std::vector<int32_t> positions_;     // [rows]
  std::vector<int32_t> item_of_row_;   // [rows]
  std::vector<int32_t> cu_seqlens_q_;  // [items + 1]
  std::vector<int32_t> seqlens_k_;     // [items], after this batch
  std::vector<int32_t> page_table_;    // (items, page_table_stride)
  int64_t page_table_stride_ = 0;

  // Activations. Of all rows, (rows, width):
  AlignedBuffer scratch_;
  float* x_ = nullptr;              // the residual stream
  std::byte* queries_ = nullptr;    // in the cache's dtype
  float* attention_out_ = nullptr;  // attention's output
  // Of a block of rows, (kBlockRows, width): h normalised or a product's output.
  float* h_ = nullptr;
  float* q_ = nullptr;  // the block's rows of queries_ where those are fp32
  float* k_ = nullptr;
  float* v_ = nullptr;
  float* gate_ = nullptr;
  float* up_ = nullptr;
  AlignedBuffer workspace_;  // of the library calls
};

}  // namespace tessera
