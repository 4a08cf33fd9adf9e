// tessera_probe_vectors: runs the cases of vector_cases.h on the GPU and writes the vectors that the tests compare the
// CPU models with.
//
//   tessera_probe_vectors OUT_DIR            writes mma.json, mma_f16.bin, mma_bf16.bin, ex2.json, ex2_samples.bin
//   tessera_probe_vectors --dump-ex2 FILE    writes the measured table for tools/encode_ex2.py (2^23 uint32)
//
// Every fdot case runs three times: on mma.sync m16n8k16, on wgmma m64n8k16 (operands in shared memory) and on the
// integer model compiled for the device; up to 64 disagreements are printed with their inputs.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/host_device.h"
#include "base/numeric_types.h"
#include "contract/ceil_product.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/mma_model.h"
#include "contract/tanh.h"
#include "probe/vector_cases.h"

namespace tessera {
namespace {

constexpr int kThreads = 128;  // one warpgroup: 4 warps of 16 rows

// Prints and returns false when a CUDA call failed.
bool ok(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  }
  return error == cudaSuccess;
}

template <class Format>
__device__ void mma_sync_step(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (Format::kExponentBias == 15) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

template <class Format>
__device__ void wgmma_step(float (&d)[4], uint64_t a, uint64_t b) {
  if constexpr (Format::kExponentBias == 15) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b));
  }
}

// Shared-memory descriptor, no swizzle, K-major: core matrices of 8 rows by 16 bytes; `lead` bytes from one to the next
// along K, `stride` bytes from one to the next along M or N.
__device__ uint64_t descriptor(const void* shared, uint32_t lead, uint32_t stride) {
  const uint64_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return (address >> 4 & 0x3fff) | static_cast<uint64_t>(lead >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
}

struct Mismatch {
  uint32_t mode, tile, row, column, steps, sync, wgmma, model;
};
constexpr uint32_t kMaxMismatches = 64;

struct MmaSweep {
  uint64_t* hashes;      // [instruction: mma.sync, wgmma][chained: no, yes][mode]
  uint32_t* samples;     // [chained][mode][kSampleTiles][kTileOutputs], mma.sync
  Mismatch* mismatches;  // [kMaxMismatches]
  uint32_t* mismatch_count;
};

template <class Format>
__global__ void __launch_bounds__(kThreads) run_mma(MmaMode mode, int chained, MmaSweep sweep) {
  // Core matrix (k8, m8) of A at (k8 * 8 + m8) * 64 elements; of B at k8 * 64.
  __shared__ alignas(128) uint16_t shared_a[kTileRows * kStepTerms];
  __shared__ alignas(128) uint16_t shared_b[kTileColumns * kStepTerms];
  const uint32_t thread = threadIdx.x;
  const uint32_t warp = thread / 32;
  const uint32_t group = thread % 32 / 4;
  const uint32_t pair = thread % 4 * 2;
  const uint32_t steps = chained != 0 ? kChainSteps : 1;
  uint64_t hash_sync = 0;
  uint64_t hash_wgmma = 0;
  for (uint32_t tile = blockIdx.x; tile < kSweepTiles; tile += gridDim.x) {
    const auto a_of = [&](uint32_t row, uint32_t k) { return case_operand<Format>(mode, tile, MmaStream::kA, row, k); };
    const auto b_of = [&](uint32_t n, uint32_t k) { return case_operand<Format>(mode, tile, MmaStream::kB, n, k); };
    float sync[4];
    float wg[4];
    float model[4];
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = warp * 16 + group + (i / 2) * 8;
      sync[i] = wg[i] = model[i] = float_of(case_accumulator<Format>(mode, tile, row, pair + i % 2));
    }
    for (uint32_t step = 0; step < steps; ++step) {
      const uint32_t k0 = step * kStepTerms;
      uint32_t a[4];
      uint32_t b[2];
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = warp * 16 + group + (i % 2) * 8;
        const uint32_t k = k0 + pair + (i / 2) * 8;
        a[i] = a_of(row, k) | static_cast<uint32_t>(a_of(row, k + 1)) << 16;
      }
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t k = k0 + pair + i * 8;
        b[i] = b_of(group, k) | static_cast<uint32_t>(b_of(group, k + 1)) << 16;
      }
      mma_sync_step<Format>(sync, a, b);

      __syncthreads();
      for (uint32_t e = thread; e < kTileRows * kStepTerms; e += kThreads) {
        const uint32_t row = e / kStepTerms;
        const uint32_t k = e % kStepTerms;
        shared_a[(k / 8 * 8 + row / 8) * 64 + row % 8 * 8 + k % 8] = a_of(row, k0 + k);
      }
      for (uint32_t e = thread; e < kTileColumns * kStepTerms; e += kThreads) {
        const uint32_t n = e / kStepTerms;
        const uint32_t k = e % kStepTerms;
        shared_b[k / 8 * 64 + n * 8 + k % 8] = b_of(n, k0 + k);
      }
      asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
      __syncthreads();
      asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
      wgmma_step<Format>(wg, descriptor(shared_a, 1024, 128), descriptor(shared_b, 128, 128));
      asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;\n" : "+f"(wg[0]), "+f"(wg[1]), "+f"(wg[2]), "+f"(wg[3])::"memory");

      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = warp * 16 + group + (i / 2) * 8;
        uint16_t raw_a[kStepTerms];
        uint16_t raw_b[kStepTerms];
        for (uint32_t k = 0; k < kStepTerms; ++k) {
          raw_a[k] = a_of(row, k0 + k);
          raw_b[k] = b_of(pair + i % 2, k0 + k);
        }
        model[i] = fdot_k16<Format>(model[i], raw_a, raw_b);
      }
    }
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = warp * 16 + group + (i / 2) * 8;
      const uint32_t output = row * kTileColumns + pair + i % 2;
      const uint32_t index = tile * kTileOutputs + output;
      hash_sync += hash_term(index, bits_of(sync[i]));
      hash_wgmma += hash_term(index, bits_of(wg[i]));
      if (tile < kSampleTiles) {
        const uint32_t block = (chained != 0 ? kMmaModes : 0) + static_cast<uint32_t>(mode);
        sweep.samples[(block * kSampleTiles + tile) * kTileOutputs + output] = bits_of(sync[i]);
      }
      if (bits_of(sync[i]) != bits_of(wg[i]) || bits_of(sync[i]) != bits_of(model[i])) {
        const uint32_t at = atomicAdd(sweep.mismatch_count, 1U);
        if (at < kMaxMismatches) {
          sweep.mismatches[at] = {static_cast<uint32_t>(mode),
                                  tile,
                                  row,
                                  pair + i % 2,
                                  steps,
                                  bits_of(sync[i]),
                                  bits_of(wg[i]),
                                  bits_of(model[i])};
        }
      }
    }
  }
  const uint32_t at = (chained != 0 ? kMmaModes : 0) + static_cast<uint32_t>(mode);
  atomicAdd(reinterpret_cast<unsigned long long*>(sweep.hashes + at), hash_sync);
  atomicAdd(reinterpret_cast<unsigned long long*>(sweep.hashes + 2 * kMmaModes + at), hash_wgmma);
}

__device__ float ex2_hardware(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

enum class Function { kEx2, kSoftExp2, kExp2Poly3, kExp2Poly4, kSoftLog2, kSoftTanh, kF32ToF16, kF32ToBf16 };
constexpr const char* kFunctionNames[] = {"ex2",       "soft_exp2", "exp2_poly3", "exp2_poly4",
                                          "soft_log2", "soft_tanh", "f32_to_f16", "f32_to_bf16"};

template <Function function>
__device__ uint32_t evaluate(uint32_t input) {
  const float x = float_of(input);
  switch (function) {
    case Function::kEx2:
      return bits_of(ex2_hardware(x));
    case Function::kSoftExp2:
      return canonical_nan(bits_of(soft_exp2(x)));
    case Function::kExp2Poly3:
      return canonical_nan(bits_of(exp2_poly3(x)));
    case Function::kExp2Poly4:
      return canonical_nan(bits_of(exp2_poly4(x)));
    case Function::kSoftLog2:
      return canonical_nan(bits_of(soft_log2(x)));
    case Function::kSoftTanh:
      return canonical_nan(bits_of(soft_tanh(x)));
    case Function::kF32ToF16:
      return f32_to_f16(x);
    case Function::kF32ToBf16:
      return f32_to_bf16(x);
  }
  return 0;
}

// hashes[block] over the 2^24 inputs whose upper byte is `block` = blockIdx.y.
template <Function function>
__global__ void hash_function(uint64_t* hashes) {
  uint64_t hash = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kBlockInputs; i += gridDim.x * blockDim.x) {
    const uint32_t input = blockIdx.y << 24 | i;
    hash += hash_term(input, evaluate<function>(input));
  }
  atomicAdd(reinterpret_cast<unsigned long long*>(hashes + blockIdx.y), hash);
}

__global__ void sample_ex2(uint32_t* samples) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kEx2Samples) {
    samples[i] = bits_of(ex2_hardware(float_of(ex2_sample_input(i))));
  }
}

__global__ void hash_ceil(uint64_t* hash) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCeilCases) {
    const CeilCase arguments = ceil_case(i);
    atomicAdd(reinterpret_cast<unsigned long long*>(hash),
              hash_term(i, canonical_nan(bits_of(ceil_product(arguments.mu, arguments.c)))));
  }
}

__global__ void dump_ex2(uint32_t* table) {
  const uint32_t f = blockIdx.x * blockDim.x + threadIdx.x;
  table[f] = (bits_of(ex2_hardware(static_cast<float>(f) * 0x1p-23F)) & 0x7fffffU) | 0x800000U;
}

// Device array of zeros, copied back on request. Freed with the process.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    good_ = ok(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc") &&
            ok(cudaMemset(data_, 0, count * sizeof(T)), "cudaMemset");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  bool good() const { return good_; }
  std::vector<T> host() {
    std::vector<T> values(count_);
    good_ = ok(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "copy from the device");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
  bool good_ = false;
};

bool write_file(const std::string& path, const void* data, size_t bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  const bool good = file != nullptr && std::fwrite(data, 1, bytes, file) == bytes;
  const bool closed = file == nullptr || std::fclose(file) == 0;
  if (!good || !closed) {
    std::fprintf(stderr, "%s: cannot be written\n", path.c_str());
  }
  return good && closed;
}

bool write_text(const std::string& path, const std::string& text) {
  return write_file(path, text.data(), text.size());
}

std::string hex_list(const uint64_t* values, size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) {
    char item[24];
    std::snprintf(item, sizeof item, "%s\"%016llx\"", i == 0 ? "" : ", ", static_cast<unsigned long long>(values[i]));
    text += item;
  }
  return text + "]";
}

std::string machine_json() {
  cudaDeviceProp properties{};
  int driver = 0;
  if (!ok(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties") ||
      !ok(cudaDriverGetVersion(&driver), "cudaDriverGetVersion")) {
    return "";
  }
  char text[320];
  std::snprintf(text, sizeof text, "  \"gpu\": \"%s\",\n  \"compute_capability\": \"%d.%d\",\n  \"cuda_driver\": %d,\n",
                properties.name, properties.major, properties.minor, driver);
  return text;
}

template <class Format>
bool probe_mma(const std::string& directory, const char* name, std::string& json) {
  DeviceArray<uint64_t> hashes(4 * kMmaModes);
  DeviceArray<uint32_t> samples(size_t{2} * kMmaModes * kSampleTiles * kTileOutputs);
  DeviceArray<Mismatch> mismatches(kMaxMismatches);
  DeviceArray<uint32_t> count(1);
  if (!hashes.good() || !samples.good() || !mismatches.good() || !count.good()) {
    return false;
  }
  for (int chained = 0; chained < 2; ++chained) {
    for (uint32_t mode = 0; mode < kMmaModes; ++mode) {
      run_mma<Format><<<528, kThreads>>>(static_cast<MmaMode>(mode), chained,
                                         {hashes.data(), samples.data(), mismatches.data(), count.data()});
    }
  }
  if (!ok(cudaDeviceSynchronize(), "run_mma")) {
    return false;
  }
  const std::vector<uint64_t> hash = hashes.host();
  const std::vector<uint32_t> sample = samples.host();
  const std::vector<Mismatch> miss = mismatches.host();
  const uint32_t misses = count.host()[0];
  std::printf("fdot %s: %u disagreements\n", name, misses);
  for (uint32_t i = 0; i < misses && i < kMaxMismatches; ++i) {
    const Mismatch& m = miss[i];
    std::printf("  %s tile %u (%u, %u) steps %u: mma.sync %08x wgmma %08x model %08x\n",
                mma_mode_name(static_cast<MmaMode>(m.mode)), m.tile, m.row, m.column, m.steps, m.sync, m.wgmma,
                m.model);
  }
  const char* const keys[4] = {"mma_sync", "mma_sync_chained", "wgmma", "wgmma_chained"};
  json += std::string("  \"") + name + "\": {\n";
  for (int i = 0; i < 4; ++i) {
    json += std::string("    \"") + keys[i] + "\": " + hex_list(hash.data() + i * kMmaModes, kMmaModes) +
            (i < 3 ? ",\n" : "\n");
  }
  json += "  }";
  return write_file(directory + "/mma_" + name + ".bin", sample.data(), sample.size() * sizeof(uint32_t));
}

template <Function function>
bool probe_function(std::string& json) {
  DeviceArray<uint64_t> hashes(kBlocks);
  if (!hashes.good()) {
    return false;
  }
  hash_function<function><<<dim3(64, kBlocks), 256>>>(hashes.data());
  const std::vector<uint64_t> hash = hashes.host();
  json += std::string("  \"") + kFunctionNames[static_cast<int>(function)] + "\": " + hex_list(hash.data(), kBlocks) +
          ",\n";
  return hashes.good();
}

bool probe_functions(const std::string& directory, const std::string& machine) {
  std::string json = "{\n" + machine;
  DeviceArray<uint64_t> ceil(1);
  DeviceArray<uint32_t> samples(kEx2Samples);
  if (!ceil.good() || !samples.good()) {
    return false;
  }
  sample_ex2<<<(kEx2Samples + 255) / 256, 256>>>(samples.data());
  hash_ceil<<<kCeilCases / 256, 256>>>(ceil.data());
  const std::vector<uint32_t> sample = samples.host();
  if (!samples.good() || !probe_function<Function::kEx2>(json) || !probe_function<Function::kSoftExp2>(json) ||
      !probe_function<Function::kExp2Poly3>(json) || !probe_function<Function::kExp2Poly4>(json) ||
      !probe_function<Function::kSoftLog2>(json) || !probe_function<Function::kSoftTanh>(json) ||
      !probe_function<Function::kF32ToF16>(json) || !probe_function<Function::kF32ToBf16>(json)) {
    return false;
  }
  json += "  \"ceil_product\": " + hex_list(ceil.host().data(), 1) + "\n}\n";
  return write_text(directory + "/ex2.json", json) &&
         write_file(directory + "/ex2_samples.bin", sample.data(), sample.size() * sizeof(uint32_t));
}

bool dump_table(const std::string& path) {
  constexpr uint32_t kEntries = 1U << 23;
  DeviceArray<uint32_t> table(kEntries);
  if (!table.good()) {
    return false;
  }
  dump_ex2<<<kEntries / 256, 256>>>(table.data());
  const std::vector<uint32_t> values = table.host();
  return table.good() && write_file(path, values.data(), values.size() * sizeof(uint32_t));
}

bool probe_all(const std::string& directory) {
  const std::string machine = machine_json();
  std::string json = "{\n" + machine;
  if (machine.empty() || !probe_mma<F16Format>(directory, "f16", json)) {
    return false;
  }
  json += ",\n";
  if (!probe_mma<Bf16Format>(directory, "bf16", json)) {
    return false;
  }
  return write_text(directory + "/mma.json", json + "\n}\n") && probe_functions(directory, machine);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--dump-ex2") == 0) {
    return tessera::dump_table(argv[2]) ? 0 : 1;
  }
  if (argc != 2) {
    std::fprintf(stderr, "usage: tessera_probe_vectors OUT_DIR | tessera_probe_vectors --dump-ex2 FILE\n");
    return 2;
  }
  return tessera::probe_all(argv[1]) ? 0 : 1;
}
