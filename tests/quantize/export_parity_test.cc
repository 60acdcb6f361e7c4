// The bytes that sub8 makes equal those of two exporters: NVIDIA Model Optimizer's NVFP4, given its
// tensor scales, and compressed-tensors' MXFP4 under the `even` rule.
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/safetensors.h"
#include "format/block.h"
#include "quantize/row_quantizer.h"

namespace sub8::quantize {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::Tensor;

const Tensor& tensor(const SafetensorsFile& file, const std::string& name) {
  for (const Tensor& t : file.tensors()) {
    if (t.name == name) return t;
  }
  ADD_FAILURE() << "no tensor " << name;
  static const Tensor none;
  return none;
}

struct Bytes {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
};

Bytes quantize(const Tensor& bf16, const format::WeightFormat& f, float alpha) {
  const int64_t rows = bf16.shape[0];
  const int64_t cols = bf16.shape[1];
  Bytes out{std::vector<uint8_t>(static_cast<size_t>(rows * f.row_bytes(cols))),
            std::vector<uint8_t>(static_cast<size_t>(rows * f.groups(cols)))};
  std::vector<float> x(static_cast<size_t>(cols));
  std::vector<uint8_t> codes(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < cols; ++k) {
      uint16_t half = 0;
      std::memcpy(&half, bf16.data.data() + (r * cols + k) * 2, 2);
      x[static_cast<size_t>(k)] = format::bf16_to_float(half);
    }
    quantize_row(f, RowRules{}, x, alpha, codes,
                 {out.scales.data() + r * f.groups(cols), static_cast<size_t>(f.groups(cols))});
    format::pack_codes(codes.data(), cols, 4, out.codes.data() + r * f.row_bytes(cols));
  }
  return out;
}

void expect_bytes(const std::vector<uint8_t>& got, std::span<const uint8_t> want,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  size_t different = 0;
  for (size_t i = 0; i < got.size(); ++i) different += got[i] != want[i];
  EXPECT_EQ(different, 0U) << what << ": of " << got.size() << " bytes";
}

float scalar(const Tensor& t) {
  float value = 0;
  std::memcpy(&value, t.data.data(), 4);
  return value;
}

void compare_nvfp4(const Tensor& base, const Tensor& codes, const Tensor& scales, float alpha) {
  const Bytes got = quantize(base, format::nvfp4_format(), alpha);
  expect_bytes(got.codes, codes.data, codes.name);
  expect_bytes(got.scales, scales.data, scales.name);
}

void compare_mxfp4(const Tensor& base, const Tensor& codes, const Tensor& scales) {
  const Bytes got = quantize(base, format::mx_format(format::kE2M1), 1.0F);
  expect_bytes(got.codes, codes.data, codes.name);
  expect_bytes(got.scales, scales.data, scales.name);
}

// Every Linear of the model that both exports were made from.
TEST(ExportParity, BytesEqualThoseOfBothExporters) {
  const std::filesystem::path exports = std::string(SUB8_TEST_DATA) + "/exports";
  const auto base = SafetensorsFile::open(exports / "base/model.safetensors");
  const auto nvfp4 = SafetensorsFile::open(exports / "mo-nvfp4/model.safetensors");
  const auto mxfp4 = SafetensorsFile::open(exports / "ct-mxfp4/model.safetensors");
  ASSERT_TRUE(base.ok() && nvfp4.ok() && mxfp4.ok());
  int modules = 0;
  for (const Tensor& t : base->tensors()) {
    if (!t.name.ends_with("_proj.weight")) continue;
    const std::string module = t.name.substr(0, t.name.size() - 7);
    compare_nvfp4(t, tensor(*nvfp4, module + ".weight"), tensor(*nvfp4, module + ".weight_scale"),
                  scalar(tensor(*nvfp4, module + ".weight_scale_2")));
    compare_mxfp4(t, tensor(*mxfp4, module + ".weight_packed"),
                  tensor(*mxfp4, module + ".weight_scale"));
    ++modules;
  }
  EXPECT_EQ(modules, 14);
}

}  // namespace
}  // namespace sub8::quantize
