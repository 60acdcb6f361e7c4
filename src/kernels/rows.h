// Views of token rows in memory, shared by every operation.
#pragma once

#include <cstdint>

#include "format/dtype.h"

namespace sub8::kernels {

// A [rows, cols] matrix of f32 or bf16 values that an operation writes. `stride` is the distance of
// two rows in elements, at least cols. bf16 is rounded to nearest even, once, from the FP32 result.
struct OutputRows {
  void* data = nullptr;
  format::DType type = format::DType::kBF16;  // kF32 or kBF16
  int64_t stride = 0;

  bool is_bf16() const { return type == format::DType::kBF16; }
  void* row(int64_t r) const {
    return static_cast<char*>(data) + r * stride * static_cast<int64_t>(format::dtype_bytes(type));
  }
};

inline OutputRows f32_rows(float* data, int64_t stride) {
  return {data, format::DType::kF32, stride};
}
inline OutputRows bf16_rows(uint16_t* data, int64_t stride) {
  return {data, format::DType::kBF16, stride};
}

// A [rows, cols] matrix of f32 values that an operation reads.
struct InputRows {
  const float* data = nullptr;
  int64_t stride = 0;
};

}  // namespace sub8::kernels
