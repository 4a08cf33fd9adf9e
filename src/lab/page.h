// The frame of every HTML page: one file that needs nothing else, in light and dark, on paper, telephone and desk.
#pragma once

#include <string>

namespace tessera::lab {

// `body` is HTML; `title` is text.
std::string html_page(const std::string& title, const std::string& body);

// A word in a coloured frame: "landed", "fail", ... The colour follows from the word; the word always stands there.
std::string badge(const std::string& word);

}  // namespace tessera::lab
