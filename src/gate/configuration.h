// What is compared: a build and the choices it is run with, written "library=PATH,kernel=NAME,gemm=NAME,threads=N,
// device=cpu|cuda" in any order, each at most once, all optional.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "gate/library.h"

namespace tessera {

struct Configuration {
  std::string text = {};                        // as given; "" is this build as it is
  std::shared_ptr<const Library> library = {};  // empty: this build
  std::string kernel = {};                      // of attention; empty: the registry's choice
  std::string gemm = {};                        // of matrix products; engine only
  int32_t threads = 0;                          // 0: as loaded (engine), one (kernels)
  tessera_device device = TESSERA_DEVICE_CPU;   // kernels only

  const Library& calls() const { return library != nullptr ? *library : this_library(); }
  std::string label() const { return text.empty() ? "this build" : text; }
};

// Loads the library, if one is named.
Result<Configuration> parse_configuration(const std::string& text);

// From now on the engine runs so, until the next call. kUnsupported for device=cuda: the engine computes on the CPU.
// The attention of another library takes the place of this one's; matrix products stay, because packed weights belong
// to the build that packed them.
Status apply(const Configuration& configuration, Engine& engine);

}  // namespace tessera
