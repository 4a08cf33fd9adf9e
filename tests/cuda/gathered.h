// Lists of gathered keys (R10) for tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "fmha/problem.h"
#include "tessera/tessera.h"

namespace tessera::test {

// Lists for the tokens of a segment, `stride` entries apart.
struct Lists {
  std::vector<int32_t> indices, lens;
  int32_t topk;
  int64_t stride;

  // A third of the entries -1, keys up to twice; every fifth list empty. `limited`: with lengths of their own.
  Lists(const FmhaSpec& spec, size_t segment, int32_t topk_in, bool limited, uint32_t seed)
      : topk(topk_in), stride(topk_in + 3) {
    std::mt19937 random(seed);
    const int64_t tokens = spec.q_lengths[0];
    for (size_t b = 0; b < spec.q_lengths.size(); ++b) {
      const int64_t length = spec.segments[segment].lengths[b];
      for (int64_t i = 0; i < tokens; ++i) {
        lens.push_back(limited ? static_cast<int32_t>(random() % static_cast<uint32_t>(topk + 1)) : topk);
        const bool none = random() % 5 == 0 && lens.size() > 1;
        for (int64_t t = 0; t < stride; ++t) {
          const bool key = !none && length > 0 && random() % 3 != 0;
          indices.push_back(key ? static_cast<int32_t>(random() % static_cast<uint32_t>(length)) : -1);
        }
      }
    }
  }

  // What the call says of them, wherever they lie.
  void put(tessera_kv_segment* s, const int32_t* indices_at, const int32_t* lens_at) const {
    s->indices = indices_at;
    s->indices_stride = stride;
    s->topk = topk;
    s->topk_lens = lens_at;
  }
};

}  // namespace tessera::test
