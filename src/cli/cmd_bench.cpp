// tessera bench attention, decode: scripts of bench/, which have the peers' kernels beside ours in one process, on this
// build.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"

namespace tessera::cli {
namespace {

// The folder of this program, symbolic links resolved; empty if the system does not tell.
std::filesystem::path program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

// `relative` below the nearest ancestor of the program that has it: the source tree around a build folder, or the
// share/tessera of an installation.
std::filesystem::path find_near_program(const std::filesystem::path& relative) {
  std::error_code error;
  for (std::filesystem::path at = program_folder(); !at.empty(); at = at.parent_path()) {
    for (const std::filesystem::path& candidate : {at / relative, at / "share/tessera" / relative}) {
      if (std::filesystem::exists(candidate, error)) {
        return candidate;
      }
    }
    if (at == at.root_path()) {
      break;
    }
  }
  return {};
}

// The script of this name takes over this process.
int run_script(const std::string& name, const std::vector<std::string>& arguments) {
  const std::string relative = fmt::format("bench/{}.py", name);
  const std::filesystem::path script = find_near_program(relative);
  if (script.empty()) {
    return fail(Status(Code::kIo, fmt::format("bench {}: got no {} above this program; allowed a build folder inside "
                                              "the source tree; run it from there",
                                              name, relative)));
  }
  const std::filesystem::path library = program_folder().parent_path() / "src/api/libtessera.so";
  std::error_code error;
  if (std::filesystem::exists(library, error)) {
    setenv("TESSERA_LIBRARY", library.c_str(), 0);  // this build's, unless the user named another
  }
  const char* const given = std::getenv("PYTHON");
  std::vector<std::string> words{given == nullptr ? "python3" : given, script.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return fail(Status(Code::kIo, fmt::format("{}: got '{}'; allowed a Python 3 with torch; name it in PYTHON", words[0],
                                            std::strerror(errno))));
}

}  // namespace

void add_bench(CLI::App& app, int* exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Speed beside other libraries");
  bench->require_subcommand(1);
  const auto add = [&](const std::string& name, const std::string& what) {
    CLI::App* command = bench->add_subcommand(
        name, fmt::format("{} (needs Python with torch); all options are those of bench/{}.py", what, name));
    command->prefix_command();
    command->set_help_flag();  // --help is the script's
    command->callback([=] { *exit_code = run_script(name, command->remaining()); });
  };
  add("attention", "Attention on a GPU beside torch's cuDNN and FlashAttention kernels");
  add("decode", "Decode on a GPU beside the same, and beside a kernel that only reads K and V");
}

}  // namespace tessera::cli
