// Paged K/V storage of all layers and the sequences that live in it.
//
// One pool per layer and side, shape (page, head_kv, slot, head_dim) of the cache's dtype. A sequence is a list of
// pages, taken from a free list in any order: the contract makes the order, and the page size, invisible in the bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/aligned_buffer.h"
#include "engine/config.h"
#include "tessera/tessera.h"

namespace tessera {

using SequenceId = int32_t;

// The K/V rows of one sequence outside the cache, for preemption: (layer, side, head_kv, token, head_dim).
struct SavedSequence {
  int64_t length = 0;
  std::vector<std::byte> rows;
};

// Bytes of one element of K or V.
int64_t element_bytes(tessera_dtype dtype);

class KvCache {
 public:
  // Room for `num_tokens` tokens, rounded up to pages of page_size (>= 1) tokens. Memory is resident only where used.
  static Result<KvCache> create(const ModelConfig& config, tessera_dtype dtype, int64_t page_size, int64_t num_tokens);

  SequenceId add();
  // Frees the pages. The id may be given out again.
  void remove(SequenceId id);
  bool contains(SequenceId id) const;

  // Tokens stored, and room for `length` tokens (kUnsupported with numbers when the pool is exhausted).
  int64_t length(SequenceId id) const { return sequence(id).length; }
  Status reserve(SequenceId id, int64_t length);
  // Declares that rows [0, length) are written. length <= what reserve() made room for; a smaller one drops tokens.
  void set_length(SequenceId id, int64_t length);

  // Where token `position` of the sequence lives: head_dim contiguous elements of one head.
  std::byte* k_row(int64_t layer, SequenceId id, int64_t position, int64_t head) const {
    return row(layer, 0, id, position, head);
  }
  std::byte* v_row(int64_t layer, SequenceId id, int64_t position, int64_t head) const {
    return row(layer, 1, id, position, head);
  }

  SavedSequence save(SequenceId id) const;
  // Into an empty sequence.
  Status restore(SequenceId id, const SavedSequence& saved);

  // For the attention call.
  tessera_dtype dtype() const { return dtype_; }
  int64_t page_size() const { return page_size_; }
  int64_t num_pages() const { return num_pages_; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t stride_page() const { return heads_ * page_size_ * head_dim_; }  // elements
  int64_t stride_head() const { return page_size_ * head_dim_; }
  std::span<const int32_t> pages(SequenceId id) const { return sequence(id).pages; }
  std::byte* k_pool(int64_t layer) const { return pool(layer, 0); }
  std::byte* v_pool(int64_t layer) const { return pool(layer, 1); }

 private:
  struct Sequence {
    bool used = false;
    int64_t length = 0;
    std::vector<int32_t> pages;
  };

  const Sequence& sequence(SequenceId id) const { return sequences_[static_cast<size_t>(id)]; }
  Sequence& sequence(SequenceId id) { return sequences_[static_cast<size_t>(id)]; }
  int64_t row_bytes() const { return head_dim_ * element_bytes(dtype_); }
  std::byte* pool(int64_t layer, int64_t side) const {
    return memory_.data() + (layer * 2 + side) * num_pages_ * stride_page() * element_bytes(dtype_);
  }
  std::byte* row(int64_t layer, int64_t side, SequenceId id, int64_t position, int64_t head) const {
    const int64_t page = sequence(id).pages[static_cast<size_t>(position / page_size_)];
    const int64_t slot = (page * heads_ + head) * page_size_ + position % page_size_;
    return pool(layer, side) + slot * row_bytes();
  }
  void release_pages(Sequence* s, size_t keep);

  tessera_dtype dtype_ = TESSERA_F32;
  int64_t n_layers_ = 0;
  int64_t page_size_ = 0;
  int64_t num_pages_ = 0;
  int64_t heads_ = 0;
  int64_t head_dim_ = 0;
  AlignedBuffer memory_;
  std::vector<int32_t> free_;
  std::vector<Sequence> sequences_;
};

}  // namespace tessera
