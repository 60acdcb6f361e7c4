// Sixteen FP32 lanes, AVX-512 F, BW, DQ, VL, BF16. Included by vec.h only; the meaning of each
// operation is stated in vec_portable.h.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace sub8::kernels::avx512 {

inline constexpr int kLanes = 16;
typedef __m512 Vec;

SUB8_SIMD_INLINE __mmask16 lane_mask(int n) { return static_cast<__mmask16>((1u << n) - 1); }
SUB8_SIMD_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
SUB8_SIMD_INLINE Vec zero() { return _mm512_setzero_ps(); }
SUB8_SIMD_INLINE Vec load_f32(const float* p) { return _mm512_loadu_ps(p); }
SUB8_SIMD_INLINE Vec load_f32_n(const float* p, int n) {
  return _mm512_maskz_loadu_ps(lane_mask(n), p);
}
SUB8_SIMD_INLINE void store_f32(float* p, Vec x) { _mm512_storeu_ps(p, x); }
SUB8_SIMD_INLINE void store_f32_n(float* p, Vec x, int n) {
  _mm512_mask_storeu_ps(p, lane_mask(n), x);
}
SUB8_SIMD_INLINE Vec widen_bf16(__m256i half) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
SUB8_SIMD_INLINE Vec load_bf16(const uint16_t* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SUB8_SIMD_INLINE Vec load_bf16_n(const uint16_t* p, int n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(lane_mask(n), p));
}
// In integers, since the bf16 conversion instruction flushes subnormals.
SUB8_SIMD_INLINE __m512i rounded_bf16_bits(Vec x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
SUB8_SIMD_INLINE Vec round_bf16(Vec x) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(rounded_bf16_bits(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
SUB8_SIMD_INLINE __m256i narrow_bf16(Vec x) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bf16_bits(x), 16));
}
SUB8_SIMD_INLINE void store_bf16(uint16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
}
SUB8_SIMD_INLINE void store_bf16_n(uint16_t* p, Vec x, int n) {
  _mm256_mask_storeu_epi16(p, lane_mask(n), narrow_bf16(x));
}

SUB8_SIMD_INLINE Vec load_e4m3(const uint8_t* p, int n) {
  const __m512i code = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lane_mask(n), p));
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
  const Vec value =
      _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)), set1(0x1p120f));
  const Vec kept = _mm512_mask_blend_ps(nan, value, set1(__builtin_nanf("")));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(kept), sign));
}
SUB8_SIMD_INLINE Vec load_e2m1(const uint8_t* p, int n) {
  const __m128i bytes = _mm_maskz_loadu_epi8(static_cast<__mmask16>(lane_mask(n / 2)), p);
  const __m512i pairs = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes));
  const __m512i code =
      _mm512_srlv_epi32(pairs, _mm512_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4, 0, 4));
  const Vec values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                    -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  return _mm512_permutexvar_ps(code, values);
}

SUB8_SIMD_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
SUB8_SIMD_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
SUB8_SIMD_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
SUB8_SIMD_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
SUB8_SIMD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
SUB8_SIMD_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
SUB8_SIMD_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
SUB8_SIMD_INLINE Vec abs(Vec x) { return _mm512_abs_ps(x); }
SUB8_SIMD_INLINE Vec exponent_power(Vec x) { return _mm512_and_ps(x, set1(__builtin_inff())); }
SUB8_SIMD_INLINE Vec copy_sign(Vec x, Vec y) {
  const __m512 sign = set1(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(sign, x), _mm512_and_ps(sign, y));
}
SUB8_SIMD_INLINE Vec keep_lanes(Vec x, int begin, int end, float other) {
  const unsigned kept = lane_mask(end) & ~static_cast<unsigned>(lane_mask(begin));
  return _mm512_mask_blend_ps(static_cast<__mmask16>(kept), set1(other), x);
}
SUB8_SIMD_INLINE Vec select_less(Vec x, Vec y, Vec a, Vec b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
}
SUB8_SIMD_INLINE Vec scale_pow2(Vec p, Vec n) { return _mm512_scalef_ps(p, n); }
SUB8_SIMD_INLINE float reduce_add(Vec x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
SUB8_SIMD_INLINE float reduce_max(Vec x) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
SUB8_SIMD_INLINE void transpose(Vec (&x)[kLanes]) {
  Vec quads[kLanes];  // quads[4 * h + c]: columns c, c + 4, c + 8, c + 12 of rows 4h .. 4h+3
  for (int h = 0; h < 4; ++h) {
    for (int c = 0; c < 2; ++c) {
      const Vec* rows = x + 4 * h;
      const Vec a =
          c == 0 ? _mm512_unpacklo_ps(rows[0], rows[1]) : _mm512_unpackhi_ps(rows[0], rows[1]);
      const Vec b =
          c == 0 ? _mm512_unpacklo_ps(rows[2], rows[3]) : _mm512_unpackhi_ps(rows[2], rows[3]);
      quads[4 * h + 2 * c] = _mm512_shuffle_ps(a, b, 0x44);
      quads[4 * h + 2 * c + 1] = _mm512_shuffle_ps(a, b, 0xee);
    }
  }
  for (int c = 0; c < 4; ++c) {
    const Vec a = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0x44);
    const Vec b = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0x44);
    const Vec d = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0xee);
    const Vec e = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0xee);
    x[c] = _mm512_shuffle_f32x4(a, b, 0x88);
    x[4 + c] = _mm512_shuffle_f32x4(a, b, 0xdd);
    x[8 + c] = _mm512_shuffle_f32x4(d, e, 0x88);
    x[12 + c] = _mm512_shuffle_f32x4(d, e, 0xdd);
  }
}
SUB8_SIMD_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
// Pairs of bf16 in 32-bit lanes: sum + upper * upper, then + lower * lower, subnormals as zero.
SUB8_SIMD_INLINE Vec dot_bf16(Vec sum, Vec a, Vec b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_castps_si512(a)),
                          reinterpret_cast<__m512bh>(_mm512_castps_si512(b)));
}
SUB8_SIMD_INLINE double reduce_add_double(Vec x) {
  const __m512d sum = _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                                    _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
  return _mm512_reduce_add_pd(sum);
}

}  // namespace sub8::kernels::avx512
