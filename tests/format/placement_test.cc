// Placement plans: every bit of the packed words used once, and every code in every position placed
// to the exact value.
#include "format/placement.h"

#include <bit>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "format/dtype.h"

namespace sub8::format {
namespace {

float half_value(Half target, uint32_t bits) {
  return target == Half::kF16 ? f16_to_float(static_cast<uint16_t>(bits))
                              : bf16_to_float(static_cast<uint16_t>(bits));
}

template <ElementFormat F, Half T>
void check_plan() {
  const Placement plan = placement<F, T>();
  SCOPED_TRACE(testing::Message() << "e" << int{F.exponent_bits} << "m" << int{F.mantissa_bits}
                                  << (T == Half::kF16 ? " f16" : " bf16"));
  ASSERT_EQ(plan.words * 16, plan.registers * F.bits());
  ASSERT_EQ(16 % plan.registers, 0);
  // Every bit of the words belongs to one value's bit, and no two share one.
  std::vector<uint32_t> used(static_cast<size_t>(plan.words), 0);
  for (int r = 0; r < plan.registers; ++r) {
    for (int h = 0; h < 2; ++h) {
      for (int bit = 0; bit < 16; ++bit) {
        if (((placed_mask(F, T) >> bit) & 1) == 0) continue;
        std::vector<uint32_t> words(static_cast<size_t>(plan.words), 0);
        unplace(plan, r, h, 1u << bit, words.data());
        int bits = 0;
        for (size_t w = 0; w < words.size(); ++w) {
          bits += std::popcount(words[w]);
          ASSERT_EQ(used[w] & words[w], 0u) << "a bit is used twice";
          used[w] |= words[w];
        }
        ASSERT_EQ(bits, 1) << "register " << r << " half " << h << " bit " << bit;
      }
    }
  }
  for (const uint32_t u : used) ASSERT_EQ(u, ~0u);

  // Every code at every register and half, all other bits random.
  std::mt19937 random(7);
  for (int r = 0; r < 16; ++r) {
    for (int half = 0; half < 2; ++half) {
      for (uint32_t code = 0; code < F.code_count(); ++code) {
        uint32_t words[16];
        for (uint32_t& w : words) w = static_cast<uint32_t>(random());
        const uint32_t placed = placed_bits(F, T, code);
        const int base = r / plan.registers * plan.words;
        uint32_t* period = words + base;
        std::vector<uint32_t> mine(static_cast<size_t>(plan.words), 0);
        unplace(plan, r % plan.registers, half, placed_mask(F, T), mine.data());
        for (size_t w = 0; w < mine.size(); ++w) period[w] &= ~mine[w];
        unplace(plan, r % plan.registers, half, placed, period);
        uint32_t registers[16];
        place_unit<F, T>(words, registers);
        const uint32_t got = (registers[r] >> (16 * half)) & 0xffff;
        ASSERT_EQ(got, placed) << "register " << r << " half " << half << " code " << code;
        if (F.is_nonfinite(code)) continue;
        ASSERT_EQ(std::ldexp(half_value(T, got), half_bias(T) - F.bias()), decode_element(F, code));
      }
    }
  }
}

template <ElementFormat F>
void check_element() {
  check_plan<F, Half::kF16>();
  check_plan<F, Half::kBF16>();
  EXPECT_EQ(find_placement(F, Half::kBF16).words, (placement<F, Half::kBF16>().words));
  EXPECT_EQ(find_placement(F, Half::kF16).registers, (placement<F, Half::kF16>().registers));
}

TEST(Placement, EveryCodeOfEveryPlan) {
  check_element<kE2M0>();
  check_element<kE1M1>();
  check_element<kE2M1>();
  check_element<kE2M2>();
  check_element<kE3M1>();
  check_element<kE3M2>();
  check_element<kE2M3>();
  check_element<kE3M3>();
  check_element<kE4M3>();
}

TEST(Placement, UnknownElementHasNoPlan) { EXPECT_EQ(find_placement(kE5M2, Half::kBF16).words, 0); }

}  // namespace
}  // namespace sub8::format
