// Linux gives a process the AMX tile state only on request.
#pragma once

namespace tessera::gemm {

// Whether this process may use AMX tiles. The first call asks the kernel (arch_prctl, ARCH_REQ_XCOMP_PERM); the grant
// holds for all threads, and from then on sigaltstack() refuses stacks too small for the tile state.
bool amx_permitted();

}  // namespace tessera::gemm
