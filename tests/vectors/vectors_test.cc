// docs/vectors against this implementation: every byte and every value. The files come from a
// program that shares nothing with it (tools/vectors/make_vectors.py).
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "format/activation.h"
#include "format/bits.h"
#include "format/dtype.h"
#include "format/row.h"
#include "format/scale_layout.h"
#include "kernels/quantize_act/quantize_act.h"
#include "quantize/row_quantizer.h"

namespace sub8 {
namespace {

namespace json = boost::json;
using Floats = std::vector<float>;
using Rows = std::vector<Floats>;
using Bytes = std::vector<uint8_t>;

const json::value& file(const std::string& name) {
  static std::map<std::string, json::value> files;
  auto it = files.find(name);
  if (it == files.end()) {
    const std::string path = std::string(SUB8_VECTORS) + "/" + name + ".json";
    Result<std::string> text = read_file(path);
    SUB8_CHECK(text.ok());
    Result<json::value> value = parse_json(*text, path);
    SUB8_CHECK(value.ok());
    it = files.emplace(name, std::move(*value)).first;
  }
  return it->second;
}

float number(const json::value& v) {
  if (!v.is_string()) return static_cast<float>(v.to_number<double>());
  if (v.as_string() == "nan") return std::numeric_limits<float>::quiet_NaN();
  return std::numeric_limits<float>::infinity() * (v.as_string() == "-inf" ? -1.0F : 1.0F);
}
Floats floats(const json::value& v) {
  Floats out;
  for (const json::value& x : v.as_array()) out.push_back(number(x));
  return out;
}
Rows rows_of(const json::value& v) {
  Rows out;
  for (const json::value& row : v.as_array()) out.push_back(floats(row));
  return out;
}
std::string text(const json::value& v) { return std::string(v.as_string()); }

std::string hex(const Bytes& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint8_t b : bytes) out += {kDigits[b >> 4], kDigits[b & 15]};
  return out;
}
Bytes from_hex(const json::value& v) {
  Bytes out;
  const std::string s = text(v);
  for (size_t i = 0; i < s.size(); i += 2)
    out.push_back(static_cast<uint8_t>(std::stoi(s.substr(i, 2), nullptr, 16)));
  return out;
}
Bytes packed(const Bytes& codes, int bits) {
  const auto count = static_cast<int64_t>(codes.size());
  Bytes out(static_cast<size_t>(format::packed_row_bytes(count, bits)));
  format::pack_codes(codes.data(), count, bits, out.data());
  return out;
}

format::MxRule rule_of(const json::object& entry) {
  if (!entry.contains("mx_rule")) return format::MxRule::kEven;
  return *quantize::parse_mx_rule(text(entry.at("mx_rule")));
}

float amax(const Rows& rows) {
  float out = 0;
  for (const Floats& row : rows) {
    for (const float x : row) out = std::max(out, std::fabs(x));
  }
  return out;
}

TEST(Vectors, Elements) {
  int checked = 0;
  for (const json::value& v : file("elements").at("elements").as_array()) {
    const std::string name = text(v.at("element"));
    const format::ElementFormat f{static_cast<uint8_t>(name[1] - '0'),
                                  static_cast<uint8_t>(name[3] - '0')};
    const Floats values = floats(v.at("values"));
    ASSERT_EQ(values.size(), f.code_count()) << name;
    for (uint32_t code = 0; code < f.code_count(); ++code) {
      const float ours = format::decode_element(f, code);
      if (std::isnan(values[code])) {
        EXPECT_TRUE(std::isnan(ours)) << name << " code " << code;
      } else {
        EXPECT_EQ(format::float_bits(ours), format::float_bits(values[code])) << name << code;
      }
    }
    const Floats x = floats(v.at("encode").at("x"));
    const json::array& codes = v.at("encode").at("codes").as_array();
    ASSERT_EQ(x.size(), codes.size());
    for (size_t i = 0; i < x.size(); ++i, ++checked)
      EXPECT_EQ(format::encode_element(f, x[i]), codes[i].to_number<uint32_t>()) << name << x[i];
  }
  EXPECT_GT(checked, 4000);
  for (const json::value& v : file("elements").at("e8m0").as_array()) {
    EXPECT_EQ(format::decode_e8m0(v.at("byte").to_number<uint8_t>()), number(v.at("value")));
  }
}

TEST(Vectors, Weights) {
  std::map<std::string, Rows> inputs;
  for (const auto& [name, rows] : file("weights").at("inputs").as_object())
    inputs[name] = rows_of(rows);
  for (const json::value& v : file("weights").at("cases").as_array()) {
    const json::object& entry = v.as_object();
    const format::WeightFormat f = *format::parse_weight_format(text(entry.at("format")));
    const Rows& x = inputs.at(text(entry.at("input")));
    const format::BlockRules rules{rule_of(entry), entry.contains("four_over_six")};
    SCOPED_TRACE(f.name() + " " + text(entry.at("input")));
    const json::array& expected = entry.at("rows").as_array();
    ASSERT_EQ(expected.size(), x.size());
    for (size_t r = 0; r < x.size(); ++r) {
      const bool tensor = f.outer_scale == format::OuterScale::kTensor;
      const float outer =
          format::choose_outer_scale(f, amax(tensor ? x : Rows{x[r]}), rules.four_over_six);
      Bytes codes(x[r].size());
      Bytes scales(static_cast<size_t>(f.groups(static_cast<int64_t>(codes.size()))));
      format::quantize_row(f, rules, x[r], outer, codes, scales);
      const json::object& row = expected[r].as_object();
      EXPECT_EQ(hex(packed(codes, f.element.bits())), text(row.at("codes"))) << "row " << r;
      const float stored = format::stored_outer_scale(outer);
      if (f.outer_scale != format::OuterScale::kNone) {
        EXPECT_EQ(stored, number(row.at("outer_scale")));
      }
      if (!scales.empty()) {
        EXPECT_EQ(hex(scales), text(row.at("scales"))) << "row " << r;
      }
      const Floats values = floats(row.at("values"));
      for (size_t i = 0; i < codes.size(); ++i) {
        float d = stored;
        if (f.group > 0) {
          const uint8_t byte = scales[i / static_cast<size_t>(f.group)];
          d *= f.block_scale == format::BlockScale::kE8M0
                   ? format::decode_e8m0(byte)
                   : format::decode_element(format::kE4M3, byte);
        }
        EXPECT_EQ(format::decode_element(f.element, codes[i]) * d, values[i]) << r << ":" << i;
      }
    }
  }
}

format::ActivationFormat activation_format(const std::string& name) {
  if (name == "nvfp4") return format::ActivationFormat::kNvfp4;
  if (name == "mxfp4") return format::ActivationFormat::kMxfp4;
  if (name == "mxfp8") return format::ActivationFormat::kMxfp8;
  SUB8_CHECK(name == "fp8");
  return format::ActivationFormat::kFp8;
}

// Rows of codes and scales, as an entry of the file has them.
struct Destination {
  Destination(int64_t row_count, int64_t cols, format::ActivationFormat f) : rows(row_count) {
    const int block = format::activation_block(f);
    code_bytes = format::packed_row_bytes(cols, format::activation_element(f).bits());
    scale_bytes = block == 0 ? 0 : (cols + block - 1) / block;
    codes.assign(static_cast<size_t>(rows * code_bytes), 0xee);
    scales.assign(static_cast<size_t>(rows * scale_bytes), 0xee);
  }
  kernels::QuantizedRows view() {
    return {codes.data(), code_bytes, scales.data(), scale_bytes, nullptr, 0};
  }
  void expect(const json::value& expected) const {
    ASSERT_EQ(static_cast<int64_t>(expected.as_array().size()), rows);
    for (int64_t r = 0; r < rows; ++r) {
      const auto part = [&](const Bytes& from, int64_t size) {
        return hex(Bytes(from.begin() + r * size, from.begin() + (r + 1) * size));
      };
      const json::value& row = expected.as_array()[static_cast<size_t>(r)];
      EXPECT_EQ(part(codes, code_bytes), text(row.at("codes"))) << "row " << r;
      EXPECT_EQ(part(scales, scale_bytes), text(row.at("scales"))) << "row " << r;
    }
  }
  int64_t rows, code_bytes = 0, scale_bytes = 0;
  Bytes codes, scales;
};

TEST(Vectors, ActivationsInEveryLayout) {
  using kernels::QuantizedLayout;
  const Rows x = rows_of(file("activations").at("x"));
  const Bytes masks = from_hex(file("activations").at("masks"));
  const auto m = static_cast<int64_t>(x.size());
  const auto k = static_cast<int64_t>(x[0].size());
  std::vector<uint16_t> rows;
  for (const Floats& row : x) {
    for (const float v : row) {
      rows.push_back(format::float_to_bf16(v));
      ASSERT_EQ(format::bf16_to_float(rows.back()), v);
    }
  }
  ThreadPool pool(2);
  std::vector<std::byte> workspace(kernels::quantize_act_workspace_bytes(k, pool.size()));
  for (const json::value& v : file("activations").at("cases").as_array()) {
    const json::object& entry = v.as_object();
    SCOPED_TRACE(text(entry.at("format")) + " " + text(entry.at("alpha_source")));
    kernels::QuantizeActArgs args;
    args.rule.format = activation_format(text(entry.at("format")));
    args.rule.mx_rule = rule_of(entry);
    const Floats alpha = floats(entry.at("alpha"));
    if (text(entry.at("alpha_source")) != "row") {
      args.rule.alpha_source = kernels::AlphaSource::kStatic;
      args.rule.static_alpha = alpha[0];
    }
    args.x = rows.data();
    args.x_stride = args.k = k;
    args.m = m;
    Floats used(static_cast<size_t>(m));
    args.alpha = used.data();
    args.residue = true;
    const auto run = [&](QuantizedLayout layout, const char* name) {
      SCOPED_TRACE(name);
      args.layout = layout;
      args.selected = {};
      if (layout == QuantizedLayout::kKExtended) args.selected = masks;
      const int64_t cols = kernels::quantized_cols(layout, args.rule.format, k, args.selected);
      Destination out(kernels::quantized_rows(layout, m), cols, args.rule.format);
      Destination second(m, k, args.rule.format);
      args.out = out.view();
      if (layout == QuantizedLayout::kRows) args.second = second.view();
      kernels::quantize_act(args, pool, workspace);
      EXPECT_EQ(used, alpha);
      out.expect(entry.at("layouts").at(name));
      if (layout == QuantizedLayout::kRows) second.expect(entry.at("layouts").at("residue_rows"));
    };
    run(QuantizedLayout::kRows, "rows");
    run(QuantizedLayout::kRowPair, "row_pair");
    run(QuantizedLayout::kTile8, "tile8");
    run(QuantizedLayout::kKExtended, "k_extended");
  }
}

Bytes select_masks(const Floats& means, float ratio) {
  Bytes out;
  for (size_t begin = 0; begin < means.size(); begin += format::kSelectGroup) {
    const auto count = static_cast<int64_t>(std::min<size_t>(8, means.size() - begin));
    out.push_back(
        format::select_mask(means.data() + begin, count, format::selected_per_group(ratio)));
  }
  return out;
}

Floats selected(const Floats& row, const Bytes& masks) {
  Floats out;
  for (size_t channel = 0; channel < masks.size() * 8; ++channel) {
    if ((masks[channel / 8] >> channel % 8 & 1) != 0)
      out.push_back(channel < row.size() ? row[channel] : 0.0F);
  }
  return out;
}

TEST(Vectors, Extension) {
  const Floats means = floats(file("extension").at("mean_abs"));
  const Rows weight = rows_of(file("extension").at("weight"));
  std::map<double, Bytes> masks;
  for (const json::value& v : file("extension").at("selections").as_array()) {
    const auto ratio = v.at("ratio").to_number<double>();
    masks[ratio] = select_masks(means, static_cast<float>(ratio));
    EXPECT_EQ(hex(masks[ratio]), text(v.at("masks"))) << ratio;
  }
  ASSERT_EQ(masks.size(), 3U);
  for (const json::value& v : file("extension").at("columns").as_array()) {
    const format::WeightFormat f = *format::parse_weight_format(text(v.at("format")));
    const float outer = format::choose_outer_scale(f, amax(weight));
    if (f.outer_scale == format::OuterScale::kTensor) {
      EXPECT_EQ(outer, number(v.at("outer_scale")));
    }
    for (size_t r = 0; r < weight.size(); ++r) {
      const Floats x = selected(weight[r], masks.at(v.at("ratio").to_number<double>()));
      Bytes codes(x.size());
      Bytes scales(static_cast<size_t>(f.groups(static_cast<int64_t>(x.size()))));
      format::quantize_row(f, {}, x, outer, codes, scales);
      const json::value& row = v.at("rows").as_array()[r];
      EXPECT_EQ(hex(packed(codes, 4)), text(row.at("codes")));
      EXPECT_EQ(hex(scales), text(row.at("scales")));
    }
  }
}

TEST(Vectors, Fold) {
  const json::value& v = file("fold");
  const Rows raw = rows_of(v.at("raw_row_pair"));
  const Floats alpha = floats(v.at("alpha"));
  const Floats outer = floats(v.at("outer_scale"));
  const Floats bias = floats(v.at("bias"));
  const size_t n = outer.size();
  Floats flat;
  for (const Floats& row : raw) flat.insert(flat.end(), row.begin(), row.end());
  ThreadPool pool(1);
  for (const char* name : {"y", "y_bias"}) {
    Floats y(alpha.size() * n);
    kernels::FoldArgs args;
    args.raw = flat.data();
    args.raw_stride = args.n = args.y_stride = static_cast<int64_t>(n);
    args.layout = kernels::QuantizedLayout::kRowPair;
    args.m = static_cast<int64_t>(alpha.size());
    args.alpha = alpha.data();
    args.outer = outer.data();
    args.bias = std::string(name) == "y_bias" ? bias.data() : nullptr;
    args.y = y.data();
    kernels::fold(args, pool);
    const Rows expected = rows_of(v.at(name));
    for (size_t i = 0; i < alpha.size(); ++i) {
      for (size_t j = 0; j < n; ++j) EXPECT_EQ(y[i * n + j], expected[i][j]) << name << i << j;
    }
  }
}

// q*s of a weight row, without the outer scale.
Floats weight_values(const format::WeightFormat& f, const Floats& x, float outer) {
  Bytes codes(x.size());
  Bytes scales(static_cast<size_t>(f.groups(static_cast<int64_t>(x.size()))));
  format::quantize_row(f, {}, x, outer, codes, scales);
  Floats out;
  for (size_t i = 0; i < x.size(); ++i) {
    const uint8_t byte = scales[i / static_cast<size_t>(f.group)];
    const float s = f.block_scale == format::BlockScale::kE8M0
                        ? format::decode_e8m0(byte)
                        : format::decode_element(format::kE4M3, byte);
    out.push_back(format::decode_element(f.element, codes[i]) * s);
  }
  return out;
}

TEST(Vectors, WholeProducts) {
  const Rows x = rows_of(file("product").at("x"));
  const Rows weight = rows_of(file("product").at("weight"));
  const auto m = static_cast<int64_t>(x.size());
  const auto k = static_cast<int64_t>(x[0].size());
  std::vector<uint16_t> rows;
  Floats means(static_cast<size_t>(k));
  for (const Floats& row : x) {
    for (size_t i = 0; i < row.size(); ++i) {
      rows.push_back(format::float_to_bf16(row[i]));
      means[i] += std::fabs(row[i]);
    }
  }
  ThreadPool pool(1);
  std::vector<std::byte> workspace(kernels::quantize_act_workspace_bytes(k, pool.size()));
  for (const json::value& v : file("product").at("cases").as_array()) {
    const auto ratio = static_cast<float>(v.at("ratio").to_number<double>());
    const format::WeightFormat f = *format::parse_weight_format(text(v.at("format")));
    SCOPED_TRACE(f.name() + " " + std::to_string(ratio));
    const float outer = format::choose_outer_scale(f, amax(weight));
    const Bytes masks = ratio > 0 && ratio < 1 ? select_masks(means, ratio) : Bytes();

    kernels::QuantizeActArgs args;
    args.rule.format = activation_format(f.name());
    args.x = rows.data();
    args.x_stride = args.k = k;
    args.m = m;
    args.residue = ratio > 0;
    args.layout =
        ratio > 0 ? kernels::QuantizedLayout::kKExtended : kernels::QuantizedLayout::kRows;
    args.selected = masks;
    const int64_t cols = kernels::quantized_cols(args.layout, args.rule.format, k, args.selected);
    std::vector<uint16_t> values(static_cast<size_t>(m * cols));
    args.out.values = values.data();
    args.out.value_stride = cols;
    Floats alpha(static_cast<size_t>(m));
    args.alpha = alpha.data();
    kernels::quantize_act(args, pool, workspace);

    const Rows expected = rows_of(v.at("y"));
    for (size_t n = 0; n < weight.size(); ++n) {
      Floats w = weight_values(f, weight[n], outer);
      if (ratio > 0) {
        const Floats extension =
            weight_values(f, masks.empty() ? weight[n] : selected(weight[n], masks), outer);
        w.insert(w.end(), extension.begin(), extension.end());
      }
      ASSERT_EQ(static_cast<int64_t>(w.size()), cols);
      for (int64_t i = 0; i < m; ++i) {
        float raw = 0;
        for (int64_t j = 0; j < cols; ++j) {
          raw += format::bf16_to_float(values[static_cast<size_t>(i * cols + j)]) *
                 w[static_cast<size_t>(j)];
        }
        const auto row = static_cast<size_t>(i);
        EXPECT_EQ(raw * (alpha[row] * outer), expected[row][n]) << row << ", " << n;
      }
    }
  }
}

TEST(Vectors, ScaleSwizzle) {
  for (const json::value& v : file("scale_swizzle").at("cases").as_array()) {
    const auto rows = v.at("rows").to_number<int64_t>();
    const auto blocks = v.at("blocks").to_number<int64_t>();
    const int64_t bytes = format::swizzled_scale_bytes(rows, blocks);
    EXPECT_EQ(bytes, v.at("bytes").to_number<int64_t>());
    for (const json::value& entry : v.at("offsets").as_array()) {
      const json::array& e = entry.as_array();
      EXPECT_EQ(format::swizzled_scale_offset(e[0].to_number<int64_t>(), e[1].to_number<int64_t>(),
                                              blocks),
                e[2].to_number<int64_t>());
    }
    std::vector<bool> taken(static_cast<size_t>(bytes));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t b = 0; b < blocks; ++b) {
        const auto at = static_cast<size_t>(format::swizzled_scale_offset(r, b, blocks));
        ASSERT_LT(at, taken.size());
        EXPECT_FALSE(taken[at]) << r << ", " << b;
        taken[at] = true;
      }
    }
  }
}

}  // namespace
}  // namespace sub8
