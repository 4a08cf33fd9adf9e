// The CUDA devices that this build has kernels for. Compiled with TESSERA_CUDA only; works where there is no driver.
#pragma once

#include "base/status.h"

namespace tessera {

inline constexpr const char* kNeedsHopper = "a CUDA device of compute capability 9.0 and its driver";

// Whether some device has compute capability 9.0. Asked once per process.
bool has_hopper();

// The largest number of multiprocessors among those devices, 0 if there is none: what workspaces are sized for, so that
// they do not depend on which device is current. Asked once per process.
int most_multiprocessors();

// Multiprocessors of the current device. kUnsupported if it is no Hopper device, kDevice if CUDA refuses.
Result<int> current_multiprocessors();

}  // namespace tessera
