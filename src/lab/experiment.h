// An experiment as its record's events tell it: what is asked, what was tried, what the gates said, what was decided.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/record.h"

namespace tessera::lab {

constexpr int kMostAttempts = 2;

// The gates, in the order in which they run.
constexpr const char* kIdentity = "identity";
constexpr const char* kTolerance = "tolerance";
constexpr const char* kPerf = "perf";

constexpr const char* kBitNeutral = "bit-neutral";
constexpr const char* kOrderChanging = "order-changing";

// What can be said about an experiment besides its title, in the order of the report.
struct Section {
  const char* key;
  const char* heading;
};
inline constexpr Section kSections[] = {{"background", "Background"},
                                        {"design", "Design choices"},
                                        {"pitfalls", "Pitfalls"},
                                        {"lessons", "Lessons"},
                                        {"retry", "Retry conditions"}};

enum class Verdict { kPass, kFail, kInconclusive, kError };
const char* verdict_name(Verdict verdict);

// kVoid: the environment stopped the attempt before anything was timed; it says nothing about the idea and does not
// count. kInterrupted: the lab itself was stopped in the middle; nobody knows what was seen, so it counts.
enum class Outcome { kRunning, kPassed, kFailed, kInconclusive, kError, kVoid, kInterrupted };
const char* outcome_name(Outcome outcome);

struct Flip {
  double position = 0;
  std::string token_a;
  std::string token_b;
  double margin = 0;
  std::string kind;
};
// A drift is what no knife-edge explains; any class that is not knife-edge is one.
bool is_knife_edge(const Flip& flip);

// What a perf gate measured. Speeds: ratio > 1 says that the candidate is faster than the base.
struct Timing {
  double ratio = 0;
  double low = 0;
  double high = 0;
  double noise_floor = 0;
  std::vector<double> samples_a;
  std::vector<double> samples_b;
  std::string unit;
};

struct GateRun {
  std::string gate;
  bool confirmation = false;  // the second timing of a last attempt
  std::string command;
  int exit_code = 0;
  double seconds = 0;
  Verdict verdict = Verdict::kError;
  bool environment = false;  // an error that says nothing about the candidate
  std::string summary;
  std::string problem;  // why the lab says error; empty otherwise
  std::string stderr_tail;
  Json report;  // the gate's own JSON; null if there is none
  std::map<std::string, double> metrics;
  std::vector<Flip> flips;
  std::optional<Timing> timing;
};

struct FileDigest {
  std::string path;
  std::string sha256;
};

struct Attempt {
  int number = 0;  // as started, the void ones too
  std::string change;
  std::string commit;
  std::string started;
  std::string finished;
  std::vector<FileDigest> subjects;
  std::vector<GateRun> runs;
  Outcome outcome = Outcome::kRunning;
  std::string reason;

  bool counts() const { return outcome != Outcome::kVoid; }
};

struct RevertCheck {
  std::string at;
  Verdict verdict = Verdict::kError;
  std::string reason;
  double band = 0;
  std::vector<GateRun> runs;
};

struct Note {
  std::string at;
  std::string section;
  std::string text;
};

struct Experiment {
  int number = 0;
  std::string name;  // "0007-double-buffer": the file's name without its suffix
  std::string title;
  std::string hypothesis;
  std::string change_class;
  double expected_gain_percent = 0;
  std::string opened;
  std::string program;                       // the tessera that opened it
  std::map<std::string, std::string> gates;  // gate -> command line
  std::vector<FileDigest> references;
  std::vector<std::string> subjects;
  std::vector<Note> notes;
  std::vector<Attempt> attempts;
  std::string decision;  // "landed", "reverted"; empty while open
  std::string because;
  std::string closed;
  std::vector<RevertCheck> revert_checks;
  std::string previous_digest;       // of the first event: the first digest of the experiment before
  std::vector<std::string> digests;  // of its events

  const std::string& first_digest() const { return digests.front(); }
  const std::string& head() const { return digests.back(); }

  int attempts_used() const;
  bool order_changing() const { return change_class == kOrderChanging; }
  bool has_spoken(const std::string& gate) const;  // it gave a verdict: from here on it is fixed
  // "open", "running", "landed", "reverted"
  std::string state() const;
  // The last timing of the attempts; null if none was taken.
  const GateRun* last_timing() const;
  std::string section(const std::string& key) const;  // the notes of it, one paragraph each
};

// Errors name the file `what`.
Result<Experiment> experiment_of(const Record& record, const std::string& name, const std::string& what);

// What an event carries of a gate's run, and back.
Json to_json(const GateRun& run);
Json to_json(const std::vector<FileDigest>& files);

// The parts of a gate's report that the lab understands, checked; the sentence says what is wrong.
Status read_report(const Json& report, GateRun* run);

}  // namespace tessera::lab
