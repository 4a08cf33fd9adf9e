// A lab: a folder of experiments, and the rules by which they go on.
//
//   lab.json                 settings: the gates' command lines and the files that belong to them
//   0001-double-buffer.json  one record for each experiment: the only source; .md and .html beside it are drawn from it
//   index.json, .md, .html   all experiments
//
// Rules: correctness before timing (identity, then tolerance where the order of sums changes, then perf); two attempts
// for an idea; an attempt is on disk before its first gate starts; a gate is fixed once it gave a
// verdict.
// Every change is appended to the record under a lock and written whole or not at all.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "lab/experiment.h"
#include "records/files.h"

namespace tessera::lab {

struct Settings {
  std::map<std::string, std::string> gates;  // gate -> command line; one that is missing cannot run
  std::vector<std::string> references;  // files that the gates compare with: must not change once an experiment is open
  std::vector<std::string> subjects;    // files under test: must not change within an attempt
};

struct NewExperiment {
  std::string title;
  std::string hypothesis;
  double expected_gain_percent = 0;
  std::string change_class;
  Settings changes;                          // what is other than in lab.json
  std::map<std::string, std::string> notes;  // section -> text
};

struct Close {
  bool landed = false;
  std::string because;
  std::map<std::string, std::string> notes;
};

// How a gate runs, and who watches.
struct GateWatch {
  double limit_seconds = 3600;
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(std::string_view line)> on_progress;
  std::function<void(std::string_view text)> on_stderr;
};

// A record that cannot be used, and why.
struct Damage {
  std::string file;
  std::string what;
};

struct Census {
  std::vector<Experiment> experiments;  // in the order of their numbers
  std::vector<Damage> damages;
};

class Lab {
 public:
  // Makes the folder if need be and writes lab.json into it; refuses if there is one.
  static Status init(const std::filesystem::path& folder, const Settings& settings);

  // `program` is the version that records name; `executable` is handed to the gates as TESSERA.
  static Result<Lab> open(const std::filesystem::path& folder, std::string program, std::string executable);

  Result<Experiment> create(const NewExperiment& what) const;
  Result<Experiment> change_gates(const std::string& id, const std::map<std::string, std::string>& gates) const;
  Result<Experiment> note(const std::string& id, const std::string& section, const std::string& text) const;
  Result<Experiment> attempt(const std::string& id, const std::string& change, const GateWatch& watch) const;
  Result<Experiment> close(const std::string& id, const Close& close) const;
  // Does the tree behave as before the experiment: the identity gate passes, and perf's interval lies within
  // 1 +- band?
  Result<Experiment> verify_revert(const std::string& id, double band, const GateWatch& watch) const;

  Result<Experiment> load(const std::string& id) const;
  Result<Census> census() const;
  // Draws the reports of all experiments and the index; `census` is what they show.
  Result<Census> draw_all() const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  Lab() = default;

  Result<std::string> find(const std::string& id) const;  // "7" or "0007-double-buffer" -> the name
  Result<Record> load_record(const std::string& name) const;
  Result<Experiment> append(const std::string& name, Json event) const;
  Result<Settings> settings() const;
  // Holds the experiment for attempts; an attempt that a crash left open becomes "interrupted".
  Result<FileLock> claim(const std::string& name) const;
  // Who runs these steps: Attempt and RevertCheck; lab_gates.cpp.
  Result<std::vector<FileDigest>> digest_files(const std::vector<std::string>& paths) const;
  std::string changed_file(const std::vector<FileDigest>& files) const;  // the first that changed, in a sentence
  std::string commit_of_tree() const;
  Result<GateRun> run_one(const Experiment& e, const std::string& gate, bool confirmation, int attempt,
                          const GateWatch& watch) const;
  Result<Experiment> run_gates(const Experiment& e, int number, const std::vector<FileDigest>& subjects,
                               const GateWatch& watch) const;
  Result<Census> draw_locked() const;

  std::filesystem::path folder_;
  std::filesystem::path root_;  // the folder that holds the lab: commands run there, paths are relative to it
  std::string program_;
  std::string executable_;
};

}  // namespace tessera::lab
