// Where the rows of a scorer's next granule lie: one thread finds a row's address, for the eight that copy it, while
// the granule before is scored. (Eight threads with four rows each took 1000 clocks for it, between P V and the
// copies.)
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_mqa_512/fp8_panels.cuh"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/shared_memory.cuh"

namespace tessera::sm90 {

__device__ __forceinline__ void store_address(uint32_t at, const void* address) {
  asm volatile("st.shared.b64 [%0], %1;" ::"r"(at), "l"(reinterpret_cast<uint64_t>(address)) : "memory");
}
__device__ __forceinline__ const uint8_t* load_address(uint32_t at) {
  uint64_t address;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(address) : "r"(at) : "memory");
  return reinterpret_cast<const uint8_t*>(address);
}

// `kFp8`: some segments may have FP8 rows. All functions are called by the 128 threads of a scorer together.
template <class Layout, bool kFp8>
class MqaRowTable {
  using Words = MqaTileWords;
  using Fp8 = MqaFp8Format<Layout::kPanels * kPanelColumns>;

 public:
  static constexpr bool kFooters = kFp8 && Fp8::kFooter;

  __device__ __forceinline__ MqaRowTable(const MqaArguments& args, uint32_t shared, uint32_t buffer)
      : args_(args), shared_(shared), buffer_(buffer) {}

  // What tables say of the thread's row of a granule: the page, the row of a gathered key, or the sequence. Nothing is
  // done with it here, so that it is on its way while other things are waited for.
  __device__ __forceinline__ int32_t ask(const MqaTile& tile, const MqaPlace& place) const {
    int32_t entry = 0;
    if (!place.valid() || !has_row()) {
      return entry;
    }
    const MqaSegment& s = args_.segments[place.segment];
    const int key = place.granule * Layout::kGranule + thread();
    const int64_t batch = tile.get(Words::kBatch);
    const int32_t* from = nullptr;
    if (s.sorted != nullptr) {
      from = s.sorted + (batch * args_.seqlen_q + tile.get(Words::kToken)) * s.topk + key;
    } else if (s.page_table != nullptr) {
      from = s.page_table + batch * s.page_table_stride + divide(key, s.page_size);
    }
    entry = static_cast<int32_t>(batch);
    if (from != nullptr && key >= tile.get(place.segment, Words::kFirstKey) &&
        key < tile.get(place.segment, Words::kStopKey)) {
      asm volatile("ld.global.b32 %0, [%1];" : "=r"(entry) : "l"(from) : "memory");
    }
    return entry;
  }

  // Writes down the thread's row, of which tables say `entry`; no address if nobody sees it or its page does not exist.
  // The addresses of the scorer's granule before have been read; `number` is this one's in the block.
  __device__ __forceinline__ void settle(const MqaTile& tile, const MqaPlace& place, int32_t entry,
                                         uint32_t number) const {
    if (!place.valid() || !has_row()) {
      return;
    }
    const MqaSegment& s = args_.segments[place.segment];
    const int key = place.granule * Layout::kGranule + thread();
    bool present = key >= tile.get(place.segment, Words::kFirstKey) && key < tile.get(place.segment, Words::kStopKey);
    int64_t offset = 0;
    if (s.sorted != nullptr) {
      offset = entry * s.stride_token;
    } else if (s.page_table != nullptr) {
      present = present && static_cast<uint32_t>(entry) < static_cast<uint32_t>(s.num_pages);
      offset = entry * s.stride_batch + behind(key, s.page_size) * s.stride_token;
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(absent_at(number) + thread()), "r"(present ? 0U : 1U) : "memory");
    } else {
      offset = entry * s.stride_batch + (tile.get(place.segment, Words::kFirstToken) + key) * s.stride_token;
    }
    const auto* const row = reinterpret_cast<const uint8_t*>(s.k + offset);
    store_address(row_at(thread()), present ? row : nullptr);
    if constexpr (kFooters) {
      const int slot = s.sorted != nullptr ? behind(entry, s.page_rows) : behind(key, s.page_size);
      store_address(row_at(thread()) + Layout::kFooterStep, row + footer_behind(s, slot));
    }
  }

  // The address of a row of the granule, and of its footer.
  __device__ __forceinline__ const uint8_t* row(int row) const { return load_address(row_at(row)); }
  __device__ __forceinline__ const uint8_t* footer(int row) const {
    return load_address(row_at(row) + Layout::kFooterStep);
  }
  // A byte per key, 1 if it has no page. Those of the granule before are still there.
  __device__ __forceinline__ uint32_t absent_at(uint32_t number) const {
    return base() + Layout::kAbsent +
           (number / Layout::kBuffers % 2 * Layout::kBuffers + buffer_) * Layout::kAbsentBytes;
  }

 private:
  // Opaque, so that addresses are computed where they are used rather than kept.
  __device__ __forceinline__ uint32_t base() const { return static_cast<uint32_t>(opaque(static_cast<int>(shared_))); }
  __device__ __forceinline__ static int thread() {
    return thread_index() & 127;  // and not %, which minds negative numbers
  }
  // Of two warps.
  __device__ __forceinline__ static bool has_row() { return uniform(thread() / 32) < Layout::kGranule / 32; }
  __device__ __forceinline__ uint32_t row_at(int row) const {
    return base() + Layout::kRowTable + buffer_ * Layout::kRowTableBytes + 8 * row;
  }
  // What remains of a number behind the last multiple.
  __device__ __forceinline__ static int behind(int number, const Divisor& divisor) {
    return number - divide(number, divisor) * static_cast<int>(divisor.value);
  }
  // Bytes from a row to its footer, behind the rows and the footers before it.
  __device__ __forceinline__ static int64_t footer_behind(const MqaSegment& s, int slot) {
    return (s.page_size.value - slot) * Fp8::kRow.row_bytes + slot * Fp8::kRow.footer_bytes;
  }

  const MqaArguments& args_;
  uint32_t shared_;
  uint32_t buffer_;
};

}  // namespace tessera::sm90
