#include "sm80/edge_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tessera::test {
namespace {

template <class Function>
bool find(const char* name, Function*& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kVersion = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found);
  function = reinterpret_cast<Function*>(address);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess;
}

struct Driver {
  decltype(cuMemGetAllocationGranularity)* granularity = nullptr;
  decltype(cuMemAddressReserve)* reserve = nullptr;
  decltype(cuMemAddressFree)* free = nullptr;
  decltype(cuMemCreate)* create = nullptr;
  decltype(cuMemRelease)* release = nullptr;
  decltype(cuMemMap)* map = nullptr;
  decltype(cuMemUnmap)* unmap = nullptr;
  decltype(cuMemSetAccess)* access = nullptr;
  bool complete = find("cuMemGetAllocationGranularity", granularity) && find("cuMemAddressReserve", reserve) &&
                  find("cuMemAddressFree", free) && find("cuMemCreate", create) && find("cuMemRelease", release) &&
                  find("cuMemMap", map) && find("cuMemUnmap", unmap) && find("cuMemSetAccess", access);
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

}  // namespace

std::unique_ptr<EdgeMemory> EdgeMemory::make(size_t bytes) {
  const Driver& d = driver();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t unit = 0;
  if (!d.complete || d.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) {
    return nullptr;
  }
  std::unique_ptr<EdgeMemory> memory(new EdgeMemory);
  const size_t size = (bytes + unit) / unit * unit;
  // The last unit stays unmapped.
  if (d.reserve(&memory->base_, size + unit, 0, 0, 0) != CUDA_SUCCESS) {
    return nullptr;
  }
  memory->reserved_ = size + unit;
  CUmemGenericAllocationHandle handle = 0;
  if (d.create(&handle, size, &properties, 0) != CUDA_SUCCESS) {
    return nullptr;
  }
  const CUresult mapped = d.map(memory->base_, size, 0, handle, 0);
  d.release(handle);  // the mapping keeps the memory
  if (mapped != CUDA_SUCCESS) {
    return nullptr;
  }
  memory->mapped_ = size;
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (d.access(memory->base_, size, &access, 1) != CUDA_SUCCESS) {
    return nullptr;
  }
  memory->data_ = reinterpret_cast<void*>(memory->base_ + size - bytes);
  return memory;
}

EdgeMemory::~EdgeMemory() {
  if (mapped_ != 0) {
    driver().unmap(base_, mapped_);
  }
  if (reserved_ != 0) {
    driver().free(base_, reserved_);
  }
}

}  // namespace tessera::test
