// The activation functions by name; apart from activation.h so that kernels can include it.
#pragma once

#include <cstdint>

namespace sub8::kernels {

enum class Activation : uint8_t {
  kSilu,       // x * sigmoid(x)
  kGelu,       // x * (1 + erf(x / sqrt 2)) / 2
  kGeluTanh,   // the tanh form
  kRelu,       // max(x, 0)
  kQuickGelu,  // x * sigmoid(1.702 x)
};

}  // namespace sub8::kernels
