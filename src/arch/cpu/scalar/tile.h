// The emulated twin of arch/cpu/amx/tile.h: same registers, same order of operations.
//
// TDPBF16PS (Intel SDM): per output, products at even and at odd depths are summed apart by FP32
// FMA from zero, in ascending depth; the two sums are added, and that sum to the accumulator.
// Subnormal inputs and results are taken as zero.
#pragma once

#include <cstdint>
#include <cstring>

#include "arch/cpu/scalar/vec.h"

namespace sub8::scalar {

struct Tiles {
  static void configure() {}
  static void release() {}

  template <int T>
  SUB8_INLINE void load(const void* base, int64_t stride_bytes) {
    for (int row = 0; row < 16; ++row)
      std::memcpy(tile_[T].bytes[row], static_cast<const uint8_t*>(base) + row * stride_bytes, 64);
  }
  template <int T>
  SUB8_INLINE void store(void* base, int64_t stride_bytes) {
    for (int row = 0; row < 16; ++row)
      std::memcpy(static_cast<uint8_t*>(base) + row * stride_bytes, tile_[T].bytes[row], 64);
  }
  template <int C, int A, int B>
  SUB8_INLINE void dot_bf16() {
    for (int row = 0; row < 16; ++row) {
      for (int n = 0; n < 16; ++n) {
        float even = 0;
        float odd = 0;
        for (int k = 0; k < 16; ++k) {
          even = flush(__builtin_fmaf(bf16(A, row, 2 * k), bf16(B, k, 2 * n), even));
          odd = flush(__builtin_fmaf(bf16(A, row, 2 * k + 1), bf16(B, k, 2 * n + 1), odd));
        }
        float sum = 0;
        std::memcpy(&sum, tile_[C].bytes[row] + 4 * n, 4);
        sum = flush(flush(sum) + flush(even + odd));
        std::memcpy(tile_[C].bytes[row] + 4 * n, &sum, 4);
      }
    }
  }

 private:
  static SUB8_INLINE float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f * x : x; }
  SUB8_INLINE float bf16(int t, int row, int column) const {
    uint16_t half = 0;
    std::memcpy(&half, tile_[t].bytes[row] + 2 * column, 2);
    return flush(__builtin_bit_cast(float, static_cast<uint32_t>(half) << 16));
  }

  struct alignas(64) Tile {
    uint8_t bytes[16][64];
  };
  Tile tile_[8] = {};
};

}  // namespace sub8::scalar
