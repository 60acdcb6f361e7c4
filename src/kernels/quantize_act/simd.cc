// Loops without branches over whole blocks, which the compiler turns into the vectors of each
// instruction set. The arithmetic is that of format/block.h and format/coder.h, on bits; the tests
// compare every byte with a plain program. Nothing of format/ is included: its inline functions
// would be compiled with these instructions.
#include "kernels/quantize_act/kernels.h"
#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {
namespace {

constexpr int kGroup = 16;  // blocks whose scales are computed together

SUB8_SIMD_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
SUB8_SIMD_INLINE float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
SUB8_SIMD_INLINE uint32_t magnitude_of(float x) { return bits_of(x) & 0x7fffffffu; }

// Largest magnitudes, as bits.
template <int Block>
SUB8_SIMD_INLINE void largest(const float* x, int64_t blocks, uint32_t* out) {
  for (int64_t b = 0; b < blocks; ++b) {
    uint32_t best = 0;
    for (int i = 0; i < Block; ++i) {
      const uint32_t magnitude = magnitude_of(x[b * Block + i]);
      best = magnitude > best ? magnitude : best;
    }
    out[b] = best;
  }
}

// Codes of x * inverse[b], and residues x - q * d[b]. A block whose `live` is 0 has codes 0.
template <int Block>
SUB8_SIMD_INLINE void encode(const float* x, int64_t blocks, const float* inverse, const float* d,
                             const uint32_t* live, uint8_t* codes, float* residue) {
  for (int64_t b = 0; b < blocks; ++b) {
    const float factor = inverse[b];
    const float divisor = d[b];
    const uint32_t mask = live[b];
    // Arrays of our own: nothing else can alias them.
    float values[Block];
    float residues[Block];
    uint8_t block_codes[Block];
    __builtin_memcpy(values, x + b * Block, sizeof(values));
    for (int i = 0; i < Block; ++i) {
      const uint32_t bits = bits_of(values[i] * factor);
      const auto m = static_cast<int32_t>(bits & 0x7fffffffu);
      // Midpoints of 0, 0.5, 1, 1.5, 2, 3, 4, 6; those below an even code belong to it. As bits,
      // NaN is above all of them.
      const uint32_t code = static_cast<uint32_t>(m > 0x3e800000) +   // 0.25
                            static_cast<uint32_t>(m >= 0x3f400000) +  // 0.75
                            static_cast<uint32_t>(m > 0x3fa00000) +   // 1.25
                            static_cast<uint32_t>(m >= 0x3fe00000) +  // 1.75
                            static_cast<uint32_t>(m > 0x40200000) +   // 2.5
                            static_cast<uint32_t>(m >= 0x40600000) +  // 3.5
                            static_cast<uint32_t>(m > 0x40a00000);    // 5
      const uint32_t sign = m > 0x7f800000 ? 0u : bits >> 31;
      block_codes[i] = static_cast<uint8_t>((code | sign << 3) & mask);
      // The code's value: from 2 on its bits are an exponent and one bit of mantissa; 1 is 0.5.
      const uint32_t wide = (code << 22) + (126u << 23);
      const uint32_t small = code == 0 ? 0u : 0x3f000000u;
      const uint32_t q = ((code < 2 ? small : wide) | sign << 31) & mask;
      residues[i] = values[i] - from_bits(q) * divisor;
    }
    __builtin_memcpy(codes + b * Block, block_codes, sizeof(block_codes));
    if (residue != nullptr) __builtin_memcpy(residue + b * Block, residues, sizeof(residues));
  }
}

template <int Block>
SUB8_SIMD_INLINE void encode_all(const float* x, int64_t blocks, const float* inverse,
                                 const float* d, const uint32_t* live, uint8_t* codes,
                                 float* residue) {
  if (residue == nullptr) {
    encode<Block>(x, blocks, inverse, d, live, codes, nullptr);
  } else {
    encode<Block>(x, blocks, inverse, d, live, codes, residue);
  }
}

// The E4M3 byte nearest to a ratio >= 0, at most 448, at least 2^-9.
SUB8_SIMD_INLINE uint32_t e4m3_scale(float ratio) {
  const uint32_t raw = bits_of(ratio);
  const uint32_t magnitude = raw < 0x43e00000u ? raw : 0x43e00000u;  // 448
  const uint32_t units = bits_of(from_bits(magnitude) + 0x1p14f) - 0x46800000u;
  const uint32_t rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
  const uint32_t code = magnitude < 0x3c800000u ? units : rounded - 960u;  // 2^-6
  return code > 1u ? code : 1u;
}
SUB8_SIMD_INLINE float e4m3_value(uint32_t code) {
  const float small = static_cast<float>(static_cast<int32_t>(code)) * 0x1p-9f;
  return code < 8u ? small : from_bits((code << 20) + (120u << 23));
}

void nvfp4(const float* x, int64_t blocks, float alpha, uint8_t* codes, uint8_t* scales,
           float* residue) {
  const float unit = 6.0f * alpha;
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t count = blocks - first < kGroup ? blocks - first : kGroup;
    uint32_t amax[kGroup] = {};
    uint32_t live[kGroup];
    float inverse[kGroup];
    float d[kGroup];
    uint32_t bytes[kGroup];
    largest<16>(x + first * 16, count, amax);
    const uint32_t any = alpha != 0.0f ? 0xffffffffu : 0u;
    for (int b = 0; b < kGroup; ++b) {
      live[b] = (amax[b] != 0 ? 0xffffffffu : 0u) & any;
      bytes[b] = e4m3_scale(from_bits(amax[b]) / unit) & live[b];
      d[b] = alpha * e4m3_value(bytes[b]);
      inverse[b] = 1.0f / d[b];
    }
    for (int64_t b = 0; b < count; ++b) scales[first + b] = static_cast<uint8_t>(bytes[b]);
    encode_all<16>(x + first * 16, count, inverse, d, live, codes + first * 16,
                   residue == nullptr ? nullptr : residue + first * 16);
  }
}

void mxfp4(const float* x, int64_t blocks, uint32_t round_bits, bool ceil, uint8_t* codes,
           uint8_t* scales, float* residue) {
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t count = blocks - first < kGroup ? blocks - first : kGroup;
    uint32_t amax[kGroup] = {};
    uint32_t live[kGroup];
    float inverse[kGroup];
    float d[kGroup];
    largest<32>(x + first * 32, count, amax);
    for (int64_t b = 0; b < count; ++b) {
      const uint32_t bits = amax[b] + round_bits;
      // The byte 127 + e with e = exponent - 127 - 2, at least -127.
      int32_t byte = static_cast<int32_t>(bits >> 23) - 2;
      if (ceil && (bits & 0x7fffffu) > 0x400000u) ++byte;
      byte = byte < 0 ? 0 : byte;
      live[b] = amax[b] != 0 ? 0xffffffffu : 0u;
      byte = static_cast<int32_t>(static_cast<uint32_t>(byte) & live[b]);
      d[b] = from_bits(byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23);
      inverse[b] = from_bits(byte == 254 ? 0x00400000u : static_cast<uint32_t>(254 - byte) << 23);
      scales[first + b] = static_cast<uint8_t>(byte);
    }
    encode_all<32>(x + first * 32, count, inverse, d, live, codes + first * 32,
                   residue == nullptr ? nullptr : residue + first * 32);
  }
}

void widen(const uint16_t* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = from_bits(static_cast<uint32_t>(x[i]) << 16);
}

void pack(const uint8_t* codes, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count / 2; ++i)
    out[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

}  // namespace

const Fp4Kernels kFp4 = {nvfp4, mxfp4, widen, pack};

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
