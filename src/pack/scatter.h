// Where the packer puts each bit of a code: the inverse of a placement, found by running its
// `split` on one-hot words at compile time.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "pack/placement.h"

namespace sub8::pack {

// One lane with the operations that placements use.
template <class T>
struct OneLane {
  using U = T;
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
  static constexpr U select(U a, U b, uint8_t mask) {
    return static_cast<U>((a & ~mask) | (b & mask));
  }
};
template <class P>
using LaneOf = std::conditional_t<P::kLaneBits == 8, uint8_t, uint16_t>;

// source[v][b] = kLaneBits * word + bit that holds bit b of code v; -1 where split is no bijection.
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

// The bits of an emitted lane that count: byte lanes may hold anything above the code.
template <class P>
constexpr int counted_bits() {
  return P::kLaneBits == 8 ? P::kBits : 16;
}

template <class P>
constexpr ScatterMap<P> make_scatter_map() {
  using Lane = LaneOf<P>;
  ScatterMap<P> map{};
  for (auto& row : map) row.fill(-1);
  for (int word = 0; word < P::kWords; ++word) {
    for (int bit = 0; bit < P::kLaneBits; ++bit) {
      Lane words[P::kWords] = {};
      words[word] = static_cast<Lane>(1 << bit);
      P::template split<OneLane<Lane>>(words, [&](int value, Lane image) {
        for (int b = 0; b < counted_bits<P>(); ++b) {
          if (((image >> b) & 1) == 0) continue;
          const int code_bit = code_bit_of<P>(b);
          if (code_bit >= 0) map[value][code_bit] = static_cast<int16_t>(P::kLaneBits * word + bit);
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
  using Lane = LaneOf<P>;
  static_assert(P::kValues * P::kBits == P::kWords * P::kLaneBits);
  for (int word = 0; word < P::kWords; ++word) {
    for (int bit = 0; bit < P::kLaneBits; ++bit) {
      Lane words[P::kWords] = {};
      words[word] = static_cast<Lane>(1 << bit);
      int hits = 0;
      bool stray = false;
      P::template split<OneLane<Lane>>(words, [&](int, Lane image) {
        for (int b = 0; b < counted_bits<P>(); ++b) {
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
  Lane ones[P::kWords] = {};
  for (Lane& word : ones) word = static_cast<Lane>(0xffff);
  bool full = true;
  P::template split<OneLane<Lane>>(ones, [&](int, Lane image) {
    int bits = 0;
    for (int b = 0; b < counted_bits<P>(); ++b) bits += (image >> b) & 1;
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
static_assert(placement_is_bijective<PlaceByte<3>>());
static_assert(placement_is_bijective<PlaceByte<4>>());
static_assert(placement_is_bijective<PlaceByte<5>>());
static_assert(placement_is_bijective<PlaceByte<6>>());
static_assert(placement_is_bijective<PlaceByte<7>>());
static_assert(placement_is_bijective<PlaceByte<8>>());

}  // namespace sub8::pack
