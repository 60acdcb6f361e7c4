// The activation functions in double, for tests.
#pragma once

#include "kernels/activation/activation.h"

namespace sub8::kernels {

double activation_reference(Activation f, double x);

}  // namespace sub8::kernels
