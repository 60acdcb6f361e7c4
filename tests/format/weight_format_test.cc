#include "format/weight_format.h"

#include <gtest/gtest.h>

namespace sub8::format {
namespace {

TEST(WeightFormat, NamesRoundTrip) {
  for (const char* name : {"e3m2", "e2m0", "e1m1", "e7m0", "e5m2", "e2m1:g32", "e3m2:g128", "nvfp4",
                           "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8", "bf16", "f16", "f32",
                           "e4m3:tensor", "e2m1:e4m3g32:tensor", "e3m1:e8m0g32", "e2m1:e4m3g16"}) {
    const auto f = parse_weight_format(name);
    ASSERT_TRUE(f.ok()) << name << ": " << f.error().message;
    EXPECT_EQ(f->name(), name);
  }
}

TEST(WeightFormat, BadNamesAreRefusedWithAReason) {
  for (const char* name :
       {"", "e3", "e0m3", "e9m1", "e1m0", "e4m4", "int4", "e3m2:g16", "e3m2:g", "mxfp6", "e2m4:g32",
        "e3m2:x", "nvfp4:g32", "e2m1:g32:g64", "e2m1:tensor:none", "e2m1:tensor:none:channel",
        "e2m1:e4m3g32:e8m0g32", "e2m1:channel:e8m0g32", "e2m1:tensor:tensor"}) {
    const auto f = parse_weight_format(name);
    EXPECT_FALSE(f.ok()) << name;
  }
  EXPECT_NE(parse_weight_format("q4_0").error().message.find("nvfp4"), std::string::npos);
}

TEST(WeightFormat, Sizes) {
  EXPECT_EQ(parse_weight_format("e3m2")->row_bytes(576), 432);
  EXPECT_EQ(parse_weight_format("e3m2")->row_bytes(5), 4);
  EXPECT_EQ(parse_weight_format("nvfp4")->storage_bytes(4, 32), 4 * (16 + 2) + 4);
  EXPECT_EQ(parse_weight_format("e2m1:g32")->storage_bytes(4, 33), 4 * (17 + 2) + 16);
  EXPECT_EQ(parse_weight_format("bf16")->storage_bytes(4, 33), 4 * 66);
}

}  // namespace
}  // namespace sub8::format
