// What a loaded model does with activations: for reports, and in words for people, at load.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "model/execution_mode.h"
#include "model/program.h"

namespace sub8::model {

// Of a program's linear operations in one mode.
struct ModeFacts {
  int layers = 0;
  int quantized = 0;  // with activations in 4 or 8 bits
  // Of prompt rows (steps beyond the paper's 128 rows), over the quantized ones; where there are
  // none, lowest > highest.
  float lowest_ratio = 1;
  float highest_ratio = 0;
  std::array<int, 3> alphas{};  // operations by place in format::AlphaSource; MX ones have none

  // "row", "static", "tensor", "mixed"; empty: no operation has an alpha.
  std::string_view alpha() const;
};

// `mode` is Model::mode(), so never kAuto.
ModeFacts mode_facts(const Program& program, ExecutionMode mode);

// "mode weight-only", "mode residue, prefill ratio 0.25, alpha per row", "mode residue, prefill
// ratio 0 to 0.5 (by layer), static alphas"; layers that the mode leaves alone are counted. A
// second line says where a mode with residue leaves prompt rows without any.
std::string describe_mode(const Program& program, ExecutionMode mode);

// The alpha of an operation's activations under a mode; nothing where they have none.
std::optional<InputAlpha> input_alpha(const LinearOp& op, const RowExecution& rows);

}  // namespace sub8::model
