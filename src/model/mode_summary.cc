#include "model/mode_summary.h"

#include <algorithm>

#include <fmt/format.h>

namespace sub8::model {

std::string describe_mode(const Program& program, ExecutionMode mode) {
  std::string out = fmt::format("mode {}", execution_mode_name(mode));
  if (mode == ExecutionMode::kWeightOnly) return out;
  int layers = 0;
  int quantized = 0;
  float lowest = 1;
  float highest = 0;
  const auto count = [&](const std::vector<Op>& ops) {
    for (const Op& op : ops) {
      const auto* linear = std::get_if<LinearOp>(&op);
      if (linear == nullptr) continue;
      ++layers;
      const RowExecution rows = row_execution(mode, linear->weight->format, linear->prompt.ratio,
                                              RowClass::kPrompt, kPaperRows + 1);
      if (rows.weight_only) continue;
      ++quantized;
      lowest = std::min(lowest, rows.ratio);
      highest = std::max(highest, rows.ratio);
    }
  };
  count(program.body);
  count(program.head);
  const bool by_ratio = mode == ExecutionMode::kResidue || mode == ExecutionMode::kPaper;
  if (by_ratio && lowest == highest) out += fmt::format(", prefill ratio {}", lowest);
  if (by_ratio && lowest < highest)
    out += fmt::format(", prefill ratio {} to {} (by layer)", lowest, highest);
  if (mode == ExecutionMode::kPaper)
    out += fmt::format(" in steps of more than {} rows, 1 in others", kPaperRows);
  if (quantized < layers) {
    out += fmt::format("; {} of {} linear operations keep 16-bit activations", layers - quantized,
                       layers);
  }
  if (by_ratio && lowest == 0 && mode == ExecutionMode::kResidue) {
    out += fmt::format(
        "\nnote: {} run without residue, as in mode plain (4-bit activations); --prefill-ratio 1 "
        "compensates them in full, 0.125 to 0.5 in part after `sub8 calibrate`",
        highest > 0 ? "prompt rows of some layers" : "prompt rows");
  }
  return out;
}

}  // namespace sub8::model
