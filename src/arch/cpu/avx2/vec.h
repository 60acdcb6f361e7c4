// AVX2 + FMA + F16C vector primitives; arch/cpu/scalar/vec.h describes the functions.
// Include only in translation units with those -m flags.
#pragma once

#include <cstdint>

#include <immintrin.h>

#ifndef SUB8_INLINE
#define SUB8_INLINE __attribute__((always_inline)) inline
#endif

namespace sub8::avx2 {

struct Vec {
  static constexpr int kBytes = 32;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 3;     // 3 x 4 accumulators, 3 broadcasts and 1 weight: 16 registers
  static constexpr int kFewRows = 2;  // M that is multiplied from registers
  static constexpr int kFewPairRows = 0;  // the same for pairs of bf16; 0: none
  static constexpr int kByteRows = 4;     // 4 x 2 sums of bytes; those of f32 are in memory
  static constexpr int kFewByteRows = 2;  // as kFewRows, for bytes
  using U = __m256i;
  using F = __m256;

  static SUB8_INLINE __m256i splat(uint16_t x) { return _mm256_set1_epi16(static_cast<short>(x)); }
  static SUB8_INLINE __m128i upper(__m256i a) { return _mm256_extracti128_si256(a, 1); }

  static SUB8_INLINE U load(const uint8_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  static SUB8_INLINE void store_bytes(uint8_t* p, U a) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), a);
  }
  static SUB8_INLINE U band(U a, uint16_t mask) { return _mm256_and_si256(a, splat(mask)); }
  static SUB8_INLINE U bor(U a, U b) { return _mm256_or_si256(a, b); }
  static SUB8_INLINE U bor_masked(U a, U b, uint16_t mask) { return bor(a, band(b, mask)); }
  template <int N>
  static SUB8_INLINE U shl(U a) {
    return _mm256_slli_epi16(a, N);
  }
  template <int N>
  static SUB8_INLINE U shr(U a) {
    return _mm256_srli_epi16(a, N);
  }
  static SUB8_INLINE U shl_by(U a, int n) { return _mm256_sll_epi16(a, _mm_cvtsi32_si128(n)); }
  static SUB8_INLINE U mul(U a, uint16_t factor) { return _mm256_mullo_epi16(a, splat(factor)); }
  static SUB8_INLINE U widen(const uint8_t* p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  // The upper half goes through memory: on Zen 3 the load form of vcvtph2ps runs twice a cycle, the
  // register form and vextracti128 share one port (measured: 11.5 against 16 G weights/s for e3m2).
  // Assembly, or the compiler would take the value from the register.
  static SUB8_INLINE void f16(U a, F& low, F& high) {
    __m256i slot;
    _mm256_store_si256(&slot, a);
    const __m128i* half = reinterpret_cast<const __m128i*>(&slot);
    low = _mm256_cvtph_ps(_mm256_castsi256_si128(a));
    __asm__("vcvtph2ps %1, %0" : "=x"(high) : "m"(half[1]));
  }
  static SUB8_INLINE F lookup(const float* table, __m128i a) {
    return _mm256_i32gather_ps(table, _mm256_cvtepu16_epi32(a), 4);
  }
  static SUB8_INLINE F lookup_low(const float* table, U a) {
    return lookup(table, _mm256_castsi256_si128(a));
  }
  static SUB8_INLINE F lookup_high(const float* table, U a) { return lookup(table, upper(a)); }
  static SUB8_INLINE F bf16_even(U a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
  static SUB8_INLINE F bf16_odd(U a) {
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(-65536)));
  }

  static SUB8_INLINE U broadcast_item(const uint32_t* p) {
    return _mm256_set1_epi32(static_cast<int>(*p));
  }
  static SUB8_INLINE U dot_bytes(U sums, U w, U x) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, x));
  }
  static SUB8_INLINE void sums_to_float(U sums, F* out) {
    out[0] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sums)));
    out[1] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(upper(sums)));
  }
  static SUB8_INLINE U lookup16(U table, U index) { return _mm256_shuffle_epi8(table, index); }
  static SUB8_INLINE U mul_high(U a, uint16_t factor) {
    return _mm256_mulhi_epu16(a, splat(factor));
  }

  static SUB8_INLINE F zero() { return _mm256_setzero_ps(); }
  static SUB8_INLINE F broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static SUB8_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static SUB8_INLINE void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static SUB8_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  static SUB8_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static SUB8_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static SUB8_INLINE F e8m0(const uint8_t* p) {
    const __m256i byte = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_slli_epi32(byte, 23), _mm256_set1_epi32(0x00400000)));
  }
  static SUB8_INLINE void prefetch(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
};

}  // namespace sub8::avx2
