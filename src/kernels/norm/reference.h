// The normalisations of one row in double, for tests.
#pragma once

#include <vector>

#include "kernels/norm/norm.h"

namespace sub8::kernels {

std::vector<double> rms_norm_reference(const float* x, int64_t cols, const RmsNormWeights& weights);
std::vector<double> layer_norm_reference(const float* x, int64_t cols,
                                         const LayerNormWeights& weights);

}  // namespace sub8::kernels
