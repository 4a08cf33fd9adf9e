#include "lab/page.h"

#include <fmt/format.h>

#include <map>

#include "lab/text.h"

namespace tessera::lab {
namespace {

// Text on paper has a contrast of at least 4.5 : 1 in both schemes, marks and lines that carry meaning 3 : 1.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f5f6f8; --ink: #1b1f24; --muted: #545d68; --line: #d4d9df; --link: #0b57b7;
  --good: #14682f; --good-paper: #e2f4e6; --bad: #a81e22; --bad-paper: #fdeaea; --warn: #7a4a00; --warn-paper: #fcf0d8;
  --even: #5a6470; --band: #dfe4ea; --a: #5a6470; --b: #0b57b7; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171b; --card: #1d2126; --ink: #e8eaed; --muted: #a5aeb8; --line: #383f47; --link: #82b7ff;
  --good: #74d68b; --good-paper: #14301d; --bad: #ff9a96; --bad-paper: #3d1a1b; --warn: #f0c36a; --warn-paper: #35280c;
  --even: #a5aeb8; --band: #333a42; --a: #a5aeb8; --b: #82b7ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Noto Sans", "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
main, nav { max-width: 54rem; margin: 0 auto; padding: 0 1rem; }
nav { display: flex; justify-content: space-between; gap: 1rem; padding-top: .9rem; padding-bottom: .9rem; font-size: .93rem; }
nav > * { flex: 1; } nav > :nth-child(2) { text-align: center; flex: none; } nav > :last-child { text-align: right; }
main { padding-bottom: 3rem; }
a { color: var(--link); } a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .6rem 0 .6rem; } h1 small { color: var(--muted); font-weight: 400; font-size: 1rem;
  display: block; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.03rem; margin: 1.5rem 0 .4rem; display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; }
p, ul, li, figcaption, td, dd { unicode-bidi: isolate; } p { margin: .5rem 0; } ul { padding-left: 1.3rem; margin: .5rem 0; }
code, pre { font: .88em/1.5 ui-monospace, "Cascadia Mono", "DejaVu Sans Mono", monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; white-space: pre-wrap; margin: .5rem 0; }
.muted { color: var(--muted); font-size: .93rem; font-weight: 400; }
.badge { display: inline-block; padding: .05rem .55rem; border-radius: 99px; border: 1px solid currentColor; font-size: .85rem;
  font-weight: 600; white-space: nowrap; color: var(--muted); }
.badge.good { color: var(--good); background: var(--good-paper); } .badge.bad { color: var(--bad); background: var(--bad-paper); }
.badge.warn { color: var(--warn); background: var(--warn-paper); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem; margin: 1rem 0; }
.facts div { background: var(--card); border-radius: 8px; padding: .6rem .8rem; } .facts dt { color: var(--muted); font-size: .85rem; }
.facts dd { margin: 0; font-size: 1.12rem; font-weight: 600; } .facts dd small { display: block; font-weight: 400; font-size: .85rem;
  color: var(--muted); }
.gate { border: 1px solid var(--line); border-left-width: 5px; border-radius: 8px; padding: .6rem .9rem; margin: .7rem 0; }
.gate.good { border-left-color: var(--good); } .gate.bad { border-left-color: var(--bad); } .gate.warn { border-left-color: var(--warn); }
.gate h4 { margin: 0; font-size: 1rem; display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; }
.gate h4 .muted { margin-left: auto; }
.metrics { display: grid; grid-template-columns: repeat(auto-fill, minmax(12.5rem, 1fr)); gap: .1rem 1.2rem; margin: .5rem 0 .6rem; font-size: .9rem; }
.metrics div { display: flex; justify-content: space-between; gap: .8rem; border-bottom: 1px solid var(--line); padding: .1rem 0; }
.metrics dt { color: var(--muted); } .metrics dd { margin: 0; font-variant-numeric: tabular-nums; white-space: nowrap; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--muted); font-weight: 600; } th, td { white-space: nowrap; } .number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: .8rem 0; } figcaption { color: var(--muted); font-size: .88rem; margin-top: .3rem; }
details summary { cursor: pointer; color: var(--link); margin: .4rem 0; }
.damage { border: 2px solid var(--bad); background: var(--bad-paper); border-radius: 8px; padding: .6rem 1rem; margin: 1rem 0; }
.damage h2 { border: 0; margin: 0; padding: 0; color: var(--bad); }
.list { list-style: none; padding: 0; margin: 0; } .list li { border-bottom: 1px solid var(--line); padding: .8rem 0; }
.list .line { display: flex; flex-wrap: wrap; gap: .3rem .6rem; align-items: baseline; } .list a { font-weight: 600; }
.list .gain { margin-left: auto; font-weight: 600; font-variant-numeric: tabular-nums; }
.plot { display: block; overflow: visible; } .plot text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: var(--muted); }
.plot text.name { font-size: 13px; fill: var(--ink); } .plot .grid { stroke: var(--line); } .plot .zero { stroke: var(--muted); }
.plot .expected { stroke: var(--muted); stroke-dasharray: 4 3; } .plot .band { fill: var(--band); } .plot .pair { stroke: var(--line); stroke-width: 1.5; }
line.mark-good { stroke: var(--good); stroke-width: 2.5; } line.mark-bad { stroke: var(--bad); stroke-width: 2.5; }
line.mark-even { stroke: var(--even); stroke-width: 2.5; }
circle.mark-good { fill: var(--good); } circle.mark-bad, rect.mark-bad { fill: var(--bad); } circle.mark-even { fill: var(--even); }
circle.mark-a { fill: var(--paper); stroke: var(--a); stroke-width: 1.8; } rect.mark-b { fill: var(--b); }
.key { white-space: nowrap; margin-right: .7rem; } .key svg { vertical-align: -1px; margin-right: .3rem; }
@media (max-width: 40rem) { h1 { font-size: 1.4rem; } .gate h4 .muted { margin-left: 0; } .facts { grid-template-columns: repeat(2, 1fr); }
  .metrics { grid-template-columns: repeat(auto-fill, minmax(8.6rem, 1fr)); }
  .list .gain { margin-left: 0; } }
@media print { nav { display: none; } }
)";

}  // namespace

std::string html_page(const std::string& title, const std::string& body) {
  // No script, no frame, nothing from anywhere: whatever a record holds, the page only shows it.
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
      html_escape(title), kStyle, body);
}

std::string badge(const std::string& word) {
  static const std::map<std::string, const char*> kKinds{{"landed", "good"},
                                                         {"passed", "good"},
                                                         {"pass", "good"},
                                                         {"failed", "bad"},
                                                         {"fail", "bad"},
                                                         {"error", "bad"},
                                                         {"inconclusive", "warn"},
                                                         {"interrupted", "warn"},
                                                         {"running", "warn"},
                                                         {"open", "warn"},
                                                         {"revert verified", "good"},
                                                         {"revert not verified", "warn"},
                                                         {"revert check: fail", "bad"},
                                                         {"revert check: error", "bad"},
                                                         {"revert check: inconclusive", "warn"}};
  const auto kind = kKinds.find(word);
  return fmt::format("<span class=\"badge {}\">{}</span>", kind == kKinds.end() ? "" : kind->second, html_escape(word));
}

}  // namespace tessera::lab
