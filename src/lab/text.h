// Text that people and gates give: what is allowed in, and how it is written into Markdown, HTML and a terminal so that
// it stays text there.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tessera::lab {

// Text for a record: valid UTF-8, no control characters but newline and tab (CR LF becomes LF), white space around it
// taken off, not empty, at most `most_bytes`. `what` begins the sentence of the error.
Result<std::string> clean_text(std::string_view text, std::string_view what, size_t most_bytes);
// The same on one line.
Result<std::string> clean_line(std::string_view text, std::string_view what, size_t most_bytes);

// What a gate or a tool printed, whatever its bytes: bytes that are no UTF-8 and control characters become '?', new
// lines stay if `lines`; at most `most_bytes`, the middle cut out.
std::string tame(std::string_view text, size_t most_bytes, bool lines);

// a-z, 0-9 and single dashes, at most 48 of them: safe as a part of a file name. "experiment" if nothing is left.
std::string slug_of(std::string_view title);

std::string html_escape(std::string_view text);
// A person's prose as HTML: paragraphs, lines that begin with "- " as a list, `code`. Everything else is text.
std::string html_prose(std::string_view text);

// For a cell or a line of Markdown: every character that Markdown or HTML give a meaning is escaped.
std::string markdown_escape(std::string_view text);
// A person's prose stays Markdown, but can hold no HTML and no heading.
std::string markdown_prose(std::string_view text);

// "0.40", "1,234", "3.2e-05": a number for people.
std::string format_number(double value);

}  // namespace tessera::lab
