// The block rules a second time, for tests: from the words of docs/formats, in double arithmetic
// over tables of values, with exact comparisons. Shares no code with src/format.
//
// A rounding to FP32 is stated where the specification has an FP32 operation: for one sum, product
// or quotient of two floats, computing in double and rounding once to float gives the correctly
// rounded FP32 result (53 >= 2*24 + 2).
#pragma once

#include <cstdint>
#include <vector>

namespace sub8::reference {

// The non-negative values of an element format, by code; the sign is the bit above.
struct Element {
  Element(int exponent_bits, int mantissa_bits);

  int exponent_bits;
  int mantissa_bits;
  int bits;
  std::vector<double> values;  // finite ones only

  double max() const { return values.back(); }
  // Nearest value, ties to even (formats without mantissa: away from zero, zero excepted),
  // saturating. Works on the exact double.
  int encode(double x) const;
  double decode(int code) const;  // with sign
};

double fp32(double x);

// E4M3 bytes 0..0x7e as values, written out from the OCP specification's fields.
double e4m3(int byte);

struct Row {
  std::vector<int> codes;
  std::vector<int> block_scales;  // bytes
  double outer = 0;               // 0: the row counts as zero
  std::vector<double> values;     // FP32 results
};

Row channel(const Element& e, const std::vector<float>& x);
Row grouped(const Element& e, int group, const std::vector<float>& x);
double nvfp4_alpha(double amax, bool four_over_six);
Row nvfp4_weight(double alpha, bool four_over_six, const std::vector<float>& x);
Row nvfp4_activation(double alpha, const std::vector<float>& x);
Row nvfp4_kv(double alpha, bool value_side, const std::vector<float>& x);  // V's scales: at most 72
enum class Rule { kEven, kCeil, kFloor };
Row mx(const Element& e, Rule rule, const std::vector<float>& x);
Row fp8_activation(const std::vector<float>& x);

}  // namespace sub8::reference
