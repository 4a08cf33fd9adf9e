// The state of a unit's rows (R8), how states are chained, and how rows are finished (R9), for 16 columns and eight
// rows by one warp: lane l holds columns e and e + 8, e = l / 4, of rows 2 q and 2 q + 1, q = l mod 4.
#pragma once

#include <cstdint>

#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/plan.h"
#include "kernels/sm90/fmha_decode/config.h"
#include "kernels/sm90/fmha_decode/softmax_steps.cuh"
#include "kernels/sm90/fmha_decode/units.cuh"
#include "tessera/tessera.h"

namespace tessera::sm90 {

// Eight rows and 16 columns of a state (R8): the lane's two rows and two columns of them. m = -Inf: empty.
struct StatePart {
  float m[2], l[2];
  float o[4];

  __device__ __forceinline__ void clear() {
    m[0] = m[1] = minus_infinity();
    l[0] = l[1] = o[0] = o[1] = o[2] = o[3] = 0.0F;
  }

  // *this := chain(*this, next). An empty side has weight 0 and the other one 1.
  __device__ __forceinline__ void chain(const StatePart& next) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float highest = fmaxf(m[i], next.m[i]);
      const float w = drop_weight(__fsub_rn(highest, m[i]));  // a NaN (both empty) gives 0
      const float w_next = drop_weight(__fsub_rn(highest, next.m[i]));
      l[i] = __fmaf_rn(l[i], w, __fmul_rn(next.l[i], w_next));
      m[i] = highest;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        o[2 * h + i] = __fmaf_rn(o[2 * h + i], w, __fmul_rn(next.o[2 * h + i], w_next));
      }
    }
  }
};

// LSE, row maximum and row sum, where they are wanted.
__device__ __forceinline__ void store_scalars(const DecodeArguments& args, int batch, int token, int64_t head, float m,
                                              float l) {
  const bool empty = m == minus_infinity();
  const auto place = [&](const tessera_row_scalars& to) {
    return to.data + batch * to.stride_batch + token * to.stride_token + head * to.stride_head;
  };
  const float m_log2 = empty ? minus_infinity() : __fsub_rn(m, args.bias);
  if (args.lse.data != nullptr) {
    *place(args.lse) = empty ? minus_infinity() : __fmul_rn(__fadd_rn(soft_log2(l), m_log2), kLn2);
  }
  if (args.row_max.data != nullptr) {
    *place(args.row_max) = m_log2;
  }
  if (args.row_sum.data != nullptr) {
    *place(args.row_sum) = empty ? 0.0F : l;
  }
}

// Which 16 columns and eight rows of a state a lane works on, and which of them it holds.
struct PartOfState {
  int group, eight;
  int e, q;

  // As the lanes of the warp hold them.
  __device__ __forceinline__ PartOfState(int g, int i)
      : group(g), eight(i), e(static_cast<int>(threadIdx.x % 32 / 4)), q(static_cast<int>(threadIdx.x % 4)) {}
};

// Where the lane's rows of a part go.
struct RowPlaces {
  int token[2];  // seqlen_q and more: there is no such row
  int64_t head[2];
  int64_t first[2];  // of O, elements: of the lane's first column

  RowPlaces() = default;
  __device__ __forceinline__ RowPlaces(const DecodeArguments& args, const Unit& unit, const PartOfState& at) {
    const auto in_group = static_cast<int>(args.group.value);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = unit.first_row + 8 * at.eight + 2 * at.q + i;
      token[i] = divide(row, args.group);
      head[i] = unit.kv_head * in_group + row - token[i] * in_group;
      first[i] = unit.batch * args.o_strides.batch + token[i] * args.o_strides.token + head[i] * args.o_strides.head +
                 at.group * kDecodeColumnGroup + at.e;
    }
  }
};

__device__ __forceinline__ void store_if(bool wanted, float* to, float value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.f32 [%1], %2;\n}" ::"r"(wanted ? 1 : 0), "l"(to),
               "f"(value)
               : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, uint16_t* to, uint16_t value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.u16 [%1], %2;\n}" ::"r"(wanted ? 1 : 0), "l"(to),
               "h"(value)
               : "memory");
}

// R9 of a lane's part; nothing is stored unless `wanted`.
template <bool kBf16>
__device__ __forceinline__ void finish_rows(const DecodeArguments& args, const Unit& unit, const PartOfState& at,
                                            const RowPlaces& places, const StatePart& part, bool wanted = true) {
  bool exists[2];
  bool none[2];  // out = +0
  float rescale[2];
  float l[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    exists[i] = wanted && places.token[i] < args.seqlen_q;
    none[i] = part.m[i] == minus_infinity();
    rescale[i] = 1.0F;
    l[i] = part.l[i];
  }
  if (args.sinks != nullptr) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!exists[i]) {
        continue;
      }
      const float sink = __fmul_rn(args.sinks[places.head[i]], kLog2E);
      none[i] |= sink == -minus_infinity();
      if (!none[i] && sink != minus_infinity()) {
        const float highest = fmaxf(part.m[i], ceilf(sink));
        rescale[i] = drop_weight(__fsub_rn(highest, part.m[i]));
        l[i] = __fadd_rn(__fmul_rn(l[i], rescale[i]), soft_exp2(__fadd_rn(__fsub_rn(sink, highest), args.bias)));
      }
    }
  }
  // One warp does this at the end of everything, after another one has brought the instructions (with nothing wanted):
  // both rows at once, and no branch that depends on what is stored.
  const int column = at.group * kDecodeColumnGroup + at.e;
  float x[2][2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float inverse = args.unnormalized != 0 ? 1.0F : __fdiv_rn(1.0F, l[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      x[i][h] = none[i] ? 0.0F : __fmul_rn(__fmul_rn(part.o[2 * h + i], rescale[i]), inverse);
    }
  }
  if (args.wide_output != 0) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float value = __fadd_rn(x[n / 2][n % 2], 0.0F);  // -0 as +0
      store_if(exists[n / 2] && column + 8 * (n % 2) < args.dims,
               static_cast<float*>(args.o) + places.first[n / 2] + 8 * (n % 2), value);
    }
  } else {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const auto bits = static_cast<uint16_t>(round_pair<kElementOf<kBf16>>(x[n / 2][n % 2], 0.0F));
      store_if(exists[n / 2] && column + 8 * (n % 2) < args.dims,
               static_cast<uint16_t*>(args.o) + places.first[n / 2] + 8 * (n % 2),
               bits == 0x8000U ? uint16_t{0} : bits);
    }
  }
  const bool scalars = args.lse.data != nullptr || args.row_max.data != nullptr || args.row_sum.data != nullptr;
  if (scalars && at.group == 0 && at.e == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (exists[i]) {
        store_scalars(args, unit.batch, places.token[i], places.head[i], part.m[i], part.l[i]);
      }
    }
  }
}

}  // namespace tessera::sm90
