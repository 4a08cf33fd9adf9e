// tessera lab: experiments with gates, attempts and records. docs/lab.md shows it from the first command to a decision.
#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/option_checks.h"
#include "lab/lab.h"
#include "lab/report.h"
#include "lab/text.h"
#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

using lab::Experiment;
using lab::Lab;

std::atomic<bool> stop_asked{false};

extern "C" void ask_to_stop(int /*signal*/) {
  stop_asked.store(true);
}

struct LabOptions {
  std::string folder;
  bool json = false;
  bool quiet = false;
  std::string id;
  std::string title;
  std::string text;
  std::string section;
  lab::NewExperiment question;
  lab::Settings settings;
  lab::Close close;
  bool reverted = false;
  bool check_only = false;
  double limit_seconds = 3600;
  double band = 0.02;
};

std::string default_folder() {
  const char* const named = std::getenv("TESSERA_LAB");
  return named == nullptr || *named == '\0' ? "lab" : named;
}

// "@file" is the text in the file, "@@" a text that begins with "@".
Status take_text(std::string* text) {
  if (!text->starts_with('@')) {
    return {};
  }
  if (text->starts_with("@@")) {
    text->erase(0, 1);
    return {};
  }
  Result<std::string> file = read_text_file(text->substr(1));
  TESSERA_RETURN_IF_ERROR(file.status());
  *text = std::move(file).value();
  return {};
}

Status take_texts(std::map<std::string, std::string>* texts) {
  for (auto text = texts->begin(); text != texts->end();) {
    TESSERA_RETURN_IF_ERROR(take_text(&text->second));
    text = text->second.empty() ? texts->erase(text) : std::next(text);
  }
  return {};
}

Result<Lab> open_lab(const LabOptions& o) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return Lab::open(o.folder, fmt::format("tessera {} ({})", tessera_version(), tessera_contract_version()),
                   self.string());
}

std::string for_terminal(const std::string& text) {
  return lab::tame(text, 4000, true);
}

lab::GateWatch watch_of(const LabOptions& o) {
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ::sigaction(signal, &action, nullptr);
  }
  lab::GateWatch watch;
  watch.limit_seconds = o.limit_seconds;
  watch.cancel = &stop_asked;
  if (!o.quiet) {
    watch.on_progress = [](std::string_view line) {
      std::fputs(fmt::format("{}\n", for_terminal(std::string(line))).c_str(), stderr);
    };
    watch.on_stderr = [](std::string_view text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); };
  }
  return watch;
}

nlohmann::json to_json(const Experiment& e) {
  nlohmann::json j{{"number", e.number},
                   {"name", e.name},
                   {"title", e.title},
                   {"state", e.state()},
                   {"change_class", e.change_class},
                   {"attempts_used", e.attempts_used()},
                   {"attempts_left", std::max(0, lab::kMostAttempts - e.attempts_used())},
                   {"head", e.head()}};
  j["attempts"] = nlohmann::json::array();
  for (const lab::Attempt& a : e.attempts) {
    nlohmann::json runs = nlohmann::json::array();
    for (const lab::GateRun& run : a.runs) {
      runs.push_back({{"gate", run.gate},
                      {"confirmation", run.confirmation},
                      {"verdict", lab::verdict_name(run.verdict)},
                      {"said", lab::gate_sentence(run)},
                      {"exit_code", run.exit_code}});
    }
    j["attempts"].push_back(
        {{"attempt", a.number}, {"outcome", lab::outcome_name(a.outcome)}, {"reason", a.reason}, {"gates", runs}});
  }
  for (const lab::RevertCheck& check : e.revert_checks) {
    j["revert_checks"].push_back(
        {{"verdict", lab::verdict_name(check.verdict)}, {"reason", check.reason}, {"at", check.at}});
  }
  return j;
}

// Draws the reports after a change. The change is recorded whatever becomes of the drawing, so that is a warning.
void draw(const Lab& opened) {
  const Result<lab::Census> drawn = opened.draw_all();
  if (!drawn.ok()) {
    print_error("the change is recorded, but not its report: " + drawn.status().text());
    return;
  }
  for (const lab::Damage& damage : drawn.value().damages) {
    print_error(fmt::format("{} cannot be trusted: {}", damage.file, for_terminal(damage.what)));
  }
}

// What every command that changes an experiment ends with.
int report(const LabOptions& o, const Lab& opened, const Result<Experiment>& e, const std::string& words,
           int exit_code) {
  if (!e.ok()) {
    return fail(Status(e.status().code(), for_terminal(e.status().text())));
  }
  draw(opened);
  if (o.json) {
    fmt::print("{}", pretty_json(to_json(e.value())));
  } else {
    fmt::print("{}: {}\nreport: {}\n", e.value().name, words, (opened.folder() / (e.value().name + ".html")).string());
  }
  return exit_code;
}

// Gates for work on this project: the demo model's logits against a record, its speed against another build's library.
// The files are those of docs/lab.md; `tessera lab new` says which is missing.
void add_default_gates(lab::Settings* settings, const std::filesystem::path& root) {
  settings->gates = {
      {lab::kIdentity, "\"$TESSERA\" gate identity -m demo --record build/base/record.json --json"},
      {lab::kTolerance, "\"$TESSERA\" gate tolerance -m demo --record build/base/record.json --json"},
      {lab::kPerf, "\"$TESSERA\" gate perf -m demo --a library=build/base/libtessera.so --expect faster --json"}};
  if (settings->references.empty()) {
    settings->references = {"build/base/record.json", "build/base/record.json.rows", "build/base/libtessera.so"};
  }
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error).lexically_relative(root);
  if (settings->subjects.empty() && !error && !self.empty() && *self.begin() != "..") {
    settings->subjects = {self.string()};
  }
}

int run_init(LabOptions& o) {
  if (o.settings.gates.empty() && !o.folder.empty()) {
    add_default_gates(&o.settings, std::filesystem::absolute(o.folder).lexically_normal().parent_path());
  }
  if (const Status status = Lab::init(o.folder, o.settings); !status.ok()) {
    return fail(status);
  }
  const std::string folder = std::filesystem::absolute(o.folder).lexically_normal().string();
  if (o.json) {
    fmt::print("{}", pretty_json({{"lab", folder}}));
  } else {
    fmt::print(
        "{}: a new lab; its gates are in lab.json\nnext: tessera lab new TITLE --class bit-neutral --expect PERCENT "
        "--hypothesis "
        "TEXT\n",
        folder);
  }
  return kGood;
}

int run_new(LabOptions& o) {
  Status status = take_text(&o.question.hypothesis);
  status = status.ok() ? take_texts(&o.question.notes) : status;
  if (!status.ok()) {
    return fail(status);
  }
  o.question.changes = o.settings;
  Result<Lab> opened = open_lab(o);
  if (!opened.ok()) {
    return fail(opened.status());
  }
  const Result<Experiment> e = opened.value().create(o.question);
  const int number = e.ok() ? e.value().number : 0;
  return report(o, opened.value(), e,
                fmt::format("open\nnext: make the change, then: tessera lab attempt {} --change TEXT", number), kGood);
}

int run_attempt(LabOptions& o) {
  Result<Lab> opened = open_lab(o);
  const Status status = opened.ok() ? take_text(&o.text) : opened.status();
  if (!status.ok()) {
    return fail(status);
  }
  const Result<Experiment> e = opened.value().attempt(o.id, o.text, watch_of(o));
  if (!e.ok()) {
    return report(o, opened.value(), e, "", kBadInput);
  }
  const lab::Attempt& a = e.value().attempts.back();
  const bool passed = a.outcome == lab::Outcome::kPassed;
  const int left = lab::kMostAttempts - e.value().attempts_used();
  std::string next;
  if (passed) {
    next = fmt::format("tessera lab close {} --landed --because TEXT --lessons TEXT", e.value().number);
  } else if (!a.counts()) {
    next = "this attempt does not count: repair that, and repeat it";
  } else if (left > 0) {
    next = fmt::format("improve the change and try again; attempts left: {}", left);
  } else {
    next = fmt::format("no attempt is left: tessera lab close {} --reverted --because TEXT --lessons TEXT --retry TEXT",
                       e.value().number);
  }
  const int code = passed                                     ? kGood
                   : a.outcome == lab::Outcome::kFailed       ? kCheckFailed
                   : a.outcome == lab::Outcome::kInconclusive ? kInconclusive
                                                              : kBadInput;
  return report(
      o, opened.value(), e,
      fmt::format("attempt {} {}: {}\nnext: {}", a.number, lab::outcome_name(a.outcome), for_terminal(a.reason), next),
      code);
}

int run_note(LabOptions& o) {
  Result<Lab> opened = open_lab(o);
  const Status status = opened.ok() ? take_text(&o.text) : opened.status();
  return status.ok()
             ? report(o, opened.value(), opened.value().note(o.id, o.section, o.text), o.section + " added", kGood)
             : fail(status);
}

int run_gates(LabOptions& o) {
  Result<Lab> opened = open_lab(o);
  if (!opened.ok()) {
    return fail(opened.status());
  }
  if (o.settings.gates.empty()) {
    return fail(Status(Code::kInvalidArgument,
                       "gates: got no command; allowed are --identity, --tolerance and --perf; give one"));
  }
  return report(o, opened.value(), opened.value().change_gates(o.id, o.settings.gates), "gates changed", kGood);
}

int run_close(LabOptions& o) {
  if (o.close.landed == o.reverted) {
    return fail(Status(Code::kInvalidArgument,
                       fmt::format("close: got {}; allowed is one of --landed and --reverted; choose one",
                                   o.reverted ? "both decisions" : "no decision")));
  }
  Result<Lab> opened = open_lab(o);
  Status status = opened.ok() ? take_text(&o.close.because) : opened.status();
  status = status.ok() ? take_texts(&o.close.notes) : status;
  if (!status.ok()) {
    return fail(status);
  }
  const Result<Experiment> e = opened.value().close(o.id, o.close);
  const std::string next =
      o.reverted && e.ok()
          ? fmt::format("\nnext: take the change out, then: tessera lab verify-revert {}", e.value().number)
          : "";
  return report(o, opened.value(), e, "closed as " + std::string(o.reverted ? "reverted" : "landed") + next, kGood);
}

int run_verify(LabOptions& o) {
  Result<Lab> opened = open_lab(o);
  if (!opened.ok()) {
    return fail(opened.status());
  }
  const Result<Experiment> e = opened.value().verify_revert(o.id, o.band, watch_of(o));
  if (!e.ok()) {
    return report(o, opened.value(), e, "", kBadInput);
  }
  const lab::RevertCheck& check = e.value().revert_checks.back();
  return report(o, opened.value(), e,
                fmt::format("revert {}: {}", lab::verdict_name(check.verdict), for_terminal(check.reason)),
                static_cast<int>(check.verdict));
}

int run_index(LabOptions& o) {
  Result<Lab> opened = open_lab(o);
  if (!opened.ok()) {
    return fail(opened.status());
  }
  const Result<lab::Census> census = o.check_only ? opened.value().census() : opened.value().draw_all();
  if (!census.ok()) {
    return fail(census.status());
  }
  if (o.json) {
    fmt::print("{}", pretty_json(lab::index_json(census.value())));
  } else {
    for (const Experiment& e : census.value().experiments) {
      fmt::print("{:04}  {:<9} {:<14} {:<22} attempts {:<14} {}\n", e.number, e.state(), e.change_class,
                 lab::measured_text(e), lab::attempts_text(e), e.title);
    }
    fmt::print("{} experiments; every record is as it was written: {}\n", census.value().experiments.size(),
               census.value().damages.empty() ? "yes" : "NO");
    if (!o.check_only) {
      fmt::print("index: {}\n", (opened.value().folder() / "index.html").string());
    }
  }
  for (const lab::Damage& damage : census.value().damages) {
    print_error(fmt::format("{}: {}", damage.file, for_terminal(damage.what)));
  }
  return census.value().damages.empty() ? kGood : kCheckFailed;
}

int run_show(LabOptions& o) {
  Result<Lab> opened = open_lab(o);
  if (!opened.ok()) {
    return fail(opened.status());
  }
  const Result<Experiment> e = opened.value().load(o.id);
  if (!e.ok()) {
    return fail(Status(e.status().code(), for_terminal(e.status().text())));
  }
  fmt::print("{}", o.json ? pretty_json(to_json(e.value())) : lab::report_markdown(e.value(), {}));
  return kGood;
}

void add_gate_options(CLI::App& command, LabOptions* o) {
  const auto add = [&](const char* gate, const char* what) {
    command
        .add_option_function<std::string>(
            fmt::format("--{}", gate), [o, gate](const std::string& text) { o->settings.gates[gate] = text; }, what)
        ->type_name("COMMAND");
  };
  add(lab::kIdentity, "command of the gate that compares bits");
  add(lab::kTolerance, "command of the gate for changes of the order of sums");
  add(lab::kPerf, "command of the gate that times");
}

void add_file_options(CLI::App& command, LabOptions* o) {
  command
      .add_option("--reference", o->settings.references,
                  "file that the gates compare with; must not change from now on")
      ->allow_extra_args(false)
      ->type_name("FILE");
  command.add_option("--subject", o->settings.subjects, "file under test; must not change within an attempt")
      ->allow_extra_args(false)
      ->type_name("FILE");
}

void add_note_options(CLI::App& command, std::map<std::string, std::string>* notes,
                      std::initializer_list<const char*> sections) {
  for (const lab::Section& section : lab::kSections) {
    for (const char* wanted : sections) {
      if (std::string_view(wanted) == section.key) {
        command.add_option(fmt::format("--{}", wanted), (*notes)[wanted], section.heading)->type_name("TEXT");
      }
    }
  }
}

void add_watch_options(CLI::App& command, LabOptions* o) {
  command.add_option("--limit", o->limit_seconds, "seconds after which a gate is ended")
      ->capture_default_str()
      ->check(real_number() & CLI::Range(0.1, 1e7));
  command.add_flag("-q,--quiet", o->quiet, "say nothing on stderr while gates run");
}

}  // namespace

void add_lab(CLI::App& app, int* exit_code) {
  CLI::App* group = app.add_subcommand("lab", "Experiments: gates before timing, two attempts, a record for each");
  group->require_subcommand(1);
  group->footer(
      "A TEXT that begins with @ names a file that holds it. docs/lab.md shows an experiment from beginning to end.");
  const auto add = [&](const char* name, const char* what, int (*run)(LabOptions&),
                       const std::shared_ptr<LabOptions>& o) {
    CLI::App* command = group->add_subcommand(name, what);
    o->folder = default_folder();
    command->add_option("--lab", o->folder, "folder of the lab (or TESSERA_LAB)")
        ->capture_default_str()
        ->type_name("FOLDER");
    command->add_flag("--json", o->json, "print JSON");
    command->callback([o, run, exit_code] { *exit_code = run(*o); });
    return command;
  };
  const auto add_id = [](CLI::App& command, const std::shared_ptr<LabOptions>& o) {
    command.add_option("experiment", o->id, "its number or name")->required()->type_name("");
  };

  auto o = std::make_shared<LabOptions>();
  CLI::App* command =
      add("init", "Make a lab: a folder with lab.json; without gates it has those of tessera gate", &run_init, o);
  add_gate_options(*command, o.get());
  add_file_options(*command, o.get());

  o = std::make_shared<LabOptions>();
  command = add("new", "Open an experiment: what should get better, and by how much", &run_new, o);
  command->add_option("title", o->question.title, "one line")->required()->type_name("");
  command->add_option("--hypothesis", o->question.hypothesis, "why it should get better")
      ->required()
      ->type_name("TEXT");
  command->add_option("--expect", o->question.expected_gain_percent, "expected gain of speed in percent")
      ->required()
      ->check(real_number())
      ->type_name("PERCENT");
  command
      ->add_option("--class", o->question.change_class,
                   "bit-neutral, or order-changing where the order of sums changes")
      ->required()
      ->type_name("CLASS");
  add_note_options(*command, &o->question.notes, {"background", "design", "pitfalls"});
  add_gate_options(*command, o.get());
  add_file_options(*command, o.get());

  o = std::make_shared<LabOptions>();
  command = add("attempt", "Run the gates on the tree as it is: exit code 0 passed, 1 failed, 2 inconclusive, 3 error",
                &run_attempt, o);
  add_id(*command, o);
  command->add_option("--change", o->text, "what was changed")->required()->type_name("TEXT");
  add_watch_options(*command, o.get());

  o = std::make_shared<LabOptions>();
  command = add("note", "Add to what is said about an experiment", &run_note, o);
  add_id(*command, o);
  command->add_option("section", o->section, "background, design, pitfalls, lessons or retry")
      ->required()
      ->type_name("");
  command->add_option("text", o->text)->required()->type_name("TEXT");

  o = std::make_shared<LabOptions>();
  command = add("gates", "Correct the command of a gate that gave no verdict yet", &run_gates, o);
  add_id(*command, o);
  add_gate_options(*command, o.get());

  o = std::make_shared<LabOptions>();
  command = add("close", "Decide: --landed after an attempt that passed, else --reverted", &run_close, o);
  add_id(*command, o);
  command->add_flag("--landed", o->close.landed, "the change stays");
  command->add_flag("--reverted", o->reverted, "the change goes");
  command->add_option("--because", o->close.because, "the reason")->required()->type_name("TEXT");
  add_note_options(*command, &o->close.notes, {"pitfalls", "lessons", "retry"});

  o = std::make_shared<LabOptions>();
  command =
      add("verify-revert", "Does the tree behave as before? Same logits, and a speed within the band", &run_verify, o);
  add_id(*command, o);
  command->add_option("--band", o->band, "allowed difference of speed, a fraction")
      ->capture_default_str()
      ->check(real_number());
  add_watch_options(*command, o.get());

  o = std::make_shared<LabOptions>();
  command = add("index", "Check every record and draw all reports: exit code 1 if a record was altered", &run_index, o);
  command->add_flag("--check", o->check_only, "only check");

  o = std::make_shared<LabOptions>();
  command = add("show", "Print the report of an experiment", &run_show, o);
  add_id(*command, o);
}

}  // namespace tessera::cli
