#include "records/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

namespace tessera {
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
  ~Descriptor() {
    if (value_ >= 0) {
      ::close(value_);
    }
  }
  int get() const { return value_; }

 private:
  int value_;
};

Status cannot_write(const std::filesystem::path& path, int error) {
  return {Code::kIo, fmt::format("{}: got '{}'; allowed is a folder that can be written and has space; nothing was "
                                 "changed, repair that and repeat the command",
                                 path.string(), error_text(error))};
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
  const Descriptor descriptor(open_retry(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY));
  return descriptor.get() >= 0 && ::fsync(descriptor.get()) == 0 ? 0 : errno;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, std::string temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  const std::string temporary = fmt::format("{}/.{}.{}.tmp", path.has_parent_path() ? path.parent_path().string() : ".",
                                            path.filename().string(), ::getpid());
  const int descriptor = open_retry(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666);
  if (descriptor < 0) {
    return cannot_write(path, errno);
  }
  return AtomicFile(path, temporary, descriptor);
}

Status AtomicFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return cannot_write(path_, n < 0 ? errno : ENOSPC);
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) {
    return cannot_write(path_, errno);
  }
  if (::close(std::exchange(descriptor_, -1)) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return cannot_write(path_, errno);
  }
  temporary_.clear();
  const int error = sync_folder(path_.parent_path());
  return error == 0
             ? Status{}
             : Status(Code::kIo, fmt::format("{}: got '{}' after the new file took its place; allowed is a folder "
                                             "that can be synced; a crash of the machine may bring the old one back",
                                             path_.string(), error_text(error)));
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  Result<AtomicFile> file = AtomicFile::create(path);
  TESSERA_RETURN_IF_ERROR(file.status());
  TESSERA_RETURN_IF_ERROR(file.value().append(std::as_bytes(std::span(text))));
  return file.value().commit();
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

Status hash_file(const std::filesystem::path& path, Sha256* hash) {
  const Descriptor file(open_retry(path.c_str(), O_RDONLY | O_NONBLOCK));
  struct stat info {};
  std::string got;
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
    got = fmt::format("'{}'", error_text(errno));
  } else if (!S_ISREG(info.st_mode)) {
    got = "no regular file";
  }
  std::vector<char> block(size_t{1} << 20);
  while (got.empty()) {
    const ssize_t n = ::read(file.get(), block.data(), block.size());
    if (n == 0) {
      return {};
    }
    if (n > 0) {
      hash->update(block.data(), static_cast<size_t>(n));
    } else if (errno != EINTR) {
      got = fmt::format("'{}'", error_text(errno));
    }
  }
  return {Code::kIo, fmt::format("{}: got {}; allowed is a readable regular file; check the path", path.string(), got)};
}

Result<std::string> sha256_of_file(const std::filesystem::path& path) {
  Sha256 hash;
  TESSERA_RETURN_IF_ERROR(hash_file(path, &hash));
  return to_hex(hash.digest());
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

}  // namespace tessera
