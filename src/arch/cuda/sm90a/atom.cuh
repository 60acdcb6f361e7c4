// The wgmma atom of 16-bit operands: shape and instruction; its fragment maps are in map.h.
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

}  // namespace sub8::arch::sm90a
