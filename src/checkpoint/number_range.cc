#include "checkpoint/number_range.h"

#include <cstdio>

namespace sub8::checkpoint {
namespace {

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

Result<double> require_in(NumberRange range, double value, const std::string& where) {
  const bool inside = range.above_low ? value > range.low : value >= range.low;
  if (inside && value <= range.high) return value;
  return corrupt_data(where + ": expected a number " + (range.above_low ? "above " : "from ") +
                      number_text(range.low) + " to " + number_text(range.high) + ", got " +
                      number_text(value));
}

}  // namespace sub8::checkpoint
