#include "kernels/cpu/row_ops/fp8_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "contract/fp8_rows.h"
#include "kernels/cpu/fp_environment.h"

namespace tessera::row_ops {
namespace {

// Codes of one tile; returns the scale as UE8M0.
uint8_t round_tile(const uint16_t* x, int32_t dims, int32_t smallest_scale, uint8_t* codes) {
  float largest = 0.0F;
  for (int32_t d = 0; d < dims; ++d) largest = std::max(largest, std::fabs(bf16_to_f32(x[d])));
  const int32_t e = fp8_scale_exponent(largest, smallest_scale);
  const float inverse = ue8m0_to_f32(static_cast<uint8_t>(127 - e));
  for (int32_t d = 0; d < dims; ++d) codes[d] = f32_to_e4m3(mul_rn(bf16_to_f32(x[d]), inverse));
  return static_cast<uint8_t>(127 + e);
}

}  // namespace

void run_fp8_rows(const Fp8RowsTask& task) {
  const FpEnvironment environment;
  const Fp8Format format = fp8_format(task.format);
  const int32_t tiles = format.coded_dims / format.tile_dims;
  const bool footer = format.footer_bytes > 0;
  for (int64_t r = 0; r < task.rows; ++r) {
    const int64_t slot = task.slots != nullptr ? task.slots[r] : r;
    if (slot < 0) continue;
    const uint16_t* const x = task.x + r * task.stride_x;
    uint8_t* const page = task.cache + slot / task.page_size * task.stride_page;
    const int64_t row = slot % task.page_size;
    uint8_t* const codes = page + row * format.row_bytes;
    uint8_t* const scales =
        footer ? page + task.page_size * format.row_bytes + row * format.footer_bytes : codes + format.coded_dims;
    uint8_t* const values = codes + format.coded_dims + (footer ? 0 : tiles * 4);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int32_t first = tile * format.tile_dims;
      const uint8_t scale = round_tile(x + first, format.tile_dims, task.smallest_scale, codes + first);
      const float widened = ue8m0_to_f32(scale);
      if (footer) {
        scales[tile] = scale;
      } else {
        std::memcpy(scales + tile * 4, &widened, 4);
      }
    }
    if (footer) scales[tiles] = 0;
    std::memcpy(values, x + format.coded_dims,
                static_cast<size_t>(format.head_dim_qk - format.coded_dims) * sizeof(uint16_t));
  }
}

}  // namespace tessera::row_ops
