#include "gate/rows_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
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

Status write_error(const std::string& path) {
  return Status(Code::kIo,
                fmt::format("{}: got '{}' while writing; allowed a folder with room for the logits; free some "
                            "disk space or choose another path",
                            path, std::generic_category().message(errno)));
}

}  // namespace

Status RowsWriter::open(const std::string& path, int64_t vocab, int64_t layers, int64_t hidden) {
  path_ = path;
  part_ = fmt::format("{}.part{}", path, ::getpid());
  file_ = std::fopen(part_.c_str(), "wb");
  if (file_ == nullptr) {
    return write_error(path_);
  }
  const Header header = header_of(vocab, layers, hidden);
  static_assert(sizeof(header) == RowsFile::kHeaderBytes);
  return put(header.data(), sizeof(header));
}

RowsWriter::~RowsWriter() {
  if (file_ != nullptr) {
    std::fclose(file_);
    ::unlink(part_.c_str());
  }
}

Status RowsWriter::put(const void* data, size_t bytes) {
  hash_.update(data, bytes);
  return std::fwrite(data, 1, bytes, file_) == bytes ? Status() : write_error(path_);
}

Status RowsWriter::append(std::span<const float> logits, std::span<const float> layers) {
  ++rows_;
  TESSERA_RETURN_IF_ERROR(put(logits.data(), logits.size_bytes()));
  return put(layers.data(), layers.size_bytes());
}

Status RowsWriter::finish(std::string* sha256, int64_t* rows) {
  std::FILE* const file = std::exchange(file_, nullptr);
  const bool written = std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
  if (std::fclose(file) != 0 || !written || std::rename(part_.c_str(), path_.c_str()) != 0) {
    Status status = write_error(path_);
    ::unlink(part_.c_str());
    return status;
  }
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
