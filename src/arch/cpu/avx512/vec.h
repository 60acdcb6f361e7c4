// AVX-512 (F, BW, DQ, VL, VBMI, VNNI, BF16) vector primitives; arch/cpu/scalar/vec.h describes the
// functions. Include only in translation units with those -m flags.
#pragma once

#include <cstdint>

#include <immintrin.h>

#ifndef SUB8_INLINE
#define SUB8_INLINE __attribute__((always_inline)) inline
#endif

namespace sub8::avx512 {

struct Vec {
  static constexpr int kBytes = 64;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 12;        // 12 x 2 accumulators of 32 registers
  static constexpr int kFewRows = 1;      // M that is multiplied from registers
  static constexpr int kFewPairRows = 8;  // the same for pairs of bf16; 0: none
  static constexpr int kByteRows = 6;     // 6 x 2 sums of bytes and as many of f32
  static constexpr int kFewByteRows = 8;  // as kFewRows, for bytes
  using U = __m512i;
  using F = __m512;

  static SUB8_INLINE __m512i splat(uint16_t x) { return _mm512_set1_epi16(static_cast<short>(x)); }
  static SUB8_INLINE __m256i upper(__m512i a) { return _mm512_extracti64x4_epi64(a, 1); }

  static SUB8_INLINE U load(const uint8_t* p) { return _mm512_load_si512(p); }
  static SUB8_INLINE U load_unaligned(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static SUB8_INLINE void store_bytes(uint8_t* p, U a) { _mm512_store_si512(p, a); }
  static SUB8_INLINE U band(U a, uint16_t mask) { return _mm512_and_si512(a, splat(mask)); }
  static SUB8_INLINE U bor(U a, U b) { return _mm512_or_si512(a, b); }
  static SUB8_INLINE U bor_masked(U a, U b, uint16_t mask) {
    return _mm512_ternarylogic_epi32(a, b, splat(mask), 0xf8);  // a | (b & mask)
  }
  template <int N>
  static SUB8_INLINE U shl(U a) {
    return _mm512_slli_epi16(a, N);
  }
  template <int N>
  static SUB8_INLINE U shr(U a) {
    return _mm512_srli_epi16(a, N);
  }
  static SUB8_INLINE U shl_by(U a, int n) { return _mm512_sll_epi16(a, _mm_cvtsi32_si128(n)); }
  static SUB8_INLINE U mul(U a, uint16_t factor) { return _mm512_mullo_epi16(a, splat(factor)); }
  static SUB8_INLINE U widen(const uint8_t* p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  static SUB8_INLINE void f16(U a, F& low, F& high) {
    low = _mm512_cvtph_ps(_mm512_castsi512_si256(a));
    high = _mm512_cvtph_ps(upper(a));
  }
  static SUB8_INLINE F lookup(const float* table, __m256i a) {
    return _mm512_i32gather_ps(_mm512_cvtepu16_epi32(a), table, 4);
  }
  static SUB8_INLINE F lookup_low(const float* table, U a) {
    return lookup(table, _mm512_castsi512_si256(a));
  }
  static SUB8_INLINE F lookup_high(const float* table, U a) { return lookup(table, upper(a)); }
  static SUB8_INLINE F bf16_even(U a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
  static SUB8_INLINE F bf16_odd(U a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(-65536)));
  }

  static SUB8_INLINE U select(U a, U b, uint8_t mask) {
    return _mm512_ternarylogic_epi32(a, b, splat(static_cast<uint16_t>(mask * 0x0101)), 0xd8);
  }
  static SUB8_INLINE U lookup(const U (&table)[1], U index) {
    return _mm512_permutexvar_epi8(index, table[0]);
  }
  static SUB8_INLINE U lookup(const U (&table)[2], U index) {
    return _mm512_permutex2var_epi8(table[0], index, table[1]);
  }
  static SUB8_INLINE U zip_low(U a, U b) { return _mm512_unpacklo_epi8(a, b); }
  static SUB8_INLINE U zip_high(U a, U b) { return _mm512_unpackhi_epi8(a, b); }
  static SUB8_INLINE U rotate16(U a) { return _mm512_rol_epi32(a, 16); }
  static SUB8_INLINE F as_float(U a) { return _mm512_castsi512_ps(a); }
  static SUB8_INLINE F lower_bf16(F a) { return bf16_even(_mm512_castps_si512(a)); }
  static SUB8_INLINE F upper_bf16(F a) { return bf16_odd(_mm512_castps_si512(a)); }
  // Upper halves first, one rounding each (Intel SDM; measured on AMD too).
  static SUB8_INLINE F dot(F w, F x, F c) {
    return _mm512_dpbf16_ps(c, bf16_pairs(w), bf16_pairs(x));
  }
  static SUB8_INLINE __m512bh bf16_pairs(F a) {
    return reinterpret_cast<__m512bh>(_mm512_castps_si512(a));
  }

  static SUB8_INLINE U broadcast_item(const uint32_t* p) {
    return _mm512_set1_epi32(static_cast<int>(*p));
  }
  static SUB8_INLINE U dot_bytes(U sums, U w, U x) { return _mm512_dpbusd_epi32(sums, w, x); }
  static SUB8_INLINE void sums_to_float(U sums, F* out) { *out = _mm512_cvtepi32_ps(sums); }
  static SUB8_INLINE U zip16_low(U a, U b) { return _mm512_unpacklo_epi16(a, b); }
  static SUB8_INLINE U zip16_high(U a, U b) { return _mm512_unpackhi_epi16(a, b); }

  static SUB8_INLINE F zero() { return _mm512_setzero_ps(); }
  static SUB8_INLINE F broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static SUB8_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static SUB8_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static SUB8_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static SUB8_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static SUB8_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static SUB8_INLINE F e8m0(const uint8_t* p) {
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_slli_epi32(byte, 23), _mm512_set1_epi32(0x00400000)));
  }
  static SUB8_INLINE void store_bf16_pairs(uint16_t* p, F a, F b) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    _mm512_storeu_si512(
        p, _mm512_ternarylogic_epi32(low, _mm512_castps_si512(b), _mm512_set1_epi32(-65536), 0xf8));
  }
  static SUB8_INLINE void prefetch(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
};

}  // namespace sub8::avx512
