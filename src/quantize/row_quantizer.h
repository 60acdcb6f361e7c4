// One row of a weight matrix to codes and scales, with the scale chosen from the largest magnitude
// or by a search for the smallest squared error.
//
// The search grid is fixed, so results are reproducible:
//   eXmY     d = fl(d_amax * i/32) for i = 48 down to 16 (d below 2^-126 left out)
//   eXmY:gN  c as for amax; per group every E4M3 scale in [0.5, 1.5] times the amax ratio
//   nvfp4    alpha as for amax (or four-over-six's); per block every E4M3 scale in the same range
//   mx*      per block the exponent of the amax rule, one more and one less
// The error of a candidate is d^2 * sum (fl(x/d) - q)^2, in double; sums run over 8 interleaved
// partial sums in index order. The largest scale wins a tie. The amax choice is in every grid, so
// the search never does worse by its own measure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "format/row.h"

namespace sub8::quantize {

enum class ScaleMethod : uint8_t { kAmax, kMse };
std::string_view scale_method_name(ScaleMethod method);  // "amax", "mse"
Result<ScaleMethod> parse_scale_method(std::string_view name);

std::string_view mx_rule_name(format::MxRule rule);  // "even", "ceil", "floor"
Result<format::MxRule> parse_mx_rule(std::string_view name);

struct RowRules {
  ScaleMethod scale = ScaleMethod::kAmax;
  format::BlockRules block;

  bool operator==(const RowRules&) const = default;
};

// Quantises x (finite, below 2^127 in magnitude). Per channel formats choose the outer scale here;
// for nvfp4 `outer` is the tensor's alpha, 0 if the tensor counts as zero. Returns the outer scale
// as files hold it (1.0 for zero rows and for mx*). codes: x.size() unpacked codes; block_scales:
// format.groups(x.size()) bytes.
float quantize_row(const format::WeightFormat& format, const RowRules& rules,
                   std::span<const float> x, float alpha, std::span<uint8_t> codes,
                   std::span<uint8_t> block_scales);

// Squared error and energy of one row against the value that a reader decodes, fl(element *
// fl(outer * block scale)). Double sums over 8 interleaved partial sums in index order.
struct RowError {
  double error = 0;   // sum (value - x)^2
  double energy = 0;  // sum x^2
};
RowError measure_row(const format::WeightFormat& format, std::span<const float> x, float outer,
                     std::span<const uint8_t> codes, std::span<const uint8_t> block_scales);

}  // namespace sub8::quantize
