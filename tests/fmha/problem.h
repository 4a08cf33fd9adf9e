// Attention problems for tests: what is asked (FmhaSpec) apart from where the bytes lie (FmhaProblem).
//
// Every value is a hash of its logical place (sequence id, token, head, dim), so the same row can be put into another
// batch, layout, page order or chunk and must keep its bits. Every byte that no row may use is poison (NaN and Inf).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::test {

enum class KvLayout { kBatched, kPacked, kPaged };

struct SegmentSpec {
  std::vector<int64_t> lengths;  // keys of each sequence
  int64_t bound = -1;            // seqlen_k; -1: the longest
  KvLayout layout = KvLayout::kBatched;
  bool head_major = false;      // BHSD instead of BSHD
  int64_t row_padding = 0;      // poisoned elements after every row
  int32_t page_size = 16;       // kPaged
  uint64_t page_seed = 1;       // order of the pages in the pool
  bool unlisted_pages = false;  // table entries outside the visible keys are -1
  bool v_is_k = false;          // V is the first head_dim_v elements of the K rows
  int32_t causal = 0;
  int64_t window_left = -1;
  int64_t window_right = -1;
  int32_t compress_ratio = 0;
  std::vector<int32_t> q_positions;  // empty: NULL
  bool mask = false;
  bool mask_per_head = false;
  int64_t mask_keys = -1;      // num_keys of the mask
  int mask_visible_of_8 = 5;   // density of set bits
  bool poison_masked = false;  // keys hidden from every row by R2 (custom bits included) are poison too
  uint64_t first_key = 0;      // logical key 0 has the content of key `first_key`
  // FP8 rows (bf16, head dims of the format, one K/V head); V is K. `decoded`: dense rows with the same values.
  tessera_kv_format format = TESSERA_KV_DENSE;
  bool decoded = false;
  // > 0: gathered; a list of that many entries for every query token, in an order that `list_seed` moves. About one
  // entry in `absent_of` is -1 (0: none). `list_lengths`: topk_lens cuts the lists, entries behind are no indices.
  int32_t topk = 0;
  uint64_t list_seed = 1;
  int absent_of = 0;
  bool list_lengths = false;
  bool list_duplicates = false;  // a key may be listed twice
};

struct FmhaSpec {
  tessera_dtype dtype = TESSERA_F32;
  tessera_dtype o_dtype = TESSERA_F32;
  int32_t head_dim_qk = 64;
  int32_t head_dim_v = 64;
  int32_t heads_q = 4;
  int32_t heads_kv = 2;
  std::vector<int64_t> q_lengths = {1};
  std::vector<uint64_t> ids;     // content of each sequence; empty: 0, 1, 2, ...
  std::vector<int64_t> q_first;  // query token 0 has the content of token q_first[b]; empty: 0
  int64_t q_bound = -1;          // seqlen_q; -1: the longest
  bool packed_q = false;         // cu_seqlens_q
  int64_t slot_padding = 0;      // packed: poisoned tokens after every sequence (then seqlens_q is given)
  bool head_major = false;       // BHSD for Q and O
  int64_t row_padding = 0;       // poisoned elements after every Q and O row
  std::vector<SegmentSpec> segments;
  float scale = 0.0f;  // 0: 1 / sqrt(head_dim_qk)
  float softcap = 0.0f;
  bool alibi = false;
  std::vector<float> sinks;  // empty: NULL
  bool unnormalized = false;
  int32_t o_rope_dims = 0;  // R12: how many of the last dims turn, by angles and positions of its own
  bool lse = true;
  int64_t chunk_begin = 0;
  int64_t chunk_end = 0;
  float q_amplitude = 1.0f;
  uint64_t seed = 0;
};

// One sequence of `q` query tokens over `k` keys, everything else as in `like`.
FmhaSpec one_sequence(FmhaSpec like, int64_t q, int64_t k);

std::string to_text(const FmhaSpec& spec);

// Outputs of a call, with guard elements around every row.
struct FmhaOutputs {
  std::vector<uint8_t> o;
  std::vector<float> lse;
  std::vector<float> row_max;
  std::vector<float> row_sum;
};

// One output row, comparable between problems; 0 for scalars that the call does not give.
struct RowBytes {
  std::vector<uint8_t> o;
  float lse = 0.0f;
  float row_max = 0.0f;
  float row_sum = 0.0f;
  bool operator==(const RowBytes& other) const;
};

class FmhaProblem {
 public:
  explicit FmhaProblem(const FmhaSpec& spec);
  FmhaProblem(const FmhaProblem&) = delete;
  FmhaProblem& operator=(const FmhaProblem&) = delete;

  const FmhaSpec& spec() const { return spec_; }
  // Outputs filled with poison.
  FmhaOutputs make_outputs() const;
  // The parameters, pointing at the inputs of this object and at `out`.
  tessera_fmha_params params(FmhaOutputs* out) const;
  // The same with every array (inputs and o) moved to where place(data, bytes) put a copy of it.
  using Place = std::function<void*(const void* data, size_t bytes)>;
  tessera_fmha_params params(FmhaOutputs* out, const Place& place) const;
  RowBytes row(const FmhaOutputs& out, int64_t sequence, int64_t token, int64_t head) const;
  // The value that Q, K or V hold, widened.
  float q_value(int64_t sequence, int64_t token, int64_t head, int64_t dim) const;
  float k_value(int64_t segment, int64_t sequence, int64_t key, int64_t head, int64_t dim) const;
  float v_value(int64_t segment, int64_t sequence, int64_t key, int64_t head, int64_t dim) const;
  bool visible(int64_t segment, int64_t sequence, int64_t token, int64_t head, int64_t key) const;

 private:
  struct Segment {
    tessera_kv_segment c;
    std::vector<uint8_t> k, v;
    std::vector<int32_t> lengths, first_tokens, pages, positions;
    std::vector<uint8_t> mask;
    std::vector<int32_t> indices, list_lengths;
  };

  int64_t batch() const { return static_cast<int64_t>(spec_.q_lengths.size()); }
  uint64_t id(int64_t sequence) const;
  int64_t content_token(int64_t sequence, int64_t token) const;
  bool mask_bit(int64_t segment, int64_t sequence, int64_t token, int64_t head, int64_t covered) const;
  bool seen(int64_t segment, int64_t sequence, int64_t key) const;
  bool listed(int64_t segment, int64_t sequence, int64_t token, int64_t key) const;
  uint64_t row_hash(int64_t segment, int64_t sequence, int64_t key) const;
  int64_t list_row(int64_t sequence, int64_t token) const;
  void place_row(int64_t index, int64_t sequence, int64_t key, int64_t slot, int64_t token, int64_t tokens);
  void place_lists(int64_t index);
  int64_t q_row(int64_t sequence, int64_t token) const;
  void place_queries();
  void place_segment(int64_t index);
  void place_mask(int64_t index);
  void place_rope();

  FmhaSpec spec_;
  std::vector<uint8_t> q_;
  tessera_tensor q_tensor_{}, o_tensor_{};
  tessera_row_scalars scalars_{};
  int64_t o_elements_ = 0;
  int64_t scalar_elements_ = 0;
  std::vector<int32_t> q_first_tokens_, q_used_;
  std::vector<float> slopes_;
  std::vector<float> rope_cos_, rope_sin_;
  std::vector<int32_t> rope_positions_;
  std::vector<Segment> segments_;
};

}  // namespace tessera::test
