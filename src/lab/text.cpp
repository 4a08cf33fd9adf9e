#include "lab/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "records/utf8.h"

namespace tessera::lab {
namespace {

// Characters that would act instead of being shown: C0 and C1 controls, DEL, and the marks that reorder a line.
bool is_control(std::string_view character) {
  const auto b = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) {
    return b(0) < 0x20 || b(0) == 0x7f;
  }
  if (character.size() == 2) {
    return b(0) == 0xc2 && b(1) < 0xa0;
  }
  if (character.size() == 3 && b(0) == 0xe2) {
    return (b(1) == 0x80 && b(2) >= 0xa8 && b(2) <= 0xae) || (b(1) == 0x81 && b(2) >= 0xa6 && b(2) <= 0xa9);
  }
  return false;
}

std::string_view strip(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (;;) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return lines;
    }
    text.remove_prefix(end + 1);
  }
}

std::string html_line(std::string_view line) {
  std::string out;
  for (;;) {
    const size_t open = line.find('`');
    const size_t close = open == std::string_view::npos ? open : line.find('`', open + 1);
    if (close == std::string_view::npos) {
      return out + html_escape(line);
    }
    out +=
        html_escape(line.substr(0, open)) + "<code>" + html_escape(line.substr(open + 1, close - open - 1)) + "</code>";
    line.remove_prefix(close + 1);
  }
}

// The marks with which a line opens or closes a block of code: three or more ` or ~.
std::string_view fence_of(std::string_view line) {
  const size_t indent = line.find_first_not_of(' ');
  if (indent > 3 || (line[indent] != '`' && line[indent] != '~')) {  // further in it is code already
    return {};
  }
  const char mark = line[indent];
  const size_t end = std::min(line.find_first_not_of(mark, indent), line.size());
  const bool inline_code = mark == '`' && line.find('`', end) != std::string_view::npos;
  return end - indent >= 3 && !inline_code ? line.substr(indent, end - indent) : std::string_view();
}

}  // namespace

Result<std::string> clean_text(std::string_view text, std::string_view what, size_t most_bytes) {
  const auto problem = [&](const std::string& got, std::string_view advice) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: got {}; allowed are 1 to {} bytes of UTF-8 text without control "
                              "characters; {}",
                              what, got, most_bytes, advice));
  };
  if (text.size() > most_bytes) {
    return problem(fmt::format("{} bytes", text.size()), "shorten it");
  }
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t n = utf8_length(text.substr(at));
    if (n == 0) {
      return problem(fmt::format("byte 0x{:02x} at {}, which is no UTF-8", static_cast<unsigned char>(text[at]), at),
                     "convert it to UTF-8");
    }
    const std::string_view character = text.substr(at, n);
    at += n;
    if (character == "\r" && at < text.size() && text[at] == '\n') {
      continue;
    }
    if (is_control(character) && character != "\n" && character != "\t") {
      return problem(fmt::format("a control character at {}", at - n), "take it out");
    }
    out += character;
  }
  const std::string_view stripped = strip(out);
  if (stripped.empty()) {
    return problem("no text", "say it in a sentence");
  }
  return std::string(stripped);
}

Result<std::string> clean_line(std::string_view text, std::string_view what, size_t most_bytes) {
  Result<std::string> clean = clean_text(text, what, most_bytes);
  if (clean.ok() && clean.value().find_first_of("\n\t") != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: got a new line or tab; allowed is one line; take it out", what));
  }
  return clean;
}

std::string tame(std::string_view text, size_t most_bytes, bool lines) {
  std::string out;
  while (!text.empty()) {
    const size_t n = std::max<size_t>(utf8_length(text), 1);
    const std::string_view character = text.substr(0, n);
    text.remove_prefix(n);
    const bool keep = utf8_length(character) == n && (!is_control(character) || (lines && character == "\n"));
    out += keep ? character : (character == "\n" || character == "\t" ? " " : "?");
  }
  if (out.size() > most_bytes) {
    size_t head = most_bytes / 2;
    size_t tail = out.size() - most_bytes / 2;
    while (head > 0 && (static_cast<unsigned char>(out[head]) & 0xc0U) == 0x80U) {
      --head;
    }
    while (tail < out.size() && (static_cast<unsigned char>(out[tail]) & 0xc0U) == 0x80U) {
      ++tail;
    }
    out = out.substr(0, head) + fmt::format(" [{} bytes left out] ", tail - head) + out.substr(tail);
  }
  return out;
}

std::string slug_of(std::string_view title) {
  constexpr size_t kMost = 48;
  std::string slug;
  for (const char c : title) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if ((lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9')) {
      slug.push_back(lower);
    } else if (!slug.empty() && slug.back() != '-') {
      slug.push_back('-');
    }
  }
  slug.resize(std::min(slug.size(), kMost));
  while (!slug.empty() && slug.back() == '-') {
    slug.pop_back();
  }
  return slug.empty() ? "experiment" : slug;
}

std::string html_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string html_prose(std::string_view text) {
  std::string out;
  const char* open = "";  // the element that the lines before this one left open
  const auto change_to = [&](const char* element) {
    if (std::string_view(open) == element) {
      return false;
    }
    out += *open != '\0' ? fmt::format("</{}>\n", open) : "";
    out += *element != '\0' ? fmt::format("<{}>", element) : "";
    open = element;
    return true;
  };
  for (std::string_view line : lines_of(text)) {
    line = strip(line);
    if (line.empty()) {
      change_to("");
    } else if (line.starts_with("- ")) {
      change_to("ul");
      out += "<li>" + html_line(line.substr(2)) + "</li>";
    } else {
      out += change_to("p") ? "" : "\n";
      out += html_line(line);
    }
  }
  change_to("");
  return out;
}

std::string markdown_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '\n' || c == '\t') {
      out.push_back(' ');
    } else {
      if (std::string_view("\\`*_{}[]|#>~").find(c) != std::string_view::npos) {
        out.push_back('\\');
      }
      out.push_back(c);
    }
  }
  return out;
}

std::string markdown_prose(std::string_view text) {
  std::string out;
  std::string_view fence;  // that is open: what is not closed would take in the sections behind it
  for (const std::string_view line : lines_of(text)) {
    const std::string_view bare = strip(line);
    const std::string_view marks = fence_of(line);
    if (fence.empty()) {
      fence = marks;
    } else if (marks.starts_with(fence) && marks == bare) {
      fence = {};
    }
    // A heading, or an underline that would make one of the line before, would break the sections of the report.
    const bool underline =
        !bare.empty() && bare.find_first_not_of(bare.front() == '=' ? "=" : "-") == std::string_view::npos;
    out += bare.starts_with('#') || underline ? "\\" : "";
    for (const char c : bare.starts_with('#') || underline ? bare : line) {
      out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
    }
    out.push_back('\n');
  }
  if (!fence.empty()) {
    return out + std::string(fence);
  }
  out.pop_back();
  return out;
}

std::string format_number(double value) {
  const double size = std::fabs(value);
  if (value == std::floor(value) && size < 1e15) {
    const std::string digits = fmt::format("{:.0f}", size);
    std::string out = value < 0 ? "-" : "";
    for (size_t i = 0; i < digits.size(); ++i) {
      if (i > 0 && digits.size() > 3 && (digits.size() - i) % 3 == 0) {
        out.push_back(',');
      }
      out.push_back(digits[i]);
    }
    return out;
  }
  if (size < 1e-3 || size >= 1e9) {
    return fmt::format("{:.3g}", value);
  }
  return size >= 1000 ? fmt::format("{:.1f}", value) : fmt::format("{:.4g}", value);
}

}  // namespace tessera::lab
