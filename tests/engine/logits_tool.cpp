// Teacher-forced logits of a model, for comparisons outside: logits_tool MODEL TOKENS.json OUT.f32 CHUNK
// TOKENS.json is a list of token ids; OUT.f32 receives (tokens, vocab) little-endian floats.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/engine.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: logits_tool MODEL TOKENS.json OUT.f32 CHUNK\n");
    return 3;
  }
  const nlohmann::json list = nlohmann::json::parse(std::ifstream(argv[2]), nullptr, false);
  const long chunk = std::strtol(argv[4], nullptr, 10);
  if (!list.is_array() || chunk < 1) {
    std::fprintf(stderr, "logits_tool: %s is no JSON list, or CHUNK %s is no positive number\n", argv[2], argv[4]);
    return 3;
  }
  const auto tokens = list.get<std::vector<int32_t>>();
  tessera::Result<std::unique_ptr<tessera::Engine>> engine = tessera::Engine::load(argv[1], {});
  if (!engine.ok()) {
    std::fprintf(stderr, "logits_tool: %s\n", engine.status().text().c_str());
    return 3;
  }
  const tessera::SequenceId id = engine.value()->new_sequence();
  std::ofstream out(argv[3], std::ios::binary);
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
    const size_t n = std::min(static_cast<size_t>(chunk), tokens.size() - begin);
    const tessera::BatchItem item{id, {tokens.data() + begin, n}, static_cast<int64_t>(n)};
    if (const tessera::Status s = engine.value()->evaluate({&item, 1}, &logits); !s.ok()) {
      std::fprintf(stderr, "logits_tool: %s\n", s.text().c_str());
      return 3;
    }
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(logits.size() * sizeof(float)));
  }
  out.close();
  return out.good() ? 0 : 3;
}
