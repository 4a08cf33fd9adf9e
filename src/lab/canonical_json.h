// Canonical JSON: one text for one value, so that a digest of the text is a digest of the value.
//
// compact_json is byte for byte what Python writes with
//   json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
// so that anyone can check a record's digests without this program. pretty_json is the same value laid out for people
// and for diffs: two spaces, one member a line, an array of plain values on one line.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tessera::lab {

using Json = nlohmann::json;  // objects are sorted by the bytes of their keys

std::string compact_json(const Json& value);
std::string pretty_json(const Json& value);  // ends with a newline

// Strict: one value and nothing after it, valid UTF-8, no key twice in an object, at most 64 levels, no number beyond
// double. `what` begins the sentence of the error.
Result<Json> parse_json(std::string_view text, std::string_view what);

}  // namespace tessera::lab
