// R2 at run time, and the score modifiers of R1, on a consumer's accumulator fragment: only for granules that some row
// does not see whole, and for those whose scores are all to be looked at.
#pragma once

#include "contract/tanh.h"
#include "kernels/sm90/fmha_prefill/ragged.cuh"
#include "kernels/sm90/softmax.cuh"

namespace tessera::sm90 {

// One granule of a consumer as thread t of it sees it.
struct RaggedGranule {
  RaggedSlot slot;
  int first_row;  // of the thread's two, in the sequence; the other is 8 further
  int first_key;  // of the thread's first element of S
};

// s[i] belongs to row i / 2 % 2 and key first_key + i / 4 * 8 + i % 2.
__device__ __forceinline__ constexpr int column_of(int i) {
  return i / 4 * 8 + i % 2;
}

// The scores move on by kCount places, the first ones to the end: a rolled loop cannot index registers.
template <int kCount, int kScores>
__device__ __forceinline__ void rotate(float (&s)[kScores]) {
  float first[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    first[i] = s[i];
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] = i + kCount < kScores ? s[i + kCount < kScores ? i + kCount : 0] : first[(i + kCount) % kScores % kCount];
  }
}

// Calls put(h, key, score) for every score, eight at a time: it is there once, and what it needs of a row is found
// anew each time. O and S leave few registers.
template <int kScores, class Put>
__device__ __forceinline__ void for_scores(float (&s)[kScores], int first_key, const Put& put) {
  constexpr int kAtOnce = 8;
#pragma unroll 1
  for (int n = 0; n < kScores / kAtOnce; ++n) {
#pragma unroll
    for (int h = 0; h < kRowsPerThread; ++h) {
      put(h, first_key + n * (kAtOnce / 4 * 8), s[2 * h], s[2 * h + 1], s[4 + 2 * h], s[4 + 2 * h + 1]);
    }
    rotate<kAtOnce>(s);
  }
}

// Softcap and ALiBi (R1), which make the scores natural.
template <int kScores>
__device__ __forceinline__ void modify_scores(const PrefillArguments& args, float (&s)[kScores],
                                              const RaggedGranule& g) {
  const RaggedArguments& r = args.ragged;
  for_scores(s, g.first_key, [&](int h, int key, float& a, float& b, float& c, float& d) {
    const float slope = r.alibi_slopes == nullptr ? 0.0F : r.alibi_slopes[g.slot.get(RaggedSlot::kHead)];
    const int64_t distance = key - (int64_t{g.slot.get(RaggedSlot::kPosition0)} + g.first_row + 8 * h);
    const auto modify = [&](float& score, int column) {
      float x = mul_rn(score, r.softmax_scale);
      if (r.softcap != 0.0F) {
        x = mul_rn(r.softcap, soft_tanh(div_rn(x, r.softcap)));
      }
      if (r.alibi_slopes != nullptr) {
        x = fma_rn(slope, static_cast<float>(distance + column), x);
      }
      score = x;
    };
    modify(a, 0);
    modify(b, 1);
    modify(c, 8);
    modify(d, 9);
  });
}

// Custom bits (R2), which are read for keys that the row sees otherwise only.
template <int kScores>
__device__ __forceinline__ void mask_bits(const PrefillArguments& args, float (&s)[kScores], const RaggedGranule& g) {
  const tessera_bit_mask& mask = args.ragged.mask;
  for_scores(s, g.first_key, [&](int h, int key, float& a, float& b, float& c, float& d) {
    const int i = min(g.first_row + 8 * h, g.slot.get(RaggedSlot::kTokens) - 1);  // no bits behind the sequence
    const RaggedSight sight = g.slot.sight(args.ragged);
    const int keys = g.slot.get(RaggedSlot::kKeys);
    const int covered = mask.num_keys < 0 || mask.num_keys > keys ? keys : static_cast<int>(mask.num_keys);
    // Bits of keys [begin, end) are looked at.
    const int begin = max(sight.begin(i), keys - covered);
    const int end = sight.end(i);
    const uint8_t* const bits = mask.data + g.slot.get(RaggedSlot::kBatch) * mask.stride_batch +
                                g.slot.get(RaggedSlot::kHead) * mask.stride_head + i * mask.stride_row;
    const auto hide = [&](float& score, int column) {
      const int bit = key + column - (keys - covered);
      if (key + column >= begin && key + column < end && (bits[bit >> 3] >> (bit & 7) & 1) == 0) {
        score = minus_infinity();
      }
    };
    hide(a, 0);
    hide(b, 1);
    hide(c, 8);
    hide(d, 9);
  });
}

// Keys that the rows do not see become -Inf.
template <int kScores>
__device__ __forceinline__ void mask_ends(const PrefillArguments& args, float (&s)[kScores], const RaggedGranule& g) {
  const RaggedSight sight = g.slot.sight(args.ragged);
  const int limit[kRowsPerThread] = {sight.end(g.first_row) - g.first_key, sight.end(g.first_row + 8) - g.first_key};
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] = column_of(i) < limit[i / 2 % 2] ? s[i] : minus_infinity();
  }
}
template <int kScores>
__device__ __forceinline__ void mask_begins(const PrefillArguments& args, float (&s)[kScores], const RaggedGranule& g) {
  const RaggedSight sight = g.slot.sight(args.ragged);
  const int limit[kRowsPerThread] = {sight.begin(g.first_row) - g.first_key,
                                     sight.begin(g.first_row + 8) - g.first_key};
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] = column_of(i) >= limit[i / 2 % 2] ? s[i] : minus_infinity();
  }
}

// Bits of a row's scores, of which a thread holds two of every eight keys: those of keys before `limit`, counted from
// the thread's first one.
__device__ __forceinline__ uint32_t bits_before(int limit) {
  const int keys = max(0, limit);
  const int n = keys / 8 * 2 + min(keys % 8, 2);
  return n >= 32 ? 0xffffffffU : (1U << n) - 1U;
}
// Such bits of what a thread's two rows see of a granule.
struct SeenKeys {
  uint32_t bits[kRowsPerThread];
};
__device__ __forceinline__ SeenKeys seen_keys(const PrefillArguments& args, const RaggedGranule& g) {
  const RaggedSight sight = g.slot.sight(args.ragged);
  const auto seen = [&](int row) {
    return bits_before(sight.end(row) - g.first_key) & ~bits_before(sight.begin(row) - g.first_key);
  };
  return {{seen(g.first_row), seen(g.first_row + 8)}};
}
// As mask_ends() and mask_begins() together. ptxas has bits as predicates seven at a time.
template <int kScores>
__device__ __forceinline__ void mask_unseen(float (&s)[kScores], const SeenKeys& seen) {
  static_assert(kScores <= 64, "a row's scores must fit the bits of a word");
#pragma unroll
  for (int h = 0; h < kRowsPerThread; ++h) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      float& score = s[i / 2 * 4 + 2 * h + i % 2];
      score = (seen.bits[h] >> i & 1U) != 0 ? score : minus_infinity();
    }
  }
}

// Keys of boxes without a page: the fragment's columns of eight keys never cross a box.
template <int kScores>
__device__ __forceinline__ void mask_absent(const PrefillArguments& args, float (&s)[kScores], uint32_t absent) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] = (absent >> (i / 4 * 8 >> args.ragged.box_shift) & 1U) == 0 ? s[i] : minus_infinity();
  }
}

}  // namespace tessera::sm90
