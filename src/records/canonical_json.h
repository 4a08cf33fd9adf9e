// Canonical JSON: one text for one value, so that a digest of the text is a digest of the value.
//
// compact_json is byte for byte what Python writes with
//   json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
// so that anyone can check a record's digests without this program. pretty_json is the same value laid out for people
// and for diffs: two spaces, one member a line, an array of plain values on one line.
//
// A float64 is written with the fewest digits that read back as the same one, always with a point or an exponent; an
// integer without. What parse_json would refuse is never written: a byte that is no UTF-8 becomes U+FFFD, and NaN and
// infinities null.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tessera {

using Json = nlohmann::json;  // objects are sorted by the bytes of their keys

std::string compact_json(const Json& value);
std::string pretty_json(const Json& value);  // ends with a newline

// SHA-256 of compact_json of `object` without its member `key`, 64 hex digits: how every record carries its own digest.
std::string digest_without(Json object, const std::string& key);

// Strict: one value and nothing after it, valid UTF-8, no key twice in an object, at most 64 levels, no number beyond
// double. `what` begins the sentence of the error.
Result<Json> parse_json(std::string_view text, std::string_view what);

}  // namespace tessera
