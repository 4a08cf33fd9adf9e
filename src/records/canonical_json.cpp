#include "records/canonical_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "records/utf8.h"

namespace tessera {
namespace {

constexpr size_t kMostLevels = 64;

void write_string(std::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
    text.remove_prefix(character.size());
    switch (const char c = character.front(); c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          *out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          *out += length == 0 ? "\xef\xbf\xbd" : character;
        }
    }
  }
  out->push_back('"');
}

// The fewest digits that read back as the same double, laid out as Python's repr does: plain from 1e-4 to 1e16.
void write_double(double value, std::string* out) {
  if (!std::isfinite(value)) {  // no text of JSON stands for these; parse_json lets none in
    *out += "null";
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text.front() == '-') {
    out->push_back('-');
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits(text.substr(0, e));
  std::erase(digits, '.');
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    *out += digits.substr(0, 1);
    if (count > 1) {
      *out += "." + digits.substr(1);
    }
    *out += fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  } else if (exponent < 0) {
    *out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else {
    if (count <= exponent + 1) {
      digits.append(static_cast<size_t>(exponent + 1 - count), '0');
      *out += digits + ".0";
    } else {
      const size_t point = static_cast<size_t>(exponent) + 1;
      *out += digits.substr(0, point) + "." + digits.substr(point);
    }
  }
}

bool is_plain(const Json& value) {
  return !value.is_structured();
}

// indent < 0: compact.
void write(const Json& value, int indent, std::string* out) {
  const bool pretty = indent >= 0;
  const int inner = pretty ? indent + 2 : -1;
  const auto new_line = [&](int columns) {
    if (pretty) {
      *out += "\n" + std::string(static_cast<size_t>(columns), ' ');
    }
  };
  if (value.is_object()) {
    out->push_back('{');
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      *out += first ? "" : ",";
      first = false;
      new_line(inner);
      write_string(key, out);
      *out += pretty ? ": " : ":";
      write(member, inner, out);
    }
    if (!first) {
      new_line(indent);
    }
    out->push_back('}');
  } else if (value.is_array()) {
    const bool one_line = std::all_of(value.begin(), value.end(), is_plain);
    out->push_back('[');
    bool first = true;
    for (const Json& element : value) {
      *out += first ? "" : (pretty && one_line ? ", " : ",");
      first = false;
      if (!one_line) {
        new_line(inner);
      }
      write(element, inner, out);
    }
    if (!one_line) {
      new_line(indent);
    }
    out->push_back(']');
  } else if (value.is_string()) {
    write_string(value.get_ref<const std::string&>(), out);
  } else if (value.is_boolean()) {
    *out += value.get<bool>() ? "true" : "false";
  } else if (value.is_number_unsigned()) {
    *out += std::to_string(value.get<uint64_t>());
  } else if (value.is_number_integer()) {
    *out += std::to_string(value.get<int64_t>());
  } else if (value.is_number_float()) {
    write_double(value.get<double>(), out);
  } else {
    *out += "null";
  }
}

}  // namespace

std::string compact_json(const Json& value) {
  std::string out;
  write(value, -1, &out);
  return out;
}

std::string pretty_json(const Json& value) {
  std::string out;
  write(value, 0, &out);
  out.push_back('\n');
  return out;
}

std::string digest_without(Json object, const std::string& key) {
  object.erase(key);
  const std::string text = compact_json(object);
  return sha256_hex(std::as_bytes(std::span(text)));
}

Result<Json> parse_json(std::string_view text, std::string_view what) {
  std::vector<std::set<std::string>> keys;  // of the objects and arrays that are open
  std::string problem;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      keys.emplace_back();
      if (static_cast<size_t>(depth) >= kMostLevels && problem.empty()) {
        problem = fmt::format("more than {} levels", kMostLevels);
      }
    } else if (event == Event::object_end || event == Event::array_end) {
      keys.pop_back();
    } else if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second && problem.empty()) {
      problem = fmt::format("the key {} twice in one object", compact_json(parsed));
    }
    return problem.empty();  // what is left out is not built, so that nothing deep has to be taken down
  };
  try {
    Json value = Json::parse(text.begin(), text.end(), watch);
    if (problem.empty()) {
      return value;
    }
  } catch (const Json::exception& e) {
    if (problem.empty()) {
      problem = e.what();
      problem.erase(0, problem.find("] ") + 2);  // the library's own number of the error
    }
  }
  return Status(Code::kBadFile, fmt::format("{}: got {}; allowed is one JSON value; repair it", what, problem));
}

}  // namespace tessera
