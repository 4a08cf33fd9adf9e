// The decode kernels of this build.
#pragma once

#include <span>

#include "kernels/sm90/fmha_decode/decode.h"

namespace tessera::sm90 {

// One file per dtype and head dim, and as many for modified scores, for several segments (but for 192/128, which has
// too few registers) and for both.
std::span<const DecodeEntry> decode_hd64_bf16();
std::span<const DecodeEntry> decode_hd64_f16();
std::span<const DecodeEntry> decode_hd128_bf16();
std::span<const DecodeEntry> decode_hd128_f16();
std::span<const DecodeEntry> decode_hd192_bf16();
std::span<const DecodeEntry> decode_hd192_f16();
std::span<const DecodeEntry> decode_hd256_bf16();
std::span<const DecodeEntry> decode_hd256_f16();
std::span<const DecodeEntry> decode_hd512_bf16();
std::span<const DecodeEntry> decode_hd512_f16();
std::span<const DecodeEntry> decode_hd576_bf16();
std::span<const DecodeEntry> decode_hd576_f16();
std::span<const DecodeEntry> decode_hd64_bf16_modified();
std::span<const DecodeEntry> decode_hd64_f16_modified();
std::span<const DecodeEntry> decode_hd128_bf16_modified();
std::span<const DecodeEntry> decode_hd128_f16_modified();
std::span<const DecodeEntry> decode_hd192_bf16_modified();
std::span<const DecodeEntry> decode_hd192_f16_modified();
std::span<const DecodeEntry> decode_hd256_bf16_modified();
std::span<const DecodeEntry> decode_hd256_f16_modified();
std::span<const DecodeEntry> decode_hd512_bf16_modified();
std::span<const DecodeEntry> decode_hd512_f16_modified();

std::span<const DecodeEntry> decode_hd64_bf16_segments();
std::span<const DecodeEntry> decode_hd64_f16_segments();
std::span<const DecodeEntry> decode_hd128_bf16_segments();
std::span<const DecodeEntry> decode_hd128_f16_segments();
std::span<const DecodeEntry> decode_hd256_bf16_segments();
std::span<const DecodeEntry> decode_hd256_f16_segments();
std::span<const DecodeEntry> decode_hd512_bf16_segments();
std::span<const DecodeEntry> decode_hd512_f16_segments();
std::span<const DecodeEntry> decode_hd576_bf16_segments();
std::span<const DecodeEntry> decode_hd576_f16_segments();
std::span<const DecodeEntry> decode_hd64_bf16_segments_modified();
std::span<const DecodeEntry> decode_hd64_f16_segments_modified();
std::span<const DecodeEntry> decode_hd128_bf16_segments_modified();
std::span<const DecodeEntry> decode_hd128_f16_segments_modified();
std::span<const DecodeEntry> decode_hd192_bf16_segments_modified();
std::span<const DecodeEntry> decode_hd192_f16_segments_modified();
std::span<const DecodeEntry> decode_hd256_bf16_segments_modified();
std::span<const DecodeEntry> decode_hd256_f16_segments_modified();
std::span<const DecodeEntry> decode_hd512_bf16_segments_modified();
std::span<const DecodeEntry> decode_hd512_f16_segments_modified();

// The first kernel that fits takes a problem: smaller ones before larger ones, those for modified scores behind those
// without.
inline constexpr std::span<const DecodeEntry> (*kDecodeFiles[])() = {
    decode_hd64_bf16,
    decode_hd64_f16,
    decode_hd128_bf16,
    decode_hd128_f16,
    decode_hd192_bf16,
    decode_hd192_f16,
    decode_hd256_bf16,
    decode_hd256_f16,
    decode_hd512_bf16,
    decode_hd512_f16,
    decode_hd576_bf16,
    decode_hd576_f16,
    decode_hd64_bf16_modified,
    decode_hd64_f16_modified,
    decode_hd128_bf16_modified,
    decode_hd128_f16_modified,
    decode_hd192_bf16_modified,
    decode_hd192_f16_modified,
    decode_hd256_bf16_modified,
    decode_hd256_f16_modified,
    decode_hd512_bf16_modified,
    decode_hd512_f16_modified,
    decode_hd64_bf16_segments,
    decode_hd64_f16_segments,
    decode_hd128_bf16_segments,
    decode_hd128_f16_segments,
    decode_hd256_bf16_segments,
    decode_hd256_f16_segments,
    decode_hd512_bf16_segments,
    decode_hd512_f16_segments,
    decode_hd576_bf16_segments,
    decode_hd576_f16_segments,
    decode_hd64_bf16_segments_modified,
    decode_hd64_f16_segments_modified,
    decode_hd128_bf16_segments_modified,
    decode_hd128_f16_segments_modified,
    decode_hd192_bf16_segments_modified,
    decode_hd192_f16_segments_modified,
    decode_hd256_bf16_segments_modified,
    decode_hd256_f16_segments_modified,
    decode_hd512_bf16_segments_modified,
    decode_hd512_f16_segments_modified,
};

}  // namespace tessera::sm90
