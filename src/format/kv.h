// Elements of the KV cache in 8 and 4 bits, and what attention makes of them. Host and device.
//
//   fp8     code = rn_e4m3(x * fl(1/alpha))                         value = code * alpha
//   nvfp4   per 16 along the head dimension: s = e4m3(amax_b/(6*alpha)), at least 2^-9, V's at most
//           72; code = rn_e2m1(x * fl(1/(alpha*s)))                 value = code * (alpha*s)
//
// alpha belongs to a layer's K or V: amax/448 where calibrated, else 1. It is known before the
// first token, so blocks beyond it saturate. With V's s at most 72 every code * s is at most 432:
// it fits E4M3, in which ResAttn multiplies by V.
#pragma once

#include <cstdint>

#include "format/block.h"

namespace sub8::format {

// What alpha may be: every divisor alpha * s is then a normal number, every value below 2^127.
inline constexpr float kSmallestKvAlpha = 0x1p-117f;
inline constexpr float kLargestKvAlpha = 0x1p115f;

inline constexpr uint8_t kE4M3Nan = 0x7f;
inline constexpr uint8_t kLargestValueScale = 0x69;  // 72

// One block of a K or V row (count <= 16). Returns the scale byte: 0 for a zero block, NaN (0x7f)
// where the block holds a NaN.
SUB8_HD constexpr uint8_t nvfp4_quantize_kv_block(const float* x, int64_t count, float alpha,
                                                  bool value_side, uint8_t* codes) {
  const uint8_t scale = nvfp4_quantize_activation_block(x, count, alpha, codes);
  if (!value_side || scale <= kLargestValueScale || scale == kE4M3Nan) return scale;
  encode_multiplied(ElementCoder(kE2M1), x, count, 1.0f / block_divisor(alpha, kLargestValueScale),
                    codes);
  return kLargestValueScale;
}

}  // namespace sub8::format
