// Whole rows in every writable format: codes, scales, packing and decoded values (tensor/decode.h)
// against the oracle.
#include "format/row.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "format/inputs.h"
#include "format/reference/block_reference.h"
#include "tensor/decode.h"

namespace sub8::format {
namespace {

struct StoredRow {
  float outer = 0;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> packed;
  std::vector<uint8_t> scales;
  std::vector<float> values;
};

StoredRow store(const WeightFormat& f, const BlockRules& rules, const std::vector<float>& x) {
  StoredRow row;
  const auto count = static_cast<int64_t>(x.size());
  row.outer = choose_outer_scale(f, abs_max(x.data(), count), rules.four_over_six);
  row.codes.assign(x.size(), 0xaa);
  row.scales.assign(static_cast<size_t>(f.groups(count)), 0xaa);
  quantize_row(f, rules, x, row.outer, row.codes, row.scales);
  row.packed.assign(static_cast<size_t>(f.row_bytes(count)), 0xaa);
  pack_codes(row.codes.data(), count, f.element.bits(), row.packed.data());
  StoredMatrix matrix{.format = f,
                      .rows = 1,
                      .cols = count,
                      .codes = row.packed,
                      .block_scales = row.scales,
                      .outer_scales = {},
                      .owner = nullptr};
  if (f.outer_scale != OuterScale::kNone) matrix.outer_scales = {stored_outer_scale(row.outer)};
  row.values.resize(x.size());
  decode_rows(matrix, 0, 1, row.values);
  return row;
}

reference::Row oracle(const WeightFormat& f, const BlockRules& rules, const std::vector<float>& x) {
  const reference::Element element(f.element.exponent_bits, f.element.mantissa_bits);
  if (f.block_scale == BlockScale::kNone) return reference::channel(element, x);
  if (f.outer_scale == OuterScale::kChannel) return reference::grouped(element, f.group, x);
  if (f.outer_scale == OuterScale::kTensor) {
    double amax = 0;
    for (const float v : x) amax = std::max(amax, std::fabs(static_cast<double>(v)));
    return reference::nvfp4_weight(reference::nvfp4_alpha(amax, rules.four_over_six),
                                   rules.four_over_six, x);
  }
  return reference::mx(element, reference::Rule::kEven, x);
}

std::vector<std::string> writable_formats() {
  std::vector<std::string> out = {"nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"};
  for (int bits = 3; bits <= 8; ++bits) {
    for (int e = 1; e < bits; ++e) {
      const int m = bits - 1 - e;
      const std::string name = "e" + std::to_string(e) + "m" + std::to_string(m);
      out.push_back(name);
      if (m <= 3) {
        out.push_back(name + ":g32");
        out.push_back(name + ":g128");
      }
    }
  }
  return out;
}

void compare(const std::string& format_name, const BlockRules& rules) {
  const WeightFormat f = *parse_weight_format(format_name);
  ASSERT_TRUE(check_quantizable(f).ok()) << format_name;
  for (const size_t count : {size_t{1}, size_t{72}, size_t{203}}) {
    for (const auto& [name, x] : test_inputs::block_rows(count)) {
      const StoredRow got = store(f, rules, x);
      const reference::Row want = oracle(f, rules, x);
      const std::string what = format_name + ", " + name + ", K=" + std::to_string(count);
      ASSERT_EQ(static_cast<double>(got.outer), want.outer) << what;
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(got.codes[i], want.codes[i]) << what << " at " << i;
        ASSERT_EQ(got.values[i], static_cast<float>(want.values[i])) << what << " at " << i;
      }
      ASSERT_EQ(got.scales.size(), want.block_scales.size()) << what;
      for (size_t g = 0; g < got.scales.size(); ++g) {
        ASSERT_EQ(got.scales[g], want.block_scales[g]) << what << ", group " << g;
      }
    }
  }
}

TEST(Row, EveryFormatEqualsOracle) {
  for (const std::string& name : writable_formats()) compare(name, {});
  compare("nvfp4", {.four_over_six = true});
}

TEST(Row, DecodedValuesAreFiniteBelowTwoTo127) {
  for (const std::string& name : writable_formats()) {
    const WeightFormat f = *parse_weight_format(name);
    std::vector<float> x = test_inputs::gaussian(203, 1.0, 21);
    x[7] = std::nextafter(std::ldexp(1.0f, 127), 0.0f);
    x[150] = -x[7];
    for (const float v : store(f, {}, x).values) ASSERT_TRUE(std::isfinite(v)) << name;
  }
}

// Decoding and quantising again with the same scales changes nothing.
TEST(Row, Idempotent) {
  for (const std::string& name : writable_formats()) {
    const WeightFormat f = *parse_weight_format(name);
    if (f.block_scale != BlockScale::kNone) continue;  // blocks choose their scale anew
    const StoredRow first = store(f, {}, test_inputs::gaussian(203, 1.0, 22));
    std::vector<uint8_t> again(first.codes.size());
    quantize_row(f, {}, first.values, first.outer, again, {});
    ASSERT_EQ(again, first.codes) << name;
  }
}

TEST(Row, WhatIsNotWrittenIsRefusedByName) {
  for (const char* name : {"e4m3:tensor", "e2m1:e4m3g32:tensor", "bf16", "e2m1:e4m3g16:none"}) {
    const Status status = check_quantizable(*parse_weight_format(name));
    ASSERT_FALSE(status.ok()) << name;
    // Dense is a misuse; the rest are formats that only foreign files hold.
    EXPECT_EQ(status.error().code, std::string_view(name) == "bf16" ? ErrorCode::kInvalidArgument
                                                                    : ErrorCode::kUnsupported);
    EXPECT_NE(status.error().message.find(name), std::string::npos) << status.error().message;
  }
}

}  // namespace
}  // namespace sub8::format
