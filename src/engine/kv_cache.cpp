#include "engine/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace tessera {

int64_t element_bytes(tessera_dtype dtype) {
  return dtype == TESSERA_F32 ? 4 : 2;
}

Result<KvCache> KvCache::create(const ModelConfig& config, tessera_dtype dtype, int64_t page_size, int64_t num_tokens) {
  if (page_size < 1 || page_size > (1 << 20)) {
    return Status(Code::kInvalidArgument, fmt::format("page_size: got {}; allowed 1 to 1048576", page_size));
  }
  if (num_tokens < 1 || num_tokens > (int64_t{1} << 30)) {
    return Status(Code::kInvalidArgument, fmt::format("KV cache tokens: got {}; allowed 1 to 2^30", num_tokens));
  }
  KvCache c;
  c.dtype_ = dtype;
  c.n_layers_ = config.n_layers;
  c.page_size_ = page_size;
  c.num_pages_ = (num_tokens + page_size - 1) / page_size;
  c.heads_ = config.num_heads_kv;
  c.head_dim_ = config.head_dim;
  auto bytes = static_cast<size_t>(2 * element_bytes(dtype));
  bool overflow = false;
  for (const int64_t factor : {c.n_layers_, c.num_pages_, page_size, c.heads_, c.head_dim_}) {
    overflow = overflow || __builtin_mul_overflow(bytes, static_cast<size_t>(factor), &bytes);
  }
  if (overflow || bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("KV cache tokens: got {}; allowed what fits in 2^63 bytes; use a smaller context", num_tokens));
  }
  Result<AlignedBuffer> memory = AlignedBuffer::allocate(bytes, "KV cache");
  TESSERA_RETURN_IF_ERROR(memory.status());
  c.memory_ = std::move(memory).value();
  c.free_.resize(static_cast<size_t>(c.num_pages_));
  for (size_t i = 0; i < c.free_.size(); ++i) {
    c.free_[i] = static_cast<int32_t>(c.free_.size() - 1 - i);  // the lowest page is taken first
  }
  return c;
}

SequenceId KvCache::add() {
  const auto it = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.used; });
  const auto id = static_cast<SequenceId>(it - sequences_.begin());
  if (it == sequences_.end()) {
    sequences_.emplace_back();
  }
  sequence(id).used = true;
  return id;
}

bool KvCache::contains(SequenceId id) const {
  return id >= 0 && static_cast<size_t>(id) < sequences_.size() && sequence(id).used;
}

void KvCache::release_pages(Sequence* s, size_t keep) {
  while (s->pages.size() > keep) {
    free_.push_back(s->pages.back());
    s->pages.pop_back();
  }
}

void KvCache::remove(SequenceId id) {
  Sequence& s = sequence(id);
  release_pages(&s, 0);
  s = Sequence();
}

Status KvCache::reserve(SequenceId id, int64_t length) {
  Sequence& s = sequence(id);
  const int64_t wanted = (length + page_size_ - 1) / page_size_;
  const int64_t missing = wanted - static_cast<int64_t>(s.pages.size());
  if (missing > free_pages()) {
    return Status(
        Code::kUnsupported,
        fmt::format("KV cache: sequence {} of {} tokens needs {} more pages of {} tokens, {} of {} are free; use a "
                    "larger --context or fewer sequences",
                    id, length, missing, page_size_, free_pages(), num_pages_));
  }
  for (int64_t i = 0; i < missing; ++i) {
    s.pages.push_back(free_.back());
    free_.pop_back();
  }
  return {};
}

void KvCache::set_length(SequenceId id, int64_t length) {
  Sequence& s = sequence(id);
  s.length = length;
  release_pages(&s, static_cast<size_t>((length + page_size_ - 1) / page_size_));
}

SavedSequence KvCache::save(SequenceId id) const {
  SavedSequence saved;
  saved.length = length(id);
  saved.rows.reserve(static_cast<size_t>(n_layers_ * 2 * heads_ * saved.length * row_bytes()));
  for (int64_t layer = 0; layer < n_layers_; ++layer) {
    for (int64_t side = 0; side < 2; ++side) {
      for (int64_t head = 0; head < heads_; ++head) {
        for (int64_t t = 0; t < saved.length; ++t) {
          const std::byte* r = row(layer, side, id, t, head);
          saved.rows.insert(saved.rows.end(), r, r + row_bytes());
        }
      }
    }
  }
  return saved;
}

Status KvCache::restore(SequenceId id, const SavedSequence& saved) {
  TESSERA_RETURN_IF_ERROR(reserve(id, saved.length));
  const std::byte* from = saved.rows.data();
  for (int64_t layer = 0; layer < n_layers_; ++layer) {
    for (int64_t side = 0; side < 2; ++side) {
      for (int64_t head = 0; head < heads_; ++head) {
        for (int64_t t = 0; t < saved.length; ++t, from += row_bytes()) {
          std::copy_n(from, row_bytes(), row(layer, side, id, t, head));
        }
      }
    }
  }
  set_length(id, saved.length);
  return {};
}

}  // namespace tessera
