// How far one run's logits lie from another's, row by row. R is the record's row, N the new one, D = N - R less its
// mean over the vocabulary (softmax does not see a constant).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "gate/record.h"

namespace tessera {

// A row whose largest logit is another token's.
struct Flip {
  int64_t prompt = 0;
  int64_t position = 0;
  int64_t from = 0;   // the record's best token
  int64_t to = 0;     // the new one
  double margin = 0;  // R[from] - R[to]
  double delta = 0;   // D[to] - D[from]: what closed it
};

struct Drift {
  int64_t rows = 0;
  int64_t rows_equal = 0;  // byte for byte
  int64_t rows_not_finite = 0;
  DriftFigures figures;
  double kl_p99 = 0;
  double bias = 0;               // mean of D at the record's best token
  std::vector<double> margins;   // of every row: R[first] - R[second]
  std::vector<double> pairwise;  // |D[second] - D[first]| of the rows that did not flip
  std::vector<Flip> flips;
  std::vector<double> layers;  // |x_new - x| / |x| over all rows, behind every layer
  int64_t draws = 0;           // at temperature 0.8 with the same random number for both
  int64_t disagreements = 0;
};

class DriftMeter {
 public:
  explicit DriftMeter(int64_t num_layers);

  // Rows with NaN or infinity are counted and not looked at further. Errors of sample().
  Status add(int64_t prompt, int64_t position, std::span<const float> record, std::span<const float> now);
  void add_layer(int64_t layer, std::span<const float> record, std::span<const float> now);
  Drift finish();

 private:
  struct Layer {
    double error = 0;  // sums of squares
    double size = 0;
  };

  Status draw(int64_t prompt, int64_t position, std::span<const float> record, std::span<const float> now);

  Drift drift_;
  std::vector<Layer> layers_;
  std::vector<uint64_t> histogram_;  // of |D|: 64 bins to the octave
  std::vector<double> kl_;
  double squares_ = 0;
  int64_t elements_ = 0;
};

}  // namespace tessera
