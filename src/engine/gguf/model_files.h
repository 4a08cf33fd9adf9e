// The file, or the set of split files, that make up one model.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/gguf/gguf.h"

namespace tessera {

// A split model is stored as <prefix>-00001-of-0000N.gguf .. <prefix>-0000N-of-0000N.gguf. Its first file holds the
// metadata; every file carries split.no (0-based), split.count and split.tensors.count. A file without split.count, or
// with 0 or 1, is a whole model.
class ModelFiles {
 public:
  // Opens `path`, which must be the first file of a split model, and all files that follow it. Besides the errors of
  // GgufFile::open: kBadFile when split numbers, counts or file names disagree, a tensor occurs in two files, or the
  // number of tensors is not split.tensors.count; kIo when a file of the set is missing.
  static Result<ModelFiles> open(const std::string& path, const ParseOptions& options = {});

  // The first file: all metadata is read from here.
  const GgufFile& head() const { return files_.front(); }
  std::span<const GgufFile> files() const { return files_; }
  uint64_t n_tensors() const { return by_name_.size(); }

  // Across all files; nullptr when absent. The pointer lives as long as this object.
  const TensorInfo* find_tensor(std::string_view name) const;

  // The tensor, with exactly these dimensions (dims[0] = contiguous); fewer dims mean trailing ones. kBadFile naming
  // the tensor, its shape and the wanted one otherwise.
  Result<const TensorInfo*> require_tensor(std::string_view name, std::span<const int64_t> dims) const;
  Result<const TensorInfo*> require_tensor(std::string_view name, std::initializer_list<int64_t> dims) const {
    return require_tensor(name, std::span<const int64_t>(dims.begin(), dims.size()));
  }

  // Drops the resident pages of a tensor's data once it has been copied elsewhere (MappedFile::advise_dontneed).
  void release_pages(const TensorInfo& tensor) const;

 private:
  Status open_rest(const std::string& path, uint64_t count, const ParseOptions& options);
  Status index_tensors();

  struct Entry {
    const TensorInfo* tensor;
    uint32_t file;
  };
  const Entry* find_entry(std::string_view name) const;

  std::vector<GgufFile> files_;
  std::vector<Entry> by_name_;  // sorted by name; points into files_
};

}  // namespace tessera
