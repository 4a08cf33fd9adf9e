#include "lab/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/text.h"

namespace tessera::lab {
namespace {

// A linear scale from values to percent of the plot's width.
class Scale {
 public:
  Scale(double low, double high, double left, double right) : low_(low), high_(high), left_(left), right_(right) {}
  double at(double value) const {
    return left_ + (right_ - left_) * (high_ > low_ ? (value - low_) / (high_ - low_) : 0.5);
  }
  double low() const { return low_; }
  double high() const { return high_; }

  // Round numbers in the range, about `count` of them.
  std::vector<double> ticks(int count) const {
    const double raw = (high_ - low_) / count;
    if (!(raw > 0)) {
      return {low_};
    }
    const double power = std::pow(10, std::floor(std::log10(raw)));
    const double factor = raw / power;
    const double step = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
    std::vector<double> ticks;
    for (double k = std::ceil(low_ / step - 1e-9); k * step <= high_ + step * 1e-9; ++k) {
      ticks.push_back(k * step);
    }
    return ticks;
  }

 private:
  double low_;
  double high_;
  double left_;
  double right_;
};

std::string open_svg(int height, const std::string& title) {
  return fmt::format(
      "<svg class=\"plot\" role=\"img\" width=\"100%\" height=\"{}\" aria-label=\"{}\"><title>{}</title>\n", height,
      html_escape(title), html_escape(title));
}

std::string line(const char* cls, double x1, double y1, double x2, double y2) {
  return fmt::format("<line class=\"{}\" x1=\"{:.2f}%\" y1=\"{:.1f}\" x2=\"{:.2f}%\" y2=\"{:.1f}\"/>\n", cls, x1, y1,
                     x2, y2);
}

std::string label(const char* cls, const char* anchor, double x, double y, const std::string& text) {
  return fmt::format("<text class=\"{}\" text-anchor=\"{}\" x=\"{:.2f}%\" y=\"{:.1f}\">{}</text>\n", cls, anchor, x, y,
                     html_escape(text));
}

std::string circle(const char* cls, double x, double y, double radius) {
  return fmt::format("<circle class=\"{}\" cx=\"{:.2f}%\" cy=\"{:.1f}\" r=\"{}\"/>\n", cls, x, y, radius);
}

std::string square(const char* cls, double x, double y, double half) {
  return fmt::format(
      "<svg x=\"{:.2f}%\" y=\"{:.1f}\" overflow=\"visible\"><rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" "
      "height=\"{}\"/></svg>\n",
      x, y, cls, -half, -half, 2 * half, 2 * half);
}

std::string key(const char* cls, bool round, const std::string& words) {
  return fmt::format("<span class=\"key\"><svg width=\"12\" height=\"12\" aria-hidden=\"true\">{}</svg>{}</span> ",
                     round ? fmt::format("<circle class=\"{}\" cx=\"6\" cy=\"6\" r=\"4\"/>", cls)
                           : fmt::format("<rect class=\"{}\" x=\"2\" y=\"2\" width=\"8\" height=\"8\"/>", cls),
                     html_escape(words));
}

std::string figure(const std::string& svg, const std::string& caption) {
  return fmt::format("<figure>{}</svg>\n<figcaption>{}</figcaption></figure>\n", svg, caption);
}

}  // namespace

std::string gain_text(double ratio) {
  const double percent = (ratio - 1) * 100;
  const double size = std::fabs(percent);
  const std::string digits = size < 9.995   ? fmt::format("{:.2f}", size)
                             : size < 999.5 ? fmt::format("{:.1f}", size)
                                            : fmt::format("{:.0f}", size);
  const bool zero = digits.find_first_not_of("0.") == std::string::npos;
  return fmt::format("{}{} %", zero ? "" : percent < 0 ? "\u2212" : "+", digits);
}

std::string gain_interval_text(const Timing& timing) {
  return fmt::format("{} ({} to {})", gain_text(timing.ratio), gain_text(timing.low), gain_text(timing.high));
}

std::string ratio_plot(const std::vector<RatioRow>& rows, std::optional<double> expected_percent) {
  if (rows.empty()) {
    return "";
  }
  constexpr double kTop = 24;
  constexpr double kRow = 46;
  double low = 0;
  double high = 0;
  double noise = 0;
  for (const RatioRow& row : rows) {
    noise = std::max(noise, row.timing.noise_floor * 100);
    low = std::min(low, (row.timing.low - 1) * 100);
    high = std::max(high, (row.timing.high - 1) * 100);
  }
  low = std::min({low, std::max(-noise, -100.0), expected_percent.value_or(0)});
  high = std::max({high, noise, expected_percent.value_or(0)});
  const double pad = std::max((high - low) * 0.06, 0.01);
  const Scale x(low - pad, high + pad, 2, 98);
  const double bottom = kTop + kRow * static_cast<double>(rows.size());
  const int height = static_cast<int>(bottom) + 26;

  std::string svg = open_svg(height, "Speed of the candidate against the base, in percent, with its interval");
  for (const double tick : x.ticks(4)) {
    const double size = std::fabs(tick) < 1e-9 ? 0 : std::fabs(tick);
    svg += label("tick", "middle", std::clamp(x.at(tick), 5.0, 95.0), bottom + 16,
                 fmt::format("{}{} %",
                             size == 0  ? ""
                             : tick > 0 ? "+"
                                        : "\u2212",
                             format_number(size)));
  }
  if (expected_percent) {
    const double at = x.at(*expected_percent);
    svg += label("tick",
                 at > 70   ? "end"
                 : at < 30 ? "start"
                           : "middle",
                 at, kTop - 10, "expected " + gain_text(1 + *expected_percent / 100));
  }
  double y = kTop;
  for (const RatioRow& row : rows) {
    const Timing& t = row.timing;
    const double floor = t.noise_floor * 100;
    const double left = std::max(-floor, x.low());  // a floor beyond 100 % reaches below no speed at all
    const bool beyond = t.low > 1 + t.noise_floor || t.high < 1 - t.noise_floor;
    const char* mark = !beyond ? "mark-even" : t.ratio > 1 ? "mark-good" : "mark-bad";
    const double middle = y + 32;
    svg += fmt::format("<rect class=\"band\" x=\"{:.2f}%\" y=\"{:.1f}\" width=\"{:.2f}%\" height=\"20\"/>\n",
                       x.at(left), middle - 10, x.at(floor) - x.at(left));
    for (const double tick : x.ticks(4)) {  // beside the row's words, not through them
      svg += line(std::fabs(tick) < 1e-9 ? "zero" : "grid", x.at(tick), middle - 13, x.at(tick), middle + 13);
    }
    if (expected_percent) {
      svg += line("expected", x.at(*expected_percent), middle - 13, x.at(*expected_percent), middle + 13);
    }
    svg += label("name", "start", 0, y + 14, fmt::format("{}: {}", row.label, gain_interval_text(t)));
    svg += line(mark, x.at((t.low - 1) * 100), middle, x.at((t.high - 1) * 100), middle);
    svg += circle(mark, x.at((t.ratio - 1) * 100), middle, 5);
    y += kRow;
  }
  return figure(
      svg,
      "Speed of the candidate against the base. The dot is the measured ratio, the line its interval, the band the "
      "noise floor" +
          std::string(expected_percent ? ", the dashed line what was expected." : "."));
}

std::string samples_plot(const Timing& timing) {
  std::vector<double> all = timing.samples_a;
  all.insert(all.end(), timing.samples_b.begin(), timing.samples_b.end());
  if (all.empty()) {
    return "";
  }
  constexpr double kTop = 18;
  constexpr double kBottom = 190;
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  const double pad = std::max((*most - *least) * 0.06, std::fabs(*most) * 1e-6);
  const Scale y(*least - pad, *most + pad, kBottom, kTop);
  const size_t count = std::max(timing.samples_a.size(), timing.samples_b.size());
  const Scale x(0, static_cast<double>(std::max<size_t>(count, 2) - 1), 14, 98);

  std::string svg = open_svg(224, "Samples of base and candidate in the order in which they were taken");
  for (const double tick : y.ticks(4)) {
    svg += line("grid", 0, y.at(tick), 100, y.at(tick));
    svg += label("tick", "start", 0, y.at(tick) - 4, format_number(tick));
  }
  for (size_t i = 0; i < count; ++i) {
    const double at = x.at(static_cast<double>(i));
    const bool both = i < timing.samples_a.size() && i < timing.samples_b.size();
    if (both) {
      svg += line("pair", at, y.at(timing.samples_a[i]), at, y.at(timing.samples_b[i]));
    }
    if (i < timing.samples_a.size()) {
      svg += circle("mark-a", at, y.at(timing.samples_a[i]), 4);
    }
    if (i < timing.samples_b.size()) {
      svg += square("mark-b", at, y.at(timing.samples_b[i]), 3.5);
    }
  }
  svg += label("tick", "start", 14, kBottom + 22, "run 1");
  svg += label("tick", "end", 98, kBottom + 22, fmt::format("run {}", count));
  return figure(svg, key("mark-a", true, "base") + key("mark-b", false, "candidate") +
                         fmt::format("{}, one mark for each run.",
                                     timing.unit.empty() ? "What perf measured" : html_escape(timing.unit)));
}

std::string flips_plot(const std::vector<Flip>& flips, std::optional<double> limit) {
  if (flips.empty()) {
    return "";
  }
  constexpr double kStep = 9;
  constexpr int kColumns = 40;
  constexpr int kMostMarks = 16;  // in a column; the rest is a number above it
  double most = limit.value_or(0);
  for (const Flip& flip : flips) {
    most = std::max(most, std::fabs(flip.margin));
  }
  const Scale x(0, most > 0 ? most * 1.02 : 1, 3, 97);
  std::map<int, std::vector<const Flip*>> columns;
  int tallest = 1;
  for (const Flip& flip : flips) {
    std::vector<const Flip*>& column = columns[static_cast<int>(std::fabs(flip.margin) / x.high() * kColumns)];
    column.push_back(&flip);
    tallest = std::max(tallest, std::min(static_cast<int>(column.size()), kMostMarks));
  }
  const double bottom = 40 + kStep * tallest;
  std::string svg = open_svg(static_cast<int>(bottom) + 26, "Flips of the best token by their margin");
  for (const double tick : x.ticks(4)) {
    svg += line("grid", x.at(tick), 20, x.at(tick), bottom);
    svg += label("tick", "middle", std::clamp(x.at(tick), 4.0, 96.0), bottom + 16, format_number(tick));
  }
  svg += line("zero", 0, bottom, 100, bottom);
  if (limit) {
    svg += line("expected", x.at(*limit), 20, x.at(*limit), bottom);
    svg += label("tick", x.at(*limit) > 70 ? "end" : "start", x.at(*limit), 14,
                 "knife-edge limit " + format_number(*limit));
  }
  size_t drifts = 0;
  for (auto& [at, column] : columns) {
    std::stable_sort(column.begin(), column.end(),
                     [](const Flip* a, const Flip* b) { return !is_knife_edge(*a) && is_knife_edge(*b); });
    double y = bottom - 6;
    const double middle = x.at((at + 0.5) / kColumns * x.high());
    for (size_t i = 0; i < column.size(); ++i) {
      const bool drift = !is_knife_edge(*column[i]);
      drifts += drift ? 1 : 0;
      if (i < kMostMarks) {
        svg += drift ? square("mark-bad", middle, y, 3.5) : circle("mark-even", middle, y, 3.5);
        y -= kStep;
      } else if (i + 1 == column.size()) {
        svg += label("tick", "middle", middle, y, fmt::format("+{}", column.size() - kMostMarks));
      }
    }
  }
  return figure(svg,
                key("mark-even", true, fmt::format("{} on the knife-edge", flips.size() - drifts)) +
                    key("mark-bad", false, fmt::format("{} drifted", drifts)) +
                    "Each mark is a position whose best token is another; to the right, how far the reference's best "
                    "token was ahead.");
}

}  // namespace tessera::lab
