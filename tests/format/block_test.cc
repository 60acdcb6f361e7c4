// Scale rules and block quantisation of format/block.h against the rational oracle in reference/,
// and the properties that hold for every input.
#include "format/block.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "format/inputs.h"
#include "format/reference/block_reference.h"

namespace sub8::format {
namespace {

using test_inputs::block_rows;

const MxRule kRules[] = {MxRule::kEven, MxRule::kCeil, MxRule::kFloor};
const ElementFormat kMxElements[] = {kE2M1, kE3M2, kE2M3, kE4M3, kE3M1, kE2M0, kE1M1, kE5M2};

reference::Rule reference_rule(MxRule rule) {
  return rule == MxRule::kEven   ? reference::Rule::kEven
         : rule == MxRule::kCeil ? reference::Rule::kCeil
                                 : reference::Rule::kFloor;
}

template <class A, class B>
void expect_same(const std::vector<A>& got, const std::vector<B>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(static_cast<double>(got[i]), static_cast<double>(want[i])) << what << " at " << i;
  }
}

struct Nvfp4Row {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
};

Nvfp4Row nvfp4_row(const std::vector<float>& x, float alpha, bool activation, bool four_over_six) {
  Nvfp4Row row{std::vector<uint8_t>(x.size()), {}};
  const auto count = static_cast<int64_t>(x.size());
  for (int64_t begin = 0; begin < count; begin += 16) {
    const int64_t size = std::min<int64_t>(16, count - begin);
    row.scales.push_back(
        activation ? nvfp4_quantize_activation_block(&x[begin], size, alpha, &row.codes[begin])
                   : nvfp4_quantize_weight_block(&x[begin], size, alpha, four_over_six,
                                                 &row.codes[begin]));
  }
  return row;
}

TEST(Block, Nvfp4EqualsOracle) {
  for (const int64_t count : {16, 64, 71, 5}) {
    for (const auto& [name, x] : block_rows(static_cast<size_t>(count))) {
      const float amax = abs_max(x.data(), count);
      for (const bool four_over_six : {false, true}) {
        const float alpha = four_over_six ? nvfp4_alpha_four_over_six(amax) : nvfp4_alpha(amax);
        ASSERT_EQ(alpha, reference::nvfp4_alpha(amax, four_over_six)) << name;
        // A static alpha may be far too small or too large for the row at hand.
        for (const float used : {alpha, alpha / 64, alpha * 3000}) {
          if (used != 0 && used < power_of_two(-117)) continue;
          const Nvfp4Row weights = nvfp4_row(x, used, false, four_over_six);
          const reference::Row want = reference::nvfp4_weight(used, four_over_six, x);
          expect_same(weights.codes, want.codes, name);
          expect_same(weights.scales, want.block_scales, name);
        }
      }
      const float alpha = nvfp4_alpha(amax);
      const Nvfp4Row activation = nvfp4_row(x, alpha, true, false);
      const reference::Row want = reference::nvfp4_activation(alpha, x);
      expect_same(activation.codes, want.codes, name);
      expect_same(activation.scales, want.block_scales, name);
    }
  }
}

TEST(Block, MxEqualsOracle) {
  for (const ElementFormat f : kMxElements) {
    const reference::Element element(f.exponent_bits, f.mantissa_bits);
    for (const MxRule rule : kRules) {
      for (const size_t count : {size_t{32}, size_t{70}}) {
        for (const auto& [name, x] : block_rows(count)) {
          std::vector<uint8_t> codes(count);
          std::vector<uint8_t> scales;
          for (size_t begin = 0; begin < count; begin += 32) {
            scales.push_back(mx_quantize_block(
                f, &x[begin], static_cast<int64_t>(std::min<size_t>(32, count - begin)), rule,
                &codes[begin]));
          }
          const reference::Row want = reference::mx(element, reference_rule(rule), x);
          expect_same(codes, want.codes, name);
          expect_same(scales, want.block_scales, name);
        }
      }
    }
  }
}

TEST(Block, Fp8RowEqualsOracle) {
  for (const auto& [name, x] : block_rows(71)) {
    const float alpha = fp8_alpha(abs_max(x.data(), 71));
    std::vector<uint8_t> codes(71, 0xaa);
    fp8_quantize_row(x.data(), 71, alpha, codes.data());
    const reference::Row want = reference::fp8_activation(x);
    ASSERT_EQ(alpha, want.outer) << name;
    expect_same(codes, want.codes, name);
    std::vector<float> values(71);
    dequantize(kE4M3, codes.data(), 71, alpha, values.data());
    expect_same(values, want.values, name);
  }
}

// The E8M0 rule from bits, over every exponent and mantissas around the places where it changes.
TEST(Block, MxScaleOverAllExponents) {
  for (const ElementFormat f : kMxElements) {
    const reference::Element element(f.exponent_bits, f.mantissa_bits);
    for (uint32_t field = 0; field < 255; ++field) {
      for (uint32_t mantissa :
           {0x0u, 0x1u, 0x1fffffu, 0x200000u, 0x3fffffu, 0x400000u, 0x400001u, 0x5fffffu, 0x600000u,
            0x600001u, 0x6fffffu, 0x700000u, 0x700001u, 0x77ffffu, 0x780000u, 0x7fffffu}) {
        const float amax = bits_float((field << 23) | mantissa);
        for (const MxRule rule : kRules) {
          const reference::Row want = reference::mx(element, reference_rule(rule), {amax});
          ASSERT_EQ(mx_scale_code(f, amax, rule), want.block_scales[0])
              << f.bits() << " bits, amax " << amax;
        }
      }
    }
  }
}

// No scale byte is NaN; a zero E4M3 byte occurs only in all-zero activation blocks; values of zero
// blocks are exactly 0; a code that was decoded and quantised again at the same scale stays.
TEST(Block, Properties) {
  for (const auto& [name, x] : block_rows(64)) {
    const float alpha = nvfp4_alpha(abs_max(x.data(), 64));
    for (const bool activation : {false, true}) {
      const Nvfp4Row row = nvfp4_row(x, alpha, activation, false);
      for (size_t b = 0; b < 4; ++b) {
        const uint8_t scale = row.scales[b];
        const bool zero = abs_max(&x[b * 16], 16) == 0 || alpha == 0;
        ASSERT_LT(scale, 0x7f) << name;
        ASSERT_EQ(scale == 0, zero && activation) << name;
        if (zero) {
          for (size_t i = 0; i < 16; ++i) ASSERT_EQ(row.codes[b * 16 + i], 0) << name;
          continue;
        }
        const float d = block_divisor(alpha, scale);
        ASSERT_GE(d, power_of_two(-126)) << name;
        float values[16];
        dequantize(kE2M1, &row.codes[b * 16], 16, d, values);
        uint8_t again[16];
        encode_divided(ElementCoder(kE2M1), values, 16, d, again);
        for (size_t i = 0; i < 16; ++i) {
          ASSERT_TRUE(std::isfinite(values[i])) << name;
          ASSERT_EQ(again[i], row.codes[b * 16 + i]) << name;
        }
      }
    }
    for (const MxRule rule : kRules) {
      uint8_t codes[32];
      ASSERT_NE(mx_quantize_block(kE2M1, x.data(), 32, rule, codes), 255) << name;
    }
  }
}

// Quantisation is odd, and monotone within a block.
TEST(Block, OddAndMonotone) {
  std::vector<float> x = test_inputs::gaussian(16, 1.0, 11);
  std::sort(x.begin(), x.end());
  const float alpha = nvfp4_alpha(abs_max(x.data(), 16));
  uint8_t codes[16];
  uint8_t mirrored[16];
  const uint8_t scale = nvfp4_quantize_weight_block(x.data(), 16, alpha, false, codes);
  std::vector<float> minus(x);
  for (float& v : minus) v = -v;
  EXPECT_EQ(nvfp4_quantize_weight_block(minus.data(), 16, alpha, false, mirrored), scale);
  float last = -1e9f;
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(mirrored[i], codes[i] ^ 8);
    const float value = decode_element(kE2M1, codes[i]);
    EXPECT_GE(value, last);
    last = value;
  }
}

// Relative error of a value inside the normal range is at most half a mantissa step, and some value
// comes near it: an error that is too small would be as wrong as one that is too large.
TEST(Block, ErrorBoundsFromBothSides) {
  const std::vector<float> x = test_inputs::gaussian(4096, 1.0, 12);
  for (const ElementFormat f : {kE3M2, kE2M3, kE3M3, kE4M3}) {
    const float d = channel_scale(f, abs_max(x.data(), 4096));
    std::vector<uint8_t> codes(x.size());
    encode_divided(ElementCoder(f), x.data(), 4096, d, codes.data());
    const double bound = std::ldexp(1.0, -f.mantissa_bits - 1);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = static_cast<double>(decode_element(f, codes[i])) * d;
      if (std::fabs(x[i]) < d * std::ldexp(1.0, f.min_exponent())) continue;
      worst = std::max(worst, std::fabs(value - x[i]) / std::fabs(x[i]));
    }
    EXPECT_LE(worst, bound * (1 + 1e-6)) << f.bits();
    EXPECT_GE(worst, bound * 0.8) << f.bits();
  }
}

TEST(Block, FourOverSixNeverWorseThanSix) {
  int fours = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> x = test_inputs::gaussian(16, 1.0, seed);
    const float amax = abs_max(x.data(), 16);
    const float alpha = nvfp4_alpha_four_over_six(2 * amax);
    const uint8_t six = nvfp4_scale_code(amax, alpha);
    const uint8_t chosen = nvfp4_scale_code_four_over_six(x.data(), 16, amax, alpha);
    EXPECT_LE(nvfp4_squared_error(x.data(), 16, block_divisor(alpha, chosen)),
              nvfp4_squared_error(x.data(), 16, block_divisor(alpha, six)));
    fours += chosen != six;
  }
  EXPECT_GT(fours, 20);  // both targets occur
  EXPECT_LT(fours, 180);
  // A tie takes 6: every element exact under both.
  const float exact[16] = {12, 12, 0, 12};
  const float alpha = 2.0f / 256;
  EXPECT_EQ(nvfp4_scale_code_four_over_six(exact, 16, 12, alpha), nvfp4_scale_code(12, alpha));
}

// Field fault B01: a zero block among others keeps a finite scale and comes back as zeros.
TEST(Block, ZeroBlockHasNoNanScale) {
  std::vector<float> x = test_inputs::gaussian(64, 1.0, 13);
  std::fill(x.begin() + 16, x.begin() + 32, 0.0f);
  const float alpha = nvfp4_alpha(abs_max(x.data(), 64));
  const Nvfp4Row weights = nvfp4_row(x, alpha, false, false);
  EXPECT_EQ(weights.scales[1], kE4M3One);
  const Nvfp4Row activations = nvfp4_row(std::vector<float>(64, 0.0f), nvfp4_alpha(0), true, false);
  for (const uint8_t scale : activations.scales) EXPECT_EQ(scale, 0);
  for (const uint8_t code : activations.codes) EXPECT_EQ(code, 0);
  uint8_t codes[32];
  EXPECT_EQ(mx_quantize_block(kE2M1, std::vector<float>(32, 0.0f).data(), 32, MxRule::kEven, codes),
            0);
}

// Field fault B03: exact ties at block scale 1 go to even, with the sign kept.
TEST(Block, TiesGoToEven) {
  const float x[16] = {6,     .25f,  .75f,   1.25f,  1.75f, 2.5f,  3.5f, 5,
                       -.25f, -.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5,   -0.0f};
  const float want[16] = {6, 0, 1, 1, 2, 2, 4, 4, -0.0f, -1, -1, -2, -2, -4, -4, -0.0f};
  uint8_t codes[16];
  EXPECT_EQ(nvfp4_quantize_weight_block(x, 16, 1.0f, false, codes), kE4M3One);
  uint8_t activation[16];
  EXPECT_EQ(nvfp4_quantize_activation_block(x, 16, 1.0f, activation), kE4M3One);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(float_bits(decode_element(kE2M1, codes[i])), float_bits(want[i])) << i;
    EXPECT_EQ(codes[i], activation[i]);
  }
  EXPECT_EQ(ElementCoder(kE2M1).encode(6.1f), 7u);
}

// Field fault B05: every E4M3 scale byte times the code 6.0 is right, subnormal scales included.
TEST(Block, EveryBlockScaleDequantises) {
  for (uint32_t byte = 1; byte <= 0x7e; ++byte) {
    const uint8_t code = 7;
    float value = 0;
    dequantize(kE2M1, &code, 1, block_divisor(1.0f, static_cast<uint8_t>(byte)), &value);
    EXPECT_EQ(static_cast<double>(value), 6 * reference::e4m3(static_cast<int>(byte)));
  }
  const uint8_t six = 7;
  float value = 0;
  dequantize(kE2M1, &six, 1, block_divisor(1.0f, 0x01), &value);
  EXPECT_EQ(value, 0.01171875f);
}

// The arithmetic runs at compile time, so kernels may use it in constants.
constexpr bool compile_time_block() {
  float x[16] = {};
  for (int i = 0; i < 16; ++i) x[i] = static_cast<float>(i);
  uint8_t codes[16] = {};
  return nvfp4_quantize_weight_block(x, 16, nvfp4_alpha(15), false, codes) == 0x7e &&
         codes[15] == 7;
}
static_assert(compile_time_block());

}  // namespace
}  // namespace sub8::format
