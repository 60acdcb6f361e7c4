// Channel selection of K-Ext.
#include "format/activation.h"

#include <gtest/gtest.h>

namespace sub8::format {
namespace {

TEST(SelectMask, TakesTheLargestMeansOfAGroup) {
  const float mean[] = {0.5f, 3.0f, 0.0f, 2.0f, 7.0f, 2.5f, 1.0f, 0.25f};
  EXPECT_EQ(select_mask(mean, 8, 1), 0b0001'0000);
  EXPECT_EQ(select_mask(mean, 8, 2), 0b0001'0010);
  EXPECT_EQ(select_mask(mean, 8, 4), 0b0011'1010);
  EXPECT_EQ(select_mask(mean, 8, 8), 0xff);
}

TEST(SelectMask, TiesGoToTheLowerIndex) {
  const float equal[8] = {1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(select_mask(equal, 8, 1), 0b0000'0001);
  EXPECT_EQ(select_mask(equal, 8, 4), 0b0000'1111);
  const float zeros[8] = {0, 0, 0, 0, 0, 0, 2, 2};
  EXPECT_EQ(select_mask(zeros, 8, 2), 0b1100'0000);
  EXPECT_EQ(select_mask(zeros, 8, 4), 0b1100'0011);
}

// Missing channels count as -1: after every real one, zeros included, lowest first.
TEST(SelectMask, AShortGroupIsFilledUp) {
  const float mean[] = {0.0f, 2.0f, 1.0f};
  EXPECT_EQ(select_mask(mean, 3, 1), 0b010);
  EXPECT_EQ(select_mask(mean, 3, 2), 0b110);
  EXPECT_EQ(select_mask(mean, 3, 4), 0b1111);
  EXPECT_EQ(select_mask(mean, 1, 4), 0b1111);
}

}  // namespace
}  // namespace sub8::format
