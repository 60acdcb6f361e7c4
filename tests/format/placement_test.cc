// Placement plans: every bit of the packed words used once, and every code in every position placed
// to the exact value.
#include "format/placement.h"

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
  std::vector<uint32_t> used(static_cast<size_t>(plan.words), 0);
  for (int r = 0; r < plan.registers; ++r) {
    uint32_t covered = 0;
    for (int i = 0; i < plan.term_count[r]; ++i) {
      const PlacementTerm t = plan.terms[r][i];
      const uint32_t source =
          t.shift >= 0 ? uint32_t{t.mask} >> t.shift : uint32_t{t.mask} << -t.shift;
      ASSERT_EQ(t.shift >= 0 ? source << t.shift : source >> -t.shift, t.mask);
      ASSERT_EQ(source >> 16, 0u);
      ASSERT_EQ(used[t.word] & source, 0u) << "a bit is used twice";
      used[t.word] |= source;
      ASSERT_EQ(covered & t.mask, 0u);
      covered |= t.mask;
    }
    ASSERT_EQ(covered, placed_mask(F, T));
  }
  for (const uint32_t u : used) ASSERT_EQ(u, 0xffffu);

  // Every code at every register and half, all other bits random.
  std::mt19937 random(7);
  for (int r = 0; r < 16; ++r) {
    for (int half = 0; half < 2; ++half) {
      for (uint32_t code = 0; code < F.code_count(); ++code) {
        uint32_t words[16];
        for (uint32_t& w : words) w = static_cast<uint32_t>(random());
        const uint32_t placed = placed_bits(F, T, code);
        const int base = r / plan.registers * plan.words;
        for (int i = 0; i < plan.term_count[r % plan.registers]; ++i) {
          const PlacementTerm t = plan.terms[r % plan.registers][i];
          const auto move = [&](uint32_t x) {
            return (t.shift >= 0 ? x >> t.shift : x << -t.shift) << (16 * half);
          };
          words[base + t.word] &= ~move(t.mask);
          words[base + t.word] |= move(placed & t.mask);
        }
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
