// Byte placement plans: every bit of the packed words used once, and every code in every position
// placed to the exact value; the same for the table of e2m1, for every block exponent.
#include "format/byte_placement.h"

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace sub8::format {
namespace {

template <ElementFormat F>
void check_element() {
  SCOPED_TRACE(testing::Message() << "e" << int{F.exponent_bits} << "m" << int{F.mantissa_bits});
  constexpr BytePlacement kPlan = byte_placement<F>();
  constexpr ElementFormat kTarget = byte_target(F);
  ASSERT_EQ(kPlan.words * 8, kPlan.registers * F.bits());
  ASSERT_EQ(16 % kPlan.registers, 0);
  ASSERT_EQ(find_byte_placement(F).words, kPlan.words);
  std::vector<uint32_t> used(static_cast<size_t>(kPlan.words), 0);
  for (int r = 0; r < kPlan.registers; ++r) {
    for (int b = 0; b < 4; ++b) {
      for (int bit = 0; bit < 8; ++bit) {
        if (((placed_byte(F, F.code_count() - 1) >> bit) & 1) == 0) continue;
        std::vector<uint32_t> words(static_cast<size_t>(kPlan.words), 0);
        unplace_byte(kPlan, r, b, 1u << bit, words.data());
        int bits = 0;
        for (size_t w = 0; w < words.size(); ++w) {
          bits += std::popcount(words[w]);
          ASSERT_EQ(used[w] & words[w], 0u) << "a bit is used twice";
          used[w] |= words[w];
        }
        ASSERT_EQ(bits, 1) << "register " << r << " byte " << b << " bit " << bit;
      }
    }
  }
  for (const uint32_t u : used) ASSERT_EQ(u, ~0u);

  // Every code at every register and byte, all other bits random.
  std::mt19937 random(7);
  for (int r = 0; r < 16; ++r) {
    for (int b = 0; b < 4; ++b) {
      for (uint32_t code = 0; code < F.code_count(); ++code) {
        uint32_t words[16];
        for (uint32_t& w : words) w = static_cast<uint32_t>(random());
        uint32_t* period = words + r / kPlan.registers * kPlan.words;
        std::vector<uint32_t> mine(static_cast<size_t>(kPlan.words), 0);
        unplace_byte(kPlan, r % kPlan.registers, b, 0xff, mine.data());
        for (size_t w = 0; w < mine.size(); ++w) period[w] &= ~mine[w];
        unplace_byte(kPlan, r % kPlan.registers, b, placed_byte(F, code), period);
        uint32_t registers[16];
        place_bytes<F, 16>(words, registers);
        const uint32_t got = (registers[r] >> (8 * b)) & 0xff;
        ASSERT_EQ(got, placed_byte(F, code)) << "register " << r << " byte " << b;
        ASSERT_FALSE(kTarget.is_nonfinite(got));
        ASSERT_EQ(std::ldexp(decode_element(kTarget, got), kTarget.bias() - F.bias()),
                  decode_element(F, code));
      }
    }
  }
}

TEST(BytePlacement, EveryCodeOfEveryPlan) {
  check_element<kE2M1>();
  check_element<kE2M2>();
  check_element<kE3M1>();
  check_element<kE3M2>();
  check_element<kE2M3>();
}

TEST(BytePlacement, UnknownElementHasNoPlan) {
  EXPECT_EQ(find_byte_placement(kE5M2).words, 0);
  EXPECT_EQ(find_byte_placement(kE4M3).words, 0);
}

TEST(BytePlacement, TableWordsUseEveryBitOnce) {
  uint32_t used = 0;
  for (int r = 0; r < 2; ++r)
    for (int b = 0; b < 4; ++b)
      for (uint32_t bit = 1; bit < 16; bit *= 2) {
        const uint32_t w = table_word_bits(r, b, bit);
        ASSERT_EQ(std::popcount(w), 1);
        ASSERT_EQ(used & w, 0u);
        used |= w;
      }
  EXPECT_EQ(used, ~0u);
}

TEST(BytePlacement, TableIsExactForEveryExponent) {
  std::mt19937 random(9);
  for (uint32_t d = 0; d <= static_cast<uint32_t>(kTableSpread); ++d)
    for (int r = 0; r < 2; ++r)
      for (int b = 0; b < 4; ++b)
        for (uint32_t code = 0; code < 16; ++code) {
          const uint32_t word = (static_cast<uint32_t>(random()) & ~table_word_bits(r, b, 15)) |
                                table_word_bits(r, b, code);
          uint32_t out[2];
          place_table_word(byte_table(d), word, PermuteTable{}, &out[0], &out[1]);
          const uint32_t got = (out[r] >> (8 * b)) & 0xff;
          ASSERT_FALSE(kE5M2.is_nonfinite(got));
          ASSERT_EQ(std::ldexp(decode_element(kE5M2, got), kTableBias - static_cast<int>(d)),
                    decode_element(kE2M1, code))
              << "d " << d << " code " << code;
        }
}

}  // namespace
}  // namespace sub8::format
