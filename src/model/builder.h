// What the builders of the families share.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "kernels/activation/activation.h"
#include "model/program.h"
#include "model/weights.h"

namespace sub8::model {

kernels::Activation kernel_activation(checkpoint::Activation activation);

// One LinearOp per packed matrix, writing consecutive columns of `out`.
Status add_linear(std::vector<Op>& ops, Weights& weights, const std::string& prefix,
                  const std::vector<std::string>& names, bool bias, View in, View out,
                  bool accumulate = false);

}  // namespace sub8::model
