#include "kernels/cpu/gemm/amx_permission.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tessera::gemm {

bool amx_permitted() {
#if defined(__linux__) && defined(__x86_64__)
  // arch/x86/include/uapi/asm/prctl.h; feature 18 is XTILEDATA.
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
#else
  return false;
#endif
}

}  // namespace tessera::gemm
