#include "format/element.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "format/bits.h"
#include "format/dtype.h"

namespace sub8::format {
namespace {

std::vector<ElementFormat> all_formats() {
  std::vector<ElementFormat> out;
  for (uint8_t e = 1; e <= 7; ++e) {
    for (uint8_t m = 0; m <= 6; ++m) {
      if (ElementFormat{e, m}.valid()) out.push_back({e, m});
    }
  }
  return out;
}

// The definition in double, from the specification's words and with nothing shared with the code
// under test.
double oracle_decode(int e_bits, int m_bits, int code) {
  const int bits = 1 + e_bits + m_bits;
  const int bias = static_cast<int>(std::lround(std::pow(2.0, e_bits - 1))) - 1;
  const int sign = code >> (bits - 1);
  const int field = (code >> m_bits) % (1 << e_bits);
  const int fraction = code % (1 << m_bits);
  double value = field == 0 ? std::ldexp(fraction, 1 - bias - m_bits)
                            : std::ldexp(1.0 + std::ldexp(fraction, -m_bits), field - bias);
  return sign ? -value : value;
}

TEST(Element, DecodeAllCodesOfAllFormats) {
  for (const ElementFormat f : all_formats()) {
    for (uint32_t code = 0; code < f.code_count(); ++code) {
      if (f.is_nonfinite(code)) {
        EXPECT_FALSE(std::isfinite(decode_element(f, code)));
        continue;
      }
      const double want = oracle_decode(f.exponent_bits, f.mantissa_bits, static_cast<int>(code));
      const float got = decode_element(f, code);
      EXPECT_EQ(static_cast<double>(got), want) << f.bits() << " bits, code " << code;
      EXPECT_EQ(std::signbit(got), code >= f.sign_bit());
    }
  }
}

// Nearest by search over all finite codes, ties to the even code; the magnitude saturates.
uint32_t oracle_encode(ElementFormat f, const std::vector<double>& values, double x) {
  const double magnitude = std::min(std::fabs(x), values[f.max_code()]);
  uint32_t best = 0;
  for (uint32_t code = 1; code <= f.max_code(); ++code) {
    const double here = std::fabs(values[code] - magnitude);
    const double there = std::fabs(values[best] - magnitude);
    // With one-digit significands a tie goes to the larger one (IEEE 754 4.3.1); zero is still
    // even.
    const bool even = f.mantissa_bits == 0 ? code > 1 : code % 2 == 0;
    if (here < there || (here == there && even)) best = code;
  }
  return best | (std::signbit(x) ? f.sign_bit() : 0);
}

TEST(Element, EncodeMidpointsAndNeighbours) {
  for (const ElementFormat f : all_formats()) {
    std::vector<double> values;
    for (uint32_t code = 0; code <= f.max_code(); ++code) {
      values.push_back(oracle_decode(f.exponent_bits, f.mantissa_bits, static_cast<int>(code)));
    }
    std::vector<float> inputs = {0.0f, 1e-45f, 1e-38f, 3.4e38f, INFINITY};
    for (uint32_t code = 0; code < f.max_code(); ++code) {
      const float middle = static_cast<float>((values[code] + values[code + 1]) / 2);
      ASSERT_EQ(static_cast<double>(middle), (values[code] + values[code + 1]) / 2);
      for (const float base : {middle, static_cast<float>(values[code])}) {
        inputs.push_back(base);
        inputs.push_back(std::nextafter(base, INFINITY));
        inputs.push_back(std::nextafter(base, -INFINITY));
      }
    }
    inputs.push_back(f.max_value());
    inputs.push_back(std::nextafter(f.max_value(), INFINITY));
    for (const float magnitude : inputs) {
      for (const float x : {magnitude, -magnitude}) {
        EXPECT_EQ(encode_element(f, x), oracle_encode(f, values, x))
            << "e" << int(f.exponent_bits) << "m" << int(f.mantissa_bits) << " x=" << x;
      }
    }
    EXPECT_EQ(encode_element(f, NAN), f.has_nan() ? f.sign_bit() - 1 : f.max_code());
  }
}

TEST(Element, EncodeEvery16BitInput) {
  for (const ElementFormat f : all_formats()) {
    // Monotone in the input and the identity on codes; with the midpoint test this fixes every
    // value between.
    uint32_t last = 0;
    for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
      const float x = bf16_to_float(static_cast<uint16_t>(bits));
      const uint32_t code = encode_element(f, x);
      ASSERT_GE(code, last);
      ASSERT_LE(code, f.max_code());
      ASSERT_EQ(encode_element(f, -x), code | f.sign_bit());
      last = code;
    }
    last = 0;
    for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
      const uint32_t code = encode_element(f, f16_to_float(static_cast<uint16_t>(bits)));
      ASSERT_GE(code, last);
      last = code;
    }
    for (uint32_t code = 0; code < f.code_count(); ++code) {
      if (!f.is_nonfinite(code)) {
        ASSERT_EQ(encode_element(f, decode_element(f, code)), code);
      }
    }
  }
}

TEST(Element, E8M0) {
  EXPECT_EQ(decode_e8m0(127), 1.0f);
  EXPECT_EQ(decode_e8m0(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(decode_e8m0(254), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
}

TEST(Dtype, SixteenBitFloats) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float b = bf16_to_float(h);
    const float f = f16_to_float(h);
    if (!std::isnan(b)) {
      ASSERT_EQ(float_to_bf16(b), h);
    }
    if (!std::isnan(f)) {
      ASSERT_EQ(float_to_f16(f), h);
    }
  }
#ifdef __FLT16_MANT_DIG__
  // The compiler's own conversion as an independent oracle, over every 2^9th float and the
  // neighbours of halves.
  for (uint64_t bits = 0; bits < 0x100000000ull; bits += 509) {
    const float x = bits_float(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    const auto half = static_cast<_Float16>(x);
    ASSERT_EQ(float_to_f16(x), __builtin_bit_cast(uint16_t, half)) << x;
  }
#endif
}

TEST(Bits, PackUnpackAllWidthsAndTails) {
  for (int bits = 3; bits <= 8; ++bits) {
    for (int64_t count = 0; count <= 70; ++count) {
      std::vector<uint8_t> codes(static_cast<size_t>(count));
      for (int64_t j = 0; j < count; ++j)
        codes[j] = static_cast<uint8_t>((j * 37 + 11) & ((1 << bits) - 1));
      std::vector<uint8_t> row(static_cast<size_t>(packed_row_bytes(count, bits)), 0xaa);
      pack_codes(codes.data(), count, bits, row.data());
      std::vector<uint8_t> back(codes.size());
      unpack_codes(row.data(), count, bits, back.data());
      ASSERT_EQ(codes, back);
      // Bit by bit, from the definition.
      for (int64_t i = 0; i < count * bits; ++i) {
        ASSERT_EQ((row[i / 8] >> (i % 8)) & 1, (codes[i / bits] >> (i % bits)) & 1);
      }
      for (int64_t i = count * bits; i < static_cast<int64_t>(row.size()) * 8; ++i)
        ASSERT_EQ((row[i / 8] >> (i % 8)) & 1, 0);
    }
  }
}

}  // namespace
}  // namespace sub8::format
