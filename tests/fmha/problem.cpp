#include "fmha/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "fmha/fp8_rows.h"

namespace tessera::test {
namespace {

uint64_t mix(uint64_t x) {  // a bijection without fixed structure (two rounds of multiply and shift)
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  x *= 0xd1342543de82ef95u;
  return x ^ x >> 32;
}

template <class... Parts>
uint64_t hash(Parts... parts) {
  uint64_t h = 0x51ed270b;
  ((h = mix(h + static_cast<uint64_t>(parts) * 0x2545f4914f6cdd1du + 0x9e37u)), ...);
  return h;
}

// Near-normal, mean 0, variance 1.
float normal_of(uint64_t h) {
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(h >> (16 * i) & 0xffffu) / 65536.0f - 0.5f;
  return sum * 1.7320508f;
}

size_t element_bytes(tessera_dtype dtype) {
  return dtype == TESSERA_F32 ? 4 : 2;
}

// Rounds to a value that the dtype holds; the low bits are cut, which is all a test input needs.
float representable(tessera_dtype dtype, float x) {
  uint32_t u = 0;
  std::memcpy(&u, &x, 4);
  if (dtype == TESSERA_BF16) u &= 0xffff0000u;
  if (dtype == TESSERA_F16) u = std::fabs(x) < 0x1p-14f ? 0u : u & 0xffffe000u;
  std::memcpy(&x, &u, 4);
  return x;
}

void put(tessera_dtype dtype, std::vector<uint8_t>* bytes, int64_t index, float x) {
  uint32_t u = 0;
  std::memcpy(&u, &x, 4);
  uint8_t* at = bytes->data() + static_cast<size_t>(index) * element_bytes(dtype);
  if (dtype == TESSERA_F32) {
    std::memcpy(at, &x, 4);
    return;
  }
  uint16_t h = static_cast<uint16_t>(u >> 16);
  if (dtype == TESSERA_F16) {
    h = x == 0.0f
            ? 0
            : static_cast<uint16_t>((u >> 16 & 0x8000u) | (((u >> 23 & 0xffu) - 112u) << 10) | (u >> 13 & 0x3ffu));
  }
  std::memcpy(at, &h, 2);
}

// NaN, Inf and large finite values in turn.
std::vector<uint8_t> poison(tessera_dtype dtype, int64_t elements) {
  const size_t width = element_bytes(dtype);
  std::vector<uint8_t> bytes(static_cast<size_t>(elements) * width);
  const uint32_t words[3] = {0x7fc00001u, 0xff800000u, 0x7f7fffffu};
  const uint16_t halves[2][3] = {{0x7e01u, 0xfc00u, 0x7bffu}, {0x7fc1u, 0xff80u, 0x7f7fu}};
  for (int64_t i = 0; i < elements; ++i) {
    if (dtype == TESSERA_F32) {
      std::memcpy(&bytes[static_cast<size_t>(i) * 4], &words[i % 3], 4);
    } else {
      std::memcpy(&bytes[static_cast<size_t>(i) * 2], &halves[dtype == TESSERA_BF16 ? 1 : 0][i % 3], 2);
    }
  }
  return bytes;
}

std::vector<float> poison_floats(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  const std::vector<uint8_t> bytes = poison(TESSERA_F32, count);
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

int64_t longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// Strides of (batch, token, head, dim) with `padding` elements after every row.
tessera_tensor strides(bool head_major, int64_t tokens, int64_t heads, int64_t dim, int64_t padding) {
  tessera_tensor t{};
  const int64_t row = dim + padding;
  t.stride_dim = 1;
  t.stride_token = head_major ? row : row * heads;
  t.stride_head = head_major ? row * tokens : row;
  t.stride_batch = row * heads * tokens;
  return t;
}

}  // namespace

FmhaSpec one_sequence(FmhaSpec like, int64_t q, int64_t k) {
  like.q_lengths = {q};
  if (like.segments.empty()) like.segments.emplace_back();
  like.segments[0].lengths = {k};
  return like;
}

std::string to_text(const FmhaSpec& s) {
  std::string text = fmt::format(
      "dtype {} o {} d {}/{} heads {}/{} packed {} slots +{} major {} pad {} softcap {} alibi {} sinks {} rope {} "
      "state {} "
      "chunks "
      "{}..{} amplitude {} seed {} q",
      static_cast<int>(s.dtype), static_cast<int>(s.o_dtype), s.head_dim_qk, s.head_dim_v, s.heads_q, s.heads_kv,
      s.packed_q, s.slot_padding, s.head_major, s.row_padding, s.softcap, s.alibi, s.sinks.size(), s.o_rope_dims,
      s.unnormalized, s.chunk_begin, s.chunk_end, s.q_amplitude, s.seed);
  for (const int64_t n : s.q_lengths) text += fmt::format(" {}", n);
  for (const SegmentSpec& g : s.segments) {
    text +=
        fmt::format("; layout {} page {} causal {} window {},{} ratio {} positions {} mask {} keys {} per head {} k",
                    static_cast<int>(g.layout), g.page_size, g.causal, g.window_left, g.window_right, g.compress_ratio,
                    g.q_positions.size(), g.mask, g.mask_keys, g.mask_per_head);
    for (const int64_t n : g.lengths) text += fmt::format(" {}", n);
    if (g.format != TESSERA_KV_DENSE)
      text += fmt::format(" format {}{}", static_cast<int>(g.format), g.decoded ? "d" : "");
    if (g.topk > 0) text += fmt::format(" topk {} absent {} duplicates {}", g.topk, g.absent_of, g.list_duplicates);
  }
  return text;
}

bool RowBytes::operator==(const RowBytes& other) const {
  return o == other.o && std::memcmp(&lse, &other.lse, 4) == 0 && std::memcmp(&row_max, &other.row_max, 4) == 0 &&
         std::memcmp(&row_sum, &other.row_sum, 4) == 0;
}

FmhaProblem::FmhaProblem(const FmhaSpec& spec) : spec_(spec) {
  if (spec_.scale == 0.0f) spec_.scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim_qk));
  for (int32_t h = 0; h < spec_.heads_q; ++h) slopes_.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / 16.0f));
  place_queries();
  if (spec_.o_rope_dims > 0) place_rope();
  segments_.resize(spec_.segments.size());
  for (size_t i = 0; i < segments_.size(); ++i) place_segment(static_cast<int64_t>(i));
}

uint64_t FmhaProblem::id(int64_t sequence) const {
  return spec_.ids.empty() ? static_cast<uint64_t>(sequence) : spec_.ids[static_cast<size_t>(sequence)];
}

int64_t FmhaProblem::content_token(int64_t sequence, int64_t token) const {
  return token + (spec_.q_first.empty() ? 0 : spec_.q_first[static_cast<size_t>(sequence)]);
}

float FmhaProblem::q_value(int64_t sequence, int64_t token, int64_t head, int64_t dim) const {
  const uint64_t h = hash(spec_.seed, 1, id(sequence), content_token(sequence, token), head, dim);
  return representable(spec_.dtype, spec_.q_amplitude * normal_of(h));
}

uint64_t FmhaProblem::row_hash(int64_t segment, int64_t sequence, int64_t key) const {
  const uint64_t content = static_cast<uint64_t>(key) + spec_.segments[static_cast<size_t>(segment)].first_key;
  return hash(spec_.seed, 200 + segment, id(sequence), content);
}

float FmhaProblem::k_value(int64_t segment, int64_t sequence, int64_t key, int64_t head, int64_t dim) const {
  const tessera_kv_format format = spec_.segments[static_cast<size_t>(segment)].format;
  if (format != TESSERA_KV_DENSE && dim < fp8_coded_dims(format)) {
    return fp8_value(format, row_hash(segment, sequence, key), dim);
  }
  const uint64_t content = static_cast<uint64_t>(key) + spec_.segments[static_cast<size_t>(segment)].first_key;
  return representable(spec_.dtype, normal_of(hash(spec_.seed, 2 + 2 * segment, id(sequence), content, head, dim)));
}

float FmhaProblem::v_value(int64_t segment, int64_t sequence, int64_t key, int64_t head, int64_t dim) const {
  const SegmentSpec& s = spec_.segments[static_cast<size_t>(segment)];
  if (s.v_is_k || s.format != TESSERA_KV_DENSE) return k_value(segment, sequence, key, head, dim);
  const uint64_t content = static_cast<uint64_t>(key) + spec_.segments[static_cast<size_t>(segment)].first_key;
  return representable(spec_.dtype, normal_of(hash(spec_.seed, 3 + 2 * segment, id(sequence), content, head, dim)));
}

bool FmhaProblem::mask_bit(int64_t segment, int64_t sequence, int64_t token, int64_t head, int64_t covered) const {
  const SegmentSpec& s = spec_.segments[static_cast<size_t>(segment)];
  const int64_t shared_head = s.mask_per_head ? head : 0;
  const uint64_t h =
      hash(spec_.seed, 100 + segment, id(sequence), content_token(sequence, token), shared_head, covered);
  return static_cast<int>(h % 8) < s.mask_visible_of_8;
}

bool FmhaProblem::visible(int64_t segment, int64_t sequence, int64_t token, int64_t head, int64_t key) const {
  const size_t b = static_cast<size_t>(sequence);
  const SegmentSpec& s = spec_.segments[static_cast<size_t>(segment)];
  const int64_t length = s.lengths[b];
  const int64_t p = (s.q_positions.empty() ? length - spec_.q_lengths[b] : s.q_positions[b]) + token;
  if (key >= length) return false;
  if (s.topk > 0 && !listed(segment, sequence, token, key)) return false;
  if (s.compress_ratio > 0) {
    if (p + 1 < 0 || key >= (p + 1) / s.compress_ratio) return false;
  } else {
    if (s.causal != 0 && key > p) return false;
    if (s.window_left >= 0 && key < p - s.window_left) return false;
    if (s.window_right >= 0 && key > p + s.window_right) return false;
  }
  if (!s.mask) return true;
  const int64_t first = s.mask_keys < 0 ? 0 : std::max<int64_t>(0, length - s.mask_keys);
  return key < first || mask_bit(segment, sequence, token, head, key - first);
}

int64_t FmhaProblem::list_row(int64_t sequence, int64_t token) const {
  return spec_.packed_q ? q_row(sequence, token) : sequence * spec_.q_bound + token;
}

bool FmhaProblem::listed(int64_t segment, int64_t sequence, int64_t token, int64_t key) const {
  const Segment& from = segments_[static_cast<size_t>(segment)];
  const int64_t row = list_row(sequence, token);
  const int64_t topk = spec_.segments[static_cast<size_t>(segment)].topk;
  const int64_t count = from.list_lengths.empty() ? topk : from.list_lengths[static_cast<size_t>(row)];
  const auto first = from.indices.begin() + static_cast<std::ptrdiff_t>(row * from.c.indices_stride);
  return std::find(first, first + static_cast<std::ptrdiff_t>(count), key) !=
         first + static_cast<std::ptrdiff_t>(count);
}

bool FmhaProblem::seen(int64_t segment, int64_t sequence, int64_t key) const {
  for (int64_t i = 0; i < spec_.q_lengths[static_cast<size_t>(sequence)]; ++i) {
    for (int64_t h = 0; h < spec_.heads_q; ++h) {
      if (visible(segment, sequence, i, h, key)) return true;
    }
  }
  return false;
}

int64_t FmhaProblem::q_row(int64_t sequence, int64_t token) const {
  return token + (spec_.packed_q ? q_first_tokens_[static_cast<size_t>(sequence)] : 0);
}

void FmhaProblem::place_queries() {
  const int64_t bound = spec_.q_bound < 0 ? longest(spec_.q_lengths) : spec_.q_bound;
  spec_.q_bound = bound;
  int64_t tokens = bound;
  if (spec_.packed_q) {
    tokens = 0;
    for (const int64_t n : spec_.q_lengths) {
      q_first_tokens_.push_back(static_cast<int32_t>(tokens));
      q_used_.push_back(static_cast<int32_t>(n));
      tokens += n + spec_.slot_padding;
    }
    q_first_tokens_.push_back(static_cast<int32_t>(tokens));
    tokens += 3;  // allocated behind the last sequence
  } else if (std::any_of(spec_.q_lengths.begin(), spec_.q_lengths.end(), [&](int64_t n) { return n != bound; })) {
    for (const int64_t n : spec_.q_lengths) q_used_.push_back(static_cast<int32_t>(n));
  }
  q_tensor_ = strides(spec_.head_major, tokens, spec_.heads_q, spec_.head_dim_qk, spec_.row_padding);
  o_tensor_ = strides(spec_.head_major, tokens, spec_.heads_q, spec_.head_dim_v, spec_.row_padding);
  scalars_.stride_token = spec_.head_major ? 1 : spec_.heads_q;
  scalars_.stride_head = spec_.head_major ? tokens : 1;
  scalars_.stride_batch = tokens * spec_.heads_q;
  const int64_t slots = spec_.packed_q ? 1 : batch();
  const int64_t q_elements = slots * q_tensor_.stride_batch;
  o_elements_ = slots * o_tensor_.stride_batch;
  scalar_elements_ = slots * scalars_.stride_batch;
  if (spec_.packed_q) q_tensor_.stride_batch = o_tensor_.stride_batch = scalars_.stride_batch = 0;
  q_ = poison(spec_.dtype, q_elements);
  for (int64_t b = 0; b < batch(); ++b) {
    for (int64_t i = 0; i < spec_.q_lengths[static_cast<size_t>(b)]; ++i) {
      for (int64_t h = 0; h < spec_.heads_q; ++h) {
        const int64_t row =
            b * q_tensor_.stride_batch + q_row(b, i) * q_tensor_.stride_token + h * q_tensor_.stride_head;
        for (int64_t d = 0; d < spec_.head_dim_qk; ++d) put(spec_.dtype, &q_, row + d, q_value(b, i, h, d));
      }
    }
  }
}

void FmhaProblem::place_segment(int64_t index) {
  const SegmentSpec& s = spec_.segments[static_cast<size_t>(index)];
  Segment& out = segments_[static_cast<size_t>(index)];
  const int64_t bound = s.bound < 0 ? longest(s.lengths) : s.bound;
  out.c.seqlen_k = bound;
  int64_t tokens = bound;  // token extent of the K/V tensors
  int64_t slots = batch();
  std::vector<int32_t> pages;
  if (s.layout == KvLayout::kPacked) {
    tokens = 0;
    for (const int64_t n : s.lengths) {
      out.first_tokens.push_back(static_cast<int32_t>(tokens));
      tokens += n;
    }
    out.first_tokens.push_back(static_cast<int32_t>(tokens));
    tokens += 5;  // poison behind the last sequence
    slots = 1;
  } else {
    for (const int64_t n : s.lengths) out.lengths.push_back(static_cast<int32_t>(n));
  }
  const int64_t row_pages = (bound + s.page_size - 1) / s.page_size;
  if (s.layout == KvLayout::kPaged) {
    tokens = s.page_size;
    slots = batch() * row_pages + 2;  // two pages that no sequence uses
    std::vector<int32_t> order(static_cast<size_t>(slots));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(s.page_seed);
    std::shuffle(order.begin(), order.end(), random);
    out.pages.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(batch() * row_pages));
    out.c.page_size = s.page_size;
    out.c.page_table_stride = row_pages;
    out.c.num_pages = slots;
  }
  const bool fp8 = s.format != TESSERA_KV_DENSE;
  const int64_t k_dim = spec_.head_dim_qk;
  const bool values = !s.v_is_k && !fp8;  // V has an array of its own
  if (fp8 && !s.decoded) {
    out.c.format = s.format;
    out.c.k = out.c.v = fp8_strides(s.format, tokens, s.row_padding);
    out.k.assign(static_cast<size_t>(slots * out.c.k.stride_batch), 0xff);  // NaN as e4m3, scale and bf16
  } else {
    out.c.k = strides(s.head_major, tokens, spec_.heads_kv, k_dim, s.row_padding);
    out.c.v = values ? strides(s.head_major, tokens, spec_.heads_kv, spec_.head_dim_v, s.row_padding) : out.c.k;
    out.k = poison(spec_.dtype, slots * out.c.k.stride_batch);
    if (values) out.v = poison(spec_.dtype, slots * out.c.v.stride_batch);
  }
  if (s.topk > 0) place_lists(index);

  for (int64_t b = 0; b < batch(); ++b) {
    for (int64_t j = 0; j < s.lengths[static_cast<size_t>(b)]; ++j) {
      int64_t slot = b;
      int64_t token = j;
      if (s.layout == KvLayout::kPacked) {
        slot = 0;
        token += out.first_tokens[static_cast<size_t>(b)];
      } else if (s.layout == KvLayout::kPaged) {
        slot = out.pages[static_cast<size_t>(b * row_pages + j / s.page_size)];
        token = j % s.page_size;
      }
      if (s.poison_masked && !seen(index, b, j)) continue;
      place_row(index, b, j, slot, token, tokens);
    }
    if (s.layout == KvLayout::kPaged && s.unlisted_pages) {
      for (int64_t page = 0; page < row_pages; ++page) {
        bool used = false;
        const int64_t end = std::min((page + 1) * s.page_size, s.lengths[static_cast<size_t>(b)]);
        for (int64_t j = page * s.page_size; j < end && !used; ++j) used = seen(index, b, j);
        if (!used) out.pages[static_cast<size_t>(b * row_pages + page)] = -1;
      }
    }
  }
  if (s.layout == KvLayout::kPacked) out.c.k.stride_batch = out.c.v.stride_batch = 0;
  out.c.causal = s.causal;
  out.c.window_left = s.window_left;
  out.c.window_right = s.window_right;
  out.c.compress_ratio = s.compress_ratio;
  out.positions = s.q_positions;
  if (s.mask) place_mask(index);
}

// Key `key` of the sequence goes to `token` of batch or page `slot`, which has `tokens` of them.
void FmhaProblem::place_row(int64_t index, int64_t sequence, int64_t key, int64_t slot, int64_t token, int64_t tokens) {
  const SegmentSpec& s = spec_.segments[static_cast<size_t>(index)];
  Segment& out = segments_[static_cast<size_t>(index)];
  if (out.c.format != TESSERA_KV_DENSE) {
    std::vector<uint8_t> rest(64 * 2);
    for (int64_t d = 0; d < 64; ++d) {
      put(TESSERA_BF16, &rest, d, k_value(index, sequence, key, 0, fp8_coded_dims(s.format) + d));
    }
    uint16_t halves[64];
    std::memcpy(halves, rest.data(), sizeof halves);
    put_fp8_row(s.format, out.k.data() + slot * out.c.k.stride_batch, tokens, out.c.k, token,
                row_hash(index, sequence, key), halves);
    return;
  }
  for (int64_t h = 0; h < spec_.heads_kv; ++h) {
    const int64_t k_at = slot * out.c.k.stride_batch + token * out.c.k.stride_token + h * out.c.k.stride_head;
    const int64_t v_at = slot * out.c.v.stride_batch + token * out.c.v.stride_token + h * out.c.v.stride_head;
    for (int64_t d = 0; d < spec_.head_dim_qk; ++d) {
      put(spec_.dtype, &out.k, k_at + d, k_value(index, sequence, key, h, d));
    }
    for (int64_t d = 0; d < spec_.head_dim_v && !out.v.empty(); ++d) {
      put(spec_.dtype, &out.v, v_at + d, v_value(index, sequence, key, h, d));
    }
  }
}

void FmhaProblem::place_lists(int64_t index) {
  const SegmentSpec& s = spec_.segments[static_cast<size_t>(index)];
  Segment& out = segments_[static_cast<size_t>(index)];
  int64_t rows = 0;
  for (int64_t b = 0; b < batch(); ++b) {
    rows = std::max(rows, list_row(b, spec_.q_lengths[static_cast<size_t>(b)] - 1) + 1);
  }
  out.c.topk = s.topk;
  out.c.indices_stride = s.topk + 3;
  out.indices.assign(static_cast<size_t>(rows * out.c.indices_stride), 0x7fffffff);  // no index
  if (s.list_lengths) out.list_lengths.assign(static_cast<size_t>(rows), -5);
  for (int64_t b = 0; b < batch(); ++b) {
    const int64_t length = s.lengths[static_cast<size_t>(b)];
    for (int64_t i = 0; i < spec_.q_lengths[static_cast<size_t>(b)]; ++i) {
      const int64_t row = list_row(b, i);
      const uint64_t h = hash(spec_.seed, 300 + index, id(b), content_token(b, i));
      std::vector<int32_t> list;
      for (int32_t t = 0; t < s.topk; ++t) {
        const uint64_t entry = hash(h, t);
        const bool absent = length == 0 || (s.absent_of > 0 && entry % static_cast<uint64_t>(s.absent_of) == 0);
        int32_t key = absent ? -1 : static_cast<int32_t>((entry >> 8) % static_cast<uint64_t>(length));
        if (!s.list_duplicates && std::find(list.begin(), list.end(), key) != list.end()) key = -1;
        list.push_back(key);
      }
      std::mt19937_64 random(s.list_seed + h);
      if (s.list_lengths) {
        const auto count = static_cast<std::ptrdiff_t>(h % static_cast<uint64_t>(s.topk + 1));
        out.list_lengths[static_cast<size_t>(row)] = static_cast<int32_t>(count);
        std::shuffle(list.begin(), list.begin() + count, random);
        std::fill(list.begin() + count, list.end(), 0x7fffffff);
      } else {
        std::shuffle(list.begin(), list.end(), random);
      }
      std::copy(list.begin(), list.end(),
                out.indices.begin() + static_cast<std::ptrdiff_t>(row * out.c.indices_stride));
    }
  }
}

void FmhaProblem::place_mask(int64_t index) {
  const SegmentSpec& s = spec_.segments[static_cast<size_t>(index)];
  Segment& out = segments_[static_cast<size_t>(index)];
  int64_t width = 0;  // covered keys of the longest sequence
  for (const int64_t n : s.lengths) width = std::max(width, s.mask_keys < 0 ? n : s.mask_keys);
  const int64_t heads = s.mask_per_head ? spec_.heads_q : 1;
  out.c.mask.stride_row = (width + 7) / 8;
  out.c.mask.stride_head = s.mask_per_head ? out.c.mask.stride_row * spec_.q_bound : 0;
  out.c.mask.stride_batch = out.c.mask.stride_row * spec_.q_bound * heads;
  out.c.mask.num_keys = s.mask_keys;
  out.mask.assign(static_cast<size_t>(out.c.mask.stride_batch * batch()), 0);
  for (int64_t b = 0; b < batch(); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < spec_.q_lengths[static_cast<size_t>(b)]; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          const int64_t at =
              b * out.c.mask.stride_batch + h * out.c.mask.stride_head + i * out.c.mask.stride_row + (j >> 3);
          if (mask_bit(index, b, i, h, j)) out.mask[static_cast<size_t>(at)] |= static_cast<uint8_t>(1u << (j & 7));
        }
      }
    }
  }
}

void FmhaProblem::place_rope() {
  constexpr int64_t kPositions = 37;
  constexpr double kTurn = 6.283185307179586;
  const auto value = [](uint64_t h) { return static_cast<double>(h >> 11) * 0x1p-53; };
  for (int64_t position = 0; position < kPositions; ++position) {
    for (int32_t i = 0; i < spec_.o_rope_dims / 2; ++i) {
      const double angle = kTurn * value(hash(spec_.seed, 400, static_cast<uint64_t>(position), i));
      rope_cos_.push_back(static_cast<float>(std::cos(angle)));
      rope_sin_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  rope_positions_.assign(1, -1);
  for (int64_t b = 0; b < batch(); ++b) {
    for (int64_t i = 0; i < spec_.q_lengths[static_cast<size_t>(b)]; ++i) {
      const auto at = static_cast<size_t>(list_row(b, i));
      if (rope_positions_.size() <= at) rope_positions_.resize(at + 1, -1);  // of tokens that do not exist: none
      rope_positions_[at] =
          static_cast<int32_t>(hash(spec_.seed, 401, id(b), content_token(b, i)) % static_cast<uint64_t>(kPositions));
    }
  }
}

FmhaOutputs FmhaProblem::make_outputs() const {
  // One more element, so that an empty problem has addresses too.
  return {poison(spec_.o_dtype, o_elements_ + 1), poison_floats(scalar_elements_ + 1),
          poison_floats(scalar_elements_ + 1), poison_floats(scalar_elements_ + 1)};
}

tessera_fmha_params FmhaProblem::params(FmhaOutputs* out) const {
  tessera_fmha_params p{};
  p.struct_size = sizeof(p);
  p.dtype = spec_.dtype;
  p.o_dtype = spec_.o_dtype;
  p.head_dim_qk = spec_.head_dim_qk;
  p.head_dim_v = spec_.head_dim_v;
  p.num_heads_q = spec_.heads_q;
  p.num_heads_kv = spec_.heads_kv;
  p.batch = batch();
  p.q = q_tensor_;
  p.q.data = const_cast<uint8_t*>(q_.data());
  p.seqlen_q = spec_.q_bound;
  p.cu_seqlens_q = spec_.packed_q ? q_first_tokens_.data() : nullptr;
  const bool used = !q_used_.empty() && (!spec_.packed_q || spec_.slot_padding > 0);
  p.seqlens_q = used ? q_used_.data() : nullptr;
  p.num_segments = static_cast<int32_t>(segments_.size());
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& from = segments_[i];
    tessera_kv_segment& s = p.segments[i];
    s = from.c;
    s.k.data = const_cast<uint8_t*>(from.k.data());
    s.v.data = const_cast<uint8_t*>(from.v.empty() ? from.k.data() : from.v.data());
    s.indices = from.indices.empty() ? nullptr : from.indices.data();
    s.topk_lens = from.list_lengths.empty() ? nullptr : from.list_lengths.data();
    s.seqlens_k = from.lengths.empty() ? nullptr : from.lengths.data();
    s.cu_seqlens_k = from.first_tokens.empty() ? nullptr : from.first_tokens.data();
    s.page_table = spec_.segments[i].layout == KvLayout::kPaged ? from.pages.data() : nullptr;
    s.q_positions = from.positions.empty() ? nullptr : from.positions.data();
    s.mask.data = spec_.segments[i].mask ? from.mask.data() : nullptr;
  }
  p.softmax_scale = spec_.scale;
  p.softcap = spec_.softcap;
  p.alibi_slopes = spec_.alibi ? slopes_.data() : nullptr;
  p.sinks = spec_.sinks.empty() ? nullptr : spec_.sinks.data();
  p.output_mode = spec_.unnormalized ? TESSERA_OUTPUT_UNNORMALIZED : TESSERA_OUTPUT_NORMALIZED;
  p.o = o_tensor_;
  p.o.data = out->o.data();
  if (spec_.lse) {
    p.lse_natural_no_sink = scalars_;
    p.lse_natural_no_sink.data = out->lse.data();
  }
  if (spec_.unnormalized) {
    p.row_max_log2 = p.row_sum = scalars_;
    p.row_max_log2.data = out->row_max.data();
    p.row_sum.data = out->row_sum.data();
  }
  p.chunk_begin = spec_.chunk_begin;
  p.chunk_end = spec_.chunk_end;
  if (spec_.o_rope_dims > 0) {
    const size_t pairs = static_cast<size_t>(spec_.o_rope_dims / 2);
    p.o_rope = {rope_cos_.data(), rope_sin_.data(), rope_positions_.data(),
                static_cast<int64_t>(rope_cos_.size() / pairs), spec_.o_rope_dims};
  }
  return p;
}

tessera_fmha_params FmhaProblem::params(FmhaOutputs* out, const Place& place) const {
  tessera_fmha_params p = params(out);
  const auto move = [&place]<class T>(const T*& pointer, size_t bytes) {
    if (pointer != nullptr) pointer = static_cast<const T*>(place(pointer, bytes));
  };
  const size_t sequences = static_cast<size_t>(batch());
  p.q.data = place(q_.data(), q_.size());
  p.o.data = place(out->o.data(), static_cast<size_t>(o_elements_) * element_bytes(spec_.o_dtype));
  move(p.cu_seqlens_q, (sequences + 1) * 4);
  move(p.seqlens_q, sequences * 4);
  move(p.sinks, spec_.sinks.size() * 4);
  move(p.alibi_slopes, slopes_.size() * 4);
  move(p.o_rope.cos_table, rope_cos_.size() * 4);
  move(p.o_rope.sin_table, rope_sin_.size() * 4);
  move(p.o_rope.positions, rope_positions_.size() * 4);
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& from = segments_[i];
    tessera_kv_segment& s = p.segments[i];
    s.k.data = place(from.k.data(), from.k.size());
    s.v.data = from.v.empty() ? s.k.data : place(from.v.data(), from.v.size());
    move(s.indices, from.indices.size() * 4);
    move(s.topk_lens, from.list_lengths.size() * 4);
    move(s.seqlens_k, sequences * 4);
    move(s.cu_seqlens_k, (sequences + 1) * 4);
    move(s.page_table, from.pages.size() * 4);
    move(s.q_positions, sequences * 4);
    move(s.mask.data, from.mask.size());
  }
  return p;
}

RowBytes FmhaProblem::row(const FmhaOutputs& out, int64_t sequence, int64_t token, int64_t head) const {
  const size_t width = element_bytes(spec_.o_dtype);
  const int64_t at = sequence * o_tensor_.stride_batch + q_row(sequence, token) * o_tensor_.stride_token +
                     head * o_tensor_.stride_head;
  const size_t scalar = static_cast<size_t>(
      sequence * scalars_.stride_batch + q_row(sequence, token) * scalars_.stride_token + head * scalars_.stride_head);
  RowBytes row;
  const auto first = out.o.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(at) * width);
  row.o.assign(first, first + static_cast<std::ptrdiff_t>(static_cast<size_t>(spec_.head_dim_v) * width));
  if (spec_.lse) row.lse = out.lse[scalar];
  if (spec_.unnormalized) {
    row.row_max = out.row_max[scalar];
    row.row_sum = out.row_sum[scalar];
  }
  return row;
}

}  // namespace tessera::test
