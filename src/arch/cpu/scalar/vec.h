// The vector primitives in portable C++: the scalar path, and the emulated twin of every wider one.
//
// A policy ("Vec") offers one register of kBytes, seen as 16-bit integer lanes (U) or 32-bit float
// lanes (F). All policies have the same functions with the same lane semantics, so a kernel
// template gives the same bits on each: every float operation is correctly rounded, `fma` rounds
// once.
//
//   U: load, band, bor, bor_masked (a | (b & mask)), shl<n>, shr<n>, shl_by, mul (low 16 bits)
//   U -> F: f16 (lanes of the lower and of the upper half, exact), lookup_low/lookup_high (table)
//   bytes -> U: widen (one byte per lane)
//   F: zero, broadcast, load, store, add, mul, fma(a, b, c) = a*b + c, e8m0 (one byte per lane),
//      bf16_even/bf16_odd (32-bit lanes that hold a pair of bf16: low half, high half)
#pragma once

#include <cstdint>
#include <cstring>

#define SUB8_INLINE __attribute__((always_inline)) inline

namespace sub8::scalar {

// The compiler's generic vectors: element-wise operators on any machine. (A size that depends on a
// template argument is not accepted everywhere.)
template <int Bytes>
struct Lanes;
template <>
struct Lanes<32> {
  typedef uint16_t U __attribute__((vector_size(32)));
  typedef float F __attribute__((vector_size(32)));
  typedef uint32_t Wide __attribute__((vector_size(32)));
  typedef uint16_t Half __attribute__((vector_size(16)));
};
template <>
struct Lanes<64> {
  typedef uint16_t U __attribute__((vector_size(64)));
  typedef float F __attribute__((vector_size(64)));
  typedef uint32_t Wide __attribute__((vector_size(64)));
  typedef uint16_t Half __attribute__((vector_size(32)));
};

template <int Bytes>
struct Vec {
  static constexpr int kBytes = Bytes;
  static constexpr int kLanes = Bytes / 4;  // of F
  static constexpr int kRows = 3;           // token rows per register block of the panel kernel
  using U = typename Lanes<Bytes>::U;
  using F = typename Lanes<Bytes>::F;
  using Wide = typename Lanes<Bytes>::Wide;
  using Half = typename Lanes<Bytes>::Half;

  template <class T>
  static SUB8_INLINE T load_as(const void* p) {
    T out;
    std::memcpy(&out, p, sizeof(T));
    return out;
  }

  static SUB8_INLINE U load(const uint8_t* p) { return load_as<U>(p); }
  static SUB8_INLINE U band(U a, uint16_t mask) { return a & mask; }
  static SUB8_INLINE U bor(U a, U b) { return a | b; }
  static SUB8_INLINE U bor_masked(U a, U b, uint16_t mask) { return a | (b & mask); }
  template <int N>
  static SUB8_INLINE U shl(U a) {
    return a << N;
  }
  template <int N>
  static SUB8_INLINE U shr(U a) {
    return a >> N;
  }
  static SUB8_INLINE U shl_by(U a, int n) { return a << static_cast<uint16_t>(n); }
  static SUB8_INLINE U mul(U a, uint16_t factor) { return a * factor; }
  static SUB8_INLINE U widen(const uint8_t* p) {
    U out;
    for (int i = 0; i < Bytes / 2; ++i) out[i] = p[i];
    return out;
  }

  static SUB8_INLINE Half low(const U& a) { return load_as<Half>(&a); }
  static SUB8_INLINE Half high(const U& a) {
    return load_as<Half>(reinterpret_cast<const char*>(&a) + Bytes / 2);
  }
  // Exact, infinities and NaN included; no subnormal float is ever an operand.
  static __attribute__((noinline)) F widen_f16(Half half) {
    const Wide code = __builtin_convertvector(half, Wide);
    Wide bits = (code & 0x7fffu) << 13;
    const Wide field = bits & 0x0f800000u;
    bits += 112u << 23;
    bits += (field == 0x0f800000u ? Wide{} + (112u << 23) : Wide{});
    // 2^-14 * (1 + fraction) - 2^-14 is the subnormal's value.
    const F small = reinterpret_cast<F>(bits + (1u << 23)) - 0x1p-14f;
    const Wide value = field == 0 ? reinterpret_cast<Wide>(small) : bits;
    return reinterpret_cast<F>(value | ((code & 0x8000u) << 16));
  }
  static SUB8_INLINE void f16(U a, F& low_half, F& high_half) {
    low_half = widen_f16(low(a));
    high_half = widen_f16(high(a));
  }
  static __attribute__((noinline)) F lookup(const float* table, Half a) {
    F out;
    for (int i = 0; i < kLanes; ++i) out[i] = table[a[i]];
    return out;
  }
  static SUB8_INLINE F lookup_low(const float* table, U a) { return lookup(table, low(a)); }
  static SUB8_INLINE F lookup_high(const float* table, U a) { return lookup(table, high(a)); }
  static SUB8_INLINE F bf16_even(U a) {
    return reinterpret_cast<F>(reinterpret_cast<Wide>(a) << 16);
  }
  static SUB8_INLINE F bf16_odd(U a) {
    return reinterpret_cast<F>(reinterpret_cast<Wide>(a) & 0xffff0000u);
  }

  static SUB8_INLINE F zero() { return F{}; }
  static SUB8_INLINE F broadcast(const float* p) {
    return reinterpret_cast<F>(Wide{} + load_as<uint32_t>(p));
  }
  static SUB8_INLINE F load(const float* p) { return load_as<F>(p); }
  static SUB8_INLINE void store(float* p, F a) { std::memcpy(p, &a, Bytes); }
  static SUB8_INLINE F add(F a, F b) { return a + b; }
  static SUB8_INLINE F mul(F a, F b) { return a * b; }
  static __attribute__((noinline)) F fma(F a, F b, F c) {
    F out;
    for (int i = 0; i < kLanes; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return out;
  }
  // 2^(byte-127); byte 0 is the subnormal 2^-127.
  static SUB8_INLINE F e8m0(const uint8_t* p) {
    Wide byte;
    for (int i = 0; i < kLanes; ++i) byte[i] = p[i];
    return reinterpret_cast<F>(byte == 0 ? Wide{} + 0x00400000u : byte << 23);
  }
  // Lane i: the high halves of a (low 16 bits) and b (high 16 bits). Exact where both are bf16.
  static SUB8_INLINE void store_bf16_pairs(uint16_t* p, F a, F b) {
    const Wide pairs =
        (reinterpret_cast<Wide>(a) >> 16) | (reinterpret_cast<Wide>(b) & 0xffff0000u);
    std::memcpy(p, &pairs, Bytes);
  }
  static SUB8_INLINE void prefetch(const uint8_t* p) { __builtin_prefetch(p); }
};

}  // namespace sub8::scalar
