// Instruction sets that this machine and its operating system offer to the CPU kernels.
#pragma once

namespace tessera {

// A flag covers everything that a translation unit of that name is compiled with.
struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA, F16C, ymm state saved by the system
  bool avx512 = false;       // avx2 and AVX-512 F, BW, DQ, VL, zmm state saved by the system
  bool avx512_vnni = false;  // avx512 and AVX512_VNNI
  bool avx_vnni = false;     // avx2 and AVX-VNNI
  bool amx = false;  // AMX TILE, INT8 and BF16, tile state enabled by the system (a process still has to request it)
};

// The same answer on every call; the processor is asked once per process.
const CpuFeatures& cpu_features();

}  // namespace tessera
