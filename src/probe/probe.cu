#include "probe/probe.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>

#include "base/host_device.h"
#include "base/numeric_types.h"
#include "contract/ceil_product.h"
#include "contract/exp2.h"
#include "contract/log2.h"
#include "contract/mma_model.h"
#include "contract/tanh.h"
#include "probe/expected_hashes.h"
#include "probe/vector_cases.h"

namespace tessera {
namespace {

constexpr int kThreads = 128;  // one warpgroup: 4 warps of 16 rows

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

constexpr uint32_t kMaxDisagreements = 64;

struct MmaSweep {
  uint64_t* hashes;                // [instruction: mma.sync, wgmma][chained: no, yes][mode]
  uint32_t* samples;               // [chained][mode][kSampleTiles][kTileOutputs], mma.sync
  MmaDisagreement* disagreements;  // [kMaxDisagreements]
  uint32_t* count;
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
        const uint32_t at = atomicAdd(sweep.count, 1U);
        if (at < kMaxDisagreements) {
          sweep.disagreements[at] = {static_cast<uint32_t>(mode),
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

enum class Function { kEx2, kSoftExp2, kSoftLog2, kSoftTanh, kF32ToF16, kF32ToBf16 };

template <Function function>
__device__ uint32_t evaluate(uint32_t input) {
  const float x = float_of(input);
  switch (function) {
    case Function::kEx2:
      return bits_of(ex2_hardware(x));
    case Function::kSoftExp2:
      return canonical_nan(bits_of(soft_exp2(x)));
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

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) {
    return {};
  }
  return {Code::kDevice, std::string(what) + ": " + cudaGetErrorString(error)};
}

template <class T>
Status allocate(T** data, size_t bytes) {
  TESSERA_RETURN_IF_ERROR(check(cudaMalloc(data, bytes), "device memory"));
  return check(cudaMemset(*data, 0, bytes), "device memory");
}

// Device array of zeros.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count), status_(allocate(&data_, count * sizeof(T))) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  const Status& status() const { return status_; }
  // Waits for the kernels before it; reports their errors too.
  Status read(std::vector<T>* values) const {
    values->resize(count_);
    return check(cudaMemcpy(values->data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "probe kernel");
  }

 private:
  T* data_ = nullptr;
  size_t count_;
  Status status_;
};

Status select_device(int device, ProbeReport* report) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    return {Code::kDevice, "CUDA device " + std::to_string(device) + ": got '" + cudaGetErrorString(error) +
                               "'; allowed a GPU of compute capability 9.0 with a driver for CUDA 13; use a machine "
                               "that has one"};
  }
  cudaDeviceProp properties{};
  TESSERA_RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, device), "CUDA device"));
  TESSERA_RETURN_IF_ERROR(check(cudaDriverGetVersion(&report->cuda_driver), "CUDA driver"));
  report->gpu = properties.name;
  report->compute_major = properties.major;
  report->compute_minor = properties.minor;
  if (properties.major != 9 || properties.minor != 0) {
    return {Code::kDevice, "CUDA device: got " + report->gpu + " of compute capability " +
                               std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                               "; allowed 9.0; use a Hopper GPU"};
  }
  return {};
}

template <class Format>
Status probe_mma(const char* name, std::vector<MmaProbe>* probes) {
  MmaProbe probe{name, uint64_t{2} * kMmaModes * kSweepTiles * kTileOutputs, 0, {}, {}, {}};
  const DeviceArray<uint64_t> hashes(4 * kMmaModes);
  const DeviceArray<uint32_t> samples(size_t{2} * kMmaModes * kSampleTiles * kTileOutputs);
  const DeviceArray<MmaDisagreement> first(kMaxDisagreements);
  const DeviceArray<uint32_t> count(1);
  TESSERA_RETURN_IF_ERROR(hashes.status());
  TESSERA_RETURN_IF_ERROR(samples.status());
  TESSERA_RETURN_IF_ERROR(first.status());
  TESSERA_RETURN_IF_ERROR(count.status());
  for (int chained = 0; chained < 2; ++chained) {
    for (uint32_t mode = 0; mode < kMmaModes; ++mode) {
      run_mma<Format><<<528, kThreads>>>(static_cast<MmaMode>(mode), chained,
                                         {hashes.data(), samples.data(), first.data(), count.data()});
    }
  }
  TESSERA_RETURN_IF_ERROR(check(cudaGetLastError(), "probe kernel"));
  std::vector<uint32_t> counted;
  TESSERA_RETURN_IF_ERROR(hashes.read(&probe.hashes));
  TESSERA_RETURN_IF_ERROR(samples.read(&probe.samples));
  TESSERA_RETURN_IF_ERROR(first.read(&probe.first));
  TESSERA_RETURN_IF_ERROR(count.read(&counted));
  probe.disagreements = counted[0];
  probe.first.resize(std::min(counted[0], kMaxDisagreements));
  probes->push_back(std::move(probe));
  return {};
}

template <Function function>
Status probe_function(std::vector<FunctionProbe>* probes) {
  const ExpectedHash& expected = kExpectedHashes[static_cast<int>(function)];
  FunctionProbe probe{expected.name, {}, expected.sum};
  const DeviceArray<uint64_t> hashes(kBlocks);
  TESSERA_RETURN_IF_ERROR(hashes.status());
  hash_function<function><<<dim3(64, kBlocks), 256>>>(hashes.data());
  TESSERA_RETURN_IF_ERROR(check(cudaGetLastError(), "probe kernel"));
  TESSERA_RETURN_IF_ERROR(hashes.read(&probe.hashes));
  probes->push_back(std::move(probe));
  return {};
}

Status probe_functions(ProbeReport* report) {
  TESSERA_RETURN_IF_ERROR(probe_function<Function::kEx2>(&report->functions));
  TESSERA_RETURN_IF_ERROR(probe_function<Function::kSoftExp2>(&report->functions));
  TESSERA_RETURN_IF_ERROR(probe_function<Function::kSoftLog2>(&report->functions));
  TESSERA_RETURN_IF_ERROR(probe_function<Function::kSoftTanh>(&report->functions));
  TESSERA_RETURN_IF_ERROR(probe_function<Function::kF32ToF16>(&report->functions));
  TESSERA_RETURN_IF_ERROR(probe_function<Function::kF32ToBf16>(&report->functions));

  const DeviceArray<uint64_t> ceil(1);
  const DeviceArray<uint32_t> samples(kEx2Samples);
  TESSERA_RETURN_IF_ERROR(ceil.status());
  TESSERA_RETURN_IF_ERROR(samples.status());
  sample_ex2<<<(kEx2Samples + 255) / 256, 256>>>(samples.data());
  hash_ceil<<<kCeilCases / 256, 256>>>(ceil.data());
  TESSERA_RETURN_IF_ERROR(check(cudaGetLastError(), "probe kernel"));
  const ExpectedHash& expected = kExpectedHashes[static_cast<int>(Function::kF32ToBf16) + 1];
  report->ceil_product = {expected.name, {}, expected.sum};
  TESSERA_RETURN_IF_ERROR(ceil.read(&report->ceil_product.hashes));
  return samples.read(&report->ex2_samples);
}

}  // namespace

uint64_t FunctionProbe::sum() const {
  return std::accumulate(hashes.begin(), hashes.end(), uint64_t{0});
}

bool ProbeReport::obeys() const {
  return std::ranges::all_of(mma, [](const MmaProbe& m) { return m.disagreements == 0; }) &&
         std::ranges::all_of(functions, [](const FunctionProbe& f) { return f.sum() == f.expected; }) &&
         ceil_product.sum() == ceil_product.expected;
}

Result<ProbeReport> run_probe(int device) {
  ProbeReport report;
  TESSERA_RETURN_IF_ERROR(select_device(device, &report));
  TESSERA_RETURN_IF_ERROR(probe_mma<F16Format>("f16", &report.mma));
  TESSERA_RETURN_IF_ERROR(probe_mma<Bf16Format>("bf16", &report.mma));
  TESSERA_RETURN_IF_ERROR(probe_functions(&report));
  return report;
}

Result<std::vector<uint32_t>> measure_ex2_table(int device) {
  constexpr uint32_t kEntries = 1U << 23;
  ProbeReport report;
  TESSERA_RETURN_IF_ERROR(select_device(device, &report));
  const DeviceArray<uint32_t> table(kEntries);
  TESSERA_RETURN_IF_ERROR(table.status());
  dump_ex2<<<kEntries / 256, 256>>>(table.data());
  TESSERA_RETURN_IF_ERROR(check(cudaGetLastError(), "probe kernel"));
  std::vector<uint32_t> values;
  TESSERA_RETURN_IF_ERROR(table.read(&values));
  return values;
}

}  // namespace tessera
