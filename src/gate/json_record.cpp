#include "gate/json_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/sha256.h"
#include "engine/gguf/mapped_file.h"

namespace tessera {
namespace {

constexpr size_t kMostBytes = size_t{1} << 28;

std::string hash_of(const std::string& text) {
  return sha256_hex(std::as_bytes(std::span<const char>(text)));
}

Status write_error(const std::string& path) {
  return Status(
      Code::kIo,
      fmt::format("{}: got '{}' while writing; allowed a path in a folder that can be written; choose another "
                  "one or free some disk space",
                  path, std::generic_category().message(errno)));
}

bool write_all(int file, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(file, bytes.data() + done, bytes.size() - done);
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      return false;
    }
    done += static_cast<size_t>(n);
  }
  return ::fsync(file) == 0;
}

}  // namespace

std::string canonical_json(const nlohmann::json& value) {
  return value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Status write_file_atomically(const std::string& path, const std::string& bytes) {
  const std::string part = fmt::format("{}.part{}", path, ::getpid());
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) {
    return write_error(path);
  }
  Status status = write_all(file, bytes) ? Status() : write_error(path);
  if (::close(file) != 0 && status.ok()) {
    status = write_error(path);
  }
  if (status.ok() && std::rename(part.c_str(), path.c_str()) != 0) {
    status = write_error(path);
  }
  if (!status.ok()) {
    ::unlink(part.c_str());
  }
  return status;
}

Status write_json_record(const std::string& path, const std::string& format, nlohmann::json content) {
  content["format"] = format;
  content.erase("record_sha256");
  content["record_sha256"] = hash_of(canonical_json(content));
  return write_file_atomically(path, canonical_json(content));
}

Result<nlohmann::json> read_json_record(const std::string& path, const std::string& format) {
  Result<MappedFile> file = MappedFile::open(path);
  TESSERA_RETURN_IF_ERROR(file.status());
  const std::span<const std::byte> bytes = file.value().bytes();
  const auto bad = [&](const std::string& got) {
    return Status(Code::kBadFile, fmt::format("{}: got {}; allowed a whole, unchanged record of format '{}'; write it "
                                              "again with --write",
                                              path, got, format));
  };
  if (bytes.size() > kMostBytes) {
    return bad(fmt::format("{} bytes", bytes.size()));
  }
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  nlohmann::json content = nlohmann::json::parse(text, nullptr, false);
  if (content.is_discarded() || !content.is_object()) {
    return bad("no JSON object");
  }
  const auto format_key = content.find("format");
  if (format_key == content.end() || *format_key != format) {
    return bad(format_key == content.end() ? "no format" : "format " + format_key->dump());
  }
  const auto hash_key = content.find("record_sha256");
  if (hash_key == content.end() || !hash_key->is_string()) {
    return bad("no record_sha256");
  }
  const std::string wanted = *hash_key;
  // The bytes themselves are checked, not only what they parse to: a record that was edited by hand is told so.
  if (canonical_json(content) != text) {
    return bad("bytes that are not canonical");
  }
  content.erase("record_sha256");
  if (hash_of(canonical_json(content)) != wanted) {
    return bad("a content that its record_sha256 does not belong to");
  }
  content.erase("format");
  return content;
}

}  // namespace tessera
