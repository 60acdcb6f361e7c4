// Placement: how a packed code becomes a 16-bit float by shifts and masks alone.
//
// Copying sign, exponent and mantissa of a small element into an f16 or bf16, with the lowest
// exponent bits aligned, gives value * 2^(bias - target bias), subnormals and zero included. A
// register holds two 16-bit halves (two values of neighbouring k); every half of a packed word is
// laid out alike, so one shift and one mask serve both. A plan says where each bit of each value
// lives: register r is the OR of its terms, (word << shift) & mask in each half. Most values cost
// one mask, or a shift and a mask; the bits they leave over make up the remaining values. Bit order
// is free, since packing happens once: the plans were found by a search for the fewest
// instructions, and a test proves that each uses every bit of its words exactly once.
//
// Source: FP6-LLM, section 5 (bit-level pre-packing, parallel dequantisation), with words that hold
// whole values instead of a 2 + 4 bit split.
#pragma once

#include <cstdint>
#include <utility>

#include "format/element.h"
#include "format/platform.h"

namespace sub8::format {

enum class Half : uint8_t { kF16, kBF16 };

SUB8_HD constexpr int half_bias(Half target) { return target == Half::kF16 ? 15 : 127; }
SUB8_HD constexpr int half_mantissa_bits(Half target) { return target == Half::kF16 ? 10 : 7; }

// The 16-bit float that stands for `code`: its value is the element's times
// 2^(bias() - half_bias()).
SUB8_HD constexpr uint32_t placed_bits(ElementFormat f, Half target, uint32_t code) {
  const uint32_t magnitude = code & (f.sign_bit() - 1);
  const uint32_t sign = (code & f.sign_bit()) != 0 ? 0x8000u : 0u;
  return sign | (magnitude << (half_mantissa_bits(target) - f.mantissa_bits));
}
SUB8_HD constexpr uint32_t placed_mask(ElementFormat f, Half target) {
  return placed_bits(f, target, f.code_count() - 1);
}

struct PlacementTerm {
  uint8_t word;
  int8_t shift;   // left where positive, right where negative
  uint16_t mask;  // bits of the 16-bit half that this term supplies
};

// `words` packed words become `registers` registers of two values each; repeated 16 / registers
// times per thread and weight unit.
struct Placement {
  int words = 0;
  int registers = 0;
  int term_count[16] = {};
  PlacementTerm terms[16][6] = {};
};

namespace detail {

#include "format/placement_plans.inc"

SUB8_HD constexpr bool same_word_left_shifts(const Placement& p, int r) {
  const PlacementTerm* t = p.terms[r];
  return p.term_count[r] == 2 && t[0].word == t[1].word && t[0].shift > 0 && t[1].shift > 0;
}

// Whether two left shifts of one word may be added by one multiplication: the bits that land
// outside the mask must not carry into it. Decided by trying every value of the source bits (at
// most 2^10).
SUB8_HD constexpr bool sum_of_shifts_is_exact(const Placement& p, int r) {
  if (!same_word_left_shifts(p, r)) return false;
  const PlacementTerm a = p.terms[r][0];
  const PlacementTerm b = p.terms[r][1];
  const uint32_t half = (uint32_t{a.mask} >> a.shift) | (uint32_t{b.mask} >> b.shift);
  const uint32_t source = half * 0x10001u;
  const uint32_t mask_a = a.mask * 0x10001u;
  const uint32_t mask_b = b.mask * 0x10001u;
  int bits = 0;
  for (uint32_t x = source; x != 0; x &= x - 1) ++bits;
  if (bits > 10) return false;
  uint32_t w = 0;
  do {  // all subsets of `source`
    const uint32_t product = w * ((1u << a.shift) + (1u << b.shift));
    const uint32_t wanted = ((w << a.shift) & mask_a) | ((w << b.shift) & mask_b);
    if ((product & (mask_a | mask_b)) != wanted) return false;
    w = (w - source) & source;
  } while (w != 0);
  return true;
}

template <ElementFormat F, Half T, int R, int I>
SUB8_HD inline uint32_t place_term(const uint32_t* words) {
  constexpr PlacementTerm kTerm = placement<F, T>().terms[R][I];
  constexpr uint32_t kMask = uint32_t{kTerm.mask} * 0x10001u;
  if constexpr (kTerm.shift >= 0) {
    return (words[kTerm.word] << kTerm.shift) & kMask;
  } else {
    return (words[kTerm.word] >> -kTerm.shift) & kMask;
  }
}

template <ElementFormat F, Half T, int R>
SUB8_HD inline uint32_t place_register(const uint32_t* words) {
  constexpr Placement kPlan = placement<F, T>();
  constexpr PlacementTerm kFirst = kPlan.terms[R][0];
  if constexpr (sum_of_shifts_is_exact(kPlan, R)) {
    constexpr PlacementTerm kSecond = kPlan.terms[R][1];
    constexpr uint32_t kSource =
        ((uint32_t{kFirst.mask} >> kFirst.shift) | (uint32_t{kSecond.mask} >> kSecond.shift)) *
        0x10001u;
    constexpr uint32_t kMask = (uint32_t{kFirst.mask} | kSecond.mask) * 0x10001u;
    return ((words[kFirst.word] & kSource) * ((1u << kFirst.shift) + (1u << kSecond.shift))) &
           kMask;
  } else {
    uint32_t out = place_term<F, T, R, 0>(words);
    if constexpr (kPlan.term_count[R] > 1) out |= place_term<F, T, R, 1>(words);
    if constexpr (kPlan.term_count[R] > 2) out |= place_term<F, T, R, 2>(words);
    if constexpr (kPlan.term_count[R] > 3) out |= place_term<F, T, R, 3>(words);
    if constexpr (kPlan.term_count[R] > 4) out |= place_term<F, T, R, 4>(words);
    if constexpr (kPlan.term_count[R] > 5) out |= place_term<F, T, R, 5>(words);
    return out;
  }
}

}  // namespace detail

// The plan of an element and target; words == 0 where none exists.
template <ElementFormat F, Half T>
SUB8_HD constexpr Placement placement() {
  return detail::placement<F, T>();
}
// The same with the element as a run-time value.
Placement find_placement(ElementFormat f, Half target);

namespace detail {
template <ElementFormat F, Half T, int... R>
SUB8_HD inline void place_period(const uint32_t* words, uint32_t* registers,
                                 std::integer_sequence<int, R...>) {
  ((registers[R] = place_register<F, T, R>(words)), ...);
}
template <ElementFormat F, Half T, int Words, int Registers, int... P>
SUB8_HD inline void place_periods(const uint32_t* words, uint32_t* registers,
                                  std::integer_sequence<int, P...>) {
  (place_period<F, T>(words + P * Words, registers + P * Registers,
                      std::make_integer_sequence<int, Registers>{}),
   ...);
}
}  // namespace detail

// Places the weights that one thread holds of a unit: 16 registers from bits() words.
template <ElementFormat F, Half T>
SUB8_HD inline void place_unit(const uint32_t* words, uint32_t* registers) {
  constexpr int kWords = detail::placement<F, T>().words;
  constexpr int kRegisters = detail::placement<F, T>().registers;
  detail::place_periods<F, T, kWords, kRegisters>(
      words, registers, std::make_integer_sequence<int, 16 / kRegisters>{});
}

}  // namespace sub8::format
