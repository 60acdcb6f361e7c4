#include "kernels/norm/reference.h"

#include <cmath>

namespace sub8::kernels {

std::vector<double> rms_norm_reference(const float* x, int64_t cols,
                                       const RmsNormWeights& weights) {
  double squares = 0;
  for (int64_t i = 0; i < cols; ++i) squares += double{x[i]} * x[i];
  const double root = std::sqrt(squares / static_cast<double>(cols) + double{weights.eps});
  std::vector<double> out;
  for (int64_t i = 0; i < cols; ++i) {
    const double gain = double{weights.weight[i]} + (weights.plus_one ? 1.0 : 0.0);
    out.push_back(x[i] / root * gain);
  }
  return out;
}

std::vector<double> layer_norm_reference(const float* x, int64_t cols,
                                         const LayerNormWeights& weights) {
  double mean = 0;
  for (int64_t i = 0; i < cols; ++i) mean += x[i];
  mean /= static_cast<double>(cols);
  double variance = 0;
  for (int64_t i = 0; i < cols; ++i) variance += (x[i] - mean) * (x[i] - mean);
  variance /= static_cast<double>(cols);
  std::vector<double> out;
  for (int64_t i = 0; i < cols; ++i) {
    const double centred = (x[i] - mean) / std::sqrt(variance + double{weights.eps});
    out.push_back(centred * weights.weight[i] + (weights.bias == nullptr ? 0.0 : weights.bias[i]));
  }
  return out;
}

}  // namespace sub8::kernels
