// Storage types of whole tensors, and exact conversions of the 16-bit floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/element.h"
#include "format/platform.h"

namespace sub8::format {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};

constexpr size_t dtype_bytes(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    default:
      return 1;
  }
}

constexpr std::string_view dtype_name(DType type) {  // safetensors' names
  switch (type) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E5M2:
      return "F8_E5M2";
    case DType::kF8E8M0:
      return "F8_E8M0";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI16:
      return "I16";
    case DType::kI8:
      return "I8";
    case DType::kU64:
      return "U64";
    case DType::kU32:
      return "U32";
    case DType::kU16:
      return "U16";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

SUB8_HD constexpr float bf16_to_float(uint16_t bits) {
  return bits_float(static_cast<uint32_t>(bits) << 16);
}

// Nearest, ties to even. NaN stays NaN (quiet).
SUB8_HD constexpr uint16_t float_to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

SUB8_HD constexpr float round_to_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

SUB8_HD constexpr float f16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t field = (half >> 10) & 0x1f;
  const uint32_t fraction = half & 0x3ff;
  if (field == 0)
    return bits_float(float_bits(static_cast<float>(fraction) * power_of_two(-24)) | sign);
  if (field == 31)
    return bits_float(sign | 0x7f800000u | (fraction << 13) | (fraction != 0 ? 0x400000u : 0u));
  return bits_float(sign | ((field + 112) << 23) | (fraction << 13));
}

// Nearest, ties to even; overflow becomes infinity, as IEEE 754 has it. NaN stays NaN (quiet).
SUB8_HD constexpr uint16_t float_to_f16(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and more
  const int field = static_cast<int>(magnitude >> 23);
  const int exponent = (field == 0 ? 1 : field) - 127;
  const uint32_t significand = (magnitude & 0x7fffffu) | (field == 0 ? 0u : 0x800000u);
  const int target = exponent > -14 ? exponent : -14;
  if (exponent - target < -12) return static_cast<uint16_t>(sign);
  const int shift = target - exponent + 13;
  const uint32_t half = uint32_t{1} << (shift - 1);
  const uint32_t units = (significand + half - 1 + ((significand >> shift) & 1)) >> shift;
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(target + 14) << 10) + units));
}

}  // namespace sub8::format
