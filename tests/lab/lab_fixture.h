// A lab in a temporary folder with gates that are small shell scripts: each says what the test tells it to, and leaves
// a mark when it is called.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lab/lab.h"
#include "records/temporary_folder.h"

namespace tessera::lab {

class LabTest : public testing::Test {
 protected:
  LabTest();

  std::filesystem::path root() const { return folder_.path(); }
  std::filesystem::path folder() const { return folder_.path() / "lab"; }
  const Lab& lab() const { return lab_.at(0); }

  // What the gate says from now on; `more` are further members of its JSON.
  void set_gate(const std::string& gate, Verdict verdict, const std::string& more = "") const;
  void set_perf(double ratio, double low, double high, double noise_floor = 0.005) const;
  // Any program in the gate's place.
  void set_script(const std::string& gate, const std::string& script) const;
  // The gates that were called so far, in order: "identity perf".
  std::string calls() const;

  NewExperiment question(const std::string& change_class = kBitNeutral) const;
  std::string open(const std::string& change_class = kBitNeutral) const;  // the name of a new experiment
  Attempt attempt(const std::string& name) const;                         // the attempt as it ended
  void write(const std::filesystem::path& path, const std::string& text) const;

 private:
  TemporaryFolder folder_;
  std::vector<Lab> lab_;
};

// The sentence of an error; fails the test if there is none.
template <class T>
std::string refusal(const Result<T>& result) {
  EXPECT_FALSE(result.ok());
  return result.status().text();
}

}  // namespace tessera::lab
