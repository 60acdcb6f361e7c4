// Small floating-point elements eXmY: decode and encode.
//
// A code has, from its high end, 1 sign bit, X exponent bits and Y mantissa bits, 3 <= 1+X+Y <= 8,
// X >= 1. The bias is 2^(X-1)-1. Exponent field 0 holds subnormals. There is no infinity and no
// NaN, with two exceptions that follow the OCP 8-bit specification: e4m3 (FN: 0x7f and 0xff are
// NaN) and e5m2 (0x7c is infinity, 0x7d..0x7f NaN).
//
// Encoding rounds to nearest, ties to even, and saturates (infinities too); the sign of zero is
// kept. NaN becomes NaN where the format has one and +max elsewhere. This is the only definition of
// the arithmetic: kernels call it or are tested against it.
//
// Source: OCP Microscaling Formats 1.0 (e2m1, e2m3, e3m2, e4m3, e5m2, e8m0); FP6-LLM section 2 for
// the general eXmY.
#pragma once

#include <cstdint>

#include "format/platform.h"

namespace sub8::format {

SUB8_HD constexpr uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
SUB8_HD constexpr float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// 2^k for -149 <= k <= 127, exact.
SUB8_HD constexpr float power_of_two(int k) {
  return k >= -126 ? bits_float(static_cast<uint32_t>(k + 127) << 23)
                   : bits_float(uint32_t{1} << (k + 149));
}

// A structural type, so it can be a template argument: template <ElementFormat F>.
struct ElementFormat {
  uint8_t exponent_bits = 0;
  uint8_t mantissa_bits = 0;

  constexpr bool operator==(const ElementFormat&) const = default;

  SUB8_HD constexpr int bits() const { return 1 + exponent_bits + mantissa_bits; }
  SUB8_HD constexpr bool valid() const { return exponent_bits >= 1 && bits() >= 3 && bits() <= 8; }
  SUB8_HD constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  // The exponent of the smallest normal number, and of every subnormal's leading unit.
  SUB8_HD constexpr int min_exponent() const { return 1 - bias(); }
  SUB8_HD constexpr bool is_e4m3() const { return exponent_bits == 4 && mantissa_bits == 3; }
  SUB8_HD constexpr bool is_e5m2() const { return exponent_bits == 5 && mantissa_bits == 2; }
  SUB8_HD constexpr bool has_nan() const { return is_e4m3() || is_e5m2(); }
  SUB8_HD constexpr uint32_t sign_bit() const { return uint32_t{1} << (bits() - 1); }
  SUB8_HD constexpr uint32_t code_count() const { return uint32_t{1} << bits(); }
  // The largest finite magnitude, as a code without sign.
  SUB8_HD constexpr uint32_t max_code() const {
    if (is_e4m3()) return 0x7e;
    if (is_e5m2()) return 0x7b;
    return sign_bit() - 1;
  }
  SUB8_HD constexpr float max_value() const;
  // Whether a code (sign included) is a NaN or an infinity.
  SUB8_HD constexpr bool is_nonfinite(uint32_t code) const {
    return has_nan() && (code & (sign_bit() - 1)) > max_code();
  }
  // Whether every value fits f16 without overflow: the top exponent field is below 31.
  SUB8_HD constexpr bool fits_f16() const { return (1 << exponent_bits) - 1 - bias() <= 15; }
};

inline constexpr ElementFormat kE2M0{2, 0};
inline constexpr ElementFormat kE1M1{1, 1};
inline constexpr ElementFormat kE2M1{2, 1};
inline constexpr ElementFormat kE2M2{2, 2};
inline constexpr ElementFormat kE3M1{3, 1};
inline constexpr ElementFormat kE2M3{2, 3};
inline constexpr ElementFormat kE3M2{3, 2};
inline constexpr ElementFormat kE3M3{3, 3};
inline constexpr ElementFormat kE4M3{4, 3};
inline constexpr ElementFormat kE5M2{5, 2};

// The value of a code; bits above the format's width are ignored.
SUB8_HD constexpr float decode_element(ElementFormat f, uint32_t code) {
  const uint32_t magnitude = code & (f.sign_bit() - 1);
  const uint32_t sign = (code & f.sign_bit()) != 0 ? 0x80000000u : 0u;
  if (f.has_nan() && magnitude > f.max_code()) {
    const bool infinite = f.is_e5m2() && magnitude == 0x7c;
    return bits_float(sign | (infinite ? 0x7f800000u : 0x7fc00000u));
  }
  const int field = static_cast<int>(magnitude >> f.mantissa_bits);
  const int fraction = static_cast<int>(magnitude & ((1u << f.mantissa_bits) - 1));
  const int significand = field == 0 ? fraction : fraction + (1 << f.mantissa_bits);
  const int exponent = f.min_exponent() + (field == 0 ? 0 : field - 1) - f.mantissa_bits;
  const float value = static_cast<float>(significand) * power_of_two(exponent);
  return bits_float(float_bits(value) | sign);
}

SUB8_HD constexpr float ElementFormat::max_value() const {
  return decode_element(*this, max_code());
}

// The code nearest to x.
SUB8_HD constexpr uint32_t encode_element(ElementFormat f, float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 31) != 0 ? f.sign_bit() : 0u;
  if (magnitude > 0x7f800000u) return f.has_nan() ? (f.sign_bit() - 1) | sign : f.max_code();
  if (magnitude == 0x7f800000u) return f.max_code() | sign;
  // |x| = significand * 2^(exponent - 23).
  const int field = static_cast<int>(magnitude >> 23);
  const int exponent = (field == 0 ? 1 : field) - 127;
  const uint32_t significand = (magnitude & 0x7fffffu) | (field == 0 ? 0u : 0x800000u);
  // The result's unit is 2^(target - mantissa_bits); below the smallest normal it is the
  // subnormals' unit.
  const int target = exponent > f.min_exponent() ? exponent : f.min_exponent();
  if (exponent - target < -2 - static_cast<int>(f.mantissa_bits)) return sign;  // below half a unit
  const int shift = target - exponent + 23 - f.mantissa_bits;
  const uint32_t half = uint32_t{1} << (shift - 1);
  const uint32_t odd = (significand >> shift) & 1;
  const uint32_t units = (significand + half - 1 + odd) >> shift;
  // A carry out of the mantissa moves into the exponent field by itself.
  const uint32_t code =
      (static_cast<uint32_t>(target - f.min_exponent()) << f.mantissa_bits) + units;
  return (code > f.max_code() ? f.max_code() : code) | sign;
}

// E8M0 scales: byte b stands for 2^(b-127); 255 is NaN and never written.
SUB8_HD constexpr float decode_e8m0(uint8_t byte) {
  return byte == 255 ? bits_float(0x7fc00000u) : power_of_two(static_cast<int>(byte) - 127);
}

}  // namespace sub8::format
