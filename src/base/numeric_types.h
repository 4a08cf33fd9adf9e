// Conversions between fp32 and the 16-bit types, as the contract uses them (R5, R9): round to nearest, ties to even,
// subnormals kept, overflow to infinity. NaN stays NaN: sign and the upper payload bits are kept and the quiet bit is
// set (what the x86 F16C instructions give). All functions take and return raw bits of the 16-bit type.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace tessera {

TESSERA_HD float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000U) << 16;
  const uint32_t body = static_cast<uint32_t>(h & 0x7fffU) << 13;
  // Exponent field 31 (Inf, NaN) has to become 255; a NaN is made quiet.
  if (body >= 0x0f800000U) {
    const uint32_t quiet = body > 0x0f800000U ? 0x00400000U : 0U;
    return float_of(sign | 0x70000000U | body | quiet);
  }
  // Reading the fields as fp32 gives the value times 2^-112; the product is exact, subnormals included.
  return float_of(sign | bits_of(mul_rn(float_of(body), 0x1p112F)));
}

TESSERA_HD uint16_t f32_to_f16(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t sign = (u >> 16) & 0x8000U;
  const uint32_t body = u & 0x7fffffffU;
  if (body > 0x7f800000U) {
    return static_cast<uint16_t>(sign | 0x7e00U | ((body >> 13) & 0x1ffU));
  }
  if (body >= 0x477ff000U) {  // from 65520 on, nearest is infinity
    return static_cast<uint16_t>(sign | 0x7c00U);
  }
  if (body < 0x38800000U) {
    // Below 2^-14: adding 0.5 aligns the value to the fp16 subnormal unit 2^-24, and the addition rounds to even.
    const uint32_t aligned = bits_of(add_rn(float_of(body), 0.5F)) - 0x3f000000U;
    return static_cast<uint16_t>(sign | aligned);
  }
  const uint32_t odd = (body >> 13) & 1U;
  return static_cast<uint16_t>(sign | ((body + 0xc8000fffU + odd) >> 13));
}

TESSERA_HD float bf16_to_f32(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  return float_of((u & 0x7fffffffU) > 0x7f800000U ? u | 0x00400000U : u);
}

TESSERA_HD uint16_t f32_to_bf16(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<uint16_t>((u >> 16) | 0x0040U);
  }
  return static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}

}  // namespace tessera
