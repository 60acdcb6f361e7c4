// Elementary functions of FP32 lanes. Accuracy is measured by tests/kernels/simd_math_test.cc.
#pragma once

#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {

// The whole number nearest to x, |x| < 2^22.
SUB8_SIMD_INLINE Vec round_whole(Vec x) {
  const Vec magic = set1(0x1.8p23f);
  return sub(add(x, magic), magic);
}

// e^x within 1.5 units in the last place (2 without fused multiply-add), subnormal results within
// one unit; +inf above 88.73, 0 below -103.98; NaN stays NaN.
// Source: range reduction by k ln 2 (two-part constant), then 1 + r + r^2 P(r) with P a minimax fit
// of degree 4 on |r| <= ln(2)/2 (relative error 3.1e-9).
SUB8_SIMD_INLINE Vec exp(Vec x) {
  // The bounds come first so that a NaN in x passes.
  x = min(set1(89.0f), max(set1(-105.0f), x));
  const Vec k = round_whole(mul(x, set1(0x1.715476p0f)));
  Vec r = fma(k, set1(-0x1.62e4p-1f), x);  // 15 bits: the product is exact
  r = fma(k, set1(-0x1.7f7d1cp-20f), r);
  Vec p = set1(0x1.6a23bcp-10f);
  p = fma(p, r, set1(0x1.123a2ap-7f));
  p = fma(p, r, set1(0x1.5558f4p-5f));
  p = fma(p, r, set1(0x1.55549p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  p = add(fma(mul(r, r), p, r), set1(1.0f));
  return scale_pow2(p, k);
}

// 1 / (1 + e^-x).
SUB8_SIMD_INLINE Vec sigmoid(Vec x) {
  return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x))));
}

// Small |x| by an odd polynomial, the rest as 1 - 2 / (e^2|x| + 1).
SUB8_SIMD_INLINE Vec tanh(Vec x) {
  const Vec magnitude = abs(x);
  const Vec e = exp(add(magnitude, magnitude));
  const Vec large = sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
  const Vec x2 = mul(x, x);
  // Taylor series to x^11; below 0.3 the next term is under 2^-30 of the value.
  Vec p = set1(-1382.0f / 155925.0f);
  p = fma(p, x2, set1(62.0f / 2835.0f));
  p = fma(p, x2, set1(-17.0f / 315.0f));
  p = fma(p, x2, set1(2.0f / 15.0f));
  p = fma(p, x2, set1(-1.0f / 3.0f));
  const Vec small = fma(mul(magnitude, x2), p, magnitude);
  return copy_sign(select_less(magnitude, set1(0.3f), small, large), x);
}

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
