// ElementCoder against encode_element and decode_element; encode_element against two independent
// programs: the ml_dtypes package (golden thresholds) and the CUDA toolkit's host conversions.
#include "format/coder.h"

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "format/dtype.h"
#include "format/element.h"

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

std::string name_of(ElementFormat f) {
  return "e" + std::to_string(f.exponent_bits) + "m" + std::to_string(f.mantissa_bits);
}

// True when both definitions agree on x and on -x.
::testing::AssertionResult agrees(ElementFormat f, const ElementCoder& coder, uint32_t bits) {
  for (const uint32_t signed_bits : {bits & 0x7fffffffu, bits | 0x80000000u}) {
    const float x = bits_float(signed_bits);
    const uint32_t want = encode_element(f, x);
    if (coder.encode(x) != want) {
      return ::testing::AssertionFailure() << name_of(f) << " bits " << std::hex << signed_bits
                                           << ": " << coder.encode(x) << ", not " << want;
    }
    if (std::isnan(x)) continue;
    if (float_bits(coder.round(x)) != float_bits(decode_element(f, want))) {
      return ::testing::AssertionFailure()
             << name_of(f) << " bits " << std::hex << signed_bits << ": rounds to "
             << coder.round(x) << ", not " << decode_element(f, want);
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(Coder, Every16BitInput) {
  for (const ElementFormat f : all_formats()) {
    const ElementCoder coder(f);
    for (uint32_t bits = 0; bits < 0x8000; ++bits) {
      ASSERT_TRUE(agrees(f, coder, bits << 16));
      ASSERT_TRUE(agrees(f, coder, float_bits(f16_to_float(static_cast<uint16_t>(bits)))));
    }
  }
}

TEST(Coder, CodesAndMidpointsWithNeighbours) {
  for (const ElementFormat f : all_formats()) {
    const ElementCoder coder(f);
    for (uint32_t code = 0; code <= f.max_code(); ++code) {
      const float value = decode_element(f, code);
      const float next = code < f.max_code() ? decode_element(f, code + 1) : 2 * value;
      for (const float x : {value, value / 2 + next / 2}) {
        const uint32_t bits = float_bits(x);
        for (uint32_t near : {bits == 0 ? 0 : bits - 1, bits, bits + 1}) {
          ASSERT_TRUE(agrees(f, coder, near));
        }
      }
    }
    for (uint32_t bits : {0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu, 1u}) {
      ASSERT_TRUE(agrees(f, coder, bits));
    }
  }
}

TEST(Coder, SampleOfAllFloats) {
  for (const ElementFormat f : all_formats()) {
    const ElementCoder coder(f);
    for (uint64_t bits = f.mantissa_bits; bits < 0x80000000ull; bits += 4099) {
      ASSERT_TRUE(agrees(f, coder, static_cast<uint32_t>(bits)));
    }
  }
}

// Runs at compile time as well: kernels use coders as constants.
static_assert(ElementCoder(kE2M1).encode(2.5f) == 4 && ElementCoder(kE2M1).encode(-0.25f) == 8);
static_assert(ElementCoder(kE3M2).round(26.0f) == 24.0f);

// ---- ml_dtypes ---------------------------------------------------------------------------------

const std::map<std::string, ElementFormat>& ml_formats() {
  static const std::map<std::string, ElementFormat> formats = {{"e2m1", kE2M1},
                                                               {"e2m3", kE2M3},
                                                               {"e3m2", kE3M2},
                                                               {"e4m3", kE4M3},
                                                               {"e3m4", ElementFormat{3, 4}},
                                                               {"e5m2", kE5M2}};
  return formats;
}

TEST(Oracle, MlDtypesValuesAndThresholds) {
  std::ifstream file(std::string(SUB8_TEST_DATA) + "/format/ml_dtypes.txt");
  ASSERT_TRUE(file.good());
  std::map<std::string, int> values;
  std::map<std::string, int> thresholds;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string kind, name;
    uint32_t code = 0, bits = 0;
    words >> kind >> name >> std::dec >> code >> std::hex >> bits;
    ASSERT_FALSE(words.fail()) << line;
    if (name == "e8m0") {
      ASSERT_EQ(float_bits(decode_e8m0(static_cast<uint8_t>(code))), bits) << line;
      ++values[name];
      continue;
    }
    const ElementFormat f = ml_formats().at(name);
    if (kind == "value") {
      ASSERT_EQ(float_bits(decode_element(f, code)), bits) << line;
      ++values[name];
    } else {
      ASSERT_EQ(encode_element(f, bits_float(bits)), code) << line;
      ASSERT_EQ(encode_element(f, bits_float(bits - 1)), code - 1) << line;
      ++thresholds[name];
    }
  }
  EXPECT_EQ(values["e8m0"], 255);
  for (const auto& [name, f] : ml_formats()) {
    const int top = name == "e3m4" ? 0x6f : static_cast<int>(f.max_code());
    EXPECT_EQ(values[name], 2 * (top + 1)) << name;
    EXPECT_EQ(thresholds[name], top) << name;
  }
}

}  // namespace
}  // namespace sub8::format
