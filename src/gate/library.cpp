#include "gate/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace tessera {
namespace {

template <class Function>
bool find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(handle, name));
  return *function != nullptr;
}

const char* loader_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

}  // namespace

const Library& this_library() {
  static const Library library = {"this build",      &tessera_fmha_select,      &tessera_fmha_workspace_size,
                                  &tessera_fmha_run, &tessera_fmha_contract_id, &tessera_contract_version};
  return library;
}

Result<std::shared_ptr<const Library>> load_library(const std::string& path) {
  // Without a slash the loader would search its own folders, and could answer with a library of the same name.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status(Code::kIo,
                  fmt::format("library: got {} ({}); allowed a libtessera.so for this machine; check the path", path,
                              loader_error()));
  }
  auto library = std::make_shared<Library>();
  library->name = path;
  if (!find(handle, "tessera_fmha_select", &library->fmha_select) ||
      !find(handle, "tessera_fmha_workspace_size", &library->fmha_workspace_size) ||
      !find(handle, "tessera_fmha_run", &library->fmha_run) ||
      !find(handle, "tessera_fmha_contract_id", &library->fmha_contract_id) ||
      !find(handle, "tessera_contract_version", &library->contract_version)) {
    return Status(Code::kBadFile, fmt::format("library: got {} ({}); allowed a shared object with the functions of "
                                              "tessera/tessera.h; build the target tessera_shared",
                                              path, loader_error()));
  }
  return std::shared_ptr<const Library>(std::move(library));
}

}  // namespace tessera
