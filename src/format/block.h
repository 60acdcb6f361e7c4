// Scales and block quantisation: the one definition of what a block's scale is and which codes go
// with it. Host and device; no allocation, no library.
//
// Every operation is FP32, rounded to nearest, in the order written (mul_rn and friends keep nvcc
// from fusing). Codes are chosen with the scale as stored. Inputs are finite and below 2^127 in
// magnitude (then every decoded value is finite too); the caller refuses others by name. A scale of
// 0 from a function below means "this row or tensor is zero": codes are 0, files store the scale
// 1.0.
//
// clang-format off
// | scheme | outer scale           | block scale s                             | code
// | eXmY   | d = amax_row/max      | -                                         | rn(x/d)
// | :gN    | c = amax_row/(64*max) | e4m3(amax_g/(max*c)), at least 2^-9       | rn(x/(c*s))
// | nvfp4  | alpha = amax/2688     | e4m3(amax_b/(6*alpha)), at least 2^-9     | rn(x/(alpha*s)) weights
// |        |                       |                                           | rn(x*fl(1/(alpha*s))) activations, queries, KV
// | mx*    | -                     | 2^e, e from amax_b's exponent by MxRule   | rn(x*2^-e)
// | fp8    | alpha = amax_row/448  | -                                         | rn(x*fl(1/alpha))
// clang-format on
//
// max is the element's largest value; rn saturates. Why the thresholds: FPx rows with d below
// 2^-126, and NVFP4 or grouped rows with alpha below 2^-117, count as zero, so that every divisor
// is a normal number (2^-117 times the smallest block scale 2^-9 is 2^-126).
#pragma once

#include <cstdint>

#include "format/coder.h"
#include "format/element.h"
#include "format/platform.h"

namespace sub8::format {

inline constexpr int kNvfp4Block = 16;
inline constexpr int kMxBlock = 32;
inline constexpr uint8_t kE4M3One = 0x38;       // 1.0, what files hold for an all-zero block
inline constexpr uint8_t kE4M3Smallest = 0x01;  // 2^-9

// The largest magnitude of x[0..count); 0 for none.
SUB8_HD constexpr float abs_max(const float* x, int64_t count) {
  uint32_t best = 0;  // finite magnitudes are ordered as their bits are
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
    best = magnitude > best ? magnitude : best;
  }
  return bits_float(best);
}

// An E4M3 block scale for the wanted ratio >= 0: nearest, at most 448, at least 2^-9.
SUB8_HD constexpr uint8_t e4m3_scale_code(float ratio) {
  const uint32_t code = ElementCoder(kE4M3).encode(ratio);
  return static_cast<uint8_t>(code > kE4M3Smallest ? code : kE4M3Smallest);
}

// ---- Codes for a known divisor -----------------------------------------------------------------

SUB8_HD constexpr void encode_divided(const ElementCoder& coder, const float* x, int64_t count,
                                      float d, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(coder.encode(x[i] / d));
}
SUB8_HD constexpr void encode_multiplied(const ElementCoder& coder, const float* x, int64_t count,
                                         float inv, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(coder.encode(mul_rn(x[i], inv)));
  }
}
SUB8_HD constexpr void zero_codes(uint8_t* codes, int64_t count) {
  for (int64_t i = 0; i < count; ++i) codes[i] = 0;
}

// ---- FPx: one FP32 scale per output channel, or that times an E4M3 scale per group -------------

SUB8_HD constexpr float channel_scale(ElementFormat f, float amax_row) {
  const float d = amax_row / f.max_value();
  return d < power_of_two(-126) ? 0.0f : d;
}

// The channel's factor c under group scales; 64 leaves the largest group a scale of 64, well inside
// E4M3.
SUB8_HD constexpr float grouped_channel_scale(ElementFormat f, float amax_row) {
  const float c = amax_row / mul_rn(64.0f, f.max_value());
  return c < power_of_two(-117) ? 0.0f : c;
}

// The scale byte of a group whose channel has c > 0. An all-zero group gets 1.0.
SUB8_HD constexpr uint8_t group_scale_code(ElementFormat f, float amax_group, float c) {
  if (amax_group == 0.0f) return kE4M3One;
  return e4m3_scale_code(amax_group / mul_rn(f.max_value(), c));
}

// The divisor of a block: the stored scales multiplied.
SUB8_HD constexpr float block_divisor(float outer, uint8_t e4m3_scale) {
  return mul_rn(outer, decode_element(kE4M3, e4m3_scale));
}

// One group of an eXmY:gN row (count <= N; a last group may be short). Returns the scale byte.
// c == 0: the row is zero.
SUB8_HD constexpr uint8_t quantize_group(ElementFormat f, const float* x, int64_t count, float c,
                                         uint8_t* codes) {
  const float amax = abs_max(x, count);
  if (c == 0.0f || amax == 0.0f) {
    zero_codes(codes, count);
    return kE4M3One;
  }
  const uint8_t scale = group_scale_code(f, amax, c);
  encode_divided(ElementCoder(f), x, count, block_divisor(c, scale), codes);
  return scale;
}

// ---- NVFP4 -------------------------------------------------------------------------------------

// alpha of a tensor or row from its largest magnitude.
SUB8_HD constexpr float nvfp4_alpha(float amax) {
  const float alpha = amax / 2688.0f;  // 6 * 448
  return alpha < power_of_two(-117) ? 0.0f : alpha;
}
// Four-over-six: the largest block scale is 256, so that 4 in place of 6 as the target still fits.
SUB8_HD constexpr float nvfp4_alpha_four_over_six(float amax) {
  const float alpha = amax / 1536.0f;  // 6 * 256
  return alpha < power_of_two(-117) ? 0.0f : alpha;
}

// The scale byte of a block whose largest magnitude amax_block > 0 is to become `target` (6, or 4).
// A static alpha that is too small saturates at 448.
SUB8_HD constexpr uint8_t nvfp4_scale_code(float amax_block, float alpha, float target = 6.0f) {
  return e4m3_scale_code(amax_block / mul_rn(target, alpha));
}

// The sum of squared errors of x against codes at divisor d: FP32, in index order.
SUB8_HD constexpr float nvfp4_squared_error(const float* x, int64_t count, float d) {
  const ElementCoder coder(kE2M1);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float error = sub_rn(x[i], mul_rn(coder.round(x[i] / d), d));
    sum = add_rn(sum, mul_rn(error, error));
  }
  return sum;
}

// Four-over-six: whichever of the two targets has the smaller error; ties take 6.
SUB8_HD constexpr uint8_t nvfp4_scale_code_four_over_six(const float* x, int64_t count,
                                                         float amax_block, float alpha) {
  const uint8_t six = nvfp4_scale_code(amax_block, alpha, 6.0f);
  const uint8_t four = nvfp4_scale_code(amax_block, alpha, 4.0f);
  const float error_six = nvfp4_squared_error(x, count, block_divisor(alpha, six));
  const float error_four = nvfp4_squared_error(x, count, block_divisor(alpha, four));
  return error_four < error_six ? four : six;
}

// One block of a weight (count <= 16). Returns the scale byte, 1.0 for a zero block or alpha == 0.
SUB8_HD constexpr uint8_t nvfp4_quantize_weight_block(const float* x, int64_t count, float alpha,
                                                      bool four_over_six, uint8_t* codes) {
  const float amax = abs_max(x, count);
  if (alpha == 0.0f || amax == 0.0f) {
    zero_codes(codes, count);
    return kE4M3One;
  }
  const uint8_t scale = four_over_six ? nvfp4_scale_code_four_over_six(x, count, amax, alpha)
                                      : nvfp4_scale_code(amax, alpha);
  encode_divided(ElementCoder(kE2M1), x, count, block_divisor(alpha, scale), codes);
  return scale;
}

// One block of an activation, query or KV row: the division becomes a product with 1/d. Returns the
// scale byte, 0 for a zero block or alpha == 0.
SUB8_HD constexpr uint8_t nvfp4_quantize_activation_block(const float* x, int64_t count,
                                                          float alpha, uint8_t* codes) {
  const float amax = abs_max(x, count);
  if (alpha == 0.0f || amax == 0.0f) {
    zero_codes(codes, count);
    return 0;
  }
  const uint8_t scale = nvfp4_scale_code(amax, alpha);
  encode_multiplied(ElementCoder(kE2M1), x, count, 1.0f / block_divisor(alpha, scale), codes);
  return scale;
}

// ---- MX: a power of two per 32 elements --------------------------------------------------------

enum class MxRule : uint8_t {
  kEven,   // amax rounded to the element's mantissa, then its exponent: ours, compressed-tensors'
  kCeil,   // the smallest scale under which amax does not saturate: ModelOpt, FlashInfer
  kFloor,  // amax's exponent: OCP, GGUF, gpt-oss; elements may saturate
};

// The exponent of the element's largest value: 2 for e2m1, 4 for e3m2, 8 for e4m3.
SUB8_HD constexpr int max_exponent(ElementFormat f) {
  return static_cast<int>(float_bits(f.max_value()) >> 23) - 127;
}

// The E8M0 byte of a block: 127 + e with e clamped to [-127, 127], never 255. 0 for amax == 0.
// (A subnormal amax has e at the lower limit under every rule.)
SUB8_HD constexpr uint8_t mx_scale_code(ElementFormat f, float amax_block, MxRule rule) {
  uint32_t bits = float_bits(amax_block);
  if (bits == 0) return 0;
  if (rule == MxRule::kEven) bits += 1u << (22 - f.mantissa_bits);
  int e = static_cast<int>(bits >> 23) - 127 - max_exponent(f);
  if (rule == MxRule::kCeil && (bits & 0x7fffffu) > (float_bits(f.max_value()) & 0x7fffffu)) ++e;
  if (e < -127) e = -127;
  if (e > 127) e = 127;
  return static_cast<uint8_t>(e + 127);
}

// 1/decode_e8m0(byte), exact; byte <= 254.
SUB8_HD constexpr float e8m0_inverse(uint8_t byte) {
  return power_of_two(127 - static_cast<int>(byte));
}

// One block (count <= 32), weights and activations alike: by a power of two, dividing and
// multiplying with the inverse are the same. Returns the scale byte.
SUB8_HD constexpr uint8_t mx_quantize_block(ElementFormat f, const float* x, int64_t count,
                                            MxRule rule, uint8_t* codes) {
  const float amax = abs_max(x, count);
  if (amax == 0.0f) {  // the codes of negative zeros too
    zero_codes(codes, count);
    return 0;
  }
  const uint8_t scale = mx_scale_code(f, amax, rule);
  encode_multiplied(ElementCoder(f), x, count, e8m0_inverse(scale), codes);
  return scale;
}

// ---- FP8 activation rows -----------------------------------------------------------------------

// alpha of an E4M3 row; 0: the row is zero.
SUB8_HD constexpr float fp8_alpha(float amax_row) {
  const float alpha = amax_row / 448.0f;
  return alpha < power_of_two(-117) ? 0.0f : alpha;
}

SUB8_HD constexpr void fp8_quantize_row(const float* x, int64_t count, float alpha,
                                        uint8_t* codes) {
  if (alpha == 0.0f) return zero_codes(codes, count);
  encode_multiplied(ElementCoder(kE4M3), x, count, 1.0f / alpha, codes);
}

// ---- Values ------------------------------------------------------------------------------------

// x^[i] = q * d, with d the product of the stored scales (block_divisor, decode_e8m0, or the outer
// scale).
SUB8_HD constexpr void dequantize(ElementFormat f, const uint8_t* codes, int64_t count, float d,
                                  float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = mul_rn(decode_element(f, codes[i]), d);
}

}  // namespace sub8::format
