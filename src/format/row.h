// Whole rows of a weight matrix by WeightFormat: host loops over block.h.
//
// This is what turns numbers into storage form and back; the quantiser, checkpoint readers and
// tests use it. Results do not depend on the machine: each value is computed by block.h's
// operations in their stated order.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "format/block.h"
#include "format/weight_format.h"

namespace sub8::format {

// How scales are chosen where a format leaves it open.
struct BlockRules {
  MxRule mx = MxRule::kEven;
  bool four_over_six = false;  // nvfp4 only

  bool operator==(const BlockRules&) const = default;
};

// Whether sub8 writes this format: eXmY, eXmY:gN, nvfp4 and mx*. Formats that only other tools'
// files hold (one tensor scale without blocks, other block sizes) are refused by name, dense ones
// too.
Status check_quantizable(const WeightFormat& format);

// The outer scale for values whose largest magnitude is `amax`: of one row where the outer scale is
// per channel, of the tensor (or of all tensors that share one) for nvfp4, 1 for mx*. 0 means that
// the row or tensor counts as zero; stored_outer_scale() gives what files hold.
float choose_outer_scale(const WeightFormat& format, float amax, bool four_over_six = false);
inline float stored_outer_scale(float outer) { return outer == 0.0f ? 1.0f : outer; }

// Quantises one row of `x` with an outer scale from choose_outer_scale. `codes` gets x.size()
// unpacked codes, `block_scales` format.groups(x.size()) bytes. Inputs are finite and below 2^127
// in magnitude. The format passes check_quantizable.
void quantize_row(const WeightFormat& format, const BlockRules& rules, std::span<const float> x,
                  float outer, std::span<uint8_t> codes, std::span<uint8_t> block_scales);

}  // namespace sub8::format
