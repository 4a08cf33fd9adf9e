#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "engine/vocabulary.h"

namespace tessera {
namespace {

constexpr int64_t kDefaultContext = 8192;

}  // namespace

Result<std::unique_ptr<Engine>> Engine::load(const std::string& path, const EngineOptions& options) {
  if (options.threads < 0 || options.threads > 1024) {
    return Status(Code::kInvalidArgument, fmt::format("threads: got {}; allowed 0 (all) to 1024", options.threads));
  }
  const auto hardware = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  std::unique_ptr<Engine> e(new Engine());
  e->pool_ = std::make_unique<ThreadPool>(options.threads == 0 ? hardware : options.threads);

  Result<ModelFiles> files = ModelFiles::open(path);
  TESSERA_RETURN_IF_ERROR(files.status());
  e->files_ = std::move(files).value();
  Result<ModelConfig> config = read_config(e->files_);
  TESSERA_RETURN_IF_ERROR(config.status());
  e->config_ = std::move(config).value();
  const ModelConfig& c = e->config_;

  const int64_t context = options.context == 0 ? std::min(c.context_length, kDefaultContext) : options.context;
  if (context < 1 || context > c.context_length) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("context: got {}; allowed 1 to {}, the model's own context_length", context, c.context_length));
  }
  Result<VocabData> vocabulary = read_vocabulary(e->files_.head(), c.vocab_size);
  TESSERA_RETURN_IF_ERROR(vocabulary.status());
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(vocabulary).value());
  if (!tokenizer.ok()) {
    return Status(tokenizer.status().code(), fmt::format("{}: {}", path, tokenizer.status().text()));
  }
  e->tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer).value());

  Result<Weights> weights = load_weights(e->files_, c, *e->pool_, options.progress);
  TESSERA_RETURN_IF_ERROR(weights.status());
  e->weights_ = std::move(weights).value();
  e->rope_ = RopeTable(c, e->weights_.rope_factors, context);

  const int64_t cache_tokens = options.cache_tokens == 0 ? context : options.cache_tokens;
  Result<KvCache> cache = KvCache::create(c, options.kv_dtype, options.page_size, cache_tokens);
  TESSERA_RETURN_IF_ERROR(cache.status());
  e->cache_ = std::move(cache).value();
  e->forward_ = std::make_unique<Forward>(e->config_, e->weights_, e->rope_, e->cache_);
  e->forward_->set_pool(e->pool_.get());
  return e;
}

void Engine::set_threads(int32_t threads) {
  pool_ = std::make_unique<ThreadPool>(threads);
  forward_->set_pool(pool_.get());
}

Status Engine::reset_cache(int64_t page_size, int64_t cache_tokens) {
  Result<KvCache> cache = KvCache::create(config_, cache_.dtype(), page_size, cache_tokens);
  TESSERA_RETURN_IF_ERROR(cache.status());
  cache_ = std::move(cache).value();
  return {};
}

}  // namespace tessera
