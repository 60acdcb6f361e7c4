// Block types of GGUF files. Each decoder multiplies and adds in the order of the `gguf` package's
// numpy code, in f32 without contraction, so that the values are equal to the bit.
#include <cstring>

#include "base/check.h"
#include "checkpoint/gguf.h"
#include "format/dtype.h"
#include "format/element.h"

namespace sub8::checkpoint {
namespace {

float load_f16(const uint8_t* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return format::f16_to_float(bits);
}

uint32_t load_u32(const uint8_t* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, 4);
  return bits;
}

// 4- and 5-bit blocks of 32: element j is the low nibble of byte j, element j+16 the high one.
int nibble32(const uint8_t* qs, int j) { return j < 16 ? qs[j] & 15 : qs[j - 16] >> 4; }

void decode_q4_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(nibble32(b + 2, j) - 8);
}

void decode_q4_1(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  const float m = load_f16(b + 2);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(nibble32(b + 4, j)) + m;
}

void decode_q5_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  const uint32_t high = load_u32(b + 2);
  for (int j = 0; j < 32; ++j) {
    const int q = nibble32(b + 6, j) | static_cast<int>((high >> j) & 1) << 4;
    out[j] = d * static_cast<float>(q - 16);
  }
}

void decode_q5_1(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  const float m = load_f16(b + 2);
  const uint32_t high = load_u32(b + 4);
  for (int j = 0; j < 32; ++j) {
    const int q = nibble32(b + 8, j) | static_cast<int>((high >> j) & 1) << 4;
    out[j] = d * static_cast<float>(q) + m;
  }
}

void decode_q8_0(const uint8_t* b, float* out) {
  const float d = load_f16(b);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(b[2 + j])) * d;
}

// K types: 256 elements. 2-bit fields: element 128h + 32s + i is bits 2s..2s+1 of byte 32h + i.
int two_bits(const uint8_t* qs, int j) {
  return (qs[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2)) & 3;
}

void decode_q2_k(const uint8_t* b, float* out) {
  const uint8_t* scales = b;
  const uint8_t* qs = b + 16;
  const float d = load_f16(b + 80);
  const float dmin = load_f16(b + 82);
  for (int g = 0; g < 16; ++g) {
    const float dl = d * static_cast<float>(scales[g] & 15);
    const float ml = dmin * static_cast<float>(scales[g] >> 4);
    for (int j = 16 * g; j < 16 * g + 16; ++j) {
      out[j] = dl * static_cast<float>(two_bits(qs, j)) - ml;
    }
  }
}

void decode_q3_k(const uint8_t* b, float* out) {
  const uint8_t* hmask = b;
  const uint8_t* qs = b + 32;
  const uint8_t* packed = b + 96;
  const float d = load_f16(b + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int high = (packed[8 + g % 4] >> (g / 4 * 2)) & 3;
    const float dl = d * static_cast<float>((low | high << 4) - 32);
    for (int j = 16 * g; j < 16 * g + 16; ++j) {
      // A set mask bit means no offset.
      const int offset = (hmask[j % 32] >> (j / 32)) & 1 ? 0 : 4;
      out[j] = dl * static_cast<float>(two_bits(qs, j) - offset);
    }
  }
}

// The 6-bit scale and minimum of group g (of 8) in the 12 bytes that Q4_K and Q5_K share.
void k_scale_min(const uint8_t* s, int g, int* scale, int* minimum) {
  if (g < 4) {
    *scale = s[g] & 63;
    *minimum = s[g + 4] & 63;
  } else {
    *scale = (s[g + 4] & 15) | (s[g - 4] >> 2 & 0x30);
    *minimum = s[g + 4] >> 4 | (s[g] >> 2 & 0x30);
  }
}

// Q4_K and Q5_K: group g of 32 elements holds nibble g%2 of bytes 32*(g/2)..; Q5_K's fifth bit is
// bit g of high[i].
void decode_q45_k(const uint8_t* b, const uint8_t* high, const uint8_t* qs, float* out) {
  const float d = load_f16(b);
  const float dmin = load_f16(b + 2);
  for (int g = 0; g < 8; ++g) {
    int scale = 0;
    int minimum = 0;
    k_scale_min(b + 4, g, &scale, &minimum);
    const float dl = d * static_cast<float>(scale);
    const float dm = dmin * static_cast<float>(minimum);
    for (int i = 0; i < 32; ++i) {
      int q = (qs[g / 2 * 32 + i] >> (g % 2 * 4)) & 15;
      if (high != nullptr) q |= ((high[i] >> g) & 1) << 4;
      out[32 * g + i] = dl * static_cast<float>(q) - dm;
    }
  }
}

void decode_q6_k(const uint8_t* b, float* out) {
  const uint8_t* ql = b;
  const uint8_t* qh = b + 128;
  const float d = load_f16(b + 208);
  for (int j = 0; j < 256; ++j) {
    const int low = (ql[j / 128 * 64 + j % 64] >> (j % 128 / 64 * 4)) & 15;
    const int q = (low | two_bits(qh, j) << 4) - 32;
    const float dl = d * static_cast<float>(static_cast<int8_t>(b[192 + j / 16]));
    out[j] = dl * static_cast<float>(q);
  }
}

void decode_mxfp4(const uint8_t* b, float* out) {
  const float d = format::decode_e8m0(b[0]);
  for (int j = 0; j < 32; ++j) {
    out[j] = format::decode_element(format::kE2M1, static_cast<uint32_t>(nibble32(b + 1, j))) * d;
  }
}

void decode_nvfp4(const uint8_t* b, float* out) {
  for (int s = 0; s < 4; ++s) {
    // The format's scale is unsigned: the top bit is ignored, 0x7f counts as zero.
    const float d = b[s] == 0x7f            ? 0.0F
                    : (b[s] & 0x7f) == 0x7f ? 480.0F
                                            : format::decode_element(format::kE4M3, b[s] & 0x7fU);
    const uint8_t* qs = b + 4 + 8 * s;
    for (int j = 0; j < 16; ++j) {
      const uint32_t code = j < 8 ? qs[j] & 15U : static_cast<uint32_t>(qs[j - 8] >> 4);
      out[16 * s + j] = format::decode_element(format::kE2M1, code) * d;
    }
  }
}

void decode_block(GgmlType type, const uint8_t* b, float* out) {
  switch (type) {
    case GgmlType::kF32:
      std::memcpy(out, b, 4);
      return;
    case GgmlType::kF16:
      *out = load_f16(b);
      return;
    case GgmlType::kBF16:
      *out = format::bf16_to_float(static_cast<uint16_t>(b[0] | b[1] << 8));
      return;
    case GgmlType::kQ4_0:
      return decode_q4_0(b, out);
    case GgmlType::kQ4_1:
      return decode_q4_1(b, out);
    case GgmlType::kQ5_0:
      return decode_q5_0(b, out);
    case GgmlType::kQ5_1:
      return decode_q5_1(b, out);
    case GgmlType::kQ8_0:
      return decode_q8_0(b, out);
    case GgmlType::kQ2_K:
      return decode_q2_k(b, out);
    case GgmlType::kQ3_K:
      return decode_q3_k(b, out);
    case GgmlType::kQ4_K:
      return decode_q45_k(b, nullptr, b + 16, out);
    case GgmlType::kQ5_K:
      return decode_q45_k(b, b + 16, b + 48, out);
    case GgmlType::kQ6_K:
      return decode_q6_k(b, out);
    case GgmlType::kMXFP4:
      return decode_mxfp4(b, out);
    case GgmlType::kNVFP4:
      return decode_nvfp4(b, out);
  }
}

}  // namespace

GgmlBlock ggml_block(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return {"F32", 1, 4};
    case GgmlType::kF16:
      return {"F16", 1, 2};
    case GgmlType::kBF16:
      return {"BF16", 1, 2};
    case GgmlType::kQ4_0:
      return {"Q4_0", 32, 18};
    case GgmlType::kQ4_1:
      return {"Q4_1", 32, 20};
    case GgmlType::kQ5_0:
      return {"Q5_0", 32, 22};
    case GgmlType::kQ5_1:
      return {"Q5_1", 32, 24};
    case GgmlType::kQ8_0:
      return {"Q8_0", 32, 34};
    case GgmlType::kQ2_K:
      return {"Q2_K", 256, 84};
    case GgmlType::kQ3_K:
      return {"Q3_K", 256, 110};
    case GgmlType::kQ4_K:
      return {"Q4_K", 256, 144};
    case GgmlType::kQ5_K:
      return {"Q5_K", 256, 176};
    case GgmlType::kQ6_K:
      return {"Q6_K", 256, 210};
    case GgmlType::kMXFP4:
      return {"MXFP4", 32, 17};
    case GgmlType::kNVFP4:
      return {"NVFP4", 64, 36};
  }
  return {"?", 1, 1};
}

void decode_ggml(GgmlType type, const uint8_t* blocks, int64_t count, float* out) {
  const GgmlBlock block = ggml_block(type);
  SUB8_CHECK_EQ(count % block.elements, 0);
  for (int64_t i = 0; i < count / block.elements; ++i) {
    decode_block(type, blocks + i * block.bytes, out + i * block.elements);
  }
}

}  // namespace sub8::checkpoint
