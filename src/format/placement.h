// Placement: how a packed code becomes a 16-bit float by shifts and masks alone.
//
// Copying sign, exponent and mantissa of a small element into an f16 or bf16, with the lowest
// exponent bits aligned, gives value * 2^(bias - target bias), subnormals and zero included. A
// register holds two 16-bit halves (two values of neighbouring k); every half of a packed word is
// laid out alike, so one shift and one mask serve both. A plan says where each bit of each value
// lives: register r is the OR of its terms, rotl(word, rotation) & mask in each half. Most values
// cost one mask, or a rotation and a mask; the bits they leave over make up the remaining values,
// either as several terms or through a merged word, into which the spare bits of all words are
// gathered first. A rotation is of 32 bits: bits of one value may come from both halves of a word.
// Where they do not, a shift does the same. Bit order is free, since packing happens once: the
// plans were found by a search for the fewest instructions, and a test proves that each uses every
// bit of its words exactly once.
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

// In each half, after a rotation to the left (to the right where negative), |rotation| <= 16.
struct PlacementTerm {
  uint8_t word;  // `words` names the merged word
  int8_t rotation;
  uint16_t mask;  // bits of the 16-bit half that this term supplies
};

// `words` packed words become `registers` registers of two values each; repeated 16 / registers
// times per thread and weight unit. With merge_count > 0 the terms in `merge` make up the merged
// word.
struct Placement {
  int words = 0;
  int registers = 0;
  int term_count[16] = {};
  PlacementTerm terms[16][6] = {};
  int merge_count = 0;
  PlacementTerm merge[7] = {};
};

SUB8_HD constexpr uint32_t rotate_left(uint32_t x, int by) {
  const int left = by & 31;
  return left == 0 ? x : (x << left) | (x >> (32 - left));
}

// Sets, in words[], the bits that hold `placed` as register r, half h of a period.
SUB8_HD constexpr void unplace(const Placement& plan, int r, int h, uint32_t placed,
                               uint32_t* words) {
  for (int i = 0; i < plan.term_count[r]; ++i) {
    const PlacementTerm t = plan.terms[r][i];
    const uint32_t source = rotate_left((placed & t.mask) << (16 * h), -t.rotation);
    if (t.word < plan.words) {
      words[t.word] |= source;
      continue;
    }
    for (int j = 0; j < plan.merge_count; ++j) {
      const PlacementTerm m = plan.merge[j];
      words[m.word] |= rotate_left(source & (m.mask * 0x10001u), -m.rotation);
    }
  }
}

namespace detail {

#include "format/placement_plans.inc"

// Whether a rotation takes no bit of `mask` across a half's border, so that a shift does.
SUB8_HD constexpr bool is_shift(PlacementTerm t) {
  return t.rotation >= 0 ? ((uint32_t{t.mask} >> t.rotation) << t.rotation) == t.mask
                         : (uint32_t{t.mask} << -t.rotation) >> 16 == 0;
}

SUB8_HD constexpr bool same_word_left_shifts(const Placement& p, int r) {
  const PlacementTerm* t = p.terms[r];
  return p.term_count[r] == 2 && t[0].word == t[1].word && t[0].rotation > 0 && t[1].rotation > 0 &&
         is_shift(t[0]) && is_shift(t[1]);
}

// Whether two left shifts of one word may be added by one multiplication: the bits that land
// outside the mask must not carry into it. Decided by trying every value of the source bits (at
// most 2^10).
SUB8_HD constexpr bool sum_of_shifts_is_exact(const Placement& p, int r) {
  if (!same_word_left_shifts(p, r)) return false;
  const PlacementTerm a = p.terms[r][0];
  const PlacementTerm b = p.terms[r][1];
  const uint32_t half = (uint32_t{a.mask} >> a.rotation) | (uint32_t{b.mask} >> b.rotation);
  const uint32_t source = half * 0x10001u;
  const uint32_t mask_a = a.mask * 0x10001u;
  const uint32_t mask_b = b.mask * 0x10001u;
  int bits = 0;
  for (uint32_t x = source; x != 0; x &= x - 1) ++bits;
  if (bits > 10) return false;
  uint32_t w = 0;
  do {  // all subsets of `source`
    const uint32_t product = w * ((1u << a.rotation) + (1u << b.rotation));
    const uint32_t wanted = ((w << a.rotation) & mask_a) | ((w << b.rotation) & mask_b);
    if ((product & (mask_a | mask_b)) != wanted) return false;
    w = (w - source) & source;
  } while (w != 0);
  return true;
}

template <int By, bool Shift>
SUB8_HD inline uint32_t rotate(uint32_t x) {
  if constexpr (By == 0) return x;
  if constexpr (Shift && By > 0) return x << By;
  if constexpr (Shift && By < 0) return x >> -By;
#ifdef __CUDA_ARCH__
  return __funnelshift_l(x, x, By & 31);
#else
  return rotate_left(x, By);
#endif
}

template <ElementFormat F, Half T, int R, int I>
SUB8_HD inline uint32_t place_term(const uint32_t* words) {
  constexpr PlacementTerm kTerm = placement<F, T>().terms[R][I];
  constexpr uint32_t kMask = uint32_t{kTerm.mask} * 0x10001u;
  return rotate<kTerm.rotation, is_shift(kTerm)>(words[kTerm.word]) & kMask;
}

// Term I of the merged word and all before it; `covered` bits are theirs already.
template <ElementFormat F, Half T, int I>
SUB8_HD inline uint32_t merge_words(const uint32_t* words, uint32_t merged, uint32_t covered) {
  constexpr Placement kPlan = placement<F, T>();
  if constexpr (I < kPlan.merge_count) {
    constexpr PlacementTerm kTerm = kPlan.merge[I];
    const uint32_t next = rotate<kTerm.rotation, is_shift(kTerm)>(words[kTerm.word]);
    // Bits outside the masks are never looked at, so one three-input operation joins two words.
    merged = I == 0 ? next : (merged & covered) | (next & ~covered);
    return merge_words<F, T, I + 1>(words, merged, covered | (kTerm.mask * 0x10001u));
  } else {
    return merged;
  }
}

template <ElementFormat F, Half T, int R>
SUB8_HD inline uint32_t place_register(const uint32_t* words) {
  constexpr Placement kPlan = placement<F, T>();
  constexpr PlacementTerm kFirst = kPlan.terms[R][0];
  if constexpr (sum_of_shifts_is_exact(kPlan, R)) {
    constexpr PlacementTerm kSecond = kPlan.terms[R][1];
    constexpr uint32_t kSource = ((uint32_t{kFirst.mask} >> kFirst.rotation) |
                                  (uint32_t{kSecond.mask} >> kSecond.rotation)) *
                                 0x10001u;
    constexpr uint32_t kMask = (uint32_t{kFirst.mask} | kSecond.mask) * 0x10001u;
    return ((words[kFirst.word] & kSource) * ((1u << kFirst.rotation) + (1u << kSecond.rotation))) &
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
  constexpr int kWords = placement<F, T>().words;
  uint32_t all[kWords + 1];
  for (int i = 0; i < kWords; ++i) all[i] = words[i];
  all[kWords] = merge_words<F, T, 0>(words, 0, 0);
  ((registers[R] = place_register<F, T, R>(all)), ...);
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
