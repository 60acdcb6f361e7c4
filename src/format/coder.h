// ElementCoder: encode_element without its branches, for loops over many values.
//
// encode(x) == encode_element(f, x) for every float x, NaN and infinities included; round(x) is the
// value of that code. A coder is a handful of constants, so a loop over encode() vectorises for any
// element format, and one loop serves all of them.
//
// How: the magnitude's bits are clamped to the largest value. A normal result is rounded to even on
// the bits themselves, where a carry moves into the exponent by itself. A subnormal result comes
// from adding 2^k, whose unit in the last place is the subnormals' unit, so that the FP32 addition
// does the rounding. Both are computed; one is selected.
#pragma once

#include <cstdint>

#include "format/element.h"
#include "format/platform.h"

namespace sub8::format {

class ElementCoder {
 public:
  SUB8_HD constexpr explicit ElementCoder(ElementFormat f)
      : shift_(23u - f.mantissa_bits),
        half_less_one_((1u << (22 - f.mantissa_bits)) - 1),
        // With one-digit significands a tie goes up (IEEE 754 4.3.1): there is no last bit to ask.
        tie_mask_(f.mantissa_bits == 0 ? 0u : 1u),
        tie_constant_(f.mantissa_bits == 0 ? 1u : 0u),
        rebias_(static_cast<uint32_t>(127 - f.bias()) << f.mantissa_bits),
        min_normal_bits_(static_cast<uint32_t>(f.min_exponent() + 127) << 23),
        max_bits_(float_bits(f.max_value())),
        subnormal_magic_(power_of_two(f.min_exponent() - f.mantissa_bits + 23)),
        sign_shift_(32u - static_cast<uint32_t>(f.bits())),
        sign_bit_(f.sign_bit()),
        nan_code_(f.has_nan() ? f.sign_bit() - 1 : f.max_code()),
        nan_sign_mask_(f.has_nan() ? f.sign_bit() : 0u) {}

  // The code nearest to x.
  SUB8_HD constexpr uint32_t encode(float x) const {
    const uint32_t bits = float_bits(x);
    const uint32_t raw = bits & 0x7fffffffu;
    const uint32_t magnitude = raw < max_bits_ ? raw : max_bits_;
    const uint32_t sign = (bits >> sign_shift_) & sign_bit_;
    const uint32_t code =
        magnitude < min_normal_bits_ ? subnormal_units(magnitude) : rounded(magnitude) - rebias_;
    return raw > 0x7f800000u ? nan_code_ | (sign & nan_sign_mask_) : code | sign;
  }

  // decode_element(encode(x)) for x that is no NaN.
  SUB8_HD constexpr float round(float x) const {
    const uint32_t bits = float_bits(x);
    const uint32_t raw = bits & 0x7fffffffu;
    const uint32_t magnitude = raw < max_bits_ ? raw : max_bits_;
    const float small = add_rn(add_rn(bits_float(magnitude), subnormal_magic_), -subnormal_magic_);
    const uint32_t value =
        magnitude < min_normal_bits_ ? float_bits(small) : rounded(magnitude) << shift_;
    return bits_float(value | (bits & 0x80000000u));
  }

 private:
  SUB8_HD constexpr uint32_t rounded(uint32_t magnitude) const {
    const uint32_t odd = ((magnitude >> shift_) & tie_mask_) | tie_constant_;
    return (magnitude + half_less_one_ + odd) >> shift_;
  }
  SUB8_HD constexpr uint32_t subnormal_units(uint32_t magnitude) const {
    return float_bits(add_rn(bits_float(magnitude), subnormal_magic_)) -
           float_bits(subnormal_magic_);
  }

  uint32_t shift_;
  uint32_t half_less_one_;
  uint32_t tie_mask_;
  uint32_t tie_constant_;
  uint32_t rebias_;
  uint32_t min_normal_bits_;
  uint32_t max_bits_;
  float subnormal_magic_;
  uint32_t sign_shift_;
  uint32_t sign_bit_;
  uint32_t nan_code_;
  uint32_t nan_sign_mask_;
};

}  // namespace sub8::format
