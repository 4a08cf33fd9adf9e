// AMX tile instructions and their configuration. Written as assembly so that the order against ordinary loads and
// stores is stated (the intrinsics of GCC 12 leave it open) and no compiler flag is needed.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tessera::gemm {
namespace {

template <int kTile>
__attribute__((always_inline)) inline void tile_load(const void* p, size_t stride) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(p), "r"(stride) : "memory");
}

template <int kTile>
__attribute__((always_inline)) inline void tile_store(void* p, size_t stride) {
  __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(p), "r"(stride) : "memory");
}

template <int kTile>
__attribute__((always_inline)) inline void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// sums += activations (signed bytes) * weights (unsigned or signed bytes), 4 bytes of k per 32-bit lane.
template <int kSums, int kActs, int kWeights, bool kUnsignedWeights>
__attribute__((always_inline)) inline void tile_dot() {
  if constexpr (kUnsignedWeights) {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kActs), "i"(kWeights));
  } else {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kActs), "i"(kWeights));
  }
}

// Configures the tiles of the calling thread for its lifetime. Tiles 0..2: activations (rows x k_bytes), 3: weights
// (k_bytes / 4 x 16 lanes), 4..6: sums (rows x 16 lanes).
class TileShape {
 public:
  explicit TileShape(int k_bytes) : k_bytes_(k_bytes) {}
  ~TileShape() {
    if (rows_ != 0) __asm__ volatile("tilerelease" : : : "memory");
  }
  TileShape(const TileShape&) = delete;
  TileShape& operator=(const TileShape&) = delete;

  void set_rows(int rows) {
    if (rows == rows_) return;
    rows_ = rows;
    Config config{};
    config.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      config.rows[tile] = static_cast<uint8_t>(tile == 3 ? k_bytes_ / 4 : rows);
      config.column_bytes[tile] = static_cast<uint16_t>(tile < 3 ? k_bytes_ : 64);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }

 private:
  // Intel SDM volume 1, 18.3: memory format of LDTILECFG.
  struct alignas(64) Config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Config) == 64);

  int k_bytes_;
  int rows_ = 0;
};

}  // namespace
}  // namespace tessera::gemm
