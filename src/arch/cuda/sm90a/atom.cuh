// The wgmma atoms of 16-bit and 8-bit operands: shape and instruction; fragment maps are in map.h.
#pragma once

#include "arch/cuda/ptx/wgmma.cuh"
#include "arch/cuda/sm90a/map.h"
#include "format/placement.h"

namespace sub8::arch::sm90a {

template <format::Half Type, int Tokens>
struct WgmmaAtom {
  static constexpr int kRows = kMmaRows;
  static constexpr int kTokens = Tokens;
  static constexpr int kDepth = kMmaDepth;
  static constexpr int kAccumulators = Tokens / 2;
  static constexpr int kAccumulatorBits = 23;  // measured: f16 and bf16 sums keep 23 to 25 bits

  __device__ static void mma(float (&d)[kAccumulators], const uint32_t (&a)[4], uint64_t b) {
    ptx::wgmma<Type == format::Half::kF16 ? ptx::MmaType::kF16 : ptx::MmaType::kBF16, Tokens>(d, a,
                                                                                              b, 1);
  }
};

// A is e5m2 or e4m3, B e4m3. Sums are not FP32: they keep 13 bits, so they must be added to FP32
// registers at least every 128 k. The first instruction of a group sets D, the others add to it.
template <bool E5M2, int Tokens>
struct ByteAtom {
  static constexpr int kAccumulators = Tokens / 2;
  static constexpr int kAccumulatorBits = 13;  // measured

  template <bool Add>
  __device__ static void mma(float (&d)[kAccumulators], const uint32_t (&a)[4], uint64_t b) {
    ptx::wgmma<E5M2 ? ptx::MmaType::kE5M2xE4M3 : ptx::MmaType::kE4M3, Tokens>(d, a, b, Add);
  }
};

}  // namespace sub8::arch::sm90a
