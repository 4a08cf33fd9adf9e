// How a scorer fetches: its share of Q, and its granules of keys from wherever their rows lie, in pieces of 16 bytes.
// FP8 rows (R11) come as codes and become bf16 where they have landed.
#pragma once

#include <cstdint>

#include "kernels/sm90/fmha_mqa_512/copies.cuh"
#include "kernels/sm90/fmha_mqa_512/fp8_panels.cuh"
#include "kernels/sm90/fmha_mqa_512/row_table.cuh"
#include "kernels/sm90/fmha_mqa_512/tiles.cuh"

namespace tessera::sm90 {

// `kFp8`: some segments may have FP8 rows. All functions are called by the 128 threads of a scorer together.
template <class Layout, bool kFp8>
class MqaFetch {
  using Words = MqaTileWords;
  using Fp8 = MqaFp8Format<Layout::kPanels * kPanelColumns>;
  static constexpr int kOwnRows = 4;  // of 64, per thread: eight threads have a row
  static constexpr int kRowStep = Layout::kGranule / kOwnRows;

 public:
  __device__ __forceinline__ MqaFetch(const MqaArguments& args, uint32_t shared, uint32_t buffer)
      : args_(args), shared_(shared), buffer_(buffer) {}

  // Every other row of Q of a tile.
  __device__ __forceinline__ void fetch_queries(const MqaTile& tile) const {
    const int64_t batch = tile.get(Words::kBatch);
    const int first_token = tile.get(Words::kTensorToken);
    const int rows = tile.get(Words::kRows);
#pragma unroll
    for (int i = 0; i < kOwnRows / Layout::kScorers; ++i) {
      const int own = (i * Layout::kScorers + static_cast<int>(buffer_)) * kRowStep;
      const int row = tile.get(Words::kFirstRow) + own_row() + own;
      const int behind = divide(row, args_.heads);
      const int head = row - behind * static_cast<int>(args_.heads.value);
      const bool present = row < rows;
      const uint16_t* const from = present ? args_.q + batch * args_.q_stride_batch +
                                                 int64_t{first_token + behind} * args_.q_stride_token +
                                                 head * args_.q_stride_head + thread() % 8 * 8
                                           : args_.q;
      const uint32_t to = base() + Layout::kQ + piece_at() + own * kPanelRowBytes;
#pragma unroll
      for (int panel = 0; panel < Layout::kPanels; ++panel) {
        copy_own_piece(to + panel * panel_bytes(Layout::kRows), from + (present ? panel * kPanelColumns : 0), present);
      }
    }
  }

  // The granule whose rows are in the table, to the own buffer as its groups are given back (`parity` of that). `fp8`:
  // what rows the segment has.
  __device__ __forceinline__ void fetch_granule(const MqaRowTable<Layout, kFp8>& table, bool fp8,
                                                uint32_t parity) const {
    const uint16_t* rows_at[kOwnRows];
    uint32_t present = 0;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const uint8_t* const row = table.row(own_row() + i * kRowStep);
      present |= row != nullptr ? 1U << i : 0U;
      rows_at[i] = reinterpret_cast<const uint16_t*>(row) + thread() % 8 * (kFp8 && fp8 ? 4 : 8);
    }
    wait_empty(0, parity);
    if constexpr (MqaRowTable<Layout, kFp8>::kFooters) {
      if (fp8) {
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
          copy_small_piece<8>(scales_at(i), table.footer(own_row() + i * kRowStep), is_present(present, i));
        }
      }
    }
    if (kFp8 && fp8) {
      fetch_fp8_rows(parity, rows_at, present);
    } else {
      fetch_rows(parity, rows_at, present);
    }
  }

  // A group of the own buffer's granule, which has landed, becomes bf16. A loop rather than unrolled: the instruction
  // cache has the other roles to hold too.
  __device__ __forceinline__ void convert_group(int group) const {
    const int first = group * Layout::kGroupPanels;
#pragma unroll 1
    for (int i = 0; i < Layout::kGroupPanels; ++i) {
      // A tile's scale lies where the codes of its first panel become bf16 last.
      const int panel = first + (Fp8::kFooter ? i : Layout::kGroupPanels - 1 - i);
      if (panel < Fp8::kCodedPanels) {
        const uint32_t pieces = pieces_at() + panel * panel_bytes(Layout::kGranule);
        const uint32_t scales =
            Fp8::kFooter ? scales_at(0) + panel / 4 * 4 : pieces_at() + first * panel_bytes(Layout::kGranule) + 8;
        constexpr int kTogether = kOwnRows / 2;  // rows whose codes are in registers
        constexpr int kStep = kRowStep * kPanelRowBytes;
        constexpr int kScaleStep = Fp8::kFooter ? Layout::kScaleStep : kStep;
#pragma unroll
        for (int row = 0; row < kOwnRows; row += kTogether) {
          convert_pieces<Layout::kPanels * kPanelColumns, kTogether>(pieces + row * kStep, kStep, panel,
                                                                     scales + row * kScaleStep, kScaleStep);
        }
      }
    }
  }

 private:
  // Opaque, so that addresses are computed where they are used rather than kept.
  __device__ __forceinline__ uint32_t base() const {
    return static_cast<uint32_t>(opaque(static_cast<int>(shared_)));
  }
  __device__ __forceinline__ static int thread() {
    return thread_index() & 127;  // and not %, which minds negative numbers
  }
  __device__ __forceinline__ static int own_row() {
    return thread() / 8;
  }

  // Where the thread's pieces of panel 0 go, in a tile of 64 rows; those of its next row are kRowStep rows further.
  __device__ __forceinline__ static uint32_t piece_at() {
    return swizzled_offset(Layout::kGranule, own_row(), thread() % 8 * 8);
  }
  // A panel of the thread's rows of the tile `to`.
  template <class Source>
  __device__ __forceinline__ static void copy_panel(uint32_t to, int panel, const Source& source) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      source(to + panel * panel_bytes(Layout::kGranule) + i * kRowStep * kPanelRowBytes, i, panel * kPanelColumns);
    }
  }

  // All panels of the thread's rows, those that are not present as zeros.
  __device__ __forceinline__ void fetch_rows(uint32_t parity, const uint16_t* const (&rows_at)[kOwnRows],
                                             uint32_t present) const {
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      wait_for_panel(panel, parity);
      copy_panel(pieces_at(), panel,
                 [&](uint32_t at, int i, int dim) { copy_row_piece(at, rows_at[i] + dim, is_present(present, i)); });
      if (Layout::ends_group(panel)) {
        commit_copies();
      }
    }
  }

  __device__ __forceinline__ uint32_t scales_at(int i) const {
    return base() + Layout::kScales + (buffer_ * kOwnRows + i) * Layout::kScaleStep + 8 * thread();
  }

  // The same of FP8 rows, as codes.
  __device__ __forceinline__ void fetch_fp8_rows(uint32_t parity, const uint16_t* const (&rows_at)[kOwnRows],
                                                 uint32_t present) const {
#pragma unroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      wait_for_panel(panel, parity);
      copy_panel(pieces_at(), panel, [&](uint32_t at, int i, int dim) {
        const bool is = is_present(present, i);
        const auto* codes = reinterpret_cast<const uint8_t*>(rows_at[i]);
        const int own = thread() % 8 * 8;  // already in there
        if (panel >= Fp8::kCodedPanels) {
          copy_row_piece(at, codes + own + Fp8::kPlainAt + (panel - Fp8::kCodedPanels) * kPanelRowBytes, is);
          return;
        }
        copy_small_piece<8>(at, codes + dim, is);
        if (!Fp8::kFooter && Layout::begins_group(panel)) {
          copy_small_piece<4>(at + 8, codes + Fp8::scale_at(panel) - own, is);
        }
      });
      if (Layout::ends_group(panel)) {
        commit_copies();
      }
    }
  }
  __device__ __forceinline__ uint32_t pieces_at() const {
    return base() + Layout::kKeys + buffer_ * Layout::kBufferBytes + piece_at();
  }
  // Opaque, so that it takes no register of its own.
  __device__ __forceinline__ static bool is_present(uint32_t present, int i) {
    return (opaque(static_cast<int>(present)) >> i & 1) != 0;
  }
  __device__ __forceinline__ void wait_for_panel(int panel, uint32_t parity) const {
    if (Layout::begins_group(panel)) {
      wait_empty(Layout::group_of(panel), parity);
    }
  }
  // The multiplier of a group has left it.
  __device__ __forceinline__ void wait_empty(int group, uint32_t parity) const {
    barrier_wait(base() + Layout::kEmpty + 8 * (Layout::kGroups * buffer_ + group), parity ^ 1U);
  }

  const MqaArguments& args_;
  uint32_t shared_;
  uint32_t buffer_;
};

}  // namespace tessera::sm90
