// A build of the library, called through its C interface: the one that this program is linked with, or a shared object
// loaded beside it. Gates compare two of them in one process.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

struct Library {
  std::string name;  // "this build" or the path
  decltype(&tessera_fmha_select) fmha_select = nullptr;
  decltype(&tessera_fmha_workspace_size) fmha_workspace_size = nullptr;
  decltype(&tessera_fmha_run) fmha_run = nullptr;
  decltype(&tessera_fmha_contract_id) fmha_contract_id = nullptr;
  decltype(&tessera_contract_version) contract_version = nullptr;
};

// Lives as long as the process.
const Library& this_library();

// kIo when the file cannot be loaded, kBadFile when it lacks a function of tessera.h. The shared object stays loaded
// (CUDA's runtime inside it does not survive an unload). Its code runs in this process: load only what you built.
Result<std::shared_ptr<const Library>> load_library(const std::string& path);

}  // namespace tessera
