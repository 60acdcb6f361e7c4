// The oracle of the linear kernels, from the formats' definitions alone: no code of format, pack or
// the kernels runs here.
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/linear/op.h"

namespace sub8 {
namespace {

// bits [first, first + count) of a byte string, least significant bit first.
uint32_t bit_field(const uint8_t* bytes, int64_t first, int count) {
  uint32_t out = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t at = first + i;
    out |= static_cast<uint32_t>((bytes[at >> 3] >> (at & 7)) & 1) << i;
  }
  return out;
}

// A float with the given field widths and IEEE-like bias 2^(exponent_bits-1)-1.
double small_float(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t fraction = code & ((1u << mantissa_bits) - 1);
  const uint32_t field = (code >> mantissa_bits) & ((1u << exponent_bits) - 1);
  const bool negative = (code >> (exponent_bits + mantissa_bits)) & 1;
  const double mantissa = static_cast<double>(fraction) / (1 << mantissa_bits);
  const double magnitude = field == 0 ? std::ldexp(mantissa, 1 - bias)
                                      : std::ldexp(1 + mantissa, static_cast<int>(field) - bias);
  return negative ? -magnitude : magnitude;
}

double dense_value(const uint8_t* row, int64_t k, size_t item, bool bf16) {
  uint32_t bits = 0;
  std::memcpy(&bits, row + k * static_cast<int64_t>(item), item);
  if (item == 4) return small_float(bits, 8, 23);
  return bf16 ? small_float(bits, 8, 7) : small_float(bits, 5, 10);
}

// Row n of W, scales included.
void decode_row(const StoredMatrix& w, int64_t n, std::vector<double>& out) {
  const format::WeightFormat& f = w.format;
  double outer = 1;
  if (f.outer_scale == format::OuterScale::kTensor) outer = w.outer_scales[0];
  if (f.outer_scale == format::OuterScale::kChannel) outer = w.outer_scales[static_cast<size_t>(n)];
  if (f.dense) {
    const size_t item = f.dtype == format::DType::kF32 ? 4 : 2;
    const uint8_t* row = w.codes.data() + n * w.cols * static_cast<int64_t>(item);
    for (int64_t k = 0; k < w.cols; ++k)
      out[static_cast<size_t>(k)] = dense_value(row, k, item, f.dtype == format::DType::kBF16);
    return;
  }
  const int bits = 1 + f.element.exponent_bits + f.element.mantissa_bits;
  const uint8_t* row = w.codes.data() + n * ((w.cols * bits + 7) / 8);
  const int64_t groups = f.group == 0 ? 0 : (w.cols + f.group - 1) / f.group;
  for (int64_t k = 0; k < w.cols; ++k) {
    double value = small_float(bit_field(row, k * bits, bits), f.element.exponent_bits,
                               f.element.mantissa_bits);
    if (groups != 0) {
      const uint8_t scale = w.block_scales[static_cast<size_t>(n * groups + k / f.group)];
      value *= f.block_scale == format::BlockScale::kE8M0 ? std::ldexp(1.0, scale - 127)
                                                          : small_float(scale, 4, 3);
    }
    out[static_cast<size_t>(k)] = value * outer;
  }
}

}  // namespace

void linear_reference(const StoredMatrix& w, const double* x, int64_t m, const float* bias,
                      double* y, double* magnitude) {
  std::vector<double> row(static_cast<size_t>(w.cols));
  for (int64_t n = 0; n < w.rows; ++n) {
    decode_row(w, n, row);
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      double absolute = 0;
      for (int64_t k = 0; k < w.cols; ++k) {
        const double product = row[static_cast<size_t>(k)] * x[i * w.cols + k];
        sum += product;
        absolute += std::fabs(product);
      }
      if (bias != nullptr) {
        sum += bias[n];
        absolute += std::fabs(static_cast<double>(bias[n]));
      }
      y[i * w.rows + n] = sum;
      if (magnitude != nullptr) magnitude[i * w.rows + n] = absolute;
    }
  }
}

}  // namespace sub8
