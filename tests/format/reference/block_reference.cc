#include "format/reference/block_reference.h"

#include <algorithm>
#include <cmath>

namespace sub8::reference {
namespace {

double amax_of(const std::vector<float>& x, size_t begin, size_t end) {
  double out = 0;
  for (size_t i = begin; i < end; ++i) out = std::max(out, std::fabs(static_cast<double>(x[i])));
  return out;
}

const Element& e2m1() {
  static const Element element(2, 1);
  return element;
}

// The E4M3 byte nearest to a ratio, within [2^-9, 448].
int scale_byte(double ratio) {
  int best = 1;
  for (int byte = 2; byte <= 0x7e; ++byte) {
    const double here = std::fabs(e4m3(byte) - ratio);
    const double there = std::fabs(e4m3(best) - ratio);
    if (here < there || (here == there && byte % 2 == 0)) best = byte;
  }
  return best;
}

template <class Quotient>
void block(const Element& e, const std::vector<float>& x, size_t begin, size_t end, double d,
           Quotient quotient, Row& row) {
  for (size_t i = begin; i < end; ++i) {
    const int code = d == 0 ? 0 : e.encode(quotient(static_cast<double>(x[i]), d));
    row.codes.push_back(code);
    row.values.push_back(d == 0 ? 0 : fp32(e.decode(code) * d));
  }
}

double divide(double x, double d) { return fp32(x / d); }
double multiply_inverse(double x, double d) { return fp32(x * fp32(1 / d)); }

double squared_error(const std::vector<float>& x, size_t begin, size_t end, double d) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) {
    const double value = fp32(e2m1().decode(e2m1().encode(divide(x[i], d))) * d);
    const double error = fp32(static_cast<double>(x[i]) - value);
    sum = fp32(sum + fp32(error * error));
  }
  return sum;
}

}  // namespace

double fp32(double x) { return static_cast<double>(static_cast<float>(x)); }

Element::Element(int e, int m) : exponent_bits(e), mantissa_bits(m), bits(1 + e + m) {
  if (e == 2 && m == 1) {
    values = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return;
  }
  // Fields from large to small: value = 1.fraction * 2^(field - bias), or 0.fraction * 2^(1 -
  // bias).
  const int bias = e == 1 ? 0 : (1 << (e - 1)) - 1;
  for (int code = 0; code < (1 << (e + m)); ++code) {
    if (e == 4 && m == 3 && code == 0x7f) continue;  // NaN
    if (e == 5 && m == 2 && code >= 0x7c) continue;  // infinity, NaN
    const int field = code / (1 << m);
    const double fraction = static_cast<double>(code % (1 << m)) / (1 << m);
    values.push_back(field == 0 ? fraction * std::pow(2.0, 1 - bias)
                                : (1 + fraction) * std::pow(2.0, field - bias));
  }
}

int Element::encode(double x) const {
  const double magnitude = std::min(std::fabs(x), max());
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  int code = static_cast<int>(above - values.begin());
  if (code > 0) {
    const double up = *above - magnitude;
    const double down = magnitude - values[static_cast<size_t>(code - 1)];
    const bool upper_wins_tie = mantissa_bits == 0 ? code > 1 : code % 2 == 0;
    if (down < up || (down == up && !upper_wins_tie)) --code;
  }
  return code + (std::signbit(x) ? 1 << (bits - 1) : 0);
}

double Element::decode(int code) const {
  const int sign = 1 << (bits - 1);
  const double value = values[static_cast<size_t>(code & (sign - 1))];
  return (code & sign) != 0 ? -value : value;
}

double e4m3(int byte) {
  const int field = byte / 8;
  const int fraction = byte % 8;
  return field == 0 ? fraction * std::pow(2.0, -9) : (8 + fraction) * std::pow(2.0, field - 7 - 3);
}

Row channel(const Element& e, const std::vector<float>& x) {
  Row row;
  row.outer = fp32(amax_of(x, 0, x.size()) / e.max());
  if (row.outer < std::pow(2.0, -126)) row.outer = 0;
  block(e, x, 0, x.size(), row.outer, divide, row);
  return row;
}

Row grouped(const Element& e, int group, const std::vector<float>& x) {
  Row row;
  row.outer = fp32(amax_of(x, 0, x.size()) / fp32(64 * e.max()));
  if (row.outer < std::pow(2.0, -117)) row.outer = 0;
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(group)) {
    const size_t end = std::min(begin + static_cast<size_t>(group), x.size());
    const double amax = amax_of(x, begin, end);
    int byte = 0x38;
    double d = 0;
    if (row.outer != 0 && amax != 0) {
      byte = scale_byte(fp32(amax / fp32(e.max() * row.outer)));
      d = fp32(row.outer * e4m3(byte));
    }
    row.block_scales.push_back(byte);
    block(e, x, begin, end, d, divide, row);
  }
  return row;
}

double nvfp4_alpha(double amax, bool four_over_six) {
  const double alpha = fp32(amax / (four_over_six ? 6 * 256 : 6 * 448));
  return alpha < std::pow(2.0, -117) ? 0 : alpha;
}

static Row nvfp4(double alpha, bool four_over_six, bool activation, const std::vector<float>& x,
                 int largest_byte = 0x7e) {
  Row row;
  row.outer = alpha;
  for (size_t begin = 0; begin < x.size(); begin += 16) {
    const size_t end = std::min(begin + 16, x.size());
    const double amax = amax_of(x, begin, end);
    int byte = activation ? 0 : 0x38;
    double d = 0;
    if (alpha != 0 && amax != 0) {
      byte = std::min(scale_byte(fp32(amax / fp32(6 * alpha))), largest_byte);
      d = fp32(alpha * e4m3(byte));
      if (four_over_six) {
        const int four = scale_byte(fp32(amax / fp32(4 * alpha)));
        const double d_four = fp32(alpha * e4m3(four));
        if (squared_error(x, begin, end, d_four) < squared_error(x, begin, end, d)) {
          byte = four;
          d = d_four;
        }
      }
    }
    row.block_scales.push_back(byte);
    block(e2m1(), x, begin, end, d, activation ? multiply_inverse : divide, row);
  }
  return row;
}

Row nvfp4_weight(double alpha, bool four_over_six, const std::vector<float>& x) {
  return nvfp4(alpha, four_over_six, false, x);
}
Row nvfp4_activation(double alpha, const std::vector<float>& x) {
  return nvfp4(alpha, false, true, x);
}
Row nvfp4_kv(double alpha, bool value_side, const std::vector<float>& x) {
  return nvfp4(alpha, false, true, x, value_side ? 0x69 : 0x7e);
}

Row mx(const Element& e, Rule rule, const std::vector<float>& x) {
  Row row;
  row.outer = 1;
  const auto two_to = [](int k) { return std::ldexp(1.0, k); };
  int max_exponent = -200;  // of the largest element
  while (two_to(max_exponent + 1) <= e.max()) ++max_exponent;
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    const size_t end = std::min(begin + 32, x.size());
    const double amax = amax_of(x, begin, end);
    int byte = 0;
    double d = 0;
    if (amax != 0) {
      int k = -300;
      switch (rule) {
        case Rule::kCeil:  // the smallest power under which amax fits
          while (e.max() * two_to(k) < amax) ++k;
          break;
        case Rule::kFloor:
          while (two_to(k + 1) <= amax) ++k;
          k -= max_exponent;
          break;
        case Rule::kEven: {  // as floor, but half a mantissa step below a power counts as the power
          while (two_to(k + 1) - two_to(k - e.mantissa_bits - 1) <= amax) ++k;
          k -= max_exponent;
          break;
        }
      }
      k = std::clamp(k, -127, 127);
      byte = k + 127;
      d = two_to(k);
    }
    row.block_scales.push_back(byte);
    block(e, x, begin, end, d, divide, row);
  }
  return row;
}

Row fp8_activation(const std::vector<float>& x) {
  Row row;
  row.outer = fp32(amax_of(x, 0, x.size()) / 448);
  if (row.outer < std::pow(2.0, -117)) row.outer = 0;
  block(Element(4, 3), x, 0, x.size(), row.outer, multiply_inverse, row);
  return row;
}

}  // namespace sub8::reference
