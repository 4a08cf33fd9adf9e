// The decode kernels of this build.
#pragma once

#include <span>

#include "kernels/sm90/fmha_decode/decode.h"

namespace tessera::sm90 {

// One file per dtype, head dim and layout of K and V.
std::span<const DecodeEntry> decode_hd128_bf16();
std::span<const DecodeEntry> decode_hd128_f16();
std::span<const DecodeEntry> decode_hd128_bf16_paged();
std::span<const DecodeEntry> decode_hd128_f16_paged();
std::span<const DecodeEntry> decode_hd64_bf16();
std::span<const DecodeEntry> decode_hd64_f16();
std::span<const DecodeEntry> decode_hd64_bf16_paged();
std::span<const DecodeEntry> decode_hd64_f16_paged();
std::span<const DecodeEntry> decode_hd256_bf16();
std::span<const DecodeEntry> decode_hd256_f16();
std::span<const DecodeEntry> decode_hd256_bf16_paged();
std::span<const DecodeEntry> decode_hd256_f16_paged();

inline constexpr std::span<const DecodeEntry> (*kDecodeFiles[])() = {
    decode_hd128_bf16, decode_hd128_f16, decode_hd128_bf16_paged, decode_hd128_f16_paged,
    decode_hd64_bf16,  decode_hd64_f16,  decode_hd64_bf16_paged,  decode_hd64_f16_paged,
    decode_hd256_bf16, decode_hd256_f16, decode_hd256_bf16_paged, decode_hd256_f16_paged,
};

}  // namespace tessera::sm90
