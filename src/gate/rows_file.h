// The file beside a tolerance record: every logits row as raw fp32, and behind it the output of every layer at the same
// token. Little-endian; a header of 32 bytes, then the rows in the record's order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/sha256.h"
#include "base/status.h"
#include "engine/gguf/mapped_file.h"
#include "records/files.h"

namespace tessera {

class RowsWriter {
 public:
  // `path` is replaced by finish(); without one it stays as it was.
  Status open(const std::string& path, int64_t vocab, int64_t layers, int64_t hidden);

  // `layers` is (layers, hidden).
  Status append(std::span<const float> logits, std::span<const float> layers);
  Status finish(std::string* sha256, int64_t* rows);

 private:
  Status put(std::span<const std::byte> bytes);

  std::optional<AtomicFile> file_;
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
