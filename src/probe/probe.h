// What a GPU answers to the cases of vector_cases.h, and whether it obeys the models of contract/. One call, about a
// second of device time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tessera {

// One result on which mma.sync, wgmma and the model do not agree (bits of fp32).
struct MmaDisagreement {
  uint32_t mode, tile, row, column;  // the case, vector_cases.h
  uint32_t steps;                    // k16 steps up to this result
  uint32_t sync, wgmma, model;
};

// All fdot cases of one operand format, each on mma.sync m16n8k16, on wgmma m64n8k16 (operands in shared memory) and
// on the integer model compiled for the device.
struct MmaProbe {
  const char* format;  // "f16", "bf16"
  uint64_t cases;
  uint32_t disagreements;
  std::vector<MmaDisagreement> first;  // up to 64 of them
  std::vector<uint64_t> hashes;        // [mma.sync, wgmma][single, chained][mode]
  std::vector<uint32_t> samples;       // [single, chained][mode][kSampleTiles][kTileOutputs], mma.sync
};

// One function over all 2^32 inputs.
struct FunctionProbe {
  const char* name;
  std::vector<uint64_t> hashes;  // [upper byte of the input]
  uint64_t expected;             // sum of the hashes of the model, modulo 2^64

  uint64_t sum() const;
};

struct ProbeReport {
  std::string gpu;
  int compute_major = 0;
  int compute_minor = 0;
  int cuda_driver = 0;  // 1000 major + 10 minor
  std::vector<MmaProbe> mma;
  std::vector<FunctionProbe> functions;  // ex2 of the hardware first, then the software functions of the contract
  std::vector<uint32_t> ex2_samples;     // [kEx2Samples]
  FunctionProbe ceil_product;            // one hash over kCeilCases

  bool obeys() const;
};

// Runs everything on CUDA device `device`. kDevice without a driver or a GPU of compute capability 9.0.
Result<ProbeReport> run_probe(int device);

// ex2 of f / 2^23 for f in [0, 2^23): 24-bit significands, the input of tools/encode_ex2.py.
Result<std::vector<uint32_t>> measure_ex2_table(int device);

}  // namespace tessera
