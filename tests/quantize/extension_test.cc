// Extension columns: which columns, in which blocks, by which scales.
#include "quantize/extension.h"

#include <gtest/gtest.h>

#include "format/activation.h"
#include "format/block.h"
#include "tensor/decode.h"

namespace sub8::quantize {
namespace {

std::unique_ptr<checkpoint::WeightSource> open(const std::string& name) {
  auto source = checkpoint::open_checkpoint(std::filesystem::path(SUB8_TEST_DATA) / name);
  EXPECT_TRUE(source.ok());
  return std::move(source).value();
}

constexpr std::string_view kModule = "model.layers.0.mlp.down_proj";

TEST(ExtensionColumns, AreTheOriginalsInTheBasesScale) {
  const auto original = open("exports/base");
  ThreadPool pool(2);
  for (const char* name : {"exports/mo-nvfp4", "exports/ct-mxfp4"}) {
    const auto source = open(name);
    const StoredMatrix base = source->matrix(kModule, format::DType::kBF16).value();
    std::vector<uint8_t> masks;
    for (int64_t g = 0; g < base.cols / 8; ++g)
      masks.push_back(static_cast<uint8_t>(g % 2 == 0 ? 0b0100'0010 : 0b1000'0001));
    const auto got = extension_columns(base, *original, kModule, masks, {}, pool);
    ASSERT_TRUE(got.ok()) << got.error().message;
    ASSERT_TRUE(check_matrix(*got, "extension").ok());
    EXPECT_EQ(got->format, base.format);
    EXPECT_EQ(got->outer_scales, base.outer_scales);
    ASSERT_EQ(got->cols, base.cols / 4);
    std::vector<float> wide(static_cast<size_t>(base.cols));
    std::vector<float> narrow(static_cast<size_t>(got->cols));
    std::vector<uint8_t> codes(32);
    for (const int64_t row : {int64_t{0}, base.rows - 1}) {
      ASSERT_TRUE(original->decode_rows(kModule, row, 1, wide).ok());
      decode_rows(*got, row, 1, narrow);
      const int block = base.format.group;
      for (int64_t begin = 0; begin < got->cols; begin += block) {
        const auto count = std::min<int64_t>(block, got->cols - begin);
        std::vector<float> x;
        for (int64_t c = begin; c < begin + count; ++c) {
          const int64_t group = c / 2;
          const int64_t first = group % 2 == 0 ? 1 : 0;
          const int64_t second = group % 2 == 0 ? 6 : 7;
          x.push_back(wide[static_cast<size_t>(8 * group + (c % 2 == 0 ? first : second))]);
        }
        float d = 0;
        if (base.format.block_scale == format::BlockScale::kE8M0) {
          d = format::decode_e8m0(format::mx_quantize_block(format::kE2M1, x.data(), count,
                                                            format::MxRule::kEven, codes.data()));
        } else {
          const float alpha = base.outer_scales[0];
          d = format::block_divisor(alpha, format::nvfp4_quantize_weight_block(
                                               x.data(), count, alpha, false, codes.data()));
        }
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(narrow[static_cast<size_t>(begin + i)],
                    format::decode_element(format::kE2M1, codes[static_cast<size_t>(i)]) * d)
              << name << " row " << row << " column " << begin + i;
        }
      }
    }
  }
}

// All channels of the decoded weights: quantising again changes nothing.
TEST(ExtensionColumns, AllDecodedColumnsAreTheWeight) {
  ThreadPool pool(2);
  const auto source = open("exports/mo-nvfp4");
  const StoredMatrix base = source->matrix(kModule, format::DType::kBF16).value();
  const std::vector<uint8_t> all(static_cast<size_t>(base.cols / 8), 0xff);
  const auto got = extension_columns(base, *source, kModule, all, {}, pool);
  ASSERT_TRUE(got.ok());
  std::vector<float> want(static_cast<size_t>(base.rows * base.cols)), have(want.size());
  decode_rows(base, 0, base.rows, want);
  decode_rows(*got, 0, base.rows, have);
  EXPECT_EQ(have, want);
}

TEST(ExtensionColumns, AForeignOriginalIsRefused) {
  ThreadPool pool(1);
  const auto source = open("exports/mo-nvfp4");
  const StoredMatrix base = source->matrix(kModule, format::DType::kBF16).value();
  const std::vector<uint8_t> masks(static_cast<size_t>(base.cols / 8), 1);
  const auto other = extension_columns(base, *open("models/llama"), kModule, masks, {}, pool);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("do not belong together"), std::string::npos);
  const auto opt = extension_columns(base, *open("models/opt"), kModule, masks, {}, pool);
  ASSERT_FALSE(opt.ok());
  EXPECT_NE(opt.error().message.find("has no module"), std::string::npos);
}

}  // namespace
}  // namespace sub8::quantize
