// tessera_probe_vectors: writes what an sm_90 GPU answers as the vectors that the tests compare the CPU models with.
//
//   tessera_probe_vectors OUT_DIR            writes mma.json, mma_f16.bin, mma_bf16.bin, ex2.json, ex2_samples.bin
//   tessera_probe_vectors --dump-ex2 FILE    writes the measured table for tools/encode_ex2.py (2^23 uint32)
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "probe/probe.h"
#include "probe/vector_cases.h"

namespace tessera {
namespace {

std::vector<std::string> hex_list(const uint64_t* values, size_t count) {
  std::vector<std::string> list;
  for (size_t i = 0; i < count; ++i) {
    list.push_back(fmt::format("{:016x}", values[i]));
  }
  return list;
}

Status write_file(const std::string& path, const void* data, size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  return file.good() ? Status() : Status(Code::kIo, fmt::format("{}: cannot be written; choose another folder", path));
}

Status write_json(const std::string& path, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(1) + "\n";
  return write_file(path, text.data(), text.size());
}

nlohmann::ordered_json machine(const ProbeReport& report) {
  nlohmann::ordered_json json;
  json["gpu"] = report.gpu;
  json["compute_capability"] = fmt::format("{}.{}", report.compute_major, report.compute_minor);
  json["cuda_driver"] = report.cuda_driver;
  return json;
}

Status write_vectors(const std::string& directory) {
  const Result<ProbeReport> result = run_probe(0);
  TESSERA_RETURN_IF_ERROR(result.status());
  const ProbeReport& report = result.value();
  nlohmann::ordered_json mma = machine(report);
  for (const MmaProbe& probe : report.mma) {
    const char* const keys[4] = {"mma_sync", "mma_sync_chained", "wgmma", "wgmma_chained"};
    for (size_t i = 0; i < 4; ++i) {
      mma[probe.format][keys[i]] = hex_list(probe.hashes.data() + i * kMmaModes, kMmaModes);
    }
    TESSERA_RETURN_IF_ERROR(write_file(fmt::format("{}/mma_{}.bin", directory, probe.format), probe.samples.data(),
                                       probe.samples.size() * sizeof(uint32_t)));
  }
  TESSERA_RETURN_IF_ERROR(write_json(directory + "/mma.json", mma));
  nlohmann::ordered_json functions = machine(report);
  for (const FunctionProbe& probe : report.functions) {
    functions[probe.name] = hex_list(probe.hashes.data(), probe.hashes.size());
  }
  functions["ceil_product"] = hex_list(report.ceil_product.hashes.data(), 1);
  TESSERA_RETURN_IF_ERROR(write_json(directory + "/ex2.json", functions));
  TESSERA_RETURN_IF_ERROR(write_file(directory + "/ex2_samples.bin", report.ex2_samples.data(),
                                     report.ex2_samples.size() * sizeof(uint32_t)));
  return report.obeys() ? Status()
                        : Status(Code::kDevice,
                                 "this GPU does not obey the model of the contract; `tessera probe` "
                                 "says where");
}

Status dump_table(const std::string& path) {
  const Result<std::vector<uint32_t>> table = measure_ex2_table(0);
  TESSERA_RETURN_IF_ERROR(table.status());
  return write_file(path, table.value().data(), table.value().size() * sizeof(uint32_t));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const bool dump = argc == 3 && std::strcmp(argv[1], "--dump-ex2") == 0;
  if (!dump && argc != 2) {
    fmt::print(stderr, "usage: tessera_probe_vectors OUT_DIR | tessera_probe_vectors --dump-ex2 FILE\n");
    return 2;
  }
  const tessera::Status status = dump ? tessera::dump_table(argv[2]) : tessera::write_vectors(argv[1]);
  if (!status.ok()) {
    fmt::print(stderr, "tessera_probe_vectors: {}\n", status.text());
    return 1;
  }
  return 0;
}
