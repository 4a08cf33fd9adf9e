// The tokenizer.ggml.* keys of a model file as the tokenizer's VocabData.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/gguf/gguf.h"
#include "engine/tokenizer/vocab.h"

namespace tessera {

// Views into `file`, which must outlive the tokenizer made from it. Arrays must have vocab_size entries (the rows of
// token_embd); what the values mean is checked by Tokenizer::create.
Result<VocabData> read_vocabulary(const GgufFile& file, int64_t vocab_size);

}  // namespace tessera
