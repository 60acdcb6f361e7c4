// Where the packer puts each bit of a code: the inverse of a placement, found by running its
// `split` on one-hot words at compile time.
#pragma once

#include <array>
#include <cstdint>

#include "pack/placement.h"

namespace sub8::pack {

// One 16-bit lane with the operations that placements use.
struct OneLane {
  using U = uint16_t;
  static constexpr U band(U a, uint16_t mask) { return static_cast<U>(a & mask); }
  static constexpr U bor(U a, U b) { return static_cast<U>(a | b); }
  static constexpr U bor_masked(U a, U b, uint16_t mask) { return static_cast<U>(a | (b & mask)); }
  template <int N>
  static constexpr U shl(U a) {
    return static_cast<U>(static_cast<uint32_t>(a) << N);
  }
  template <int N>
  static constexpr U shr(U a) {
    return static_cast<U>(static_cast<uint32_t>(a) >> N);
  }
  static constexpr U mul(U a, uint16_t factor) {
    return static_cast<U>(static_cast<uint32_t>(a) * factor);
  }
};

// source[v][b] = 16 * word + bit that holds bit b of code v; -1 where split is no bijection.
template <class P>
using ScatterMap = std::array<std::array<int16_t, P::kBits>, P::kValues>;

// The code bit that lies at bit `image_bit` of what split emits; -1 if none should.
template <class P>
constexpr int code_bit_of(int image_bit) {
  if constexpr (P::kCanonical) {
    return image_bit < P::kBits ? image_bit : -1;
  } else {
    if (image_bit == 15) return P::kBits - 1;
    const int bit = image_bit - (10 - P::kMantissaBits);
    return bit >= 0 && bit < P::kBits - 1 ? bit : -1;
  }
}

template <class P>
constexpr ScatterMap<P> make_scatter_map() {
  ScatterMap<P> map{};
  for (auto& row : map) row.fill(-1);
  for (int word = 0; word < P::kWords; ++word) {
    for (int bit = 0; bit < 16; ++bit) {
      uint16_t words[P::kWords] = {};
      words[word] = static_cast<uint16_t>(1 << bit);
      P::template split<OneLane>(words, [&](int value, uint16_t image) {
        for (int b = 0; b < 16; ++b) {
          if (((image >> b) & 1) == 0) continue;
          const int code_bit = code_bit_of<P>(b);
          if (code_bit >= 0) map[value][code_bit] = static_cast<int16_t>(16 * word + bit);
        }
      });
    }
  }
  return map;
}

// Every bit of the words feeds exactly one bit of one code and no image has a bit outside its
// fields.
template <class P>
constexpr bool placement_is_bijective() {
  static_assert(P::kValues * P::kBits == P::kWords * 16);
  for (int word = 0; word < P::kWords; ++word) {
    for (int bit = 0; bit < 16; ++bit) {
      uint16_t words[P::kWords] = {};
      words[word] = static_cast<uint16_t>(1 << bit);
      int hits = 0;
      bool stray = false;
      P::template split<OneLane>(words, [&](int, uint16_t image) {
        for (int b = 0; b < 16; ++b) {
          if (((image >> b) & 1) == 0) continue;
          ++hits;
          stray = stray || code_bit_of<P>(b) < 0;
        }
      });
      if (hits != 1 || stray) return false;
    }
  }
  for (const auto& row : make_scatter_map<P>()) {
    for (int16_t source : row) {
      if (source < 0) return false;
    }
  }
  // With every bit set each image is full: the multiplications of split do not carry.
  uint16_t ones[P::kWords] = {};
  for (uint16_t& word : ones) word = 0xffff;
  bool full = true;
  P::template split<OneLane>(ones, [&](int, uint16_t image) {
    int bits = 0;
    for (int b = 0; b < 16; ++b) bits += (image >> b) & 1;
    full = full && bits == P::kBits;
  });
  return full;
}

static_assert(placement_is_bijective<PlaceE3M2>());
static_assert(placement_is_bijective<PlaceE2M3>());
static_assert(placement_is_bijective<PlaceE2M2>());
static_assert(placement_is_bijective<PlaceE3M1>());
static_assert(placement_is_bijective<PlaceE2M1>());
static_assert(placement_is_bijective<PlaceE3M3>());
static_assert(placement_is_bijective<PlaceE4M3>());
static_assert(placement_is_bijective<PlaceE5M2>());
static_assert(placement_is_bijective<PlaceStream<3>>());
static_assert(placement_is_bijective<PlaceStream<4>>());
static_assert(placement_is_bijective<PlaceStream<5>>());
static_assert(placement_is_bijective<PlaceStream<6>>());
static_assert(placement_is_bijective<PlaceStream<7>>());
static_assert(placement_is_bijective<PlaceStream<8>>());

}  // namespace sub8::pack
