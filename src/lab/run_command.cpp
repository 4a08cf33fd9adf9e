#include "lab/run_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

extern char** environ;

namespace tessera::lab {
namespace {

constexpr size_t kStderrTail = 4096;
constexpr int kPollMilliseconds = 50;

// Both ends of a pipe that programs started meanwhile do not inherit.
struct Pipe {
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  bool make() { return ::pipe2(ends.data(), O_CLOEXEC) == 0 && ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0; }
  void close_end(size_t end) {
    if (ends[end] >= 0) {
      ::close(ends[end]);
      ends[end] = -1;
    }
  }
  std::array<int, 2> ends{-1, -1};
};

struct SpawnSettings {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view variable(*at);
    bool replaced = false;
    for (const auto& [name, value] : added) {
      replaced = replaced || (variable.starts_with(name) && variable.substr(name.size()).starts_with('='));
    }
    if (!replaced) {
      variables.emplace_back(variable);
    }
  }
  for (const auto& [name, value] : added) {
    variables.push_back(fmt::format("{}={}", name, value));
  }
  return variables;
}

int spawn(const std::string& command, const CommandOptions& options, Pipe* out, Pipe* err, pid_t* child) {
  SpawnSettings settings;
  ::posix_spawn_file_actions_addopen(&settings.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&settings.actions, out->ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&settings.actions, err->ends[1], STDERR_FILENO);
  if (!options.folder.empty()) {
    ::posix_spawn_file_actions_addchdir_np(&settings.actions, options.folder.c_str());
  }
  sigset_t defaults;
  ::sigemptyset(&defaults);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) {
    ::sigaddset(&defaults, signal);
  }
  ::posix_spawnattr_setsigdefault(&settings.attributes, &defaults);
  ::posix_spawnattr_setpgroup(&settings.attributes, 0);
  ::posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  std::vector<std::string> variables = environment_with(options.environment);
  std::vector<char*> envp;
  envp.reserve(variables.size() + 1);
  for (std::string& variable : variables) {
    envp.push_back(variable.data());
  }
  envp.push_back(nullptr);
  std::string shell = "sh";
  std::string flag = "-c";
  std::string text = command;
  std::array<char*, 4> argv{shell.data(), flag.data(), text.data(), nullptr};
  return ::posix_spawn(child, "/bin/sh", &settings.actions, &settings.attributes, argv.data(), envp.data());
}

// Takes what is there now; false at the end of the stream.
template <class Sink>
bool drain(int descriptor, const Sink& sink) {
  std::array<char, 1 << 16> block;
  for (;;) {
    const ssize_t n = ::read(descriptor, block.data(), block.size());
    if (n > 0) {
      sink(std::string_view(block.data(), static_cast<size_t>(n)));
    } else if (n == 0) {
      return false;
    } else if (errno != EINTR) {
      return true;
    }
  }
}

}  // namespace

Result<CommandResult> run_command(const std::string& command, const CommandOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  Pipe out;
  Pipe err;
  pid_t child = 0;
  const int error = out.make() && err.make() ? spawn(command, options, &out, &err, &child) : errno;
  if (error != 0) {
    return Status(Code::kIo,
                  fmt::format("command '{}': got '{}'; allowed is a command line of /bin/sh in a folder that is "
                              "there; check both",
                              command, std::generic_category().message(error)));
  }
  out.close_end(1);
  err.close_end(1);

  CommandResult result;
  const auto keep_output = [&](std::string_view block) {
    const size_t room = options.most_output - result.output.size();
    result.output_cut = result.output_cut || block.size() > room;
    result.output.append(block.substr(0, room));
  };
  double last_sign = 0;  // of life, seconds from the start
  const auto keep_stderr = [&](std::string_view block) {
    last_sign = elapsed();
    result.stderr_tail.append(block);
    if (result.stderr_tail.size() > kStderrTail) {
      result.stderr_tail.erase(0, result.stderr_tail.size() - kStderrTail);
    }
    if (options.on_stderr) {
      options.on_stderr(block);
    }
  };
  int status = 0;
  bool ended = false;
  while (!ended) {
    result.cancelled = options.cancel != nullptr && options.cancel->load();
    result.past_limit = !result.cancelled && elapsed() > options.limit_seconds;
    if (result.cancelled || result.past_limit) {
      ::kill(-child, SIGKILL);
    }
    std::array<pollfd, 2> streams{pollfd{out.ends[0], POLLIN, 0}, pollfd{err.ends[0], POLLIN, 0}};
    ::poll(streams.data(), streams.size(), kPollMilliseconds);
    // Asked before the pipes are emptied, so that what the command wrote last is not lost. It stays a zombie until its
    // group was ended, so that the group's number belongs to nobody else.
    siginfo_t info{};
    ended = ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child;
    if (out.ends[0] >= 0 && !drain(out.ends[0], keep_output)) {
      out.close_end(0);
    }
    if (err.ends[0] >= 0 && !drain(err.ends[0], keep_stderr)) {
      err.close_end(0);
    }
    if (const double now = elapsed(); !ended && options.on_silence && now - last_sign >= options.pace_seconds) {
      last_sign = now;
      options.on_silence(now);
    }
    if (!ended && out.ends[0] < 0 && err.ends[0] < 0) {
      ::poll(nullptr, 0, kPollMilliseconds);  // both streams closed, still running
    }
  }
  ::kill(-child, SIGKILL);
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.seconds = elapsed();
  result.signalled = WIFSIGNALED(status);
  result.exit_code = result.signalled ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace tessera::lab
