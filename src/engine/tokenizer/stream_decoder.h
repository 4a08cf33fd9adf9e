// Turning a stream of generated tokens into text that can be printed at once.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace tessera {

// A token may end in the middle of a UTF-8 sequence. The decoder keeps such a tail (at most 3 bytes) until later tokens
// complete it, so everything it returns is valid UTF-8. Bytes that can never become valid turn into U+FFFD, one for
// each maximal subpart, as the Unicode standard recommends: the concatenation of all output equals Tokenizer::decode()
// of the same ids with invalid bytes replaced, without the stripping of a leading space (generated text continues a
// prompt).
class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool render_control = false)
      : tokenizer_(&tokenizer), render_control_(render_control) {}

  // The text that `id` completes, possibly empty. Error: kInvalidArgument for an id outside the vocabulary; the decoder
  // stays as it was.
  Result<std::string> push(TokenId id);

  // What is left at the end: empty, or U+FFFD for an unfinished sequence. The decoder is empty afterwards.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool render_control_;
  std::string pending_;
};

}  // namespace tessera
