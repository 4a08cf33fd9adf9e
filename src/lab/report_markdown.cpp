#include <fmt/format.h>

#include <algorithm>

#include "lab/plots.h"
#include "lab/report.h"
#include "lab/text.h"

namespace tessera::lab {
namespace {

constexpr size_t kMostFlipRows = 20;

std::string section(const char* heading, const std::string& text) {
  return text.empty() ? "" : fmt::format("## {}\n\n{}\n\n", heading, markdown_prose(text));
}

std::string row(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) {
    out += fmt::format(" {} |", markdown_escape(cell));
  }
  return out + "\n";
}

std::string numbers(const GateRun& run) {
  std::string out;
  for (const auto& [name, value] : run.metrics) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, format_number(value));
  }
  return out;
}

// Inside a fence nothing has a meaning, except a longer run of its own character.
std::string fence(const std::string& text) {
  size_t longest = 2;
  size_t run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string marks(longest + 1, '`');
  return fmt::format("{0}\n{1}\n{0}\n", marks, text);
}

std::string flips(const GateRun& run) {
  if (run.flips.empty()) {
    return "";
  }
  std::vector<Flip> sorted = run.flips;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Flip& a, const Flip& b) { return a.margin > b.margin; });
  std::string out = fmt::format(
      "{} flips{}:\n\n| position | reference | here | margin | class |\n|---:|---|---|---:|---|\n", sorted.size(),
      sorted.size() > kMostFlipRows ? fmt::format(", the {} with the largest margin", kMostFlipRows) : "");
  for (size_t i = 0; i < std::min(sorted.size(), kMostFlipRows); ++i) {
    const Flip& f = sorted[i];
    out += row({format_number(f.position), f.token_a, f.token_b, format_number(f.margin), f.kind});
  }
  return out + "\n";
}

std::string attempt_text(const Experiment& e, const Attempt& a) {
  std::string out =
      fmt::format("### Attempt {}: {}\n\n{}\n\n", a.number, outcome_name(a.outcome), markdown_prose(a.change));
  if (!a.reason.empty()) {
    out += fmt::format("Why: {}\n\n", markdown_escape(a.reason));
  }
  if (!a.runs.empty()) {
    out += "| gate | verdict | what it said | numbers |\n|---|---|---|---|\n";
    for (const GateRun& run : a.runs) {
      std::string all = run.timing ? fmt::format("speed {}, noise floor {}", gain_interval_text(*run.timing),
                                                 gain_text(1 + run.timing->noise_floor))
                                   : "";
      const std::string others = numbers(run);
      all += (all.empty() || others.empty() ? "" : "; ") + others;
      out += row({gate_heading(run), verdict_text(e, run), gate_sentence(run), all});
    }
    out += "\n";
  }
  for (const GateRun& run : a.runs) {
    out += flips(run);
  }
  std::string tested = a.commit.empty() ? "" : fmt::format("Commit {}. ", markdown_escape(a.commit));
  for (const FileDigest& file : a.subjects) {
    tested += fmt::format("{} SHA-256 {}. ", markdown_escape(file.path), markdown_escape(file.sha256));
  }
  return out + (tested.empty() ? tested : fmt::format("{}\n\n", tested));
}

std::string link(const std::string& name, const char* words) {
  return name.empty() ? "" : fmt::format("[{}]({}.md)", words, name);
}

}  // namespace

std::string report_markdown(const Experiment& e, const Neighbours& n) {
  std::string out = fmt::format("# {:04} {}\n\n", e.number, markdown_escape(e.title));
  out += fmt::format("{}{}[index](index.md){}{}\n\n", link(n.previous, "previous"), n.previous.empty() ? "" : " | ",
                     n.next.empty() ? "" : " | ", link(n.next, "next"));
  out +=
      "| state | class | expected gain | measured gain | attempts | opened | closed |\n|---|---|---|---|---|---|---|\n";
  const std::string state = e.state() + (e.decision == "reverted" ? ", " + revert_text(e) : "");
  out += row({state, e.change_class, expected_text(e), measured_text(e), attempts_text(e), e.opened, e.closed}) + "\n";
  out += section("Background", e.section("background"));
  out += section("Hypothesis", e.hypothesis);
  out += section("Design choices", e.section("design"));
  out += "## Change and gates\n\n";
  out += e.attempts.empty() ? "No attempt yet.\n\n" : "";
  for (const Attempt& attempt : e.attempts) {
    out += attempt_text(e, attempt);
  }
  out += fmt::format("## Performance\n\nExpected {}, measured {}.\n\n", expected_text(e), measured_text(e));
  out += e.decision.empty() ? "## Decision\n\nStill open.\n\n"
                            : fmt::format("## Decision\n\n{}: {}\n\n", e.decision, markdown_prose(e.because));
  for (const RevertCheck& check : e.revert_checks) {
    out += fmt::format("Revert checked {}: {}: {}\n\n", check.at, verdict_name(check.verdict),
                       markdown_escape(check.reason));
  }
  out += section("Pitfalls", e.section("pitfalls"));
  out += section("Retry conditions", e.section("retry"));
  out += section("Lessons", e.section("lessons"));
  out += "## Record\n\n";
  for (const auto& [gate, command] : e.gates) {
    out += fmt::format("Gate {}:\n\n{}\n", gate, fence(command));
  }
  for (const FileDigest& file : e.references) {
    out += fmt::format("Reference {} SHA-256 {}\n\n", markdown_escape(file.path), markdown_escape(file.sha256));
  }
  return out + fmt::format("Drawn from [{0}.json]({0}.json), head {1}, opened with {2}.\n", e.name, e.head(),
                           markdown_escape(e.program));
}

std::string damaged_markdown(const Damage& damage) {
  return fmt::format("# Damaged record {}\n\n[index](index.md)\n\nThis record cannot be trusted: {}\n",
                     markdown_escape(damage.file), markdown_escape(tame(damage.what, 1000, false)));
}

std::string index_markdown(const Census& census) {
  std::string out = "# Experiments\n\n";
  for (const Damage& damage : census.damages) {
    out += fmt::format("**{} cannot be trusted:** {}\n\n", markdown_escape(damage.file),
                       markdown_escape(tame(damage.what, 1000, false)));
  }
  out += "| number | experiment | state | class | expected | measured | attempts |\n|---|---|---|---|---|---|---|\n";
  for (auto e = census.experiments.rbegin(); e != census.experiments.rend(); ++e) {
    const std::string state = e->state() + (e->decision == "reverted" ? ", " + revert_text(*e) : "");
    out +=
        fmt::format("| {:04} | [{}]({}.md) |{}", e->number, markdown_escape(e->title), e->name,
                    row({state, e->change_class, expected_text(*e), measured_text(*e), attempts_text(*e)}).substr(1));
  }
  return out;
}

Json index_json(const Census& census) {
  Json j{{"schema", "tessera-lab-index-1"}, {"experiments", Json::array()}, {"damages", Json::array()}};
  for (const Experiment& e : census.experiments) {
    Json entry{{"number", e.number},
               {"name", e.name},
               {"title", e.title},
               {"state", e.state()},
               {"change_class", e.change_class},
               {"expected_gain_percent", e.expected_gain_percent},
               {"attempts_used", e.attempts_used()},
               {"opened", e.opened},
               {"closed", e.closed},
               {"head", e.head()}};
    if (const GateRun* run = e.last_timing(); run != nullptr) {
      entry["ratio"] = run->timing->ratio;
      entry["interval"] = {run->timing->low, run->timing->high};
    }
    if (e.decision == "reverted") {
      entry["revert"] = revert_text(e);
    }
    j["experiments"].push_back(std::move(entry));
  }
  for (const Damage& damage : census.damages) {
    j["damages"].push_back({{"file", damage.file}, {"what", tame(damage.what, 1000, false)}});
  }
  return j;
}

}  // namespace tessera::lab
