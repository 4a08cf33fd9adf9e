// R1 and R3..R8 for one row over the keys that it may see, written once more and differently from the oracle: keys are
// grouped by their slot into chunks, granules and k16 blocks, and only visible keys exist.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "base/numeric_types.h"
#include "contract/ex2_sm90.h"
#include "contract/exp2.h"
#include "contract/mma_model.h"
#include "contract/plan.h"

namespace tessera {

struct SlotKey {
  int64_t slot;          // what R3..R8 cut
  std::vector<float> k;  // values of the dtype
  std::vector<float> v;
};

struct RowState {
  bool none = true;
  float m = 0.0F, l = 0.0F;
  std::vector<float> o;
};

class SecondWriting {
 public:
  SecondWriting(const NumericPlan& plan, float scale)
      : plan_(plan), hopper_(plan.arithmetic == Arithmetic::kHopperK16F25), c_(scale * 0x1.715476p+0F) {}

  // R8 over the visible keys of one segment.
  RowState row(const std::vector<float>& q, const std::vector<SlotKey>& keys) const {
    std::map<int64_t, std::map<int64_t, std::vector<SlotKey>>> superchunks;
    for (const SlotKey& key : keys) {
      const int64_t chunk = key.slot / plan_.chunk;
      superchunks[chunk / plan_.superchunk_chunks][chunk].push_back(key);
    }
    RowState state;
    for (const auto& [unused_index, chunks] : superchunks) {
      RowState superchunk;
      for (const auto& [unused_chunk, members] : chunks) {
        superchunk = chain(superchunk, chunk_state(q, members));
      }
      state = chain(state, superchunk);
    }
    return state;
  }

  static RowState chain(const RowState& a, const RowState& b) {
    if (a.none || b.none) {
      return a.none ? b : a;
    }
    RowState r{false, std::fmax(a.m, b.m), 0.0F, {}};
    const float wa = weight(r.m - a.m);
    const float wb = weight(r.m - b.m);
    r.l = std::fma(a.l, wa, b.l * wb);
    for (size_t d = 0; d < a.o.size(); ++d) {
      r.o.push_back(std::fma(a.o[d], wa, b.o[d] * wb));
    }
    return r;
  }

  float score(const std::vector<float>& q, const std::vector<float>& k) const {
    if (hopper_) {
      float s = 0.0F;
      for (size_t d = 0; d < q.size(); d += 16) {
        std::array<float, 16> a{}, b{};
        for (size_t t = 0; t < 16 && d + t < q.size(); ++t) {
          a[t] = q[d + t];
          b[t] = k[d + t];
        }
        s = step(s, a, b);
      }
      return s;
    }
    std::map<size_t, float> classes;
    for (size_t t = 0; t < 16; ++t) {
      classes[t] = 0.0F;
      for (size_t d = t; d < q.size(); d += 16) {
        classes[t] = std::fma(q[d], k[d], classes[t]);
      }
    }
    const auto quad = [&](size_t t) { return (classes[t] + classes[t + 8]) + (classes[t + 4] + classes[t + 12]); };
    return (quad(0) + quad(2)) + (quad(1) + quad(3));
  }

 private:
  static float weight(float drop) { return drop > 64.0F ? 0.0F : std::exp2(-drop); }

  float step(float c, const std::array<float, 16>& a, const std::array<float, 16>& b) const {
    std::array<uint16_t, 16> ra, rb;
    for (size_t t = 0; t < 16; ++t) {
      ra[t] = plan_.dtype == TESSERA_F16 ? f32_to_f16(a[t]) : f32_to_bf16(a[t]);
      rb[t] = plan_.dtype == TESSERA_F16 ? f32_to_f16(b[t]) : f32_to_bf16(b[t]);
    }
    return plan_.dtype == TESSERA_F16 ? fdot_k16<F16Format>(c, ra.data(), rb.data())
                                      : fdot_k16<Bf16Format>(c, ra.data(), rb.data());
  }

  RowState chunk_state(const std::vector<float>& q, const std::vector<SlotKey>& keys) const {
    std::map<int64_t, std::vector<SlotKey>> granules;
    for (const SlotKey& key : keys) {
      granules[key.slot / plan_.granule].push_back(key);
    }
    RowState state;
    state.o.assign(keys[0].v.size(), 0.0F);
    std::array<float, 8> classes{};
    for (const auto& [unused_granule, members] : granules) {
      std::map<int64_t, float> s;  // slot -> score
      float mu = -INFINITY;
      for (const SlotKey& key : members) {
        s[key.slot] = score(q, key.k);
        mu = std::fmax(mu, s[key.slot]);
      }
      const auto u = static_cast<float>(std::ceil(static_cast<double>(mu) * static_cast<double>(c_)));
      const float m = state.none || u > state.m + 8.0F ? u : state.m;
      const float a = state.none ? 0.0F : weight(m - state.m);
      for (float& o : state.o) {
        o *= a;
      }
      std::map<int64_t, std::map<int64_t, const SlotKey*>> blocks;  // block -> slot within -> key
      for (const SlotKey& key : members) {
        blocks[key.slot / 16][key.slot % 16] = &key;
      }
      std::array<float, 8> g{};
      for (const auto& [block, slots] : blocks) {
        std::array<float, 16> p{};
        for (const auto& [t, key] : slots) {
          const float y = std::fma(s[key->slot], c_, plan_.bias - m);
          p[static_cast<size_t>(t)] = hopper_ ? ex2_sm90()(y) : soft_exp2(y);
        }
        for (size_t j = 0; j < 8; ++j) {
          g[j] += p[j] + p[j + 8];
        }
        add_values(state.o, p, slots);
      }
      for (size_t j = 0; j < 8; ++j) {
        classes[j] = std::fma(classes[j], a, g[j]);
      }
      state.m = m;
      state.none = false;
    }
    state.l = ((classes[0] + classes[1]) + (classes[2] + classes[3])) +
              ((classes[4] + classes[5]) + (classes[6] + classes[7]));
    return state;
  }

  void add_values(std::vector<float>& o, const std::array<float, 16>& p,
                  const std::map<int64_t, const SlotKey*>& slots) const {
    for (size_t d = 0; d < o.size(); ++d) {
      if (!hopper_) {
        for (const auto& [t, key] : slots) {
          o[d] = std::fma(p[static_cast<size_t>(t)], key->v[d], o[d]);
        }
        continue;
      }
      std::array<float, 16> v{};
      for (const auto& [t, key] : slots) {
        v[static_cast<size_t>(t)] = key->v[d];
      }
      o[d] = step(o[d], p, v);
    }
  }

  NumericPlan plan_;
  bool hopper_;
  float c_;
};

}  // namespace tessera
