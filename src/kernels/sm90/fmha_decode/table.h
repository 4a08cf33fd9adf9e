// The decode kernels of this build.
#pragma once

#include <span>

#include "kernels/sm90/fmha_decode/decode.h"

namespace tessera::sm90 {

// One file per dtype and head dim.
std::span<const DecodeEntry> decode_hd64_bf16();
std::span<const DecodeEntry> decode_hd64_f16();
std::span<const DecodeEntry> decode_hd128_bf16();
std::span<const DecodeEntry> decode_hd128_f16();
std::span<const DecodeEntry> decode_hd256_bf16();
std::span<const DecodeEntry> decode_hd256_f16();

inline constexpr std::span<const DecodeEntry> (*kDecodeFiles[])() = {
    decode_hd64_bf16, decode_hd64_f16, decode_hd128_bf16, decode_hd128_f16, decode_hd256_bf16, decode_hd256_f16,
};

}  // namespace tessera::sm90
