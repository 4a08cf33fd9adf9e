// A loaded model with its tokenizer and KV cache: the engine's face towards the command line, the gates and programs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/config.h"
#include "engine/forward.h"
#include "engine/gguf/model_files.h"
#include "engine/kv_cache.h"
#include "engine/rope_table.h"
#include "engine/thread_pool.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights.h"

namespace tessera {

struct EngineOptions {
  int32_t threads = 0;                   // 0: one per hardware thread
  int64_t context = 0;                   // longest sequence in tokens; 0: the model's own, at most 8192
  int64_t cache_tokens = 0;              // KV pool in tokens, over all sequences; 0: one sequence of `context`
  tessera_dtype kv_dtype = TESSERA_F32;  // of K, V and Q in attention; f16 and bf16 halve the cache and round
  int64_t page_size = 16;                // tokens per KV page; moves no bit
  LoadProgress progress = {};            // may be empty
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> load(const std::string& path, const EngineOptions& options);

  const ModelConfig& config() const { return config_; }
  const ModelFiles& files() const { return files_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  int32_t threads() const { return pool_->num_threads(); }
  int64_t context() const { return rope_.max_positions(); }

  // For example "tessera-1/cpu-fma32/f32/d64 + tessera-1/cpu-i22b32".
  Result<std::string> contract_id() const { return forward_->contract_id(); }

  // Ways to run that move no bit; the invariance gate tries them. reset_cache drops all sequences.
  void set_threads(int32_t threads);
  void set_kernels(std::string fmha, std::string gemm) { forward_->set_kernels(std::move(fmha), std::move(gemm)); }
  // The names given last, joined; empty: the registry's choice.
  std::string forced_kernel() const { return forward_->forced_kernel(); }
  // What gates look with and put in the place of attention (Forward).
  void set_attention(const AttentionCalls& calls) { forward_->set_attention(calls); }
  AttentionCalls attention() const { return forward_->attention_calls(); }
  void set_layer_observer(LayerObserver observer) { forward_->set_layer_observer(std::move(observer)); }
  Status reset_cache(int64_t page_size, int64_t cache_tokens);

  SequenceId new_sequence() { return cache_.add(); }
  void free_sequence(SequenceId id) { cache_.remove(id); }
  int64_t length(SequenceId id) const { return cache_.length(id); }
  // Drops tokens from the end; length <= the current one.
  void truncate(SequenceId id, int64_t length) { cache_.set_length(id, length); }

  // Preemption: the K/V rows leave the cache and come back, perhaps into other pages.
  SavedSequence save(SequenceId id) const { return cache_.save(id); }
  Status restore(SequenceId id, const SavedSequence& saved) { return cache_.restore(id, saved); }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }

  // Forward::run. Logits of a row depend on its own sequence only.
  Status evaluate(std::span<const BatchItem> items, std::vector<float>* logits) { return forward_->run(items, logits); }

 private:
  Engine() = default;

  std::unique_ptr<ThreadPool> pool_;
  ModelFiles files_;
  ModelConfig config_;
  Weights weights_;
  RopeTable rope_;
  KvCache cache_;
  std::unique_ptr<Tokenizer> tokenizer_;  // views vocabulary strings in files_
  std::unique_ptr<Forward> forward_;
};

}  // namespace tessera
