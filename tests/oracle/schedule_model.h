// A model of an attention kernel whose schedule can be told to leak into its bits: Q tiles, K/V tiles, stages, and the
// mistakes by which each of them has moved results elsewhere. The steps are those of hopper-k16-f25 (fdot, ex2), so
// with every knob at its default the bytes are the oracle's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

// When the running max of a row may change, and to what.
enum class MaxRule {
  kGranule,    // R3: granules of 128 keys at absolute multiples, whole numbers, only when T is exceeded
  kTile,       // the same, but a granule is the K/V tile
  kExactTile,  // the largest score so far, behind every K/V tile: online softmax as it is usually written
};

// What happens to the slots of the last K/V tile behind the last key.
enum class Tail {
  kMasked,       // R2
  kStaleKeys,    // they hold the tile that had this stage before, and no length hides them
  kStaleValues,  // V holds that tile, the weight is zero
  kNanValues,    // V holds NaN, the weight is zero
};

struct ScheduleModel {
  int q_tile = 64;
  int kv_tile = 64;
  int stages = 1;
  MaxRule max_rule = MaxRule::kGranule;
  Tail tail = Tail::kMasked;
  bool max_of_q_tile = false;          // one row of the Q tile with a new max makes all rows take theirs
  bool accumulator_per_stage = false;  // O of every stage by itself, added at the end
  bool contracted = true;              // exp2's argument by fma; else by a product and a sum
};

// The last rows of a sequence of `keys` tokens, fewer than a chunk: one head of head dim 128, fp16. Inputs are hashes
// of their place.
class ScheduleProblem {
 public:
  static constexpr int kDim = 128;

  ScheduleProblem(int rows, int keys, bool causal, float q_amplitude);

  int rows() const { return rows_; }
  int keys() const { return keys_; }
  bool causal() const { return causal_; }
  const std::vector<uint16_t>& q() const { return q_; }
  const std::vector<uint16_t>& k() const { return k_; }
  const std::vector<uint16_t>& v() const { return v_; }

  // (rows, kDim), fp32.
  std::vector<float> run(const ScheduleModel& model) const;

 private:
  struct Row;

  float score(int row, int key) const {
    return scores_[static_cast<size_t>(row) * static_cast<size_t>(keys_) + static_cast<size_t>(key)];
  }
  void step(const ScheduleModel& model, int first_row, int rows, int begin, int end, std::vector<Row>* state) const;
  void weigh(const ScheduleModel& model, int r, int begin, int end, float maximum, float bias, Row* row) const;
  void accumulate(const ScheduleModel& model, int begin, int end, Row* row) const;
  float slot_score(const ScheduleModel& model, int r, int slot) const;
  int slot_value(const ScheduleModel& model, int slot) const;

  int rows_, keys_;
  bool causal_;
  std::vector<uint16_t> q_, k_, v_;
  std::vector<float> scores_;  // (rows, keys), of R1
};

}  // namespace tessera
