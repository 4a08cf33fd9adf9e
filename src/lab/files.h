// Files of a lab: written whole or not at all, and locked between processes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tessera::lab {

// Replaces `path` by `text` in one step that survives a crash: a temporary file beside it, fsync, rename, fsync of the
// folder. On an error the old file is as it was and the temporary file is gone.
Status write_file_atomically(const std::filesystem::path& path, std::string_view text);

Result<std::string> read_file(const std::filesystem::path& path, size_t most_bytes);

// Digest of a regular file's bytes, 64 hex digits.
Result<std::string> sha256_of_file(const std::filesystem::path& path);

// An advisory lock on a file that is made if it is missing. The system drops it when the process ends, however it ends;
// programs that the process starts do not inherit it.
class FileLock {
 public:
  enum class Wait { kForever, kNever };

  FileLock() = default;
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

  // Wait::kNever: a lock that is held by somebody else gives a FileLock that is not held(), and no error.
  static Result<FileLock> acquire(const std::filesystem::path& path, Wait wait);
  bool held() const { return descriptor_ >= 0; }

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace tessera::lab
