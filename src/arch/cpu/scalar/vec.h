// The vector primitives in portable C++: the scalar path, and the emulated twin of every wider one.
//
// A policy ("Vec") offers one register of kBytes, seen as 16-bit integer lanes (U) or 32-bit float
// lanes (F). All policies have the same functions with the same lane semantics, so a kernel
// template gives the same bits on each: every float operation is correctly rounded, `fma` rounds
// once.
//
//   U: load (aligned), load_unaligned, store_bytes (aligned), band, bor, bor_masked (a | (b &
//   mask)), shl<n>, shr<n>, shl_by, mul (low 16 bits) U -> F: f16 (lanes of the lower and of the
//   upper half, exact), lookup_low/lookup_high (table) bytes -> U: widen (one byte per lane)
//   64-byte policies only, for pairs of bf16 in 32-bit lanes:
//      select(a, b, byte mask): the bits of b where mask has ones, in every byte
//      lookup(table, index): by byte; 64 or 128 entries in one or two registers, upper bits of the
//      index ignored. zip_low, zip_high: bytes of two registers interleaved within 16-byte lanes
//      (a's first), their lower or upper 8. rotate16: both halves of a 32-bit lane change places
//      dot(w, x, c): fma(w's lower, x's lower, fma(w's upper, x's upper, c)); subnormal operands
//      and results are taken as zero. lower_bf16, upper_bf16: one half of each lane as f32
//   For bytes (FP4 codes as whole numbers), w unsigned and at most 24, x signed and at most 12 in
//   magnitude:
//      dot_bytes(sums, w, x): adds products of bytes to lanes of kBytes / 16 bytes: four to each
//      32-bit lane of 64-byte policies, two to each 16-bit lane of 32-byte ones; no lane overflows
//      within 32 values. broadcast_item: 32 bits to all lanes. sums_to_float(sums, out): the lanes
//      of dot_bytes in order, into one F of 64-byte policies, two of 32-byte ones
//      zip16_low, zip16_high (64-byte policies): as zip_low, with 16-bit halves
//      lookup16(table, index), mul_high (32-byte policies): 16 entries of bytes by an index whose
//      bit 7 is clear and bits 6..4 are ignored; the upper 16 bits of a product
//   F: zero, broadcast, load, store, add, mul, fma(a, b, c) = a*b + c, e8m0 (one byte per lane),
//      bf16_even/bf16_odd (32-bit lanes that hold a pair of bf16: low half, high half)
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

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
  static constexpr int kFewRows = 1;
  static constexpr int kFewPairRows = Bytes == 64 ? 2 : 0;
  static constexpr int kByteRows = 2;
  static constexpr int kFewByteRows = 2;
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
  static SUB8_INLINE U load_unaligned(const uint8_t* p) { return load(p); }
  static SUB8_INLINE void store_bytes(uint8_t* p, U a) { std::memcpy(p, &a, Bytes); }
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

  static SUB8_INLINE U select(U a, U b, uint8_t mask) {
    const uint16_t both = static_cast<uint16_t>(mask * 0x0101);
    return (a & static_cast<uint16_t>(~both)) | (b & both);
  }
  template <int N>
  static __attribute__((noinline)) U lookup(const U (&table)[N], U index) {
    uint8_t bytes[N * Bytes];
    uint8_t at[Bytes];
    std::memcpy(bytes, table, sizeof(bytes));
    std::memcpy(at, &index, sizeof(at));
    for (uint8_t& byte : at) byte = bytes[byte % (N * Bytes)];
    return load(at);
  }
  template <int First, int Item = 1>
  static SUB8_INLINE U zip(const U& a, const U& b) {
    uint8_t out[Bytes];
    for (int i = 0; i < Bytes; ++i) {
      const U& from = i / Item % 2 == 0 ? a : b;
      out[i] = reinterpret_cast<const uint8_t*>(
          &from)[i / 16 * 16 + First + i % 16 / (2 * Item) * Item + i % Item];
    }
    return load(out);
  }
  static SUB8_INLINE U zip_low(U a, U b) { return zip<0>(a, b); }
  static SUB8_INLINE U zip_high(U a, U b) { return zip<8>(a, b); }
  static SUB8_INLINE U rotate16(U a) {
    const Wide wide = reinterpret_cast<Wide>(a);
    return reinterpret_cast<U>((wide << 16) | (wide >> 16));
  }
  static SUB8_INLINE F as_float(U a) { return reinterpret_cast<F>(a); }
  static SUB8_INLINE F lower_bf16(F a) { return bf16_even(reinterpret_cast<U>(a)); }
  static SUB8_INLINE F upper_bf16(F a) { return bf16_odd(reinterpret_cast<U>(a)); }
  static SUB8_INLINE float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f * x : x; }
  static SUB8_INLINE float product_sum(uint32_t a, uint32_t b, float sum) {
    return flush(__builtin_fmaf(flush(__builtin_bit_cast(float, a)),
                                flush(__builtin_bit_cast(float, b)), sum));
  }
  static __attribute__((noinline)) F dot(F w, F x, F c) {
    F out;
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t a = __builtin_bit_cast(uint32_t, float{w[i]});
      const uint32_t b = __builtin_bit_cast(uint32_t, float{x[i]});
      const float upper = product_sum(a & 0xffff0000u, b & 0xffff0000u, flush(c[i]));
      out[i] = product_sum(a << 16, b << 16, upper);
    }
    return out;
  }

  static SUB8_INLINE U broadcast_item(const uint32_t* p) {
    return reinterpret_cast<U>(Wide{} + load_as<uint32_t>(p));
  }
  static __attribute__((noinline)) U dot_bytes(U sums, U w, U x) {
    constexpr int kProducts = Bytes / 16;
    uint8_t a[Bytes];
    int8_t b[Bytes];
    std::memcpy(a, &w, Bytes);
    std::memcpy(b, &x, Bytes);
    for (int i = 0; i < Bytes / kProducts; ++i) {
      int32_t sum = 0;
      for (int j = 0; j < kProducts; ++j) sum += a[i * kProducts + j] * b[i * kProducts + j];
      using Lane = std::conditional_t<Bytes == 64, uint32_t, uint16_t>;
      char* at = reinterpret_cast<char*>(&sums) + i * kProducts;
      Lane lane;
      std::memcpy(&lane, at, kProducts);
      lane = static_cast<Lane>(lane + static_cast<uint32_t>(sum));
      std::memcpy(at, &lane, kProducts);
    }
    return sums;
  }
  static __attribute__((noinline)) void sums_to_float(U sums, F* out) {
    for (int i = 0; i < 16; ++i) {
      if constexpr (Bytes == 64) {
        out[0][i] = static_cast<float>(static_cast<int32_t>(reinterpret_cast<Wide>(sums)[i]));
      } else {
        out[i / kLanes][i % kLanes] = static_cast<float>(static_cast<int16_t>(sums[i]));
      }
    }
  }
  static SUB8_INLINE U zip16_low(U a, U b) { return zip<0, 2>(a, b); }
  static SUB8_INLINE U zip16_high(U a, U b) { return zip<8, 2>(a, b); }
  static __attribute__((noinline)) U lookup16(U table, U index) {
    uint8_t bytes[Bytes];
    uint8_t at[Bytes];
    std::memcpy(bytes, &table, Bytes);
    std::memcpy(at, &index, Bytes);
    for (int i = 0; i < Bytes; ++i) at[i] = at[i] >= 128 ? 0 : bytes[i / 16 * 16 + at[i] % 16];
    return load(at);
  }
  static __attribute__((noinline)) U mul_high(U a, uint16_t factor) {
    for (int i = 0; i < Bytes / 2; ++i)
      a[i] = static_cast<uint16_t>(static_cast<uint32_t>(a[i]) * factor >> 16);
    return a;
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
