#include "gate/configuration.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

namespace tessera {
namespace {

constexpr int32_t kMostThreads = 1024;

Status set_key(const std::string& key, const std::string& value, Configuration* c) {
  if (key == "library") {
    Result<std::shared_ptr<const Library>> library = load_library(value);
    TESSERA_RETURN_IF_ERROR(library.status());
    c->library = library.value();
    return {};
  }
  if (key == "kernel" || key == "gemm") {
    (key == "kernel" ? c->kernel : c->gemm) = value;
    return {};
  }
  if (key == "threads") {
    const char* const end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, c->threads);
    if (error != std::errc() || stop != end || c->threads < 1 || c->threads > kMostThreads) {
      return Status(Code::kInvalidArgument,
                    fmt::format("threads: got '{}'; allowed a whole number in 1..{}", value, kMostThreads));
    }
    return {};
  }
  if (key == "device") {
    if (value != "cpu" && value != "cuda") {
      return Status(Code::kInvalidArgument, fmt::format("device: got '{}'; allowed cpu, cuda", value));
    }
    c->device = value == "cpu" ? TESSERA_DEVICE_CPU : TESSERA_DEVICE_CUDA;
    return {};
  }
  return Status(Code::kInvalidArgument,
                fmt::format("configuration: got '{}'; allowed library=, kernel=, gemm=, threads=, device=", key));
}

}  // namespace

Result<Configuration> parse_configuration(const std::string& text) {
  Configuration c;
  c.text = text;
  std::set<std::string> seen;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t equal = item.find('=');
    if (equal == std::string::npos || equal + 1 == item.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("configuration: got '{}'; allowed key=value items joined by commas", item));
    }
    const std::string key = item.substr(0, equal);
    if (!seen.insert(key).second) {
      return Status(Code::kInvalidArgument, fmt::format("configuration: got '{}' twice; allowed once", key));
    }
    TESSERA_RETURN_IF_ERROR(set_key(key, item.substr(equal + 1), &c));
    begin = end + 1;
  }
  return c;
}

Status apply(const Configuration& c, Engine& engine) {
  if (c.device == TESSERA_DEVICE_CUDA) {
    return Status(Code::kUnsupported,
                  "device: got cuda with a model; allowed cpu: the engine of this build computes on the CPU; compare "
                  "kernels on the GPU with --a and --b");
  }
  if (c.threads != 0) {
    engine.set_threads(c.threads);
  }
  engine.set_kernels(c.kernel, c.gemm);
  const Library& library = c.calls();
  engine.set_attention({library.fmha_workspace_size, library.fmha_run, library.fmha_contract_id});
  return {};
}

}  // namespace tessera
