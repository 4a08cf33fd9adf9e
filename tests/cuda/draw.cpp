#include "cuda/draw.h"

#include <algorithm>
#include <limits>

#include "fmha/draw.h"

namespace tessera::test {
namespace {

// Mostly a granule or less, sometimes several, rarely several chunks.
int64_t draw_keys(Draw* draw) {
  switch (draw->in(0, 11)) {
    case 0:
      return 0;
    case 1:
      return draw->of<int64_t>({63, 64, 65, 127, 128, 129, 255, 256, 257});
    case 2:
      return draw->of<int64_t>({2047, 2048, 2049, 4097});
    case 3:
      return draw->in(1026, 2500);
    case 4:
    case 5:
    case 6:
      return draw->in(100, 400);
    default:
      return draw->in(1, 90);
  }
}

void draw_visibility(Draw* draw, size_t batch, SegmentSpec* s) {
  if (draw->one_in(5)) {
    s->compress_ratio = draw->of<int32_t>({1, 3, 4, 128});
  } else {
    s->causal = draw->one_in(2) ? 1 : 0;
    if (draw->one_in(3)) s->window_left = draw->of<int64_t>({0, 1, 15, 16, 31, 127, 128, 1000});
    if (draw->one_in(5)) s->window_right = draw->of<int64_t>({0, 1, 16, 100});
  }
  if (draw->one_in(3)) {
    for (size_t b = 0; b < batch; ++b) {
      s->q_positions.push_back(static_cast<int32_t>(draw->in(-3, s->lengths[b] + 5)));
    }
  }
  if (draw->one_in(4)) {
    s->mask = true;
    s->mask_per_head = draw->one_in(2);
    s->mask_keys = draw->one_in(2) ? -1 : draw->in(0, 90);
    s->mask_visible_of_8 = draw->of({1, 4, 7});
    s->unlisted_pages = false;  // pages whose keys only custom bits hide still have to be listed
  }
}

SegmentSpec draw_segment(Draw* draw, const FmhaSpec& spec) {
  SegmentSpec s;
  for (size_t b = 0; b < spec.q_lengths.size(); ++b) s.lengths.push_back(draw_keys(draw));
  s.layout = draw->of({KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged});
  s.page_size = draw->of<int32_t>({1, 2, 3, 16, 17, 48, 64, 128, 333});
  s.page_seed = draw->bits();
  s.head_major = draw->one_in(3);
  s.row_padding = draw->one_in(3) ? draw->in(1, 9) : 0;
  if (draw->one_in(4)) s.bound = *std::max_element(s.lengths.begin(), s.lengths.end()) + draw->in(0, 40);
  s.v_is_k = spec.head_dim_v <= spec.head_dim_qk && draw->one_in(6);
  s.poison_masked = draw->one_in(2);
  s.unlisted_pages = s.poison_masked;
  draw_visibility(draw, spec.q_lengths.size(), &s);
  return s;
}

// The oracle takes about 100 ns for 16 products.
int64_t oracle_steps(const FmhaSpec& spec) {
  int64_t steps = 0;
  for (size_t b = 0; b < spec.q_lengths.size(); ++b) {
    for (const SegmentSpec& s : spec.segments) {
      steps += spec.q_lengths[b] * s.lengths[b] * spec.heads_q * (spec.head_dim_qk + spec.head_dim_v) / 16;
    }
  }
  return steps;
}

// Fewer query tokens until the oracle is done in the blink of an eye.
void limit_work(FmhaSpec* spec) {
  constexpr int64_t kSteps = 10'000'000;
  while (oracle_steps(*spec) > kSteps && *std::ranges::max_element(spec->q_lengths) > 1) {
    for (int64_t& q : spec->q_lengths) q = (q + 1) / 2;
  }
}

}  // namespace

FmhaSpec draw_mix(uint64_t seed, tessera_dtype dtype) {
  Draw draw(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = dtype;
  spec.unnormalized = draw.one_in(4);
  spec.o_dtype = spec.unnormalized || draw.one_in(3) ? TESSERA_F32 : dtype;
  spec.head_dim_qk = draw.of<int32_t>({1, 5, 8, 24, 40, 64, 64, 64, 72, 80, 96, 128, 128, 128, 136, 192, 192, 256});
  spec.head_dim_v = draw.one_in(2) ? spec.head_dim_qk : draw.of<int32_t>({3, 16, 32, 64, 72, 128, 128, 144, 256});
  spec.heads_kv = static_cast<int32_t>(draw.in(1, 3));
  spec.heads_q = spec.heads_kv * draw.of<int32_t>({1, 1, 2, 3, 4, 5, 8, 16});
  const int64_t batch = draw.in(1, 4);
  spec.q_lengths.clear();
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t kind = draw.in(0, 7);
    spec.q_lengths.push_back(kind == 0 ? 0 : kind < 4 ? 1 : kind < 7 ? draw.in(2, 20) : draw.in(21, 80));
  }
  spec.packed_q = draw.one_in(2);
  spec.slot_padding = draw.one_in(3) ? draw.in(1, 4) : 0;
  spec.head_major = draw.one_in(3);
  spec.row_padding = draw.one_in(3) ? draw.in(1, 9) : 0;
  spec.lse = !draw.one_in(5);
  const bool ranged = spec.unnormalized && draw.one_in(3);
  const int64_t segments = ranged || draw.one_in(2) ? 1 : draw.in(2, TESSERA_MAX_SEGMENTS);
  for (int64_t i = 0; i < segments; ++i) spec.segments.push_back(draw_segment(&draw, spec));
  if (ranged) {
    spec.chunk_begin = draw.in(0, 2);
    spec.chunk_end = spec.chunk_begin == 0 ? draw.in(1, 3) : spec.chunk_begin + 1;
  }
  if (draw.one_in(4)) spec.softcap = draw.of({1.0F, 20.0F, 50.0F});
  spec.alibi = draw.one_in(5);
  if (!spec.unnormalized && draw.one_in(3)) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    for (int32_t h = 0; h < spec.heads_q; ++h) spec.sinks.push_back(draw.of({-kInf, kInf, 0.0F, 1.5F, -30.0F, 90.0F}));
  }
  spec.q_amplitude = draw.of({1.0F, 1.0F, 6.0F, 60.0F});
  if (draw.one_in(4)) spec.scale = draw.of({0.05F, 1.0F, 3.0F});
  limit_work(&spec);
  return spec;
}

FmhaSpec draw_prefill(uint64_t seed, tessera_dtype dtype, int32_t head_dim) {
  Draw draw(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = spec.o_dtype = dtype;
  spec.head_dim_qk = spec.head_dim_v = head_dim;
  spec.heads_kv = static_cast<int32_t>(draw.in(1, 2));
  spec.heads_q = spec.heads_kv * draw.of<int32_t>({1, 1, 2, 3, 5});
  spec.head_major = draw.one_in(3);
  spec.row_padding = draw.of<int64_t>({0, 0, 8, 24});
  spec.lse = !draw.one_in(4);
  spec.q_amplitude = draw.of({1.0F, 1.0F, 6.0F, 60.0F});
  const int64_t q = draw.of<int64_t>({1, 2, 17, 63, 64, 65, 127, 128, 129, draw.in(130, 300)});
  const int64_t k = draw.one_in(3) ? q : draw_keys(&draw);
  const auto batch = static_cast<size_t>(draw.in(1, 3));
  spec.q_lengths.assign(batch, q);
  SegmentSpec s;
  s.lengths.assign(batch, k);
  s.causal = draw.one_in(2) ? 1 : 0;
  s.head_major = draw.one_in(3);
  s.row_padding = draw.of<int64_t>({0, 0, 8, 24});
  s.poison_masked = draw.one_in(2);
  s.v_is_k = draw.one_in(6);
  spec.segments.push_back(s);
  limit_work(&spec);
  return spec;
}

FmhaSpec draw_ragged(uint64_t seed, tessera_dtype dtype) {
  Draw draw(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = dtype;
  spec.unnormalized = draw.one_in(6);
  spec.o_dtype = spec.unnormalized || draw.one_in(6) ? TESSERA_F32 : dtype;
  spec.head_dim_qk = draw.of<int32_t>({64, 64, 128, 128, 128, 256, 8, 40, 80, 96, 192, 192});
  spec.head_dim_v = spec.head_dim_qk == 192 && draw.one_in(2) ? 128
                    : draw.one_in(4)                          ? draw.of<int32_t>({16, 64, 72, 128, 144, 256})
                                                              : spec.head_dim_qk;
  spec.heads_kv = static_cast<int32_t>(draw.in(1, 2));
  spec.heads_q = spec.heads_kv * draw.of<int32_t>({1, 1, 2, 3});
  const int64_t batch = draw.in(1, 4);
  spec.q_lengths.clear();
  for (int64_t b = 0; b < batch; ++b) {
    spec.q_lengths.push_back(
        draw.one_in(6) ? 0
                       : draw.of<int64_t>({1, 17, 63, 64, 65, 128, 129, 192, 193, draw.in(2, 100), draw.in(100, 420)}));
  }
  spec.packed_q = draw.one_in(2);
  spec.slot_padding = draw.one_in(3) ? draw.in(1, 4) : 0;
  spec.head_major = draw.one_in(3);
  spec.row_padding = draw.of<int64_t>({0, 0, 8, 24});
  spec.lse = !draw.one_in(5);
  SegmentSpec s;
  const bool ranged = spec.unnormalized && draw.one_in(2);
  for (int64_t b = 0; b < batch; ++b) {
    s.lengths.push_back(ranged || draw.one_in(4) ? draw.in(1900, 7000) : draw_keys(&draw));
  }
  s.layout = draw.of({KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged});
  s.page_size = draw.of<int32_t>({8, 16, 24, 48, 64, 64, 128, 192, 256, 320});
  s.page_seed = draw.bits();
  s.head_major = draw.one_in(3);
  s.row_padding = draw.of<int64_t>({0, 0, 8, 24});
  if (draw.one_in(4)) s.bound = *std::ranges::max_element(s.lengths) + draw.in(0, 40);
  s.v_is_k = spec.head_dim_v <= spec.head_dim_qk && draw.one_in(6);
  s.poison_masked = s.unlisted_pages = draw.one_in(2);
  draw_visibility(&draw, spec.q_lengths.size(), &s);
  if (!s.mask && draw.one_in(3)) s.window_left = draw.of<int64_t>({0, 5, 63, 64, 200, 300, 2100});
  spec.segments.push_back(s);
  if (ranged) {
    spec.chunk_begin = draw.in(0, 2);
    spec.chunk_end = spec.chunk_begin == 0 ? draw.in(1, 3) : spec.chunk_begin + 1;
  }
  if (draw.one_in(6)) spec.softcap = draw.of({1.0F, 20.0F, 50.0F});
  spec.alibi = draw.one_in(8);
  if (!spec.unnormalized && draw.one_in(6)) {
    for (int32_t h = 0; h < spec.heads_q; ++h) spec.sinks.push_back(draw.of({0.0F, 1.5F, -30.0F, 90.0F}));
  }
  spec.q_amplitude = draw.of({1.0F, 1.0F, 6.0F, 60.0F});
  limit_work(&spec);
  return spec;
}

FmhaSpec draw_wide(uint64_t seed, tessera_dtype dtype) {
  FmhaSpec spec = draw_ragged(seed, dtype);
  Draw draw(seed + 1);
  spec.head_dim_qk = draw.of<int32_t>({512, 512, 512, 264, 320, 384, 448, 504});
  spec.head_dim_v = draw.one_in(3) ? draw.of<int32_t>({512, 504, 320, 264, 128, 72}) : spec.head_dim_qk;
  spec.softcap = 0.0F;
  spec.alibi = false;
  spec.heads_q = spec.heads_kv * draw.of<int32_t>({1, 2, 3, 8});
  if (!spec.sinks.empty()) spec.sinks.resize(static_cast<size_t>(spec.heads_q), 1.5F);
  SegmentSpec& s = spec.segments[0];
  s.mask = false;
  s.v_is_k = s.v_is_k && spec.head_dim_v <= spec.head_dim_qk;
  limit_work(&spec);
  return spec;
}

FmhaSpec draw_mqa(uint64_t seed, tessera_dtype dtype) {
  Draw draw(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = dtype;
  spec.unnormalized = draw.one_in(5);
  spec.o_dtype = spec.unnormalized || draw.one_in(5) ? TESSERA_F32 : dtype;
  spec.head_dim_qk = draw.of<int32_t>({512, 576});
  spec.head_dim_v = 512;
  spec.heads_kv = 1;
  spec.heads_q = draw.of<int32_t>({1, 2, 7, 8, 16, 24, 64, 64, 96, 128, 128});
  spec.q_lengths.clear();
  const int64_t batch = draw.in(1, 4);
  for (int64_t b = 0; b < batch; ++b) {
    spec.q_lengths.push_back(draw.of<int64_t>({0, 1, 1, 2, 4, draw.in(3, 30), draw.in(40, 150)}));
  }
  spec.packed_q = draw.one_in(3);
  spec.slot_padding = draw.one_in(3) ? draw.in(1, 4) : 0;
  spec.head_major = draw.one_in(3);
  spec.row_padding = draw.of<int64_t>({0, 0, 8, 24});
  spec.lse = !draw.one_in(5);
  const int64_t segments = draw.of<int64_t>({1, 1, 2, 2, 3, TESSERA_MAX_SEGMENTS});
  for (int64_t i = 0; i < segments; ++i) {
    SegmentSpec s = draw_segment(&draw, spec);
    s.layout = draw.of({KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged});
    s.row_padding = draw.of<int64_t>({0, 0, 8, 64});
    s.v_is_k = true;
    s.mask = false;
    if (draw.one_in(3)) s.window_left = draw.of<int64_t>({0, 5, 63, 64, 127, 300, 2100});
    spec.segments.push_back(s);
  }
  if (!spec.unnormalized && draw.one_in(2)) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    for (int32_t h = 0; h < spec.heads_q; ++h) spec.sinks.push_back(draw.of({-kInf, kInf, 0.0F, 1.5F, -30.0F, 90.0F}));
  }
  spec.q_amplitude = draw.of({1.0F, 1.0F, 6.0F, 60.0F});
  if (!spec.unnormalized && draw.one_in(3)) spec.o_rope_dims = draw.of<int32_t>({2, 64, 64, 130, 512});
  limit_work(&spec);
  return spec;
}

FmhaSpec draw_mqa_fp8(uint64_t seed) {
  FmhaSpec spec = draw_mqa(seed, TESSERA_BF16);
  Draw draw(seed + 1);
  const tessera_kv_format format = draw.of({TESSERA_KV_FP8_V4_584, TESSERA_KV_FP8_V32_656});
  spec.head_dim_qk = format == TESSERA_KV_FP8_V4_584 ? 512 : 576;
  spec.q_amplitude = draw.of({0.1F, 1.0F, 6.0F});
  const bool gathered = draw.one_in(2);
  if (gathered) {  // lists of packed or unequal queries are refused
    spec.q_lengths.assign(spec.q_lengths.size(), std::max<int64_t>(spec.q_lengths[0], 1));
    spec.packed_q = false;
    spec.slot_padding = 0;
  }
  for (size_t i = 0; i < spec.segments.size(); ++i) {
    SegmentSpec& s = spec.segments[i];
    if (i > 0 && draw.one_in(3)) continue;  // dense
    s.format = format;
    s.head_major = false;
    s.row_padding = draw.of<int64_t>({0, 0, 1, 3});
    if (format == TESSERA_KV_FP8_V4_584) s.layout = KvLayout::kPaged;
    if (gathered && draw.one_in(2)) {
      if (s.layout == KvLayout::kPacked) s.layout = KvLayout::kBatched;
      s.topk = draw.of<int32_t>({3, 64, 130, 700});
      s.absent_of = draw.of({0, 4});
      s.list_duplicates = draw.one_in(2);
      s.list_lengths = draw.one_in(4);
      // The oracle wants a page for every listed key in reach, even if the token that lists it does not see it.
      s.unlisted_pages = s.poison_masked && s.causal == 0 && s.window_left < 0 && s.window_right < 0;
    }
  }
  limit_work(&spec);
  return spec;
}

}  // namespace tessera::test
