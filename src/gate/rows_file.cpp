#include "gate/rows_file.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "rows are written as they lie in memory");

using Header = std::array<int64_t, 4>;

Header header_of(int64_t vocab, int64_t layers, int64_t hidden) {
  Header h{0, vocab, layers, hidden};
  std::memcpy(h.data(), "TSRROWS1", 8);
  return h;
}

}  // namespace

Status RowsWriter::open(const std::string& path, int64_t vocab, int64_t layers, int64_t hidden) {
  Result<AtomicFile> file = AtomicFile::create(path);
  TESSERA_RETURN_IF_ERROR(file.status());
  file_ = std::move(file).value();
  const Header header = header_of(vocab, layers, hidden);
  static_assert(sizeof(header) == RowsFile::kHeaderBytes);
  return put(std::as_bytes(std::span(header)));
}

Status RowsWriter::put(std::span<const std::byte> bytes) {
  hash_.update(bytes.data(), bytes.size());
  return file_->append(bytes);
}

Status RowsWriter::append(std::span<const float> logits, std::span<const float> layers) {
  ++rows_;
  TESSERA_RETURN_IF_ERROR(put(std::as_bytes(logits)));
  return put(std::as_bytes(layers));
}

Status RowsWriter::finish(std::string* sha256, int64_t* rows) {
  TESSERA_RETURN_IF_ERROR(file_->commit());
  *sha256 = to_hex(hash_.digest());
  *rows = rows_;
  return {};
}

Result<RowsFile> RowsFile::open(const std::string& path, const std::string& sha256, int64_t rows, int64_t vocab,
                                int64_t layers, int64_t hidden) {
  RowsFile f;
  Result<MappedFile> file = MappedFile::open(path);
  TESSERA_RETURN_IF_ERROR(file.status());
  f.file_ = std::move(file).value();
  f.vocab_ = vocab;
  f.layers_ = layers;
  f.hidden_ = hidden;
  const std::span<const std::byte> bytes = f.file_.bytes();
  const Header header = header_of(vocab, layers, hidden);
  const size_t wanted = kHeaderBytes + static_cast<size_t>(rows * (vocab + layers * hidden)) * sizeof(float);
  if (bytes.size() != wanted || std::memcmp(bytes.data(), header.data(), kHeaderBytes) != 0) {
    return Status(Code::kBadFile,
                  fmt::format("{}: got {} bytes or another header; allowed {} bytes of rows as the record "
                              "says; write both again with --write",
                              path, bytes.size(), wanted));
  }
  if (sha256_hex(bytes) != sha256) {
    return Status(Code::kBadFile,
                  fmt::format("{}: got bytes with another sha256 than the record's {}; allowed unchanged "
                              "rows; write both again with --write",
                              path, sha256));
  }
  return f;
}

}  // namespace tessera
