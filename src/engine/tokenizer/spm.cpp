#include "engine/tokenizer/spm.h"

#include <algorithm>
#include <limits>

#include "engine/tokenizer/unicode.h"

namespace tessera {
namespace {

constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();  // "no neighbour"

struct Symbol {
  std::uint32_t begin;
  std::uint32_t size;  // bytes; 0 once merged into the left neighbour
  std::uint32_t previous;
  std::uint32_t next;
};

struct Candidate {
  float score;
  std::uint32_t position;  // of the left symbol
  std::uint32_t size;      // of both together, when they were paired
};

// Order of std::push_heap's "less": the best candidate is the greatest.
bool worse(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score < b.score : a.position > b.position;
}

class Merger {
 public:
  Merger(const Vocab& vocab, std::string_view text) : vocab_(vocab), text_(text) {
    for (std::size_t pos = 0; pos < text.size();) {
      const Utf8Char c = decode_utf8(text, pos);
      const std::uint32_t size = c.state == Utf8State::kValid ? c.length : 1;
      const auto index = static_cast<std::uint32_t>(symbols_.size());
      symbols_.push_back({static_cast<std::uint32_t>(pos), size, index == 0 ? kEnd : index - 1, index + 1});
      pos += size;
    }
    if (!symbols_.empty()) {
      symbols_.back().next = kEnd;
    }
  }

  void merge() {
    for (std::uint32_t position = 0; position + 1 < symbols_.size(); ++position) {
      push_candidate(position);
    }
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), worse);
      const Candidate best = heap_.back();
      heap_.pop_back();
      Symbol& left = symbols_[best.position];
      // Stale when either symbol has grown or vanished since: symbols only grow, so the joint size tells.
      if (left.size == 0 || left.next == kEnd || left.size + symbols_[left.next].size != best.size) {
        continue;
      }
      Symbol& right = symbols_[left.next];
      left.size = best.size;
      left.next = right.next;
      right.size = 0;
      if (left.next != kEnd) {
        symbols_[left.next].previous = best.position;
      }
      if (left.previous != kEnd) {
        push_candidate(left.previous);
      }
      push_candidate(best.position);
    }
  }

  template <class Visit>
  void for_each_piece(Visit visit) const {
    for (std::uint32_t i = symbols_.empty() ? kEnd : 0; i != kEnd; i = symbols_[i].next) {
      visit(text_.substr(symbols_[i].begin, symbols_[i].size));
    }
  }

 private:
  void push_candidate(std::uint32_t position) {
    const Symbol& left = symbols_[position];
    if (left.next == kEnd) {
      return;
    }
    const std::uint32_t size = left.size + symbols_[left.next].size;
    if (size > vocab_.max_text_size()) {
      return;
    }
    if (const TokenId id = vocab_.find(text_.substr(left.begin, size)); id != kNoToken) {
      heap_.push_back({vocab_.score(id), position, size});
      std::push_heap(heap_.begin(), heap_.end(), worse);
    }
  }

  const Vocab& vocab_;
  std::string_view text_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace

std::size_t spm_encode(const Vocab& vocab, std::string_view text, TokenId unknown, std::vector<TokenId>& out) {
  Merger merger(vocab, text);
  merger.merge();
  std::size_t dropped = 0;
  merger.for_each_piece([&](std::string_view piece) {
    if (const TokenId id = vocab.find(piece); id != kNoToken) {
      out.push_back(id);
      return;
    }
    const std::size_t start = out.size();
    for (const char c : piece) {
      const TokenId id = vocab.byte_token(static_cast<std::uint8_t>(c));
      if (id == kNoToken) {
        out.resize(start);
        if (unknown != kNoToken) {
          out.push_back(unknown);
        } else {
          dropped += piece.size();
        }
        return;
      }
      out.push_back(id);
    }
  });
  return dropped;
}

}  // namespace tessera
