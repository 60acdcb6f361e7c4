#include "model/mode_summary.h"

#include <algorithm>

#include <fmt/format.h>

namespace sub8::model {

namespace {

std::string alpha_text(const ModeFacts& facts) {
  const auto [rows, statics, tensors] = facts.alphas;
  const std::string_view alpha = facts.alpha();
  if (alpha == "mixed")
    return fmt::format(", static alphas in {} of {} layers", statics, rows + statics + tensors);
  if (alpha == "static") return ", static alphas";
  if (alpha == "tensor") return ", alpha per tensor (not batch-invariant)";
  return alpha.empty() ? "" : ", alpha per row";
}

}  // namespace

std::string_view ModeFacts::alpha() const {
  std::string_view out;
  for (size_t i = 0; i < alphas.size(); ++i) {
    if (alphas[i] == 0) continue;
    if (!out.empty()) return "mixed";
    out = format::kAlphaSourceNames[i];
  }
  return out;
}

std::optional<InputAlpha> input_alpha(const LinearOp& op, const RowExecution& rows) {
  if (rows.weight_only || !format::has_alpha(rows.format)) return std::nullopt;
  return rows.format == format::ActivationFormat::kFp8 ? op.fp8_alpha : op.nvfp4_alpha;
}

ModeFacts mode_facts(const Program& program, ExecutionMode mode) {
  ModeFacts out;
  for (const std::vector<Op>* ops : {&program.body, &program.head}) {
    for (const Op& op : *ops) {
      const auto* linear = std::get_if<LinearOp>(&op);
      if (linear == nullptr) continue;
      ++out.layers;
      const RowExecution rows = row_execution(mode, linear->weight->format, linear->prompt.ratio,
                                              RowClass::kPrompt, kPaperRows + 1);
      if (rows.weight_only) continue;
      ++out.quantized;
      out.lowest_ratio = std::min(out.lowest_ratio, rows.ratio);
      out.highest_ratio = std::max(out.highest_ratio, rows.ratio);
      if (const auto alpha = input_alpha(*linear, rows))
        ++out.alphas[static_cast<size_t>(alpha->source)];
    }
  }
  return out;
}

std::string describe_mode(const Program& program, ExecutionMode mode) {
  std::string out = fmt::format("mode {}", execution_mode_name(mode));
  if (mode == ExecutionMode::kWeightOnly) return out;
  const ModeFacts facts = mode_facts(program, mode);
  const float lowest = facts.lowest_ratio;
  const float highest = facts.highest_ratio;
  const bool by_ratio = mode == ExecutionMode::kResidue || mode == ExecutionMode::kPaper;
  if (by_ratio && lowest == highest) out += fmt::format(", prefill ratio {}", lowest);
  if (by_ratio && lowest < highest)
    out += fmt::format(", prefill ratio {} to {} (by layer)", lowest, highest);
  if (mode == ExecutionMode::kPaper)
    out += fmt::format(" in steps of more than {} rows, 1 in others", kPaperRows);
  out += alpha_text(facts);
  if (facts.quantized < facts.layers) {
    out += fmt::format("; {} of {} linear operations keep 16-bit activations",
                       facts.layers - facts.quantized, facts.layers);
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
