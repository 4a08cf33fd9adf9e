#include "engine/tokenizer/stream_decoder.h"

#include <fmt/format.h>

#include "engine/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

Result<std::string> StreamDecoder::push(TokenId id) {
  if (id < 0 || static_cast<std::size_t>(id) >= tokenizer_->size()) {
    return Status(Code::kInvalidArgument, fmt::format("id: got {}; allowed 0..{}; decode only ids of this vocabulary",
                                                      id, tokenizer_->size() - 1));
  }
  tokenizer_->append_bytes(id, render_control_, pending_);
  std::string text;
  std::size_t pos = 0;
  while (pos < pending_.size()) {
    const Utf8Char c = decode_utf8(pending_, pos);
    if (c.state == Utf8State::kTruncated) {
      break;
    }
    if (c.state == Utf8State::kValid) {
      text.append(pending_, pos, c.length);
    } else {
      text.append(kReplacement);
    }
    pos += c.length;
  }
  pending_.erase(0, pos);
  return text;
}

std::string StreamDecoder::finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return unfinished ? std::string(kReplacement) : std::string();
}

}  // namespace tessera
