#include "kernels/cpu/fmha/explain.h"

#include <fmt/format.h>

#include "kernels/cpu/fmha/schedule.h"

namespace tessera {

std::string explain_cpu_fmha(const tessera_fmha_params& params) {
  const FmhaSchedule s = make_fmha_schedule(params, 1, nullptr);
  std::string text = fmt::format(
      "tiles: {} rows (query token x head of one K/V head) by granules of {} keys\n"
      "tasks: {} blocks of rows{}\n"
      "K and V: {}\n"
      "scratch per thread: {} bytes\n",
      s.block_rows, s.granule, s.blocks, s.split ? fmt::format(" x {} units of {} chunks", s.units, s.unit_chunks) : "",
      s.block_rows <= kFmhaDirectRows ? "read in place" : "repacked to fp32 once per block and granule",
      s.scratch.bytes);
  if (s.split) {
    text += "order: the units of a block are chained in ascending order by whichever thread combines it (R8)\n";
  }
  return text;
}

}  // namespace tessera
