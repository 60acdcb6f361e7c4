// Packed 16-bit arithmetic.
#pragma once

#include <cstdint>

#include "format/placement.h"

namespace sub8::ptx {

template <format::Half T>
__device__ __forceinline__ uint32_t multiply2(uint32_t a, uint32_t b) {
  uint32_t c;
  if constexpr (T == format::Half::kF16) {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  } else {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  }
  return c;
}
// (a & mask) | bits in one instruction; two plain immediates would take two.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}
// x, in a way that hides where it comes from.
__device__ __forceinline__ uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
// threadIdx.x, read anew: for what is needed rarely and should not keep a register.
__device__ __forceinline__ int thread_index() {
  int t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return t;
}
// x of lane 0: for values that are equal in all lanes of a converged warp.
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(~0u, x, 0); }
// The low (high) half of x in both halves.
__device__ __forceinline__ uint32_t low_twice(uint32_t x) {
  uint32_t y;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {l, l};\n}\n" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ uint32_t high_twice(uint32_t x) {
  uint32_t y;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {h, h};\n}\n" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}
// The same without masking the selectors, whose fourth bits must be clear.
__device__ __forceinline__ uint32_t permute_bytes_unmasked(uint32_t a, uint32_t b,
                                                           uint32_t selectors) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selectors));
  return out;
}
// Two floats as 16-bit halves, nearest even; `low` in the low half.
template <format::Half T>
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
  uint32_t out;
  if constexpr (T == format::Half::kF16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
}

}  // namespace sub8::ptx
