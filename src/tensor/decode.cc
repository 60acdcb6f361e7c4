#include "tensor/decode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "format/bits.h"
#include "format/element.h"

namespace sub8 {
namespace {

using format::BlockScale;
using format::DType;
using format::OuterScale;
using format::WeightFormat;

float load_dense(DType type, const uint8_t* at) {
  if (type == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return type == DType::kF16 ? format::f16_to_float(bits) : format::bf16_to_float(bits);
}

float block_scale_value(BlockScale kind, uint8_t byte) {
  return kind == BlockScale::kE8M0 ? format::decode_e8m0(byte)
                                   : format::decode_element(format::kE4M3, byte);
}

void decode_row(const StoredMatrix& m, int64_t row, const std::array<float, 256>& table,
                float* out) {
  const WeightFormat& f = m.format;
  const int64_t row_bytes = f.row_bytes(m.cols);
  const uint8_t* codes = m.codes.data() + row * row_bytes;
  if (f.dense) {
    const auto size = static_cast<int64_t>(format::dtype_bytes(f.dtype));
    for (int64_t k = 0; k < m.cols; ++k) out[k] = load_dense(f.dtype, codes + k * size);
    return;
  }
  const int bits = f.element.bits();
  if (bits == 4) {
    for (int64_t k = 0; k < m.cols; ++k) out[k] = table[(codes[k / 2] >> (k % 2 * 4)) & 15];
  } else if (bits == 8) {
    for (int64_t k = 0; k < m.cols; ++k) out[k] = table[codes[k]];
  } else {
    for (int64_t k = 0; k < m.cols; ++k) {
      out[k] = table[format::unpack_code(codes, row_bytes, k, bits)];
    }
  }
  const bool has_outer = f.outer_scale != OuterScale::kNone;
  const float outer =
      !has_outer
          ? 1.0F
          : m.outer_scales[f.outer_scale == OuterScale::kChannel ? static_cast<size_t>(row) : 0];
  if (f.block_scale == BlockScale::kNone) {
    for (int64_t k = 0; has_outer && k < m.cols; ++k) out[k] = out[k] * outer;
    return;
  }
  const int64_t groups = f.groups(m.cols);
  const uint8_t* scales = m.block_scales.data() + row * groups;
  for (int64_t g = 0; g < groups; ++g) {
    const float block = block_scale_value(f.block_scale, scales[g]);
    const float d = has_outer ? outer * block : block;
    const int64_t end = std::min<int64_t>(m.cols, (g + 1) * f.group);
    for (int64_t k = g * f.group; k < end; ++k) out[k] = out[k] * d;
  }
}

// Whether any of `count` little-endian words of `bytes` bytes has all bits of `mask` set. Written
// so that the compiler vectorises it: the slow search for the position runs only after a hit.
template <class Word>
bool any_masked(const uint8_t* at, int64_t count, Word mask) {
  unsigned hits = 0;
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, at + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    hits |= (word & mask) == mask ? 1U : 0U;
  }
  return hits != 0;
}

Error not_finite(std::string_view name, std::string_view what, int64_t row, int64_t column,
                 float value) {
  const char* kind = std::isnan(value) ? "NaN" : std::isinf(value) ? "infinite" : "negative";
  return corrupt_data(std::string(name) + ": " + std::string(what) + " [" + std::to_string(row) +
                      ", " + std::to_string(column) + "] is " + kind +
                      "; the file is damaged or was exported with a fault, sub8 does not run it");
}

Status check_dense_row(const StoredMatrix& m, int64_t row, std::string_view name) {
  const auto size = static_cast<int64_t>(format::dtype_bytes(m.format.dtype));
  const uint8_t* at = m.codes.data() + row * m.cols * size;
  bool hit = false;
  switch (m.format.dtype) {
    case DType::kF32:
      hit = any_masked<uint32_t>(at, m.cols, 0x7f800000U);
      break;
    case DType::kF16:
      hit = any_masked<uint16_t>(at, m.cols, 0x7c00U);
      break;
    default:
      hit = any_masked<uint16_t>(at, m.cols, 0x7f80U);
  }
  for (int64_t k = 0; hit && k < m.cols; ++k) {
    const float value = load_dense(m.format.dtype, at + k * size);
    if (!std::isfinite(value)) return not_finite(name, "value", row, k, value);
  }
  return {};
}

Status check_coded_row(const StoredMatrix& m, int64_t row, std::string_view name) {
  const WeightFormat& f = m.format;
  if (f.element.has_nan()) {
    const uint8_t* codes = m.codes.data() + row * m.cols;
    for (int64_t k = 0; k < m.cols; ++k) {
      if (f.element.is_nonfinite(codes[k])) {
        return not_finite(name, "code", row, k, format::decode_element(f.element, codes[k]));
      }
    }
  }
  const int64_t groups = f.groups(m.cols);
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t byte = m.block_scales[static_cast<size_t>(row * groups + g)];
    const float value = block_scale_value(f.block_scale, byte);
    if (!(value >= 0) || std::isinf(value)) {
      return not_finite(name, "block scale", row, g, value);
    }
  }
  return {};
}

}  // namespace

void decode_rows(const StoredMatrix& matrix, int64_t row, int64_t count, std::span<float> out) {
  SUB8_CHECK(row >= 0 && count >= 0 && row + count <= matrix.rows);
  SUB8_CHECK_EQ(static_cast<int64_t>(out.size()), count * matrix.cols);
  std::array<float, 256> table{};
  if (!matrix.format.dense) {
    for (uint32_t code = 0; code < matrix.format.element.code_count(); ++code) {
      table[code] = format::decode_element(matrix.format.element, code);
    }
  }
  for (int64_t r = 0; r < count; ++r) {
    decode_row(matrix, row + r, table, out.data() + r * matrix.cols);
  }
}

Status check_matrix(const StoredMatrix& matrix, std::string_view name) {
  const WeightFormat& f = matrix.format;
  const auto fail = [&](std::string_view what, uint64_t expected, uint64_t got) {
    return corrupt_data(std::string(name) + ": " + f.name() + " [" + std::to_string(matrix.rows) +
                        ", " + std::to_string(matrix.cols) + "] needs " + std::to_string(expected) +
                        " " + std::string(what) + ", got " + std::to_string(got));
  };
  if (matrix.rows < 0 || matrix.cols < 0 || matrix.cols > (INT64_MAX - 7) / 64 ||
      !checked_mul(matrix.rows, matrix.cols * 8 + 8)) {
    return corrupt_data(std::string(name) + ": impossible shape [" + std::to_string(matrix.rows) +
                        ", " + std::to_string(matrix.cols) + "]");
  }
  const auto codes = static_cast<uint64_t>(matrix.rows * f.row_bytes(matrix.cols));
  if (matrix.codes.size() != codes) return fail("bytes of codes", codes, matrix.codes.size());
  const auto scales = static_cast<uint64_t>(matrix.rows * f.groups(matrix.cols));
  if (matrix.block_scales.size() != scales) {
    return fail("block scales", scales, matrix.block_scales.size());
  }
  const uint64_t outer = f.outer_scale == OuterScale::kNone ? 0
                         : f.outer_scale == OuterScale::kTensor
                             ? 1
                             : static_cast<uint64_t>(matrix.rows);
  if (matrix.outer_scales.size() != outer) {
    return fail("outer scales", outer, matrix.outer_scales.size());
  }
  return {};
}

Status check_finite(const StoredMatrix& matrix, int64_t row, int64_t count, std::string_view name) {
  for (int64_t r = row; r < row + count; ++r) {
    SUB8_RETURN_IF_ERROR(matrix.format.dense ? check_dense_row(matrix, r, name)
                                             : check_coded_row(matrix, r, name));
  }
  for (size_t i = 0; i < matrix.outer_scales.size(); ++i) {
    if (!std::isfinite(matrix.outer_scales[i])) {
      return not_finite(name, "outer scale", static_cast<int64_t>(i), 0, matrix.outer_scales[i]);
    }
  }
  return {};
}

StoredMatrix slice_rows(const StoredMatrix& matrix, int64_t row, int64_t count) {
  SUB8_CHECK(row >= 0 && count >= 0 && row + count <= matrix.rows);
  StoredMatrix out = matrix;
  out.rows = count;
  const int64_t row_bytes = matrix.format.row_bytes(matrix.cols);
  const int64_t groups = matrix.format.groups(matrix.cols);
  out.codes = matrix.codes.subspan(static_cast<size_t>(row * row_bytes),
                                   static_cast<size_t>(count * row_bytes));
  out.block_scales = matrix.block_scales.subspan(static_cast<size_t>(row * groups),
                                                 static_cast<size_t>(count * groups));
  if (matrix.format.outer_scale == OuterScale::kChannel) {
    out.outer_scales.assign(matrix.outer_scales.begin() + row,
                            matrix.outer_scales.begin() + row + count);
  }
  return out;
}

}  // namespace sub8
