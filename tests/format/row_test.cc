// Whole rows in every writable format: codes, scales, packing and values against the oracle.
#include "format/row.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "format/inputs.h"
#include "format/reference/block_reference.h"

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
  row.values.resize(x.size());
  dequantize_row(f, row.packed, row.scales, stored_outer_scale(row.outer), row.values);
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

TEST(Row, DenseRowsDecode) {
  const std::vector<float> x = {1.0f, -2.5f, 0.0f};
  for (const char* name : {"f32", "f16", "bf16"}) {
    const WeightFormat f = *parse_weight_format(name);
    std::vector<uint8_t> row;
    for (const float v : x) {
      const uint32_t bits = f.dtype == DType::kF32   ? float_bits(v)
                            : f.dtype == DType::kF16 ? uint32_t{float_to_f16(v)}
                                                     : uint32_t{float_to_bf16(v)};
      for (size_t i = 0; i < dtype_bytes(f.dtype); ++i)
        row.push_back(static_cast<uint8_t>(bits >> (8 * i)));
    }
    std::vector<float> out(3);
    dequantize_row(f, row, {}, 0.0f, out);
    EXPECT_EQ(out, x) << name;
    EXPECT_EQ(find_nonfinite_code(f, row, 3), -1);
  }
}

TEST(Row, ForeignFormatsDecodeAndAreNotWritten) {
  // One tensor scale; and E4M3 per 32 under a tensor scale.
  const WeightFormat fp8 = *parse_weight_format("e4m3:tensor");
  EXPECT_EQ(check_quantizable(fp8).error().code, ErrorCode::kUnsupported);
  const std::vector<uint8_t> row = {0x38, 0xb8, 0x7e};
  std::vector<float> out(3);
  dequantize_row(fp8, row, {}, 0.5f, out);
  EXPECT_EQ(out, (std::vector<float>{0.5f, -0.5f, 224.0f}));
  const WeightFormat mixed = *parse_weight_format("e2m1:e4m3g32:tensor");
  EXPECT_EQ(check_quantizable(mixed).error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(check_quantizable(dense_format(DType::kBF16)).ok());
  const std::vector<uint8_t> codes = {0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22,
                                      0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x07};
  const std::vector<uint8_t> scales = {0x38, 0x40};
  std::vector<float> values(33);
  dequantize_row(mixed, codes, scales, 2.0f, values);
  EXPECT_EQ(values[0], 2.0f);
  EXPECT_EQ(values[31], 2.0f);
  EXPECT_EQ(values[32], 24.0f);
}

TEST(Row, NanCodesAndScalesAreFound) {
  const WeightFormat e4m3 = *parse_weight_format("e4m3");
  EXPECT_EQ(find_nonfinite_code(e4m3, std::vector<uint8_t>{0x7e, 0xfe, 0xff}, 3), 2);
  EXPECT_EQ(find_nonfinite_code(*parse_weight_format("e5m2"), std::vector<uint8_t>{0x7b, 0x7c}, 2),
            1);
  EXPECT_EQ(find_nonfinite_code(*parse_weight_format("e3m2"), std::vector<uint8_t>{0xff, 0xff}, 2),
            -1);
  EXPECT_EQ(find_nonfinite_code(dense_format(DType::kBF16),
                                std::vector<uint8_t>{0x80, 0x3f, 0x80, 0x7f}, 2),
            1);
  const WeightFormat nvfp4 = nvfp4_format();
  EXPECT_EQ(find_bad_block_scale(nvfp4, std::vector<uint8_t>{0x00, 0x7e, 0x7f}), 2);
  EXPECT_EQ(find_bad_block_scale(nvfp4, std::vector<uint8_t>{0x38, 0xb8}), 1);
  EXPECT_EQ(find_bad_block_scale(mx_format(kE2M1), std::vector<uint8_t>{0, 254}), -1);
  EXPECT_EQ(find_bad_block_scale(mx_format(kE2M1), std::vector<uint8_t>{255}), 0);
}

}  // namespace
}  // namespace sub8::format
