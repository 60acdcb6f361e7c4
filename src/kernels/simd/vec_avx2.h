// Eight FP32 lanes, AVX2 with FMA. Included by vec.h only; the meaning of each operation is stated
// in vec_portable.h.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace sub8::kernels::avx2 {

inline constexpr int kLanes = 8;
typedef __m256 Vec;

SUB8_SIMD_INLINE __m256i lane_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SUB8_SIMD_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
SUB8_SIMD_INLINE Vec zero() { return _mm256_setzero_ps(); }
SUB8_SIMD_INLINE Vec load_f32(const float* p) { return _mm256_loadu_ps(p); }
SUB8_SIMD_INLINE Vec load_f32_n(const float* p, int n) {
  return _mm256_maskload_ps(p, lane_mask(n));
}
SUB8_SIMD_INLINE void store_f32(float* p, Vec x) { _mm256_storeu_ps(p, x); }
SUB8_SIMD_INLINE void store_f32_n(float* p, Vec x, int n) {
  _mm256_maskstore_ps(p, lane_mask(n), x);
}
SUB8_SIMD_INLINE Vec widen_bf16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
SUB8_SIMD_INLINE Vec load_bf16(const uint16_t* p) {
  return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SUB8_SIMD_INLINE Vec load_bf16_n(const uint16_t* p, int n) {
  uint16_t copy[kLanes] = {};
  for (int i = 0; i < n; ++i) copy[i] = p[i];
  return load_bf16(copy);
}
SUB8_SIMD_INLINE __m256i rounded_bf16_bits(Vec x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
}
SUB8_SIMD_INLINE Vec round_bf16(Vec x) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(rounded_bf16_bits(x), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
SUB8_SIMD_INLINE void store_bf16(uint16_t* p, Vec x) {
  const __m256i bits = _mm256_srli_epi32(rounded_bf16_bits(x), 16);
  const __m128i low = _mm256_castsi256_si128(bits);
  const __m128i high = _mm256_extracti128_si256(bits, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, high));
}
SUB8_SIMD_INLINE void store_bf16_n(uint16_t* p, Vec x, int n) {
  uint16_t copy[kLanes];
  store_bf16(copy, x);
  for (int i = 0; i < n; ++i) p[i] = copy[i];
}

SUB8_SIMD_INLINE Vec load_e4m3(const uint8_t* p, int n) {
  uint64_t bytes = 0;
  __builtin_memcpy(&bytes, p, static_cast<unsigned>(n));
  const __m256i code = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f)),
                                       _mm256_set1_epi32(0x7fc00000));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  const Vec value =
      _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), set1(0x1p120f));
  return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_or_si256(nan, sign)));
}
SUB8_SIMD_INLINE Vec load_e2m1(const uint8_t* p, int n) {
  uint32_t bytes = 0;
  __builtin_memcpy(&bytes, p, static_cast<unsigned>(n / 2));
  const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(bytes)),
                                         _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  const Vec values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
  return _mm256_or_ps(_mm256_permutevar8x32_ps(values, code), _mm256_castsi256_ps(sign));
}

SUB8_SIMD_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
SUB8_SIMD_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
SUB8_SIMD_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
SUB8_SIMD_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
SUB8_SIMD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SUB8_SIMD_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
SUB8_SIMD_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
SUB8_SIMD_INLINE Vec abs(Vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
SUB8_SIMD_INLINE Vec exponent_power(Vec x) { return _mm256_and_ps(x, set1(__builtin_inff())); }
SUB8_SIMD_INLINE Vec copy_sign(Vec x, Vec y) {
  return _mm256_or_ps(abs(x), _mm256_and_ps(y, _mm256_set1_ps(-0.0f)));
}
SUB8_SIMD_INLINE Vec keep_lanes(Vec x, int begin, int end, float other) {
  const __m256i kept = _mm256_andnot_si256(lane_mask(begin), lane_mask(end));
  return _mm256_blendv_ps(set1(other), x, _mm256_castsi256_ps(kept));
}
SUB8_SIMD_INLINE Vec select_less(Vec x, Vec y, Vec a, Vec b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
SUB8_SIMD_INLINE Vec pow2(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
SUB8_SIMD_INLINE Vec scale_pow2(Vec p, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return mul(mul(p, pow2(half)), pow2(_mm256_sub_epi32(whole, half)));
}
SUB8_SIMD_INLINE float reduce_add(Vec x) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
SUB8_SIMD_INLINE float reduce_max(Vec x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
SUB8_SIMD_INLINE void transpose(Vec (&x)[kLanes]) {
  Vec pairs[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  Vec quads[kLanes];  // quads[4 * h + c]: columns c and c + 4 of rows 4h .. 4h+3
  for (int h = 0; h < 2; ++h) {
    for (int c = 0; c < 2; ++c) {
      const Vec a = pairs[4 * h + c];
      const Vec b = pairs[4 * h + c + 2];
      quads[4 * h + 2 * c] = _mm256_shuffle_ps(a, b, 0x44);
      quads[4 * h + 2 * c + 1] = _mm256_shuffle_ps(a, b, 0xee);
    }
  }
  for (int c = 0; c < 4; ++c) {
    x[c] = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x20);
    x[4 + c] = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x31);
  }
}
SUB8_SIMD_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}
SUB8_SIMD_INLINE double reduce_add_double(Vec x) {
  const __m256d sum = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)),
                                    _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
  return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

}  // namespace sub8::kernels::avx2
