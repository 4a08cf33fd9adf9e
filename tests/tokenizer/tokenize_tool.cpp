// Encodes or decodes a stream of records with the tokenizer of a model file, for comparison with other implementations.
//
//   tokenize_tool MODEL.gguf [--pre NAME] [--parse-special] [--add-special] [--decode]
//
// Standard input is a sequence of records: u32 count, then `count` bytes of text, or with --decode `count` i32 token
// ids; standard output the same with the two kinds exchanged. Integers are little-endian. --pre overrides
// tokenizer.ggml.pre.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gguf/gguf.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/vocabulary.h"

namespace {

struct Options {
  std::string model;
  std::string pre;
  bool parse_special = false;
  bool add_special = false;
  bool decode = false;
};

bool parse_options(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--parse-special") {
      options.parse_special = true;
    } else if (arg == "--add-special") {
      options.add_special = true;
    } else if (arg == "--decode") {
      options.decode = true;
    } else if (arg == "--pre" && i + 1 < argc) {
      options.pre = argv[++i];
    } else if (options.model.empty() && !arg.starts_with("-")) {
      options.model = arg;
    } else {
      return false;
    }
  }
  return !options.model.empty();
}

int fail(const tessera::Status& status) {
  std::fprintf(stderr, "tokenize_tool: %s\n", status.text().c_str());
  return 1;
}

// One record of elements of `T`; false at the end of the input.
template <class T>
bool read_record(std::vector<T>& out) {
  std::uint32_t count = 0;
  if (std::fread(&count, sizeof count, 1, stdin) != 1) {
    return false;
  }
  out.resize(count);
  return std::fread(out.data(), sizeof(T), count, stdin) == count;
}

template <class T>
bool write_record(const T* data, std::size_t size) {
  const auto count = static_cast<std::uint32_t>(size);
  return std::fwrite(&count, sizeof count, 1, stdout) == 1 && std::fwrite(data, sizeof(T), size, stdout) == size;
}

int run(const Options& options) {
  using tessera::TokenId;
  tessera::Result<tessera::GgufFile> file = tessera::GgufFile::open(options.model);
  if (!file.ok()) {
    return fail(file.status());
  }
  tessera::Result<tessera::StringArray> tokens = file.value().get_string_array("tokenizer.ggml.tokens");
  if (!tokens.ok()) {
    return fail(tokens.status());
  }
  tessera::Result<tessera::VocabData> data =
      tessera::read_vocabulary(file.value(), static_cast<std::int64_t>(tokens.value().size()));
  if (!data.ok()) {
    return fail(data.status());
  }
  if (!options.pre.empty()) {
    data.value().pre = options.pre;
  }
  tessera::Result<tessera::Tokenizer> tokenizer = tessera::Tokenizer::create(std::move(data).value());
  if (!tokenizer.ok()) {
    return fail(tokenizer.status());
  }
  if (options.decode) {
    for (std::vector<TokenId> ids; read_record(ids);) {
      tessera::Result<std::string> text = tokenizer.value().decode(ids, {.render_control = options.parse_special});
      if (!text.ok()) {
        return fail(text.status());
      }
      write_record(text.value().data(), text.value().size());
    }
    return 0;
  }
  for (std::vector<char> text; read_record(text);) {
    tessera::Result<std::vector<TokenId>> ids =
        tokenizer.value().encode(std::string_view(text.data(), text.size()),
                                 {.add_special = options.add_special, .parse_special = options.parse_special});
    if (!ids.ok()) {
      return fail(ids.status());
    }
    write_record(ids.value().data(), ids.value().size());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse_options(argc, argv, options)) {
    std::fprintf(stderr, "usage: tokenize_tool MODEL.gguf [--pre NAME] [--parse-special] [--add-special] [--decode]\n");
    return 2;
  }
  return run(options);
}
