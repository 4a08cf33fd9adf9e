// Plots as inline SVG. Positions are percentages and sizes are pixels, so that a plot fills its column on a telephone
// and on a desk with text of the same size. Colours are classes of the page's style (page.cpp), in both schemes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/experiment.h"

namespace tessera::lab {

struct RatioRow {
  std::string label;
  Timing timing;
};

// A row for each timing: ratio and interval on an axis in percent of gain, the noise floor as a band around zero.
// `expected_percent`: a mark where the hypothesis wanted it.
std::string ratio_plot(const std::vector<RatioRow>& rows, std::optional<double> expected_percent);

// Every sample of base and candidate in the order in which they were taken. Empty if there are none.
std::string samples_plot(const Timing& timing);

// Flips by their margin, the likeliest harmless on the left. `limit`: the margin up to which a flip is a knife-edge.
std::string flips_plot(const std::vector<Flip>& flips, std::optional<double> limit);

// "+3.1 %" of 1.031.
std::string gain_text(double ratio);

// "+3.1 % (+2.0 % to +4.2 %)"
std::string gain_interval_text(const Timing& timing);

}  // namespace tessera::lab
