// A whole file mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace tessera {

// The size is taken once, when the file is opened, and every view lies inside it. What no mapping can guard against: a
// file that another process truncates afterwards raises SIGBUS on the next access to the lost pages. Whoever replaces a
// model in use must write a new file and rename it over the old one, which leaves this mapping on the old content.
class MappedFile {
 public:
  // kIo when the path cannot be opened, is not a regular file (a pipe would have no size and a directory no bytes) or
  // cannot be mapped. An empty file gives an empty span.
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Drops the resident pages that lie wholly inside [offset, offset + bytes): the loader calls this once a tensor has
  // been repacked, so that the file does not stay in memory next to its copy. The content remains readable (it would be
  // paged in again). A range outside the file is clipped; the call is advice and cannot fail.
  void advise_dontneed(uint64_t offset, uint64_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tessera
