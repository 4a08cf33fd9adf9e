// The file beside a tolerance record: every logits row as raw fp32, and behind it the output of every layer at the same
// token. Little-endian; a header of 32 bytes, then the rows in the record's order.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "base/sha256.h"
#include "base/status.h"
#include "engine/gguf/mapped_file.h"

namespace tessera {

class RowsWriter {
 public:
  RowsWriter() = default;
  // The rows go into a new file, which finish() renames to `path`; without a finish() it is removed.
  Status open(const std::string& path, int64_t vocab, int64_t layers, int64_t hidden);
  ~RowsWriter();
  RowsWriter(const RowsWriter&) = delete;
  RowsWriter& operator=(const RowsWriter&) = delete;

  // `layers` is (layers, hidden).
  Status append(std::span<const float> logits, std::span<const float> layers);
  Status finish(std::string* sha256, int64_t* rows);

 private:
  Status put(const void* data, size_t bytes);

  std::string path_;
  std::string part_;
  std::FILE* file_ = nullptr;
  Sha256 hash_;
  int64_t rows_ = 0;
};

class RowsFile {
 public:
  // kBadFile unless the bytes have this hash and the header says these sizes.
  static Result<RowsFile> open(const std::string& path, const std::string& sha256, int64_t rows, int64_t vocab,
                               int64_t layers, int64_t hidden);

  std::span<const float> logits(int64_t row) const { return {at(row), static_cast<size_t>(vocab_)}; }
  std::span<const float> layer(int64_t row, int64_t index) const {
    return {at(row) + vocab_ + index * hidden_, static_cast<size_t>(hidden_)};
  }

 private:
  const float* at(int64_t row) const {
    return reinterpret_cast<const float*>(file_.bytes().data() + kHeaderBytes) + row * (vocab_ + layers_ * hidden_);
  }

  static constexpr size_t kHeaderBytes = 32;
  friend class RowsWriter;

  MappedFile file_;
  int64_t vocab_ = 0;
  int64_t layers_ = 0;
  int64_t hidden_ = 0;
};

}  // namespace tessera
