#include "sm80/draw.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <random>

namespace tessera::test {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool once_in(int64_t n) { return between(1, n) == 1; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + between(0, static_cast<int64_t>(values.size()) - 1));
  }
  uint64_t bits() { return random_(); }

 private:
  std::mt19937_64 random_;
};

int64_t draw_keys(Dice& dice) {
  switch (dice.between(0, 7)) {
    case 0:
      return 0;
    case 1:
      return dice.pick<int64_t>({63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2049});
    case 2:
      return dice.between(900, 2300);
    case 3:
    case 4:
      return dice.between(100, 400);
    default:
      return dice.between(1, 90);
  }
}

SegmentSpec draw_segment(Dice& dice, const FmhaSpec& spec) {
  SegmentSpec s;
  for (size_t b = 0; b < spec.q_lengths.size(); ++b) s.lengths.push_back(draw_keys(dice));
  s.layout = dice.pick({KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged, KvLayout::kPaged});
  s.page_size = dice.pick<int32_t>({1, 2, 7, 16, 48, 64, 128, 256, 300});
  s.page_seed = dice.bits();
  s.head_major = dice.once_in(3);
  s.row_padding = dice.once_in(3) ? dice.pick<int64_t>({1, 2, 5, 8, 16}) : 0;
  if (dice.once_in(4)) s.bound = *std::max_element(s.lengths.begin(), s.lengths.end()) + dice.between(0, 300);
  s.v_is_k = spec.head_dim_v <= spec.head_dim_qk && dice.once_in(6);
  s.poison_masked = dice.once_in(2);
  s.unlisted_pages = s.poison_masked;
  if (dice.once_in(5)) {
    s.compress_ratio = dice.pick<int32_t>({1, 2, 4, 100});
  } else {
    s.causal = dice.once_in(2) ? 1 : 0;
    if (dice.once_in(3)) s.window_left = dice.pick<int64_t>({0, 1, 17, 64, 127, 128, 1100, int64_t{1} << 61});
    if (dice.once_in(5)) s.window_right = dice.pick<int64_t>({0, 1, 40, int64_t{1} << 61});
  }
  if (dice.once_in(3)) {
    for (size_t b = 0; b < spec.q_lengths.size(); ++b) {
      s.q_positions.push_back(static_cast<int32_t>(dice.between(-4, s.lengths[b] + 6)));
    }
  }
  if (dice.once_in(4)) {
    s.mask = true;
    s.mask_per_head = dice.once_in(2);
    s.mask_keys = dice.once_in(2) ? -1 : dice.between(0, 150);
    s.mask_visible_of_8 = dice.pick({1, 4, 7});
    s.unlisted_pages = false;  // pages whose keys only custom bits hide still have to be listed
  }
  return s;
}

}  // namespace

FmhaSpec draw_device_spec(uint64_t seed) {
  Dice dice(seed);
  FmhaSpec spec;
  spec.seed = seed;
  spec.dtype = dice.pick({TESSERA_F16, TESSERA_BF16});
  spec.unnormalized = dice.once_in(4);
  spec.o_dtype = spec.unnormalized || dice.once_in(3) ? TESSERA_F32 : spec.dtype;
  spec.head_dim_qk = dice.pick<int32_t>({1, 7, 24, 64, 64, 80, 96, 128, 128, 128, 160, 192, 192, 256});
  spec.head_dim_v = dice.once_in(2) ? spec.head_dim_qk : dice.pick<int32_t>({5, 32, 64, 72, 128, 128, 130, 200, 256});
  spec.heads_kv = static_cast<int32_t>(dice.between(1, 3));
  spec.heads_q = spec.heads_kv * dice.pick<int32_t>({1, 1, 2, 3, 4, 8, 20});
  spec.q_lengths.clear();
  for (int64_t b = dice.between(1, 4); b > 0; --b) {
    spec.q_lengths.push_back(dice.once_in(8) ? 0 : dice.once_in(2) ? 1 : dice.between(2, 40));
  }
  spec.packed_q = dice.once_in(2);
  spec.slot_padding = dice.once_in(3) ? dice.between(1, 4) : 0;
  spec.head_major = dice.once_in(3);
  spec.row_padding = dice.once_in(3) ? dice.pick<int64_t>({1, 2, 6, 8}) : 0;
  spec.lse = !dice.once_in(5);
  const bool ranged = spec.unnormalized && dice.once_in(2);
  const int64_t segments = ranged || dice.once_in(2) ? 1 : dice.between(2, TESSERA_MAX_SEGMENTS);
  for (int64_t i = 0; i < segments; ++i) spec.segments.push_back(draw_segment(dice, spec));
  if (ranged) {
    spec.chunk_begin = dice.between(0, 2);
    spec.chunk_end = spec.chunk_begin == 0 ? dice.between(1, 3) : spec.chunk_begin + 1;
  }
  if (dice.once_in(4)) spec.softcap = dice.pick({1.0F, 20.0F, 50.0F});
  spec.alibi = dice.once_in(5);
  if (!spec.unnormalized && dice.once_in(3)) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    for (int32_t h = 0; h < spec.heads_q; ++h)
      spec.sinks.push_back(dice.pick({-kInf, kInf, 0.0F, 1.5F, -30.0F, 90.0F}));
  }
  spec.q_amplitude = dice.pick({1.0F, 1.0F, 6.0F, 60.0F});
  if (dice.once_in(4)) spec.scale = dice.pick({0.05F, 1.0F, 3.0F});
  return spec;
}

}  // namespace tessera::test
