// How rows are executed over the weights as stored. What is stored never depends on the mode.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace sub8::model {

enum class ExecutionMode : uint8_t {
  kAuto,        // what the loaded model uses unless told otherwise
  kWeightOnly,  // x-bit weights, 16-bit (or f32) activations
  kPlain,       // FP4 weights and activations
  kResidue,     // the same with a residue of the activations
};

// "auto", "weight-only", "plain", "residue".
std::string_view execution_mode_name(ExecutionMode mode);
// An error that lists the names.
Result<ExecutionMode> parse_execution_mode(std::string_view name);

}  // namespace sub8::model
