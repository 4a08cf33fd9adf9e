#include "lab/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "base/sha256.h"

namespace tessera::lab {
namespace {

std::string error_text(int error) {
  return std::generic_category().message(error);
}

// A file descriptor that is closed with its scope.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close_now(); }
  int get() const { return value_; }
  int close_now() { return value_ < 0 ? 0 : ::close(std::exchange(value_, -1)); }

 private:
  int value_;
};

Status cannot_write(const std::filesystem::path& path, int error) {
  return {Code::kIo, fmt::format("{}: got '{}'; allowed is a folder that can be written and has space; nothing was "
                                 "changed, repair that and repeat the command",
                                 path.string(), error_text(error))};
}

int write_whole(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return n < 0 ? errno : ENOSPC;
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

int open_retry(const char* path, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = ::open(path, flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// A rename is on disk once its folder is.
int sync_folder(const std::filesystem::path& folder) {
  Descriptor descriptor(open_retry(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY));
  return descriptor.get() >= 0 && ::fsync(descriptor.get()) == 0 ? 0 : errno;
}

}  // namespace

Status write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  const std::string temporary = fmt::format("{}/.{}.{}.tmp", path.has_parent_path() ? path.parent_path().string() : ".",
                                            path.filename().string(), ::getpid());
  Descriptor file(open_retry(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644));
  if (file.get() < 0) {
    return cannot_write(path, errno);
  }
  int error = write_whole(file.get(), text);
  if (error == 0 && ::fsync(file.get()) != 0) {
    error = errno;
  }
  if (file.close_now() != 0 && error == 0) {
    error = errno;
  }
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlink(temporary.c_str());
    return cannot_write(path, error);
  }
  error = sync_folder(path.parent_path());
  return error == 0 ? Status{} : cannot_write(path, error);
}

Result<std::string> read_file(const std::filesystem::path& path, size_t most_bytes) {
  const auto problem = [&](const std::string& got) {
    return Status(Code::kIo, fmt::format("{}: got {}; allowed is a readable file of at most {} bytes; check the path",
                                         path.string(), got, most_bytes));
  };
  const Descriptor file(open_retry(path.c_str(), O_RDONLY | O_NONBLOCK));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
    return problem(fmt::format("'{}'", error_text(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return problem("no regular file");
  }
  std::string text;
  std::vector<char> block(size_t{1} << 16);
  while (text.size() <= most_bytes) {
    const ssize_t n = ::read(file.get(), block.data(), block.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return problem(fmt::format("'{}'", error_text(errno)));
    }
    if (n == 0) {
      return text;
    }
    text.append(block.data(), static_cast<size_t>(n));
  }
  return problem("a larger one");
}

Result<std::string> sha256_of_file(const std::filesystem::path& path) {
  const Descriptor file(open_retry(path.c_str(), O_RDONLY | O_NONBLOCK));
  struct stat info {};
  std::string got;
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
    got = fmt::format("'{}'", error_text(errno));
  } else if (!S_ISREG(info.st_mode)) {
    got = "no regular file";
  }
  Sha256 sha;
  std::vector<char> block(size_t{1} << 20);
  while (got.empty()) {
    const ssize_t n = ::read(file.get(), block.data(), block.size());
    if (n == 0) {
      return to_hex(sha.digest());
    }
    if (n > 0) {
      sha.update(block.data(), static_cast<size_t>(n));
    } else if (errno != EINTR) {
      got = fmt::format("'{}'", error_text(errno));
    }
  }
  return Status(Code::kIo,
                fmt::format("{}: got {}; allowed is a readable regular file; check the path", path.string(), got));
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Result<FileLock> FileLock::acquire(const std::filesystem::path& path, Wait wait) {
  FileLock lock(open_retry(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0644));
  if (!lock.held()) {
    return cannot_write(path, errno);
  }
  while (::flock(lock.descriptor_, LOCK_EX | (wait == Wait::kNever ? LOCK_NB : 0)) != 0) {
    if (errno == EWOULDBLOCK) {
      return FileLock();
    }
    if (errno != EINTR) {
      return cannot_write(path, errno);
    }
  }
  return lock;
}

}  // namespace tessera::lab
