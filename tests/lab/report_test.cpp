// Reports: everything that a record holds is shown, as text, on pages that need nothing from anywhere.
#include "lab/report.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "lab/lab_fixture.h"
#include "lab/plots.h"

namespace tessera::lab {
namespace {

class LabReport : public LabTest {
 protected:
  std::string file(const std::string& name) const { return read_file(folder() / name, size_t{1} << 26).value(); }
  std::string drawn(const std::string& name) const {
    EXPECT_TRUE(lab().draw_all().ok());
    return file(name);
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(LabReport, ShowsWhatTheRecordHolds) {
  NewExperiment what = question(kOrderChanging);
  what.notes = {{"background", "Five percent of the time."}, {"design", "- 48 rows"}, {"pitfalls", "The last tile."}};
  const std::string name = lab().create(what).value().name;
  set_gate(kIdentity, Verdict::kFail);
  set_gate(kTolerance, Verdict::kPass,
           R"(, "checks": [{"name": "max of D", "value": 0.25, "at_most": 0.375, "verdict": "pass"}, 3, {"name": []}],
                "flips": [{"position": 19, "token_a": 262, "token_b": 11, "margin": 0.004, "class": "knife-edge"}])");
  attempt(name);
  ASSERT_TRUE(
      lab()
          .close(name, {.landed = true, .because = "Three percent.", .notes = {{"lessons", "Copies hide well."}}})
          .ok());
  const std::string html = drawn(name + ".html");
  const std::string markdown = file(name + ".md");
  for (const char* const part :
       {"KV staging: double buffering", "Five percent of the time.", "48 rows", "The last tile.",
        "hides behind this tile", "Two buffers for K and V.", "as told", "Three percent.", "Copies hide well.",
        "order-changing", "landed", "+3.00 %", "knife-edge", "262", "1 of 2", "sh ./perf.sh"}) {
    EXPECT_TRUE(has(html, part)) << part;
    EXPECT_TRUE(has(markdown, part)) << part;
  }
  EXPECT_TRUE(has(html, "<td>max of D</td><td class=\"number\">0.25</td><td class=\"number\">\u2264 0.375</td>"));
  EXPECT_TRUE(has(html, "aria-label=\"Speed of the candidate"));
  EXPECT_TRUE(has(html, "aria-label=\"Samples of base"));
  EXPECT_TRUE(has(html, "aria-label=\"Flips of the best token"));
}

TEST_F(LabReport, SaysWhereTheClassAllowsADifference) {
  set_gate(kIdentity, Verdict::kFail);
  for (const auto& [change_class, says] : {std::pair{kOrderChanging, true}, {kBitNeutral, false}}) {
    const std::string name = open(change_class);
    attempt(name);
    EXPECT_EQ(has(drawn(name + ".html"), "differs, as its class allows"), says);
    EXPECT_EQ(has(file(name + ".md"), "| identity | differs, as its class allows |"), says);
    EXPECT_FALSE(has(file(name + ".md"), "; |"));
  }
}

TEST_F(LabReport, SaysWhichGatesDidNotRun) {
  set_gate(kIdentity, Verdict::kFail);
  const std::string name = open();
  attempt(name);
  EXPECT_TRUE(has(drawn(name + ".html"), "nothing is timed before a green gate: perf."));
}

TEST_F(LabReport, HostileTextStaysText) {
  const std::string bad = "<script>alert(1)</script>\"'&<img src=x onerror=y> | `x` ](http://evil)";
  NewExperiment what = question();
  what.title = bad;
  what.hypothesis = bad;
  what.notes = {{"background", bad}, {"design", "- " + bad}, {"pitfalls", "# " + bad}};
  what.changes.gates[kIdentity] = "sh ./identity.sh # " + bad;
  const std::string name = lab().create(what).value().name;
  set_script(kIdentity, R"(cat <<'X'
{"gate": "identity", "verdict": "fail", "summary": "<script>alert(2)</script>\u001b[2J\u202e", "metrics": {"<b>m</b>": 1}}
X
echo '<script>alert(3)</script>' >&2; exit 1)");
  ASSERT_TRUE(lab().attempt(name, bad, GateWatch{}).ok());
  ASSERT_TRUE(lab().close(name, {.landed = false, .because = bad, .notes = {{"lessons", bad}, {"retry", bad}}}).ok());
  for (const std::string& text : {drawn(name + ".html"), file("index.html")}) {
    EXPECT_FALSE(has(text, "<script"));
    EXPECT_FALSE(has(text, "<img"));
    EXPECT_FALSE(has(text, "<b>"));
    EXPECT_FALSE(has(text, "\x1b"));
    EXPECT_FALSE(has(text, "\xe2\x80\xae"));
    EXPECT_TRUE(has(text, "&lt;script&gt;"));
  }
  for (std::string text : {file(name + ".md"), file("index.md")}) {
    const size_t fence = text.find("## Record");  // commands stand in fences, where nothing has a meaning
    text.resize(std::min(text.size(), fence));
    EXPECT_FALSE(has(text, "<script"));
    EXPECT_FALSE(has(text, "<img"));
  }
}

// Offline: no address, no script, no file but the reports beside it.
TEST_F(LabReport, PagesNeedNothingElse) {
  const std::string name = open();
  attempt(name);
  for (const std::string& html : {drawn(name + ".html"), file("index.html")}) {
    EXPECT_FALSE(has(html, "http:"));
    EXPECT_FALSE(has(html, "https:"));
    EXPECT_FALSE(has(html, "@import"));
    EXPECT_TRUE(has(html, "prefers-color-scheme: dark"));
    EXPECT_TRUE(has(html, "width=device-width"));
    EXPECT_FALSE(has(html, "src="));
    EXPECT_FALSE(has(html, "url("));
    constexpr std::string_view kLink = "href=\"";
    for (size_t at = html.find(kLink); at != std::string::npos; at = html.find(kLink, at + 1)) {
      const size_t begin = at + kLink.size();
      const std::string target = html.substr(begin, html.find('"', begin) - begin);
      EXPECT_TRUE(std::filesystem::exists(folder() / target)) << target;
    }
  }
}

TEST_F(LabReport, NeighboursLinkToOneAnother) {
  const std::string first = open();
  const std::string second = open();
  const std::string third = open();
  const std::string html = drawn(second + ".html");
  EXPECT_TRUE(has(html, "href=\"" + first + ".html\""));
  EXPECT_TRUE(has(html, "href=\"" + third + ".html\""));
  EXPECT_TRUE(has(html, "href=\"index.html\""));
  EXPECT_TRUE(has(file(second + ".md"), "](" + first + ".md)"));
  EXPECT_FALSE(has(file(third + ".html"), "Next"));
  EXPECT_TRUE(has(file("index.html"), third + ".html"));
  const Json index = parse_json(file("index.json"), "index.json").value();
  EXPECT_EQ(index["experiments"].size(), 3U);
  EXPECT_EQ(index["experiments"][1]["head"], lab().load(second).value().head());
}

TEST_F(LabReport, ADamagedRecordHasNoReportButAWarning) {
  const std::string name = open();
  open();
  drawn("index.html");
  std::string record = file(name + ".json");
  record[record.find("hides")] = 'H';
  write(folder() / (name + ".json"), record);
  const std::string html = drawn(name + ".html");
  EXPECT_TRUE(has(html, "cannot be trusted"));
  EXPECT_FALSE(has(html, "Hypothesis"));
  EXPECT_TRUE(has(file("index.html"), "cannot be trusted"));
  EXPECT_TRUE(has(file("index.md"), "cannot be trusted"));
}

TEST_F(LabReport, DrawingTwiceGivesTheSameBytes) {
  const std::string name = open();
  attempt(name);
  const std::string before = drawn(name + ".html");
  const auto time = std::filesystem::last_write_time(folder() / (name + ".html"));
  EXPECT_EQ(drawn(name + ".html"), before);
  EXPECT_EQ(std::filesystem::last_write_time(folder() / (name + ".html")), time);
}

TEST_F(LabReport, ACrashedAttemptIsDrawnAsInterrupted) {
  const std::string name = open();
  Record record = parse_record(file(name + ".json"), "x").value();
  append_event(&record, {{"type", "attempt-started"},
                         {"at", "2026-11-30T10:00:00Z"},
                         {"attempt", 1},
                         {"change", "x"},
                         {"commit", ""},
                         {"subjects", Json::array()}});
  write(folder() / (name + ".json"), record_text(record));
  EXPECT_TRUE(has(drawn(name + ".html"), "interrupted"));
  EXPECT_EQ(lab().load(name).value().attempts_used(), 1);
}

TEST(Plots, GainsArePercentOfSpeed) {
  EXPECT_EQ(gain_text(1.0), "0.00 %");
  EXPECT_EQ(gain_text(1.0312), "+3.12 %");
  EXPECT_EQ(gain_text(0.9), "\u221210.0 %");
  EXPECT_EQ(gain_text(12.5), "+1150 %");
  EXPECT_EQ(gain_text(0.99999999), "0.00 %");
}

TEST(Plots, HaveAMarkForEverySampleAndFlip) {
  const auto count = [](const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++n;
    }
    return n;
  };
  Timing timing{.ratio = 1.1,
                .low = 1.05,
                .high = 1.15,
                .noise_floor = 0.01,
                .samples_a = {1, 2, 3},
                .samples_b = {2, 3},
                .unit = "s"};
  const std::string samples = samples_plot(timing);
  EXPECT_EQ(count(samples, "class=\"mark-a\" cx=\"") - 1, 3U);  // and one in the legend
  EXPECT_EQ(count(samples, "<rect class=\"mark-b\""), 2U + 1U);
  EXPECT_EQ(samples_plot(Timing{}), "");
  EXPECT_EQ(flips_plot({}, 0.1), "");
  const Flip edge{.position = 1, .token_a = "1", .token_b = "2", .margin = 0.01, .kind = "knife-edge"};
  const Flip drift{.position = 2, .token_a = "1", .token_b = "2", .margin = 0.5, .kind = "kernel-drift"};
  const std::string flips = flips_plot({edge, edge, drift}, 0.02);
  EXPECT_TRUE(flips.find("2 on the knife-edge") != std::string::npos);
  EXPECT_TRUE(flips.find("1 drifted") != std::string::npos);
  EXPECT_EQ(ratio_plot({}, 3.0), "");
  // Extremes are drawn, not a division by zero.
  timing.low = timing.high = timing.ratio = 1;
  timing.noise_floor = 0;
  timing.samples_a = timing.samples_b = {5};
  for (const std::string& svg :
       {ratio_plot({{"x", timing}}, std::nullopt), samples_plot(timing), flips_plot({Flip{}}, std::nullopt)}) {
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  }
}

}  // namespace
}  // namespace tessera::lab
