#include "engine/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

namespace tessera {
namespace {

constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();  // "no neighbour"

struct ParsedMerge {
  TokenId left;
  TokenId right;
  MergeTable::Merge merge;
};

Status bad_merge(std::size_t index, std::string_view line, std::string_view found) {
  return {Code::kBadFile,
          fmt::format("tokenizer.ggml.merges[{}]: got '{}', {}; allowed 'left right' where left, right and "
                      "their concatenation are normal tokens; re-convert the model",
                      index, printable(line), found)};
}

Result<ParsedMerge> parse_merge(std::size_t index, std::string_view line, const Vocab& vocab, std::string& joined) {
  const std::size_t space = line.find(' ', 1);
  if (line.empty() || space == line.npos) {
    return bad_merge(index, line, "which has no space behind its first byte");
  }
  if (space + 1 == line.size()) {
    return bad_merge(index, line, "whose right side is empty");
  }
  const std::string_view left = line.substr(0, space);
  const std::string_view right = line.substr(space + 1);
  joined.assign(left).append(right);
  const ParsedMerge parsed{
      vocab.find(left), vocab.find(right), {static_cast<std::uint32_t>(index), vocab.find(joined)}};
  if (parsed.left == kNoToken) {
    return bad_merge(index, line, "whose left side is unknown");
  }
  if (parsed.right == kNoToken) {
    return bad_merge(index, line, "whose right side is unknown");
  }
  if (parsed.merge.result == kNoToken) {
    return bad_merge(index, line, "whose result is unknown");
  }
  return parsed;
}

// A vocabulary without merges would silently spell everything in bytes.
Status check_no_merges(const Vocab& vocab) {
  std::string bytes;
  for (std::size_t i = 0; i < vocab.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (vocab.type(id) != TokenType::kNormal) {
      continue;
    }
    bytes.clear();
    vocab.append_bytes(id, false, bytes);
    if (bytes.size() > 1) {
      return {Code::kBadFile,
              fmt::format("tokenizer.ggml.merges: got none, but token {} ('{}') has {} bytes; allowed the "
                          "merges that build it; re-convert the model",
                          i, printable(vocab.text(id)), bytes.size())};
    }
  }
  return {};
}

// Order of std::push_heap's "less": the best candidate is the greatest.
bool worse(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

void push_candidate(const MergeTable& merges, std::uint32_t position, BpeScratch& scratch) {
  const BpeScratch::Symbol& left = scratch.symbols[position];
  if (left.next == kEnd) {
    return;
  }
  const TokenId right = scratch.symbols[left.next].id;
  if (const MergeTable::Merge* merge = merges.find(left.id, right)) {
    scratch.heap.push_back({merge->rank, position, left.id, right, merge->result});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), worse);
  }
}

}  // namespace

Result<MergeTable> MergeTable::create(const std::vector<std::string_view>& merges, const Vocab& vocab) {
  if (merges.empty()) {
    TESSERA_RETURN_IF_ERROR(check_no_merges(vocab));
  }
  if (merges.size() >= kEnd) {
    return Status(Code::kBadFile,
                  fmt::format("tokenizer.ggml.merges: got {} entries; allowed fewer than {}; re-convert the "
                              "model",
                              merges.size(), kEnd));
  }
  std::vector<ParsedMerge> parsed;
  parsed.reserve(merges.size());
  std::string joined;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    Result<ParsedMerge> merge = parse_merge(i, merges[i], vocab, joined);
    TESSERA_RETURN_IF_ERROR(merge.status());
    parsed.push_back(merge.value());
  }
  std::sort(parsed.begin(), parsed.end(), [](const ParsedMerge& a, const ParsedMerge& b) {
    return std::tie(a.left, a.right, a.merge.rank) < std::tie(b.left, b.right, b.merge.rank);
  });
  parsed.erase(
      std::unique(parsed.begin(), parsed.end(),
                  [](const ParsedMerge& a, const ParsedMerge& b) { return a.left == b.left && a.right == b.right; }),
      parsed.end());
  MergeTable table;
  table.row_begin_.assign(vocab.size() + 1, 0);
  table.rights_.reserve(parsed.size());
  table.merges_.reserve(parsed.size());
  for (const ParsedMerge& merge : parsed) {
    ++table.row_begin_[static_cast<std::size_t>(merge.left) + 1];
    table.rights_.push_back(merge.right);
    table.merges_.push_back(merge.merge);
  }
  for (std::size_t i = 1; i < table.row_begin_.size(); ++i) {
    table.row_begin_[i] += table.row_begin_[i - 1];
  }
  return table;
}

const MergeTable::Merge* MergeTable::find(TokenId left, TokenId right) const {
  const TokenId* begin = rights_.data() + row_begin_[static_cast<std::size_t>(left)];
  const TokenId* end = rights_.data() + row_begin_[static_cast<std::size_t>(left) + 1];
  const TokenId* found = std::lower_bound(begin, end, right);
  return found != end && *found == right ? merges_.data() + (found - rights_.data()) : nullptr;
}

std::size_t bpe_encode_word(const Vocab& vocab, const MergeTable& merges, std::string_view word, BpeScratch& scratch,
                            std::vector<TokenId>& out) {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  for (const char c : word) {
    if (const TokenId id = vocab.byte_token(static_cast<std::uint8_t>(c)); id != kNoToken) {
      const auto position = static_cast<std::uint32_t>(symbols.size());
      symbols.push_back({id, position == 0 ? kEnd : position - 1, position + 1});
    }
  }
  const std::size_t dropped = word.size() - symbols.size();
  if (symbols.empty()) {
    return dropped;
  }
  symbols.back().next = kEnd;
  for (std::uint32_t position = 0; position + 1 < symbols.size(); ++position) {
    push_candidate(merges, position, scratch);
  }
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), worse);
    const BpeScratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    BpeScratch::Symbol& left = symbols[best.position];
    // A candidate is stale once either of its symbols has changed: tokens only grow, so equal ids mean unchanged
    // symbols.
    if (left.id != best.left || left.next == kEnd || symbols[left.next].id != best.right) {
      continue;
    }
    BpeScratch::Symbol& right = symbols[left.next];
    left.id = best.result;
    right.id = kNoToken;
    left.next = right.next;
    if (right.next != kEnd) {
      symbols[right.next].previous = best.position;
    }
    if (left.previous != kEnd) {
      push_candidate(merges, left.previous, scratch);
    }
    push_candidate(merges, best.position, scratch);
  }
  for (std::uint32_t position = 0; position != kEnd; position = symbols[position].next) {
    out.push_back(symbols[position].id);
  }
  return dropped;
}

}  // namespace tessera
