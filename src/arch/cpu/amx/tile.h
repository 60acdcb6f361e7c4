// AMX tiles for bf16: eight registers of 16 rows x 64 bytes, numbers as template arguments.
// Include only in translation units with the AMX flags.
//
// Everything is inline assembly: g++ 12's tile-configuration intrinsic lets the optimiser delete
// the configuration. The process needs the operating system's permission first (base/cpu.h).
#pragma once

#include <cstdint>

#ifndef SUB8_INLINE
#define SUB8_INLINE __attribute__((always_inline)) inline
#endif

namespace sub8::amx {

struct Tiles {
  struct alignas(64) Config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Config) == 64);

  // Whole tiles in all eight registers; per thread, before the first use.
  static SUB8_INLINE void configure() {
    Config config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.column_bytes[i] = 64;
      config.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  static SUB8_INLINE void release() { __asm__ volatile("tilerelease"); }

  template <int T>
  SUB8_INLINE void load(const void* base, int64_t stride_bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride_bytes), "i"(T)
                     : "memory");
  }
  template <int T>
  SUB8_INLINE void store(void* base, int64_t stride_bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(stride_bytes), "i"(T)
                     : "memory");
  }
  // C[16][16] f32 += A[16][32] B, B as [16 pairs of depth][16 columns][2].
  template <int C, int A, int B>
  SUB8_INLINE void dot_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

}  // namespace sub8::amx
