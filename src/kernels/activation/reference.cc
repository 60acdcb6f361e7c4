#include "kernels/activation/reference.h"

#include <cmath>
#include <numbers>

namespace sub8::kernels {

double activation_reference(Activation f, double x) {
  switch (f) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kGeluTanh: {
      // 1 + tanh(u) as 2 / (1 + e^-2u): no cancellation where the tail is small.
      const double u = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return x / (1.0 + std::exp(-2.0 * u));
    }
    case Activation::kRelu:
      return x > 0 ? x : 0.0;
    case Activation::kQuickGelu:
      return x / (1.0 + std::exp(-1.702 * x));
  }
  return 0;
}

}  // namespace sub8::kernels
