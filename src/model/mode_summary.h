// What a loaded model does with activations, in words: for people, at load.
#pragma once

#include <string>

#include "model/execution_mode.h"
#include "model/program.h"

namespace sub8::model {

// `mode` is Model::mode(), so never kAuto. "mode weight-only", "mode residue, prefill ratio 0.25",
// "mode residue, prefill ratio 0 to 0.5 (by layer)"; layers that the mode leaves alone are counted.
// A second line says where a mode with residue leaves prompt rows without any.
std::string describe_mode(const Program& program, ExecutionMode mode);

}  // namespace sub8::model
