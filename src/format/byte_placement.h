// Byte placement: how packed codes become four e5m2 or e4m3 bytes of a 32-bit register by shifts
// and masks alone, for 8-bit matrix operands. The counterpart of placement.h.
//
// Copying sign, exponent and mantissa of a small element into an 8-bit one, with the lowest
// exponent bits aligned, gives value * 2^(bias - target bias), subnormals and zero included. Every
// byte of a packed word is laid out alike, so one shift and one mask serve four values. Register r
// is the OR of its terms, each a shifted word under a mask.
//
// e2m1 with E8M0 block scales takes another way: a block's exponent d is added to a table of the
// eight magnitudes in e5m2, and a byte permutation looks four codes up at once. The result is
// value * 2^(d - kTableBias), exact for 0 <= d <= kTableSpread: products of a row whose block
// exponents spread no further than that need no multiplication by scales.
#pragma once

#include <cstdint>
#include <utility>

#include "format/element.h"
#include "format/platform.h"

namespace sub8::format {

// e5m2 where the mantissa allows: it takes three more binades than e4m3.
SUB8_HD constexpr ElementFormat byte_target(ElementFormat f) {
  return f.mantissa_bits <= 2 ? ElementFormat{5, 2} : ElementFormat{4, 3};
}

// The byte that stands for `code`: its value is the element's times 2^(bias() - target bias).
SUB8_HD constexpr uint32_t placed_byte(ElementFormat f, uint32_t code) {
  const uint32_t magnitude = code & (f.sign_bit() - 1);
  const uint32_t sign = (code & f.sign_bit()) != 0 ? 0x80u : 0u;
  return sign | (magnitude << (byte_target(f).mantissa_bits - f.mantissa_bits));
}

// In each byte, after a shift to the left (to the right where negative).
struct ByteTerm {
  uint8_t word;
  int8_t shift;
  uint8_t mask;  // bits of the byte that this term supplies
};

// `words` packed words become `registers` registers of four values each.
struct BytePlacement {
  int words = 0;
  int registers = 0;
  int term_count[8] = {};
  ByteTerm terms[8][7] = {};
};

namespace detail {

template <ElementFormat F>
SUB8_HD constexpr BytePlacement byte_placement() {
  return {};
}
// clang-format off
template <> SUB8_HD constexpr BytePlacement byte_placement<kE2M1>() {  // 0.63 instructions a weight
  return {1, 2, {1, 2}, {{{0, 0, 0x8e}},
                         {{0, -3, 0x0e}, {0, 7, 0x80}}}};
}
template <> SUB8_HD constexpr BytePlacement byte_placement<kE2M2>() {  // 0.72
  return {5, 8, {1, 1, 1, 1, 1, 3, 3, 3},
          {{{0, 0, 0x8f}}, {{1, 0, 0x8f}}, {{2, 0, 0x8f}}, {{3, 0, 0x8f}}, {{4, 0, 0x8f}},
           {{0, -4, 0x07}, {1, -3, 0x08}, {1, 2, 0x80}},
           {{2, -4, 0x07}, {3, -3, 0x08}, {3, 2, 0x80}},
           {{4, -4, 0x07}, {1, -1, 0x08}, {3, 3, 0x80}}}};
}
template <> SUB8_HD constexpr BytePlacement byte_placement<kE3M1>() {  // 0.91
  return {5, 8, {1, 1, 1, 1, 1, 4, 4, 4},
          {{{0, 0, 0x9e}}, {{1, 0, 0x9e}}, {{2, 0, 0x9e}}, {{3, 0, 0x9e}}, {{4, 0, 0x9e}},
           {{0, -2, 0x18}, {0, 1, 0x02}, {1, 1, 0x80}, {1, -3, 0x04}},
           {{2, -2, 0x18}, {2, 1, 0x02}, {3, 1, 0x80}, {3, -3, 0x04}},
           {{4, -2, 0x18}, {4, 1, 0x02}, {1, 7, 0x80}, {3, 2, 0x04}}}};
}
template <> SUB8_HD constexpr BytePlacement byte_placement<kE3M2>() {  // 0.69
  return {3, 4, {1, 1, 1, 4},
          {{{0, 0, 0x9f}}, {{1, 0, 0x9f}}, {{2, 0, 0x9f}},
           {{0, -2, 0x18}, {1, -4, 0x06}, {2, 1, 0x80}, {2, -5, 0x01}}}};
}
template <> SUB8_HD constexpr BytePlacement byte_placement<kE2M3>() {
  return byte_placement<kE3M2>();  // the same bits, read as e4m3
}
// clang-format on

template <ElementFormat F, int R, int I>
SUB8_HD inline uint32_t byte_term(const uint32_t* words) {
  constexpr ByteTerm kTerm = byte_placement<F>().terms[R][I];
  const uint32_t w = words[kTerm.word];
  const uint32_t shifted = kTerm.shift >= 0 ? w << (kTerm.shift & 31) : w >> (-kTerm.shift & 31);
  return shifted & (kTerm.mask * 0x01010101u);
}
template <ElementFormat F, int R, int... I>
SUB8_HD inline uint32_t byte_register(const uint32_t* words, std::integer_sequence<int, I...>) {
  return (byte_term<F, R, I>(words) | ...);
}
template <ElementFormat F, int... R>
SUB8_HD inline void byte_registers(const uint32_t* words, uint32_t* out,
                                   std::integer_sequence<int, R...>) {
  constexpr BytePlacement kPlan = byte_placement<F>();
  ((out[R] = byte_register<F, R % kPlan.registers>(
        words + R / kPlan.registers * kPlan.words,
        std::make_integer_sequence<int, kPlan.term_count[R % kPlan.registers]>{})),
   ...);
}

}  // namespace detail

// The plan of an element; words == 0 where none exists.
template <ElementFormat F>
SUB8_HD constexpr BytePlacement byte_placement() {
  return detail::byte_placement<F>();
}
// The same with the element as a run-time value.
BytePlacement find_byte_placement(ElementFormat f);

// Sets, in words[], the bits that hold `placed` as byte b of register r of a period.
SUB8_HD constexpr void unplace_byte(const BytePlacement& plan, int r, int b, uint32_t placed,
                                    uint32_t* words) {
  for (int i = 0; i < plan.term_count[r]; ++i) {
    const ByteTerm t = plan.terms[r][i];
    const uint32_t bits = placed & t.mask;
    words[t.word] |= (t.shift >= 0 ? bits >> t.shift : bits << -t.shift) << (8 * b);
  }
}

// Registers of four weights, from the words of one thread.
template <ElementFormat F, int Registers>
SUB8_HD inline void place_bytes(const uint32_t* words, uint32_t* registers) {
  static_assert(Registers % byte_placement<F>().registers == 0);
  detail::byte_registers<F>(words, registers, std::make_integer_sequence<int, Registers>{});
}

// ---- e2m1 through a table ----

inline constexpr int kTableSpread = 26;  // the largest d
inline constexpr int kTableBias = 13;

// The e5m2 bytes of magnitudes 0..3 (low) and 4..7 (high) of e2m1, times 2^(d - kTableBias). Zero
// stays zero.
struct ByteTable {
  uint32_t low;
  uint32_t high;
};
SUB8_HD constexpr ByteTable byte_table(uint32_t d) {
  return {0x0a080400u + d * 0x04040400u, 0x12100e0cu + d * 0x04040404u};
}

// A word holds two registers of four codes: bits 4b..4b+2 are the magnitude of byte b of register
// 0, bits 16+4b.. of register 1; bit 8b+7 is the sign of byte b of register 0, bit 8b+3 of
// register 1.
SUB8_HD constexpr uint32_t table_word_bits(int r, int b, uint32_t code) {
  const int sign = 8 * b + (r == 0 ? 7 : 3);
  return ((code & 7) << (16 * r + 4 * b)) | (((code >> 3) & 1) << sign);
}

// Byte b of the result is byte (selectors >> 4b) & 7 of the table. Kernels have an instruction.
struct PermuteTable {
  SUB8_HD constexpr uint32_t operator()(ByteTable table, uint32_t selectors) const {
    const uint64_t bytes = (uint64_t{table.high} << 32) | table.low;
    uint32_t out = 0;
    for (int b = 0; b < 4; ++b)
      out |= static_cast<uint32_t>((bytes >> (8 * ((selectors >> (4 * b)) & 7))) & 0xff) << (8 * b);
    return out;
  }
};

// The two registers of a word. The selectors that `permute` gets have their fourth bits clear, and
// bits above the lowest sixteen.
template <class Permute>
SUB8_HD inline void place_table_word(ByteTable table, uint32_t word, Permute permute, uint32_t* r0,
                                     uint32_t* r1) {
  const uint32_t selectors = word & 0x77777777u;
  *r0 = permute(table, selectors) | (word & 0x80808080u);
  *r1 = permute(table, selectors >> 16) | ((word << 4) & 0x80808080u);
}

}  // namespace sub8::format
