#include "oracle/schedule_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/host_device.h"
#include "base/numeric_types.h"
#include "contract/ceil_product.h"
#include "contract/ex2_sm90.h"
#include "contract/exp2.h"
#include "contract/mma_model.h"
#include "contract/plan.h"

namespace tessera {
namespace {

constexpr int kDim = ScheduleProblem::kDim;
constexpr int kGranule = 128;
constexpr int kClasses = 8;  // of R7
constexpr float kNone = -std::numeric_limits<float>::infinity();

// Roughly normal, of unit variance: the sum of four uniform numbers.
float draw(uint64_t place) {
  float sum = 0.0F;
  for (uint64_t i = 0; i < 4; ++i) {
    uint64_t z = (place * 4 + i + 1) * 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    sum += static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-24F - 0.5F;
  }
  return sum * 1.7320508F;
}

std::vector<uint16_t> drawn(int tokens, uint64_t tensor, float amplitude) {
  std::vector<uint16_t> x(static_cast<size_t>(tokens) * kDim);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = f32_to_f16(amplitude * draw(tensor << 40 | i));
  }
  return x;
}

struct Operands {
  std::array<int16_t, kStepTerms> significand, exponent;
  void set(int i, uint16_t bits) {
    const DecodedOperand o = decode_operand<F16Format>(bits);
    significand[static_cast<size_t>(i)] = o.significand;
    exponent[static_cast<size_t>(i)] = o.exponent;
  }
};

float fdot(float c, const Operands& a, const Operands& b) {
  return fdot_decoded<F16Format>(c, a.significand.data(), a.exponent.data(), b.significand.data(), b.exponent.data());
}

float scale() {
  return score_scale(1.0F / std::sqrt(static_cast<float>(kDim)), false);
}

size_t at(int row, int dim) {
  return static_cast<size_t>(row) * kDim + static_cast<size_t>(dim);
}

}  // namespace

struct ScheduleProblem::Row {
  float m = kNone;
  std::array<float, kClasses> l{};
  std::vector<std::vector<float>> o;  // accumulators of kDim
  std::vector<float> p;               // weights of the keys in hand
};

ScheduleProblem::ScheduleProblem(int rows, int keys, bool causal, float q_amplitude)
    : rows_(rows),
      keys_(keys),
      causal_(causal),
      q_(drawn(rows, 1, q_amplitude)),
      k_(drawn(keys, 2, 1.0F)),
      v_(drawn(keys, 3, 1.0F)),
      scores_(static_cast<size_t>(rows) * static_cast<size_t>(keys)) {
  for (int r = 0; r < rows; ++r) {
    for (int key = 0; key < keys; ++key) {
      float s = 0.0F;
      for (int dim = 0; dim < kDim; dim += kStepTerms) {
        Operands a, b;
        for (int i = 0; i < kStepTerms; ++i) {
          a.set(i, q_[at(r, dim + i)]);
          b.set(i, k_[at(key, dim + i)]);
        }
        s = fdot(s, a, b);
      }
      scores_[static_cast<size_t>(r) * static_cast<size_t>(keys) + static_cast<size_t>(key)] = s;
    }
  }
}

// The key whose K or V the slot holds, -1: zeros.
int ScheduleProblem::slot_value(const ScheduleModel& model, int slot) const {
  if (slot < keys_) {
    return slot;
  }
  const int before = slot - model.stages * model.kv_tile;
  return model.tail == Tail::kMasked || before < 0 ? -1 : before;
}

// -Inf: not seen.
float ScheduleProblem::slot_score(const ScheduleModel& model, int r, int slot) const {
  if (causal_ && slot > keys_ - rows_ + r) {
    return kNone;
  }
  if (slot < keys_) {
    return score(r, slot);
  }
  const int held = slot_value(model, slot);
  return model.tail != Tail::kStaleKeys || held < 0 ? kNone : score(r, held);
}

// R4 and R7 for the keys [begin, end) of row r, whose max is now `maximum`.
void ScheduleProblem::weigh(const ScheduleModel& model, int r, int begin, int end, float maximum, float bias,
                            Row* row) const {
  const bool exact = model.max_rule == MaxRule::kExactTile;
  float a = 0.0F;
  if (row->m != kNone) {
    a = exact ? ex2_sm90()(mul_rn(sub_rn(row->m, maximum), scale())) : drop_weight(sub_rn(maximum, row->m));
  }
  row->m = maximum;
  const float offset = exact ? -mul_rn(maximum, scale()) : sub_rn(bias, maximum);
  row->p.assign(static_cast<size_t>(end - begin), 0.0F);
  std::array<float, kClasses> g{};
  for (int block = begin; block < end; block += kBlockKeys) {
    for (int i = 0; i < kBlockKeys && block + i < end; ++i) {
      const float s = slot_score(model, r, block + i);
      const float y = model.contracted ? fma_rn(s, scale(), offset) : add_rn(mul_rn(s, scale()), offset);
      row->p[static_cast<size_t>(block + i - begin)] = s == kNone ? 0.0F : ex2_sm90()(y);
    }
    for (int j = 0; j < kClasses; ++j) {
      const auto low = static_cast<size_t>(block - begin + j);
      const float t = add_rn(row->p[low], row->p[low + kClasses]);
      float& sum = g[static_cast<size_t>(j)];
      sum = block == begin ? t : add_rn(sum, t);
    }
  }
  for (size_t j = 0; j < kClasses; ++j) {
    row->l[j] = fma_rn(row->l[j], a, g[j]);
  }
  for (std::vector<float>& o : row->o) {
    for (float& x : o) {
      x = mul_rn(x, a);
    }
  }
}

// R5, R6 for the weights in hand.
void ScheduleProblem::accumulate(const ScheduleModel& model, int begin, int end, Row* row) const {
  for (int block = begin; block < end; block += kBlockKeys) {
    std::vector<float>& o =
        row->o[model.accumulator_per_stage ? static_cast<size_t>(block / model.kv_tile % model.stages) : size_t{0}];
    std::array<uint16_t, kBlockKeys> p;
    Operands p_operands;
    for (int i = 0; i < kBlockKeys; ++i) {
      p[static_cast<size_t>(i)] = f32_to_f16(row->p[static_cast<size_t>(block + i - begin)]);
      p_operands.set(i, p[static_cast<size_t>(i)]);
    }
    const bool nan = model.tail == Tail::kNanValues && block + kBlockKeys > keys_;
    for (int dim = 0; dim < kDim; ++dim) {
      std::array<uint16_t, kBlockKeys> v;
      Operands v_operands;
      for (int i = 0; i < kBlockKeys; ++i) {
        const int key = slot_value(model, block + i);
        v[static_cast<size_t>(i)] = nan && block + i >= keys_ ? uint16_t{0x7fff}
                                    : key < 0                 ? uint16_t{0}
                                                              : v_[at(key, dim)];
        v_operands.set(i, v[static_cast<size_t>(i)]);
      }
      float& sum = o[static_cast<size_t>(dim)];
      sum = nan ? fdot_k16<F16Format>(sum, p.data(), v.data()) : fdot(sum, p_operands, v_operands);
    }
  }
}

// The keys [begin, end) for the rows of a Q tile: at most one change of their max.
void ScheduleProblem::step(const ScheduleModel& model, int first_row, int rows, int begin, int end,
                           std::vector<Row>* state) const {
  const float bias = plan_for(Arithmetic::kHopperK16F25, TESSERA_F16, kDim, kDim).value().bias;
  std::vector<float> highest(static_cast<size_t>(rows), kNone);  // u of R3, or the largest score
  bool any_moves = false;
  for (int i = 0; i < rows; ++i) {
    float mu = kNone;
    for (int slot = begin; slot < end; ++slot) {
      mu = std::max(mu, slot_score(model, first_row + i, slot));
    }
    const bool exact = model.max_rule == MaxRule::kExactTile;
    float& u = highest[static_cast<size_t>(i)];
    u = mu == kNone || exact ? mu : ceil_product(mu, scale());
    any_moves |= u > add_rn((*state)[static_cast<size_t>(i)].m, exact ? 0.0F : kLazyThreshold);
  }
  for (int i = 0; i < rows; ++i) {
    Row& row = (*state)[static_cast<size_t>(i)];
    const float u = highest[static_cast<size_t>(i)];
    const bool moves = model.max_rule == MaxRule::kExactTile || (model.max_of_q_tile && any_moves)
                           ? u > row.m
                           : u > add_rn(row.m, kLazyThreshold);
    const float maximum = moves ? u : row.m;
    if (maximum == kNone) {
      continue;
    }
    weigh(model, first_row + i, begin, end, maximum, bias, &row);
    accumulate(model, begin, end, &row);
  }
}

std::vector<float> ScheduleProblem::run(const ScheduleModel& model) const {
  std::vector<float> out(static_cast<size_t>(rows_) * kDim);
  const int unit = model.max_rule == MaxRule::kGranule ? kGranule : model.kv_tile;
  for (int first = 0; first < rows_; first += model.q_tile) {
    const int rows = std::min(model.q_tile, rows_ - first);
    std::vector<Row> state(static_cast<size_t>(rows));
    for (Row& row : state) {
      row.o.assign(model.accumulator_per_stage ? static_cast<size_t>(model.stages) : size_t{1},
                   std::vector<float>(kDim, 0.0F));
    }
    // Up to the last key that the last row sees, in whole K/V tiles and granules.
    const int wanted = causal_ ? keys_ - rows_ + first + rows : keys_;
    for (int begin = 0; begin < wanted; begin += unit) {
      step(model, first, rows, begin, begin + unit, &state);
    }
    for (int i = 0; i < rows; ++i) {
      const Row& row = state[static_cast<size_t>(i)];
      const std::array<float, kClasses>& l = row.l;
      const float inverse = div_rn(
          1.0F, add_rn(add_rn(add_rn(l[0], l[1]), add_rn(l[2], l[3])), add_rn(add_rn(l[4], l[5]), add_rn(l[6], l[7]))));
      for (int dim = 0; dim < kDim; ++dim) {
        float o = row.o[0][static_cast<size_t>(dim)];
        for (size_t s = 1; s < row.o.size(); ++s) {
          o = add_rn(o, row.o[s][static_cast<size_t>(dim)]);
        }
        out[at(first + i, dim)] = mul_rn(o, inverse) + 0.0F;
      }
    }
  }
  return out;
}

}  // namespace tessera
