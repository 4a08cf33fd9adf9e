#include "engine/gguf/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace tessera {
namespace {

std::string error_text(int error) {
  return std::generic_category().message(error);
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it has no effect on regular files.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    return Status(Code::kIo, fmt::format("{}: got '{}' from open; allowed a readable regular file; check the path",
                                         path, error_text(errno)));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) {
    return Status(Code::kIo, fmt::format("{}: got '{}' from fstat; allowed a readable regular file; check the path",
                                         path, error_text(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kIo, fmt::format("{}: got something that is not a regular file (mode {:o}); allowed a regular "
                                         "file; give the path of the model file itself",
                                         path, static_cast<unsigned>(info.st_mode & S_IFMT)));
  }
  MappedFile mapped;
  if (info.st_size == 0) return mapped;
  const auto size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) {
    return Status(Code::kIo, fmt::format("{}: got '{}' from mmap of {} bytes; allowed a mappable file; check the "
                                         "address space limit (ulimit -v)",
                                         path, error_text(errno), size));
  }
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::advise_dontneed(uint64_t offset, uint64_t bytes) const {
  if (offset >= size_) return;
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t end = offset + std::min<uint64_t>(bytes, size_ - offset);
  const uint64_t first = (offset + page - 1) / page * page;
  // The last page of the file belongs to nobody else, so it goes with the last byte.
  const uint64_t last = end == size_ ? end : end / page * page;
  if (first >= last) return;
  ::madvise(const_cast<std::byte*>(data_) + first, static_cast<size_t>(last - first), MADV_DONTNEED);
}

}  // namespace tessera
