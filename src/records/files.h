// Files of records: written whole or not at all, read whole, and locked between processes.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "base/status.h"

namespace tessera {

// Replaces a file in one step that survives a crash: what is appended goes into a temporary file beside it, and
// commit() does fsync, rename, fsync of the folder. Without a commit() that reached the rename, the old file is as it
// was and the temporary file is gone.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // Goes straight to the system: what comes in small pieces is gathered by the caller.
  Status append(std::span<const std::byte> bytes);
  Status commit();  // nothing may follow

 private:
  AtomicFile(std::filesystem::path path, std::string temporary, int descriptor);

  std::filesystem::path path_;
  std::string temporary_;  // empty once it is renamed
  int descriptor_ = -1;
};

// The same in one call.
Status write_file_atomically(const std::filesystem::path& path, std::string_view text);

Result<std::string> read_file(const std::filesystem::path& path, size_t most_bytes);

// Appends a regular file's bytes to `hash`.
Status hash_file(const std::filesystem::path& path, Sha256* hash);
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

}  // namespace tessera
