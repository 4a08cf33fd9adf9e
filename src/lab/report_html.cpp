#include <fmt/format.h>

#include <algorithm>

#include "lab/page.h"
#include "lab/plots.h"
#include "lab/report.h"
#include "lab/text.h"

namespace tessera::lab {
namespace {

constexpr size_t kMostFlipRows = 100;
constexpr size_t kMostReportText = 20000;

std::string navigation(const Neighbours& n) {
  const auto link = [](const std::string& name, const char* words) {
    return name.empty() ? std::string("<span></span>")
                        : fmt::format("<a href=\"{}.html\">{}</a>", html_escape(name), words);
  };
  return fmt::format("<nav aria-label=\"Experiments\">{}<a href=\"index.html\">Index</a>{}</nav>\n",
                     link(n.previous, "\u2190 Previous"), link(n.next, "Next \u2192"));
}

std::string fact(const char* name, const std::string& value, const std::string& small = "") {
  return fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", name, value,
                     small.empty() ? "" : fmt::format("<small>{}</small>", small));
}

std::string section(const char* heading, const std::string& text) {
  return text.empty() ? "" : fmt::format("<h2>{}</h2>\n{}", heading, html_prose(text));
}

const char* colour(Verdict verdict) {
  return verdict == Verdict::kPass ? "good" : verdict == Verdict::kInconclusive ? "warn" : "bad";
}

std::string day(const std::string& at) {
  return html_escape(at.substr(0, 10));
}

std::string minute(const std::string& at) {
  return html_escape(at.size() < 16 ? at : at.substr(0, 10) + " " + at.substr(11, 5) + " UTC");
}

std::optional<double> knife_edge_limit(const GateRun& run) {
  const auto limit = run.metrics.find("knife_edge");
  return limit == run.metrics.end() ? std::nullopt : std::optional<double>(limit->second);
}

std::string flip_table(const std::vector<Flip>& flips) {
  std::vector<Flip> sorted = flips;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Flip& a, const Flip& b) { return a.margin > b.margin; });
  std::string rows;
  for (size_t i = 0; i < std::min(sorted.size(), kMostFlipRows); ++i) {
    const Flip& f = sorted[i];
    rows += fmt::format(
        "<tr><td class=\"number\">{}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td><td>{}</td></tr>\n",
        format_number(f.position), html_escape(f.token_a), html_escape(f.token_b), format_number(f.margin),
        html_escape(f.kind));
  }
  return fmt::format(
      "<details{}><summary>{} flips{}</summary><div class=\"scroll\"><table><thead><tr><th class=\"number\">"
      "position</th><th>reference</th><th>here</th><th class=\"number\">margin</th><th>class</th></tr></thead>"
      "<tbody>\n{}</tbody></table></div></details>\n",
      sorted.size() <= 8 ? " open" : "", sorted.size(),
      sorted.size() > kMostFlipRows ? fmt::format(", the {} with the largest margin", kMostFlipRows) : "", rows);
}

// A metric's name, which may be broken behind an underscore where the column is narrow.
std::string metric_name(const std::string& name) {
  std::string out;
  for (const char c : html_escape(name)) {
    out.push_back(c);
    out += c == '_' ? "<wbr>" : "";
  }
  return out;
}

std::string metrics(const GateRun& run) {
  std::string items;
  for (const auto& [name, value] : run.metrics) {
    items += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", metric_name(name), format_number(value));
  }
  return items.empty() ? "" : fmt::format("<dl class=\"metrics\">\n{}</dl>\n", items);
}

// The limits that a gate compared with, if it says them as {name, value, at_most or at_least, verdict}.
std::string check_table(const Json& report) {
  const Json checks = report.is_object() ? report.value("checks", Json::array()) : Json::array();
  std::string rows;
  for (const Json& c : checks.is_array() ? checks : Json::array()) {
    const auto text = [&](const char* key) {
      const Json value = c.is_object() ? c.value(key, Json()) : Json();
      return html_escape(value.is_number()   ? format_number(value.get<double>())
                         : value.is_string() ? tame(value.get<std::string>(), 100, false)
                                             : "");
    };
    const char* limit = c.is_object() && c.contains("at_least") ? "at_least" : "at_most";
    rows += fmt::format("<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{} {}</td><td>{}</td></tr>\n",
                        text("name"), text("value"), limit == std::string_view("at_least") ? "\u2265" : "\u2264",
                        text(limit), text("verdict"));
  }
  return rows.empty() ? ""
                      : fmt::format(
                            "<div class=\"scroll\"><table><thead><tr><th>check</th><th class=\"number\">value</th>"
                            "<th class=\"number\">limit</th><th>verdict</th></tr></thead><tbody>\n{}</tbody></table>"
                            "</div>\n",
                            rows);
}

std::string gate_block(const Experiment& e, const GateRun& run) {
  std::string out = fmt::format(
      "<div class=\"gate {}\"><h4>{} {}<span class=\"muted\">{:.1f} s, exit code {}</span></h4>\n<p>{}</p>\n",
      is_allowed(e, run) ? "" : colour(run.verdict), html_escape(gate_heading(run)), badge(verdict_text(e, run)),
      run.seconds, run.exit_code, html_escape(gate_sentence(run)));
  out += metrics(run) + check_table(run.report);
  if (!run.flips.empty()) {
    out += flips_plot(run.flips, knife_edge_limit(run)) + flip_table(run.flips);
  }
  if (run.timing) {
    out += samples_plot(*run.timing);
  }
  if (run.verdict == Verdict::kError && !run.stderr_tail.empty()) {
    out += fmt::format("<details><summary>What it wrote to stderr</summary><pre>{}</pre></details>\n",
                       html_escape(run.stderr_tail));
  }
  if (!run.report.is_null()) {
    out += fmt::format("<details><summary>All that it said</summary><pre>{}</pre></details>\n",
                       html_escape(tame(pretty_json(run.report), kMostReportText, true)));
  }
  return out + "</div>\n";
}

// The gates that an attempt did not come to, and why.
std::string not_run(const Experiment& e, const Attempt& a) {
  std::string missing;
  for (const char* gate : {kIdentity, kTolerance, kPerf}) {
    const bool wanted = gate != std::string_view(kTolerance) || e.order_changing();
    const bool ran = std::any_of(a.runs.begin(), a.runs.end(), [&](const GateRun& r) { return r.gate == gate; });
    if (wanted && !ran) {
      missing += (missing.empty() ? "" : ", ") + std::string(gate);
    }
  }
  if (missing.empty() || a.outcome == Outcome::kRunning) {
    return "";
  }
  return fmt::format("<p class=\"muted\">Not run, because nothing is timed before a green gate: {}.</p>\n", missing);
}

std::string attempt_block(const Experiment& e, const Attempt& a) {
  std::string out = fmt::format("<h3 id=\"attempt-{}\">Attempt {} {}<span class=\"muted\">{}</span></h3>\n", a.number,
                                a.number, badge(outcome_name(a.outcome)), minute(a.started));
  out += html_prose(a.change);
  if (!a.reason.empty() && a.outcome != Outcome::kPassed) {
    out += fmt::format("<p><strong>Why:</strong> {}</p>\n", html_escape(a.reason));
  }
  for (const GateRun& run : a.runs) {
    out += gate_block(e, run);
  }
  out += not_run(e, a);
  std::string tested = a.commit.empty() ? "" : fmt::format("Commit <code>{}</code>. ", html_escape(a.commit));
  for (const FileDigest& file : a.subjects) {
    tested += fmt::format("<code>{}</code> SHA-256 <code>{}</code>. ", html_escape(file.path),
                          html_escape(file.sha256.substr(0, 16)));
  }
  return out + (tested.empty() ? "" : fmt::format("<p class=\"muted\">{}</p>\n", tested));
}

std::string performance(const Experiment& e) {
  std::vector<RatioRow> rows;
  for (const Attempt& attempt : e.attempts) {
    for (const GateRun& run : attempt.runs) {
      if (run.timing) {
        rows.push_back({attempt_label(attempt, run), *run.timing});
      }
    }
  }
  if (rows.empty()) {
    return "<h2>Performance</h2>\n<p class=\"muted\">Nothing was timed.</p>\n";
  }
  return "<h2>Performance</h2>\n" + ratio_plot(rows, e.expected_gain_percent);
}

std::string revert_checks(const Experiment& e) {
  if (e.decision != "reverted") {
    return "";
  }
  std::string out = "<h2>Revert, judged by behaviour</h2>\n";
  if (e.revert_checks.empty()) {
    return out +
           fmt::format(
               "<p>Not verified yet: run <code>tessera lab verify-revert {}</code> on the tree without the change."
               "</p>\n",
               e.number);
  }
  std::vector<RatioRow> rows;
  for (const RevertCheck& check : e.revert_checks) {
    out += fmt::format("<p>{} <span class=\"muted\">{}</span> {}</p>\n", badge(verdict_name(check.verdict)),
                       minute(check.at), html_escape(check.reason));
    for (const GateRun& run : check.runs) {
      if (run.timing) {
        rows.push_back({"Check of " + check.at.substr(0, 10), *run.timing});
      }
    }
  }
  return out + ratio_plot(rows, std::nullopt);
}

std::string record_block(const Experiment& e) {
  std::string out = "<h2>Record</h2>\n";
  for (const auto& [gate, command] : e.gates) {
    out += fmt::format("<p class=\"muted\">Gate {}</p><pre>{}</pre>\n", html_escape(gate), html_escape(command));
  }
  for (const FileDigest& file : e.references) {
    out += fmt::format("<p class=\"muted\">Reference <code>{}</code>, SHA-256 <code>{}</code></p>\n",
                       html_escape(file.path), html_escape(file.sha256));
  }
  return out + fmt::format(
                   "<p class=\"muted\">Drawn from <a href=\"{0}.json\">{0}.json</a>, whose last event has the digest "
                   "<code>{1}</code>. "
                   "Opened with {2}.</p>\n",
                   html_escape(e.name), html_escape(e.head()), html_escape(e.program));
}

std::string state_badges(const Experiment& e) {
  return fmt::format("{} {}", badge(e.state()), e.decision == "reverted" ? badge(revert_text(e)) : "");
}

}  // namespace

std::string report_html(const Experiment& e, const Neighbours& neighbours) {
  std::string body = navigation(neighbours) + "<main>\n";
  body += fmt::format("<h1><small>Experiment {:04}</small>{}</h1>\n<p>{} {}</p>\n", e.number, html_escape(e.title),
                      state_badges(e), badge(e.change_class));
  body += "<dl class=\"facts\">\n";
  const GateRun* const last = e.last_timing();
  body += fact("Expected gain", expected_text(e));
  body += last == nullptr ? fact("Measured gain", "not timed")
                          : fact("Measured gain", gain_text(last->timing->ratio),
                                 fmt::format("{} to {}", gain_text(last->timing->low), gain_text(last->timing->high)));
  body += fact("Attempts", attempts_text(e));
  body += fact("Opened", day(e.opened), e.closed.empty() ? "" : "closed " + day(e.closed));
  body += "</dl>\n";
  body += section("Background", e.section("background"));
  body += section("Hypothesis", e.hypothesis);
  body += section("Design choices", e.section("design"));
  body += "<h2>Change and gates</h2>\n";
  body += e.attempts.empty() ? "<p class=\"muted\">No attempt yet.</p>\n" : "";
  for (const Attempt& attempt : e.attempts) {
    body += attempt_block(e, attempt);
  }
  body += performance(e);
  body += "<h2>Decision</h2>\n";
  body += e.decision.empty() ? "<p class=\"muted\">Still open.</p>\n"
                             : fmt::format("<p>{} <span class=\"muted\">{}</span></p>\n{}", badge(e.decision),
                                           minute(e.closed), html_prose(e.because));
  body += revert_checks(e);
  body += section("Pitfalls", e.section("pitfalls"));
  body += section("Retry conditions", e.section("retry"));
  body += section("Lessons", e.section("lessons"));
  body += record_block(e) + "</main>\n" + navigation(neighbours);
  return html_page(fmt::format("{:04} {}", e.number, e.title), body);
}

std::string damaged_html(const Damage& damage) {
  return html_page(
      "Damaged record " + damage.file,
      fmt::format(
          "{}<main><div class=\"damage\"><h2>This record cannot be trusted</h2><p>{}</p><p>{}</p></div></main>\n",
          navigation({}), html_escape(damage.file), html_escape(tame(damage.what, 1000, false))));
}

std::string index_html(const Census& census) {
  size_t landed = 0;
  size_t reverted = 0;
  for (const Experiment& e : census.experiments) {
    landed += e.decision == "landed" ? 1 : 0;
    reverted += e.decision == "reverted" ? 1 : 0;
  }
  std::string body = "<main>\n<h1>Experiments</h1>\n<dl class=\"facts\">\n";
  body += fact("All", std::to_string(census.experiments.size()));
  body += fact("Landed", std::to_string(landed));
  body += fact("Reverted", std::to_string(reverted));
  body += fact("Open", std::to_string(census.experiments.size() - landed - reverted));
  body += "</dl>\n";
  if (!census.damages.empty()) {
    body += "<div class=\"damage\"><h2>Records that cannot be trusted</h2>\n<ul>\n";
    for (const Damage& damage : census.damages) {
      body += fmt::format("<li>{}: {}</li>\n", html_escape(damage.file), html_escape(tame(damage.what, 1000, false)));
    }
    body += "</ul></div>\n";
  }
  body += census.experiments.empty() ? "<p class=\"muted\">None yet: <code>tessera lab new</code> opens one.</p>\n"
                                     : "<ul class=\"list\">\n";
  std::vector<RatioRow> rows;
  for (auto at = census.experiments.rbegin(); at != census.experiments.rend(); ++at) {
    const Experiment& e = *at;
    body += fmt::format(
        "<li><div class=\"line\"><span><span class=\"muted\">{:04}</span> <a href=\"{}.html\">{}</a></span>{}<span "
        "class=\"gain\">{}"
        "</span></div><div class=\"muted\">{}, opened {}, expected {}, attempts {}</div></li>\n",
        e.number, html_escape(e.name), html_escape(e.title), state_badges(e),
        e.last_timing() == nullptr ? "not timed" : gain_text(e.last_timing()->timing->ratio),
        html_escape(e.change_class), day(e.opened), expected_text(e), attempts_text(e));
    if (e.last_timing() != nullptr && rows.size() < 40) {
      rows.push_back({fmt::format("{:04} {}", e.number, e.state()), *e.last_timing()->timing});
    }
  }
  body += census.experiments.empty() ? "" : "</ul>\n";
  body += rows.empty() ? "" : "<h2>Last timing of each</h2>\n" + ratio_plot(rows, std::nullopt);
  return html_page("Experiments", body + "</main>\n");
}

}  // namespace tessera::lab
