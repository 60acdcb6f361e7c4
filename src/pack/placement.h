// How codes of 3..8 bits lie in vector words, and the few operations that bring them out again.
//
// A placement packs kValues codes into kWords words, for each lane of kLaneBits (8 or 16) alone:
// kValues * bits = kWords * kLaneBits, so nothing is wasted. `split` turns the words into kValues
// registers, in ascending order of the value index, each lane holding one code:
//   16-bit lanes: as an f16 "image": sign at bit 15, exponent and mantissa fields such that the
//   exponent's lowest bit is bit 10. That f16 is element * 2^(bias - 15), exact, subnormals and
//   zero included; or as the canonical code in the low bits (kCanonical), which a table or two
//   shifts decode;
//   8-bit lanes: as the canonical code in the low bits, with anything above it: byte look-ups
//   ignore the upper bits of an index.
// Most codes lie where they are wanted, so that at most one operation brings them out; the others
// are gathered from spare bits.
//
// The packer's map is derived from `split` itself, by running it on one-hot words (scatter.h), so
// packer and kernels cannot disagree, and the map is proved a bijection at compile time.
//
// V is a vector policy (arch/cpu/*/vec.h), `emit(index, register)` receives the values.
#pragma once

#include <cstdint>

#ifndef SUB8_INLINE
#define SUB8_INLINE __attribute__((always_inline)) inline
#endif

namespace sub8::pack {

// e3m2: image 9F00 fits a byte, so every byte holds a code and two spare bits {6, 5}.
struct PlaceE3M2 {
  static constexpr int kExponentBits = 3, kMantissaBits = 2, kBits = 6;
  static constexpr int kWords = 3, kValues = 8;
  static constexpr bool kCanonical = false;
  static constexpr int kLaneBits = 16;
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    for (int i = 0; i < 3; ++i) {
      emit(2 * i, V::band(w[i], 0x9f00));
      emit(2 * i + 1, V::band(V::template shl<8>(w[i]), 0x9f00));
    }
    auto rest = V::band(V::template shr<2>(w[0]), 0x1818);
    rest = V::bor_masked(rest, V::template shr<4>(w[1]), 0x0606);
    rest = V::bor_masked(rest, V::template shl<1>(w[2]), 0x8080);
    rest = V::bor_masked(rest, V::template shr<5>(w[2]), 0x0101);
    emit(6, V::band(rest, 0x9f00));
    emit(7, V::template shl<8>(rest));
  }
};

// e2m3: image 8F80.
struct PlaceE2M3 {
  static constexpr int kExponentBits = 2, kMantissaBits = 3, kBits = 6;
  static constexpr int kWords = 3, kValues = 8;
  static constexpr bool kCanonical = false;
  static constexpr int kLaneBits = 16;
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    for (int i = 0; i < 3; ++i) {
      emit(2 * i, V::band(w[i], 0x8f80));
      // Bit 14 is the sign (times 2), bits 4..0 the magnitude (times 128).
      emit(2 * i + 1, V::band(V::mul(V::band(w[i], 0x401f), 130), 0x8f80));
    }
    auto high = V::band(V::template shr<2>(w[0]), 0x0c00);  // spare bits 13 and 12
    high = V::bor_masked(high, V::template shr<4>(w[1]), 0x0300);
    high = V::bor_masked(high, V::template shl<2>(w[2]), 0x8000);
    high = V::bor_masked(high, V::template shr<5>(w[2]), 0x0080);
    emit(6, high);
    auto low = V::band(V::template shl<5>(w[0]), 0x0c00);  // spare bits 6 and 5
    low = V::bor_masked(low, V::template shl<3>(w[1]), 0x0300);
    low = V::bor_masked(low, V::template shl<9>(w[2]), 0x8000);
    low = V::bor_masked(low, V::template shl<2>(w[2]), 0x0080);
    emit(7, low);
  }
};

// e2m2: image 8F00, spare bits {6, 5, 4} of every byte.
struct PlaceE2M2 {
  static constexpr int kExponentBits = 2, kMantissaBits = 2, kBits = 5;
  static constexpr int kWords = 5, kValues = 16;
  static constexpr bool kCanonical = false;
  static constexpr int kLaneBits = 16;
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    for (int i = 0; i < 5; ++i) {
      emit(2 * i, V::band(w[i], 0x8f00));
      emit(2 * i + 1, V::band(V::template shl<8>(w[i]), 0x8f00));
    }
    auto a = V::band(V::template shr<4>(w[0]), 0x0707);
    a = V::bor_masked(a, V::template shl<1>(w[1]), 0x8080);
    a = V::bor_masked(a, V::template shr<2>(w[1]), 0x0808);
    emit(10, V::band(a, 0x8f00));
    emit(11, V::template shl<8>(a));
    auto b = V::band(V::template shr<4>(w[2]), 0x0707);
    b = V::bor_masked(b, V::template shl<1>(w[3]), 0x8080);
    b = V::bor_masked(b, V::template shr<2>(w[3]), 0x0808);
    emit(12, V::band(b, 0x8f00));
    emit(13, V::template shl<8>(b));
    auto c = V::band(V::template shr<4>(w[4]), 0x0707);
    c = V::bor_masked(c, V::template shl<3>(w[1]), 0x8080);
    c = V::bor_masked(c, V::template shr<1>(w[3]), 0x0808);
    emit(14, V::band(c, 0x8f00));
    emit(15, V::template shl<8>(c));
  }
};

// e3m1: image 9E00, spare bits {6, 5, 0} of every byte.
struct PlaceE3M1 {
  static constexpr int kExponentBits = 3, kMantissaBits = 1, kBits = 5;
  static constexpr int kWords = 5, kValues = 16;
  static constexpr bool kCanonical = false;
  static constexpr int kLaneBits = 16;
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    for (int i = 0; i < 5; ++i) {
      emit(2 * i, V::band(w[i], 0x9e00));
      emit(2 * i + 1, V::band(V::template shl<8>(w[i]), 0x9e00));
    }
    auto a = V::band(V::template shr<2>(w[0]), 0x1818);
    a = V::bor_masked(a, V::template shl<1>(w[0]), 0x0202);
    a = V::bor_masked(a, V::template shl<1>(w[1]), 0x8080);
    a = V::bor_masked(a, V::template shr<3>(w[1]), 0x0404);
    emit(10, V::band(a, 0x9e00));
    emit(11, V::template shl<8>(a));
    auto b = V::band(V::template shr<2>(w[2]), 0x1818);
    b = V::bor_masked(b, V::template shl<1>(w[2]), 0x0202);
    b = V::bor_masked(b, V::template shl<1>(w[3]), 0x8080);
    b = V::bor_masked(b, V::template shr<3>(w[3]), 0x0404);
    emit(12, V::band(b, 0x9e00));
    emit(13, V::template shl<8>(b));
    auto c = V::band(V::template shr<2>(w[4]), 0x1818);
    c = V::bor_masked(c, V::template shl<1>(w[4]), 0x0202);
    c = V::bor_masked(c, V::template shl<7>(w[1]), 0x8080);
    c = V::bor_masked(c, V::template shl<2>(w[3]), 0x0404);
    emit(14, V::band(c, 0x9e00));
    emit(15, V::template shl<8>(c));
  }
};

// e2m1: image 8E00, four codes in a word.
struct PlaceE2M1 {
  static constexpr int kExponentBits = 2, kMantissaBits = 1, kBits = 4;
  static constexpr int kWords = 1, kValues = 4;
  static constexpr bool kCanonical = false;
  static constexpr int kLaneBits = 16;
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    emit(0, V::band(w[0], 0x8e00));
    emit(1, V::band(V::template shl<3>(w[0]), 0x8e00));
    emit(2, V::band(V::mul(V::band(w[0], 0x4038), 66), 0x8e00));   // sign times 2, rest times 64
    emit(3, V::band(V::mul(V::band(w[0], 0x2007), 516), 0x8e00));  // sign times 4, rest times 512
  }
};

// The word of PlaceE2M1 as indices into a table of 16 bytes, 2 * magnitude + sign (bits 3..0; bits
// 6..4 hold anything): even[0] has value 2 in the lower and value 0 in the upper byte of each lane,
// even[1] value 3 and value 1.
template <class V>
static constexpr SUB8_INLINE void e2m1_byte_indices(typename V::U w, typename V::U (&index)[2]) {
  auto a = V::bor_masked(V::band(w, 0x0e00), V::template shr<2>(w), 0x000e);
  auto b = V::bor_masked(V::band(V::template shl<3>(w), 0x0e00), V::template shl<1>(w), 0x000e);
  // Signs at bits 15 and 14, then 12 and 13, move to bits 8 and 0.
  index[0] = V::bor_masked(a, V::mul_high(V::band(w, 0xc000), 0x0204), 0x0101);
  index[1] = V::bor_masked(b, V::mul_high(V::band(w, 0x3000), 0x1008), 0x0101);
}

// e3m3: image 9F80.
struct PlaceE3M3 {
  static constexpr int kExponentBits = 3, kMantissaBits = 3, kBits = 7;
  static constexpr int kWords = 7, kValues = 16;
  static constexpr bool kCanonical = false;
  static constexpr int kLaneBits = 16;
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    for (int i = 0; i < 7; ++i) {
      emit(2 * i, V::band(w[i], 0x9f80));
      emit(2 * i + 1, V::band(V::mul(V::band(w[i], 0x403f), 130), 0x9f80));
    }
    // Spare bits 13 and 6 of the seven words; both travel together but for the sign.
    auto rest = V::band(V::template shr<1>(w[1]), 0x1020);
    rest = V::bor_masked(rest, V::template shr<2>(w[2]), 0x0810);
    rest = V::bor_masked(rest, V::template shr<3>(w[3]), 0x0408);
    rest = V::bor_masked(rest, V::template shr<4>(w[4]), 0x0204);
    rest = V::bor_masked(rest, V::template shr<5>(w[5]), 0x0102);
    rest = V::bor_masked(rest, V::template shr<6>(w[6]), 0x0081);
    emit(14, V::bor_masked(V::band(rest, 0x1f80), V::template shl<2>(w[0]), 0x8000));
    emit(15, V::bor_masked(V::band(V::template shl<7>(rest), 0x1f80), V::template shl<9>(w[0]),
                           0x8000));
  }
};

// e4m3: image BF80; the second code's sign is bit 14.
struct PlaceE4M3 {
  static constexpr int kExponentBits = 4, kMantissaBits = 3, kBits = 8;
  static constexpr int kWords = 1, kValues = 2;
  static constexpr bool kCanonical = false;
  static constexpr int kLaneBits = 16;
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    emit(0, V::band(w[0], 0xbf80));
    emit(1, V::bor_masked(V::band(V::template shl<7>(w[0]), 0x3f80), V::template shl<1>(w[0]),
                          0x8000));
  }
};

// e5m2 is the upper byte of an f16.
struct PlaceE5M2 {
  static constexpr int kExponentBits = 5, kMantissaBits = 2, kBits = 8;
  static constexpr int kWords = 1, kValues = 2;
  static constexpr bool kCanonical = false;
  static constexpr int kLaneBits = 16;
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    emit(0, V::band(w[0], 0xff00));
    emit(1, V::template shl<8>(w[0]));
  }
};

// Any element of B bits: the lane's words are one bit stream, least significant bit first.
template <int B>
struct PlaceStream {
  static constexpr int kBits = B;
  static constexpr int kValues = B % 2 == 1 ? 16 : B == 6 ? 8 : B == 4 ? 4 : 2;
  static constexpr int kWords = kValues * B / 16;
  static constexpr bool kCanonical = true;
  static constexpr int kLaneBits = 16;
  static constexpr uint16_t kMask = (1 << B) - 1;

  template <class V, int I, class Emit>
  static constexpr SUB8_INLINE void one(const typename V::U (&w)[kWords], Emit& emit) {
    constexpr int kWord = I * B / 16;
    constexpr int kShift = I * B % 16;
    auto code = V::template shr<kShift>(w[kWord]);
    if constexpr (kShift + B > 16) code = V::bor(code, V::template shl<16 - kShift>(w[kWord + 1]));
    emit(I, V::band(code, kMask));
    if constexpr (I + 1 < kValues) one<V, I + 1>(w, emit);
  }
  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    one<V, 0>(w, emit);
  }
};

// Byte lanes. select(a, b, mask) takes the bits of b where mask has ones, in every byte.
template <int B>
struct PlaceByte {
  static constexpr int kBits = B;
  static constexpr int kValues = B == 8 ? 1 : B == 4 ? 2 : B == 6 ? 4 : 8;
  static constexpr int kWords = kValues * B / 8;
  static constexpr bool kCanonical = true;
  static constexpr int kLaneBits = 8;

  template <class V, class Emit>
  static constexpr SUB8_INLINE void split(const typename V::U (&w)[kWords], Emit emit) {
    if constexpr (B == 3 || B == 4) {
      for (int i = 0; i < kWords; ++i) {
        emit(2 * i, w[i]);
        emit(2 * i + 1, V::template shr<B>(w[i]));
      }
    } else {
      for (int i = 0; i < kWords; ++i) emit(i, w[i]);
    }
    if constexpr (B == 3) {  // spare bits 7 and 6
      emit(6, V::select(V::template shr<6>(w[0]), V::template shr<4>(w[1]), 0x04));
      emit(7, V::select(V::template shr<6>(w[2]), V::template shr<5>(w[1]), 0x04));
    } else if constexpr (B == 5) {  // spare bits 7 to 5
      emit(5, V::select(V::template shr<5>(w[0]), V::template shr<2>(w[1]), 0x18));
      emit(6, V::select(V::template shr<5>(w[2]), V::template shr<2>(w[3]), 0x18));
      const auto low = V::select(V::template shr<5>(w[4]), V::template shr<4>(w[1]), 0x08);
      emit(7, V::select(low, V::template shr<3>(w[3]), 0x10));
    } else if constexpr (B == 6) {  // spare bits 7 and 6
      const auto low = V::select(V::template shr<6>(w[0]), V::template shr<4>(w[1]), 0x0c);
      emit(3, V::select(low, V::template shr<2>(w[2]), 0x30));
    } else if constexpr (B == 7) {  // spare bit 7
      auto bits = V::select(V::template shr<7>(w[0]), V::template shr<6>(w[1]), 0x02);
      bits = V::select(bits, V::template shr<5>(w[2]), 0x04);
      bits = V::select(bits, V::template shr<4>(w[3]), 0x08);
      bits = V::select(bits, V::template shr<3>(w[4]), 0x10);
      bits = V::select(bits, V::template shr<2>(w[5]), 0x20);
      emit(7, V::select(bits, V::template shr<1>(w[6]), 0x40));
    }
  }
};

}  // namespace sub8::pack
