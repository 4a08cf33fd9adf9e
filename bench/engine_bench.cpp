// Speed of the engine in llama-bench's terms: pp = prefill of so many tokens, tg = so many tokens one by one after an
// empty prompt; random tokens, one warm-up, several repetitions. Prints one JSON object.
//   bench_engine MODEL [--pp 512] [--tg 128] [--repetitions 5] [--threads 2] [--chunk 512]
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/engine.h"

namespace {

using tessera::BatchItem;
using tessera::Engine;
using tessera::Status;

struct Options {
  std::string model;
  int64_t pp = 512;
  int64_t tg = 128;
  int repetitions = 5;
  int32_t threads = 2;
  int64_t chunk = 512;
  std::string kv_type = "f32";
};

// Seconds for `count` tokens in calls of `chunk`, logits of each call's last token.
Status time_tokens(Engine& engine, const std::vector<int32_t>& tokens, int64_t chunk, double* seconds) {
  const tessera::SequenceId id = engine.new_sequence();
  std::vector<float> logits;
  const auto start = std::chrono::steady_clock::now();
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
    const size_t n = std::min(static_cast<size_t>(chunk), tokens.size() - begin);
    const BatchItem item{id, {tokens.data() + begin, n}, 1};
    TESSERA_RETURN_IF_ERROR(engine.evaluate({&item, 1}, &logits));
  }
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  engine.free_sequence(id);
  return {};
}

int run(const Options& o) {
  tessera::Result<std::unique_ptr<Engine>> loaded =
      Engine::load(o.model, {.threads = o.threads, .kv_dtype = o.kv_type == "f16" ? TESSERA_F16 : TESSERA_F32});
  if (!loaded.ok()) {
    fmt::print(stderr, "bench_engine: {}\n", loaded.status().text());
    return 3;
  }
  Engine& engine = *loaded.value();
  std::mt19937_64 random(1);
  nlohmann::ordered_json j;
  j["engine"] = "tessera";
  j["threads"] = o.threads;
  j["chunk"] = o.chunk;
  j["kv_type"] = o.kv_type;
  j["pp_tokens"] = o.pp;
  j["tg_tokens"] = o.tg;
  for (int r = -1; r < o.repetitions; ++r) {  // -1: warm-up
    for (const bool prefill : {true, false}) {
      std::vector<int32_t> tokens(static_cast<size_t>(prefill ? o.pp : o.tg));
      for (int32_t& t : tokens) {
        t = static_cast<int32_t>(random() % static_cast<uint64_t>(engine.config().vocab_size));
      }
      double seconds = 0;
      if (const Status s = time_tokens(engine, tokens, prefill ? o.chunk : 1, &seconds); !s.ok()) {
        fmt::print(stderr, "bench_engine: {}\n", s.text());
        return 3;
      }
      if (r >= 0) {
        j[prefill ? "pp_tok_s" : "tg_tok_s"].push_back(static_cast<double>(tokens.size()) / seconds);
      }
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  j["peak_rss_bytes"] = usage.ru_maxrss * 1024;
  fmt::print("{}\n", j.dump());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Prefill and decode speed of the engine", "bench_engine"};
  app.add_option("model", o.model)->required();
  app.add_option("--pp", o.pp);
  app.add_option("--tg", o.tg);
  app.add_option("--repetitions", o.repetitions);
  app.add_option("--threads", o.threads);
  app.add_option("--chunk", o.chunk);
  app.add_option("--kv-type", o.kv_type)->check(CLI::IsMember({"f32", "f16"}));
  CLI11_PARSE(app, argc, argv);
  return run(o);
}
