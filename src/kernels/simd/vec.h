// Vectors of FP32 lanes for the kernels that are written once and compiled once per instruction
// set (simd.cc of every operation).
//
// Each translation unit gets SUB8_SIMD_AVX2 or SUB8_SIMD_AVX512 (or neither: portable) from CMake,
// together with its -m flags. Everything here is always_inline with internal linkage, and these
// units include no STL: a shared inline function compiled with wider instructions could otherwise
// replace the baseline's copy at link time (tests/kernels checks the objects for weak symbols).
//
// Vec is the vector, kLanes its length. Operations that take a count `n` touch the first n lanes of
// memory only, 0 <= n <= kLanes; the lanes read beyond are 0.
#pragma once

#include <cstdint>

#define SUB8_SIMD_INLINE static inline __attribute__((always_inline))

#if defined(SUB8_SIMD_AVX512)
#define SUB8_SIMD_NAMESPACE avx512
#include "kernels/simd/vec_avx512.h"
#elif defined(SUB8_SIMD_AVX2)
#define SUB8_SIMD_NAMESPACE avx2
#include "kernels/simd/vec_avx2.h"
#else
#define SUB8_SIMD_NAMESPACE portable
#include "kernels/simd/vec_portable.h"
#endif

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {

// Elements of a row in memory, read and written as FP32 lanes.
struct F32Element {
  using Type = float;
  SUB8_SIMD_INLINE Vec load(const float* p) { return load_f32(p); }
  SUB8_SIMD_INLINE Vec load_n(const float* p, int n) { return load_f32_n(p, n); }
  SUB8_SIMD_INLINE void store(float* p, Vec x) { store_f32(p, x); }
  SUB8_SIMD_INLINE void store_n(float* p, Vec x, int n) { store_f32_n(p, x, n); }
};
struct Bf16Element {
  using Type = uint16_t;
  SUB8_SIMD_INLINE Vec load(const uint16_t* p) { return load_bf16(p); }
  SUB8_SIMD_INLINE Vec load_n(const uint16_t* p, int n) { return load_bf16_n(p, n); }
  SUB8_SIMD_INLINE void store(uint16_t* p, Vec x) { store_bf16(p, x); }
  SUB8_SIMD_INLINE void store_n(uint16_t* p, Vec x, int n) { store_bf16_n(p, x, n); }
};

// Calls f(offset, n) for consecutive pieces of [0, count): whole vectors (n == kLanes), then a
// tail.
template <class F>
SUB8_SIMD_INLINE void for_vectors(int64_t count, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, kLanes);
  if (i < count) f(i, static_cast<int>(count - i));
}

template <class Element>
SUB8_SIMD_INLINE Vec load_piece(const typename Element::Type* p, int n) {
  return n == kLanes ? Element::load(p) : Element::load_n(p, n);
}
template <class Element>
SUB8_SIMD_INLINE void store_piece(typename Element::Type* p, Vec x, int n) {
  if (n == kLanes) {
    Element::store(p, x);
  } else {
    Element::store_n(p, x, n);
  }
}

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
