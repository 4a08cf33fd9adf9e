// Records on disk: canonical JSON that carries its own SHA-256, replaced atomically.
//
// Canonical: keys sorted, two blanks of indent, a newline at the end, every number the shortest decimal that reads back
// to the same float64. Two records with the same content therefore have the same bytes and can be kept under version
// control. The check value finds damage and hand edits; it is no signature.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace tessera {

std::string canonical_json(const nlohmann::json& value);

// Writes `content` (an object) with "format" and "record_sha256" added, into a new file that is renamed over `path`:
// whoever reads meanwhile sees the old record or the new one, never half of one.
Status write_json_record(const std::string& path, const std::string& format, nlohmann::json content);

// The object without those two keys. kIo when the file cannot be read; kBadFile when it is no JSON, has another format
// or its bytes are not those that were written.
Result<nlohmann::json> read_json_record(const std::string& path, const std::string& format);

// Writes all of `bytes` into a new file that is renamed over `path`.
Status write_file_atomically(const std::string& path, const std::string& bytes);

}  // namespace tessera
