#include "base/sha256_blocks.h"

#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tessera {
namespace {

uint32_t load_be32(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void portable_block(uint32_t* state, const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t) w[t] = load_be32(block + 4 * t);
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choose = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choose + kSha256Round[t] + w[t];
    const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += add[i];
}

#if defined(__x86_64__)

// The instructions keep the state as two vectors, ABEF and CDGH (highest lane first), and do two rounds at a time.
__attribute__((target("sha,sse4.1"))) void shani_blocks(uint32_t* state, const uint8_t* data, size_t count) {
  const __m128i byte_swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  const auto lane = [state](int i) { return static_cast<int>(state[i]); };
  __m128i abef = _mm_set_epi32(lane(0), lane(1), lane(4), lane(5));
  __m128i cdgh = _mm_set_epi32(lane(2), lane(3), lane(6), lane(7));
  for (; count > 0; --count, data += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];  // the last sixteen words of the message schedule; group g of four words is w[g % 4]
    for (int g = 0; g < 16; ++g) {
      __m128i& now = w[g & 3];
      if (g < 4) {
        now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * g)), byte_swap);
      } else {
        // w[t] = s1(w[t-2]) + w[t-7] + s0(w[t-15]) + w[t-16]
        const __m128i last = w[(g + 3) & 3];
        const __m128i minus7 = _mm_alignr_epi8(last, w[(g + 2) & 3], 4);
        now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, w[(g + 1) & 3]), minus7), last);
      }
      const __m128i* k = reinterpret_cast<const __m128i*>(kSha256Round.data()) + g;
      const __m128i wk = _mm_add_epi32(now, _mm_load_si128(k));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) std::array<uint32_t, 8> out;  // F E B A, H G D C
  _mm_store_si128(reinterpret_cast<__m128i*>(out.data()), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(out.data() + 4), cdgh);
  constexpr std::array<size_t, 8> kFrom = {3, 2, 7, 6, 1, 0, 5, 4};
  for (size_t i = 0; i < 8; ++i) state[i] = out[kFrom[i]];
}

bool cpu_has_sha() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_SSE4_1) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}

#endif

}  // namespace

void sha256_blocks_portable(uint32_t* state, const uint8_t* data, size_t count) {
  for (; count > 0; --count, data += 64) portable_block(state, data);
}

Sha256Blocks sha256_blocks_shani() {
#if defined(__x86_64__)
  if (cpu_has_sha()) return shani_blocks;
#endif
  return nullptr;
}

}  // namespace tessera
