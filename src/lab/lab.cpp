#include "lab/lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>
#include <system_error>
#include <utility>

#include "lab/lab_folder.h"
#include "lab/text.h"

namespace tessera::lab {
namespace {

constexpr const char* kSettingsSchema = "tessera-lab-settings-1";
constexpr const char* kSettingsFile = "lab.json";
constexpr size_t kMostSettingsBytes = size_t{1} << 20;
constexpr size_t kMostTitle = 200;
constexpr size_t kMostText = size_t{256} << 10;
constexpr size_t kMostCommand = size_t{32} << 10;
constexpr size_t kMostFiles = 100;
constexpr double kMostGainPercent = 1e6;

constexpr std::string_view kGateNames[] = {kIdentity, kTolerance, kPerf};

Status check_gates(std::map<std::string, std::string>* gates) {
  for (auto& [gate, command] : *gates) {
    const std::string_view wanted = gate;
    if (std::none_of(std::begin(kGateNames), std::end(kGateNames),
                     [&](std::string_view name) { return wanted == name; })) {
      return {
          Code::kInvalidArgument,
          fmt::format("gates: got '{}'; allowed are identity, tolerance and perf; correct it", tame(gate, 60, false))};
    }
    Result<std::string> clean = clean_text(command, fmt::format("command of gate {}", gate), kMostCommand);
    TESSERA_RETURN_IF_ERROR(clean.status());
    command = clean.value();
  }
  return {};
}

Status check_paths(std::vector<std::string>* paths, const char* what) {
  if (paths->size() > kMostFiles) {
    return {Code::kInvalidArgument,
            fmt::format("{}: got {} files; allowed are {}; name fewer", what, paths->size(), kMostFiles)};
  }
  for (std::string& path : *paths) {
    Result<std::string> clean = clean_line(path, what, 4096);
    TESSERA_RETURN_IF_ERROR(clean.status());
    path = clean.value();
  }
  return {};
}

Status check_notes(std::map<std::string, std::string>* notes) {
  for (auto& [section, text] : *notes) {
    const std::string_view wanted = section;
    if (std::none_of(std::begin(kSections), std::end(kSections), [&](const Section& s) { return wanted == s.key; })) {
      return {Code::kInvalidArgument,
              fmt::format("section: got '{}'; allowed are background, design, pitfalls, lessons and retry; choose one",
                          tame(section, 60, false))};
    }
    Result<std::string> clean = clean_text(text, section, kMostText);
    TESSERA_RETURN_IF_ERROR(clean.status());
    text = clean.value();
  }
  return {};
}

Status check_settings(Settings* settings) {
  TESSERA_RETURN_IF_ERROR(check_gates(&settings->gates));
  TESSERA_RETURN_IF_ERROR(check_paths(&settings->references, "references"));
  return check_paths(&settings->subjects, "subjects");
}

std::string settings_text(const Settings& settings) {
  return pretty_json({{"schema", kSettingsSchema},
                      {"gates", settings.gates},
                      {"references", settings.references},
                      {"subjects", settings.subjects}});
}

Result<Settings> parse_settings(std::string_view text, const std::string& what) {
  Result<Json> parsed = parse_json(text, what);
  TESSERA_RETURN_IF_ERROR(parsed.status());
  const auto bad = [&](const std::string& got) {
    return Status(Code::kBadFile,
                  fmt::format("{}: got {}; allowed are schema ({}), gates (name: command), references and "
                              "subjects (paths); correct it",
                              what, tame(got, 200, false), kSettingsSchema));
  };
  Settings settings;
  if (!parsed.value().is_object() || !parsed.value().contains("schema") ||
      parsed.value()["schema"] != kSettingsSchema) {
    return bad("no schema of that name");
  }
  try {
    for (const auto& [key, value] : parsed.value().items()) {
      if (key == "gates") {
        settings.gates = value.get<std::map<std::string, std::string>>();
      } else if (key == "references") {
        settings.references = value.get<std::vector<std::string>>();
      } else if (key == "subjects") {
        settings.subjects = value.get<std::vector<std::string>>();
      } else if (key != "schema") {
        return bad(fmt::format("the key '{}'", key));
      }
    }
  } catch (const Json::exception&) {
    return bad("a value of another type");
  }
  if (const Status status = check_settings(&settings); !status.ok()) {
    return Status(Code::kBadFile, fmt::format("{}: {}", what, status.text()));
  }
  return settings;
}

Json notes_event(const std::string& section, const std::string& text) {
  return {{"type", "note"}, {"section", section}, {"text", text}};
}

// lab.json with what an experiment has otherwise.
Settings merged(Settings settings, const Settings& changes) {
  for (const auto& [gate, command] : changes.gates) {
    settings.gates[gate] = command;
  }
  settings.references = changes.references.empty() ? settings.references : changes.references;
  settings.subjects = changes.subjects.empty() ? settings.subjects : changes.subjects;
  return settings;
}

Status check_new(NewExperiment* what) {
  Result<std::string> title = clean_line(what->title, "title", kMostTitle);
  TESSERA_RETURN_IF_ERROR(title.status());
  Result<std::string> hypothesis = clean_text(what->hypothesis, "hypothesis", kMostText);
  TESSERA_RETURN_IF_ERROR(hypothesis.status());
  if (what->change_class != kBitNeutral && what->change_class != kOrderChanging) {
    return {Code::kInvalidArgument, fmt::format("class: got '{}'; allowed are {} and {}; say whether the order of sums "
                                                "changes",
                                                tame(what->change_class, 60, false), kBitNeutral, kOrderChanging)};
  }
  if (!(std::fabs(what->expected_gain_percent) <= kMostGainPercent)) {
    return {Code::kInvalidArgument, fmt::format("expected gain: got {}; allowed is a percentage up to {}; correct it",
                                                what->expected_gain_percent, kMostGainPercent)};
  }
  what->title = title.value();
  what->hypothesis = hypothesis.value();
  TESSERA_RETURN_IF_ERROR(check_notes(&what->notes));
  return check_settings(&what->changes);
}

Status check_complete(const Settings& settings, const std::string& change_class) {
  for (const std::string_view gate : kGateNames) {
    const bool needed = gate != kTolerance || change_class == kOrderChanging;
    if (needed && !settings.gates.contains(std::string(gate))) {
      return {Code::kInvalidArgument,
              fmt::format("gate {}: got no command; allowed is a command line; give --{} or put "
                          "it into {}",
                          gate, gate, kSettingsFile)};
    }
  }
  return {};
}

// What index.json remembers of a record: the digest of its last event at that time.
struct Known {
  std::string name;
  std::string head;
};

// Empty without an index: it is drawn from the records, and may be deleted. One that says nothing is damage.
std::vector<Known> known_heads(const std::filesystem::path& path, Census* census) {
  std::vector<Known> known;
  std::error_code ignored;
  if (std::filesystem::symlink_status(path, ignored).type() == std::filesystem::file_type::not_found) {
    return known;
  }
  const Result<std::string> text = read_file(path, kMostRecordBytes);
  const Result<Json> index = text.ok() ? parse_json(text.value(), kIndexFile) : Result<Json>(text.status());
  bool sound = index.ok();
  try {
    for (const Json& entry : sound ? index.value().at("experiments") : Json::array()) {
      known.push_back({entry.at("name").get<std::string>(), entry.at("head").get<std::string>()});
    }
  } catch (const Json::exception&) {
    sound = false;
  }
  if (!sound) {
    known.clear();
    census->damages.push_back({kIndexFile,
                               "it is no index, so nobody knows whether records are missing; look for "
                               "them, then delete it to have it drawn anew"});
  }
  return known;
}

// Events that were cut off at the end, and a last record that was deleted, leave a chain that is sound in itself.
void compare_with_index(const std::vector<Known>& known, Census* census) {
  for (const Known& k : known) {
    const auto e = std::find_if(census->experiments.begin(), census->experiments.end(),
                                [&](const Experiment& other) { return other.name == k.name; });
    const auto already = std::find_if(census->damages.begin(), census->damages.end(),
                                      [&](const Damage& d) { return k.name.starts_with(d.file); });
    if (already != census->damages.end()) {
      continue;
    }
    if (e == census->experiments.end()) {
      census->damages.push_back({k.name, fmt::format("{} knows it, and its record is not there", kIndexFile)});
    } else if (std::find(e->digests.begin(), e->digests.end(), k.head) == e->digests.end()) {
      census->damages.push_back({k.name, fmt::format("{} knows events that the record does not have", kIndexFile)});
    }
  }
}

// A record that is sound in itself takes no change either if it is another experiment's or an earlier state of this
// one: attempts that were spent would count no more.
Status check_own_and_newest(const Experiment& e, const std::filesystem::path& folder) {
  if (e.number != number_of(e.name)) {
    return {Code::kBadFile, fmt::format("{}.json: got the record of experiment {}; allowed is that of {}; bring back "
                                        "the original",
                                        e.name, e.number, number_of(e.name))};
  }
  Census census;
  const std::vector<Known> known = known_heads(folder / kIndexFile, &census);
  if (!census.damages.empty()) {
    return {Code::kBadFile, fmt::format("{}: got a file that is no index; allowed is one that says what {}.json has; "
                                        "bring it back, or look for missing records and delete it",
                                        kIndexFile, e.name)};
  }
  for (const Known& k : known) {
    // By number: under another name it is the same experiment.
    if (number_of(k.name) == e.number && std::find(e.digests.begin(), e.digests.end(), k.head) == e.digests.end()) {
      return {Code::kBadFile, fmt::format("{}.json: got a record without events that {} knows; allowed is one with all "
                                          "of them; bring back the original",
                                          e.name, kIndexFile)};
    }
  }
  return {};
}

// Only what can be read back, and is an experiment, gets on disk in the place of what was there.
Result<Experiment> write_record(const Record& record, const std::string& name, const std::filesystem::path& folder) {
  const std::string file = name + ".json";
  const std::string text = record_text(record);
  if (text.size() > kMostRecordBytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("experiment {}: got a record of {} bytes; allowed are {}; nothing "
                              "was changed, open a new experiment",
                              name, text.size(), kMostRecordBytes));
  }
  Result<Record> again = parse_record(text, file);
  TESSERA_RETURN_IF_ERROR(again.status());
  Result<Experiment> experiment = experiment_of(again.value(), name, file);
  TESSERA_RETURN_IF_ERROR(experiment.status());
  TESSERA_RETURN_IF_ERROR(write_file_atomically(folder / file, text));
  return experiment;
}

Status not_open(const Experiment& e) {
  return {Code::kInvalidArgument,
          fmt::format("experiment {}: got one that is closed as {}; allowed is an open one; open a "
                      "new experiment that names this one",
                      e.name, e.decision)};
}

}  // namespace

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

int number_of(std::string_view name) {
  size_t digits = 0;
  while (digits < name.size() && name[digits] >= '0' && name[digits] <= '9') {
    ++digits;
  }
  if (digits < 4 || digits > 8 || digits + 1 >= name.size() || name[digits] != '-') {
    return 0;
  }
  const bool slug = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", digits) == std::string_view::npos;
  return slug ? std::stoi(std::string(name.substr(0, digits))) : 0;
}

Result<std::vector<std::string>> experiment_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (const std::filesystem::directory_iterator end; !error && at != end; at.increment(error)) {
    const std::filesystem::path& path = at->path();
    if (path.extension() == ".json" && number_of(path.stem().string()) > 0) {
      names.push_back(path.stem().string());
    }
  }
  if (error) {
    return Status(Code::kIo, fmt::format("{}: got '{}'; allowed is a folder that can be read; check it",
                                         folder.string(), error.message()));
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(number_of(a), a) < std::pair(number_of(b), b);
  });
  return names;
}

Status Lab::init(const std::filesystem::path& folder, const Settings& settings) {
  Settings checked = settings;
  TESSERA_RETURN_IF_ERROR(check_settings(&checked));
  if (folder.empty()) {
    return {Code::kInvalidArgument, "lab: got no name; allowed is a folder that can be made; name it"};
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return {Code::kIo, fmt::format("{}: got '{}'; allowed is a folder that can be made; choose another",
                                   folder.string(), error.message())};
  }
  Result<FileLock> lock = FileLock::acquire(folder / kLabLock, FileLock::Wait::kForever);
  TESSERA_RETURN_IF_ERROR(lock.status());
  if (std::filesystem::exists(folder / kSettingsFile, error)) {
    return {Code::kInvalidArgument,
            fmt::format("{}: got a lab that is there; allowed is a new folder; edit {} to change its gates",
                        folder.string(), (folder / kSettingsFile).string())};
  }
  TESSERA_RETURN_IF_ERROR(write_file_atomically(folder / ".gitignore", ".*.lock\n.*.tmp\n"));
  return write_file_atomically(folder / kSettingsFile, settings_text(checked));
}

Result<Lab> Lab::open(const std::filesystem::path& folder, std::string program, std::string executable) {
  std::error_code error;
  Lab lab;
  lab.folder_ = std::filesystem::canonical(folder, error);
  if (error || !std::filesystem::exists(lab.folder_ / kSettingsFile, error)) {
    return Status(Code::kIo,
                  fmt::format("{}: got no lab; allowed is a folder with {}; make one with `tessera lab init`, "
                              "or name it with --lab",
                              tame(folder.string(), 1000, false), kSettingsFile));
  }
  lab.root_ = lab.folder_.parent_path();
  lab.program_ = std::move(program);
  lab.executable_ = std::move(executable);
  return lab;
}

Result<Settings> Lab::settings() const {
  const std::filesystem::path path = folder_ / kSettingsFile;
  Result<std::string> text = read_file(path, kMostSettingsBytes);
  TESSERA_RETURN_IF_ERROR(text.status());
  return parse_settings(text.value(), path.string());
}

Result<std::string> Lab::find(const std::string& id) const {
  Result<std::vector<std::string>> names = experiment_names(folder_);
  TESSERA_RETURN_IF_ERROR(names.status());
  const bool digits = !id.empty() && id.size() <= 8 && id.find_first_not_of("0123456789") == std::string::npos;
  std::vector<std::string> found;
  for (const std::string& name : names.value()) {
    if (name == id || (digits && number_of(name) == std::stoi(id))) {
      found.push_back(name);
    }
  }
  if (found.size() != 1) {
    return Status(Code::kInvalidArgument,
                  fmt::format("experiment: got '{}', which {}; allowed is a number or a name that `tessera lab index` "
                              "lists; choose one",
                              tame(id, 100, false), found.empty() ? "is not in this lab" : "fits more than one"));
  }
  return found.front();
}

Result<Record> Lab::load_record(const std::string& name) const {
  const std::filesystem::path path = folder_ / (name + ".json");
  Result<std::string> text = read_file(path, kMostRecordBytes);
  TESSERA_RETURN_IF_ERROR(text.status());
  return parse_record(text.value(), path.filename().string());
}

Result<Experiment> Lab::load(const std::string& id) const {
  Result<std::string> name = find(id);
  TESSERA_RETURN_IF_ERROR(name.status());
  Result<Record> record = load_record(name.value());
  TESSERA_RETURN_IF_ERROR(record.status());
  return experiment_of(record.value(), name.value(), name.value() + ".json");
}

Result<Experiment> Lab::append(const std::string& name, Json event) const {
  Result<FileLock> lock = FileLock::acquire(folder_ / kLabLock, FileLock::Wait::kForever);
  TESSERA_RETURN_IF_ERROR(lock.status());
  Result<Record> record = load_record(name);
  TESSERA_RETURN_IF_ERROR(record.status());
  Result<Experiment> before = experiment_of(record.value(), name, name + ".json");
  TESSERA_RETURN_IF_ERROR(before.status());
  TESSERA_RETURN_IF_ERROR(check_own_and_newest(before.value(), folder_));
  event["at"] = now_text();
  append_event(&record.value(), std::move(event));
  return write_record(record.value(), name, folder_);
}

Result<FileLock> Lab::claim(const std::string& name) const {
  Result<FileLock> lock = FileLock::acquire(folder_ / fmt::format(".{}.lock", name), FileLock::Wait::kNever);
  TESSERA_RETURN_IF_ERROR(lock.status());
  if (!lock.value().held()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("experiment {}: got one whose gates another process runs right now; "
                              "allowed is one at a time; wait for it",
                              name));
  }
  Result<Experiment> e = load(name);
  TESSERA_RETURN_IF_ERROR(e.status());
  TESSERA_RETURN_IF_ERROR(check_own_and_newest(e.value(), folder_));
  if (e.value().state() == "running") {
    const Json event = {
        {"type", "attempt-finished"},
        {"outcome", outcome_name(Outcome::kInterrupted)},
        {"reason", "the lab ended in the middle of the attempt; what was seen by then is unknown, so it counts"}};
    TESSERA_RETURN_IF_ERROR(append(name, event).status());
  }
  return lock;
}

Result<Experiment> Lab::create(const NewExperiment& what) const {
  NewExperiment checked = what;
  TESSERA_RETURN_IF_ERROR(check_new(&checked));
  Result<Settings> from_file = settings();
  TESSERA_RETURN_IF_ERROR(from_file.status());
  const Settings all = merged(from_file.value(), checked.changes);
  TESSERA_RETURN_IF_ERROR(check_complete(all, checked.change_class));
  Result<std::vector<FileDigest>> references = digest_files(all.references);
  TESSERA_RETURN_IF_ERROR(references.status());

  Result<FileLock> lock = FileLock::acquire(folder_ / kLabLock, FileLock::Wait::kForever);
  TESSERA_RETURN_IF_ERROR(lock.status());
  Result<std::vector<std::string>> names = experiment_names(folder_);
  TESSERA_RETURN_IF_ERROR(names.status());
  std::string previous = no_digest();
  int number = 1;
  if (!names.value().empty()) {
    const std::string& last = names.value().back();
    Result<Record> record = load_record(last);
    TESSERA_RETURN_IF_ERROR(record.status());
    previous = record.value().first().at("digest").get<std::string>();
    number = number_of(last) + 1;
  }
  const std::string name = fmt::format("{:04}-{}", number, slug_of(checked.title));
  Record record;
  append_event(&record,
               {{"type", kFirstType},
                {"at", now_text()},
                {"number", number},
                {"title", checked.title},
                {"hypothesis", checked.hypothesis},
                {"expected_gain_percent", checked.expected_gain_percent},
                {"change_class", checked.change_class},
                {"program", program_},
                {"gates", all.gates},
                {"references", to_json(references.value())},
                {"subjects", all.subjects}},
               previous);
  for (const Section& section : kSections) {
    if (const auto note = checked.notes.find(section.key); note != checked.notes.end()) {
      Json event = notes_event(note->first, note->second);
      event["at"] = now_text();
      append_event(&record, std::move(event));
    }
  }
  return write_record(record, name, folder_);
}

Result<Experiment> Lab::change_gates(const std::string& id, const std::map<std::string, std::string>& gates) const {
  std::map<std::string, std::string> checked = gates;
  TESSERA_RETURN_IF_ERROR(check_gates(&checked));
  Result<std::string> name = find(id);
  TESSERA_RETURN_IF_ERROR(name.status());
  Result<FileLock> claimed = claim(name.value());
  TESSERA_RETURN_IF_ERROR(claimed.status());
  Result<Experiment> e = load(name.value());
  TESSERA_RETURN_IF_ERROR(e.status());
  if (!e.value().decision.empty()) {
    return not_open(e.value());
  }
  for (const auto& [gate, command] : checked) {
    if (e.value().has_spoken(gate)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("gate {} of {}: got a change after it gave a verdict; allowed is a "
                                "change before; open a new experiment with the other gate",
                                gate, name.value()));
    }
  }
  std::map<std::string, std::string> all = e.value().gates;
  for (const auto& [gate, command] : checked) {
    all[gate] = command;
  }
  return append(name.value(), {{"type", "gates-changed"}, {"gates", all}});
}

Result<Experiment> Lab::note(const std::string& id, const std::string& section, const std::string& text) const {
  std::map<std::string, std::string> notes{{section, text}};
  TESSERA_RETURN_IF_ERROR(check_notes(&notes));
  Result<std::string> name = find(id);
  TESSERA_RETURN_IF_ERROR(name.status());
  return append(name.value(), notes_event(section, notes.begin()->second));
}

Result<Experiment> Lab::close(const std::string& id, const Close& close) const {
  Close checked = close;
  Result<std::string> because = clean_text(checked.because, "because", kMostText);
  TESSERA_RETURN_IF_ERROR(because.status());
  TESSERA_RETURN_IF_ERROR(check_notes(&checked.notes));
  Result<std::string> name = find(id);
  TESSERA_RETURN_IF_ERROR(name.status());
  Result<FileLock> claimed = claim(name.value());
  TESSERA_RETURN_IF_ERROR(claimed.status());
  Result<Experiment> e = load(name.value());
  TESSERA_RETURN_IF_ERROR(e.status());
  if (!e.value().decision.empty()) {
    return not_open(e.value());
  }
  const std::vector<Attempt>& attempts = e.value().attempts;
  if (checked.landed && (attempts.empty() || attempts.back().outcome != Outcome::kPassed)) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("close {}: got --landed after {}; allowed is an attempt whose gates all passed; close it "
                    "with --reverted",
                    name.value(),
                    attempts.empty() ? "no attempt"
                                     : fmt::format("an attempt that is {}", outcome_name(attempts.back().outcome))));
  }
  for (const char* needed : {"lessons", "retry"}) {
    const bool wanted = needed == std::string_view("lessons") || !checked.landed;
    if (wanted && !checked.notes.contains(needed) && e.value().section(needed).empty()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("close {}: got no text for {}; allowed is a sentence that the next "
                                "person can use; give --{}",
                                name.value(), needed, needed));
    }
  }
  for (const auto& [section, text] : checked.notes) {
    TESSERA_RETURN_IF_ERROR(append(name.value(), notes_event(section, text)).status());
  }
  return append(
      name.value(),
      {{"type", "closed"}, {"decision", checked.landed ? "landed" : "reverted"}, {"because", because.value()}});
}

Result<Census> Lab::census() const {
  Census census;
  // Before the records: the index is drawn after them, so what it knows must be in them.
  const std::vector<Known> known = known_heads(folder_ / kIndexFile, &census);
  Result<std::vector<std::string>> names = experiment_names(folder_);
  TESSERA_RETURN_IF_ERROR(names.status());
  int last_number = 0;
  std::string last_digest = no_digest();  // empty: not known
  for (const std::string& name : names.value()) {
    const int number = number_of(name);
    for (int missing = last_number + 1; missing < number; ++missing) {
      census.damages.push_back({fmt::format("{:04}", missing), "there is no record of this number"});
      last_digest.clear();
    }
    if (number == last_number) {
      census.damages.push_back({name, "another record has the same number"});
      last_digest.clear();
    }
    last_number = number;
    Result<Experiment> e = load(name);
    if (!e.ok()) {
      census.damages.push_back({name, e.status().text()});
      last_digest.clear();
      continue;
    }
    if (e.value().number != number) {
      census.damages.push_back({name, fmt::format("the record is that of number {}", e.value().number)});
    } else if (!last_digest.empty() && e.value().previous_digest != last_digest) {
      census.damages.push_back({name, "it does not follow the record before it: one of the two was exchanged"});
    }
    last_digest = e.value().first_digest();
    census.experiments.push_back(std::move(e).value());
  }
  compare_with_index(known, &census);
  return census;
}

}  // namespace tessera::lab
