// What the files of the lab have in common: names in its folder, and the time in its events.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tessera::lab {

constexpr const char* kLabLock = ".lab.lock";        // held while files of the lab are read and written again
constexpr const char* kTimingLock = ".timing.lock";  // held while anything is timed: one at a time on this machine

constexpr const char* kIndexFile = "index.json";  // heads of all records; its own memory of them

// "2026-11-30T16:20:00Z"
std::string now_text();

// 7 of "0007-double-buffer"; 0 if that is no experiment's name.
int number_of(std::string_view name);

// Names of the records in the folder, by number.
Result<std::vector<std::string>> experiment_names(const std::filesystem::path& folder);

}  // namespace tessera::lab
