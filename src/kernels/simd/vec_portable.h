// Four FP32 lanes as compiler vectors: the baseline of the architecture, no fused multiply-add.
// Included by vec.h only.
#pragma once

#include <cstdint>

namespace sub8::kernels::portable {

inline constexpr int kLanes = 4;
typedef float Vec __attribute__((vector_size(16)));
typedef int32_t IntVec __attribute__((vector_size(16)));
typedef uint32_t UintVec __attribute__((vector_size(16)));

SUB8_SIMD_INLINE Vec set1(float x) { return Vec{x, x, x, x}; }
SUB8_SIMD_INLINE Vec zero() { return Vec{0, 0, 0, 0}; }
SUB8_SIMD_INLINE Vec load_f32(const float* p) {
  Vec out;
  __builtin_memcpy(&out, p, sizeof(out));
  return out;
}
SUB8_SIMD_INLINE Vec load_f32_n(const float* p, int n) {
  Vec out = zero();
  for (int i = 0; i < n; ++i) out[i] = p[i];
  return out;
}
SUB8_SIMD_INLINE void store_f32(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof(x)); }
SUB8_SIMD_INLINE void store_f32_n(float* p, Vec x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x[i];
}
SUB8_SIMD_INLINE Vec load_bf16_n(const uint16_t* p, int n) {
  UintVec bits = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) bits[i] = static_cast<uint32_t>(p[i]) << 16;
  return reinterpret_cast<Vec>(bits);
}
SUB8_SIMD_INLINE Vec load_bf16(const uint16_t* p) {
  const UintVec bits = {p[0], p[1], p[2], p[3]};
  return reinterpret_cast<Vec>(bits << 16);
}
// The upper halves hold the rounded value: nearest, ties to even, NaN stays NaN.
SUB8_SIMD_INLINE UintVec rounded_bf16_bits(Vec x) {
  const UintVec bits = reinterpret_cast<UintVec>(x);
  const UintVec rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const UintVec nan = reinterpret_cast<UintVec>(x != x);
  return (nan & (bits | 0x400000u)) | (~nan & rounded);
}
SUB8_SIMD_INLINE Vec round_bf16(Vec x) {
  return reinterpret_cast<Vec>(rounded_bf16_bits(x) & 0xffff0000u);
}
SUB8_SIMD_INLINE void store_bf16_n(uint16_t* p, Vec x, int n) {
  const UintVec bits = rounded_bf16_bits(x) >> 16;
  for (int i = 0; i < n; ++i) p[i] = static_cast<uint16_t>(bits[i]);
}
SUB8_SIMD_INLINE void store_bf16(uint16_t* p, Vec x) { store_bf16_n(p, x, kLanes); }

// n E4M3 codes; NaN codes become NaN.
SUB8_SIMD_INLINE Vec load_e4m3(const uint8_t* p, int n) {
  UintVec code = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) code[i] = p[i];
  const UintVec magnitude = code & 0x7fu;
  const UintVec nan = reinterpret_cast<UintVec>(magnitude == 0x7fu) & 0x7fc00000u;
  // The fields as they lie, 120 binades up: exact, subnormals included.
  const Vec value = reinterpret_cast<Vec>(magnitude << 20) * 0x1p120f;
  return reinterpret_cast<Vec>(reinterpret_cast<UintVec>(value) | nan | ((code & 0x80u) << 24));
}
// n E2M1 codes, two a byte, the lower bits first; n is even.
SUB8_SIMD_INLINE Vec load_e2m1(const uint8_t* p, int n) {
  static constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  Vec out = zero();
  for (int i = 0; i < n; ++i) out[i] = kValues[p[i / 2] >> (i % 2 * 4) & 15];
  return out;
}

SUB8_SIMD_INLINE Vec add(Vec a, Vec b) { return a + b; }
SUB8_SIMD_INLINE Vec sub(Vec a, Vec b) { return a - b; }
SUB8_SIMD_INLINE Vec mul(Vec a, Vec b) { return a * b; }
SUB8_SIMD_INLINE Vec div(Vec a, Vec b) { return a / b; }
// a * b + c; one rounding where the instruction set has it.
SUB8_SIMD_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
// b where either is NaN.
SUB8_SIMD_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
SUB8_SIMD_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
SUB8_SIMD_INLINE Vec abs(Vec x) {
  return reinterpret_cast<Vec>(reinterpret_cast<UintVec>(x) & 0x7fffffffu);
}
// The power of two at or below |x|; 0 for zero and subnormals.
SUB8_SIMD_INLINE Vec exponent_power(Vec x) {
  return reinterpret_cast<Vec>(reinterpret_cast<UintVec>(x) & 0x7f800000u);
}
// x with the sign bit of y.
SUB8_SIMD_INLINE Vec copy_sign(Vec x, Vec y) {
  return reinterpret_cast<Vec>((reinterpret_cast<UintVec>(x) & 0x7fffffffu) |
                               (reinterpret_cast<UintVec>(y) & 0x80000000u));
}
// x where lane index is in [begin, end), else `other`.
SUB8_SIMD_INLINE Vec keep_lanes(Vec x, int begin, int end, float other) {
  const IntVec lane = {0, 1, 2, 3};
  const IntVec kept = (lane >= begin) & (lane < end);
  return kept ? x : set1(other);
}
// a where x < y, else b (b where either is NaN).
SUB8_SIMD_INLINE Vec select_less(Vec x, Vec y, Vec a, Vec b) { return x < y ? a : b; }
// p * 2^n, n a whole number in [-252, 254]; rounded once where the result is subnormal.
SUB8_SIMD_INLINE Vec scale_pow2(Vec p, Vec n) {
  const IntVec whole = __builtin_convertvector(n, IntVec);
  const IntVec half = whole >> 1;
  return p * reinterpret_cast<Vec>((half + 127) << 23) *
         reinterpret_cast<Vec>((whole - half + 127) << 23);
}
SUB8_SIMD_INLINE float reduce_add(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
SUB8_SIMD_INLINE float reduce_max(Vec x) {
  const float a = x[0] > x[2] ? x[0] : x[2];
  const float b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
// x[i][j] and x[j][i] change places.
SUB8_SIMD_INLINE void transpose(Vec (&x)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      const float other = x[i][j];
      x[i][j] = x[j][i];
      x[j][i] = other;
    }
  }
}
SUB8_SIMD_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
SUB8_SIMD_INLINE double reduce_add_double(Vec x) {
  return (static_cast<double>(x[0]) + x[1]) + (static_cast<double>(x[2]) + x[3]);
}

}  // namespace sub8::kernels::portable
