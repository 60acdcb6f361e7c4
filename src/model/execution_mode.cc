#include "model/execution_mode.h"

#include <array>

#include <fmt/format.h>

namespace sub8::model {
namespace {

constexpr std::array<std::string_view, 7> kNames = {"auto", "weight-only", "plain", "residue",
                                                    "fp8",  "fp8-residue", "paper"};

format::ActivationFormat fp8_activations(const format::WeightFormat& weight) {
  return weight.block_scale == format::BlockScale::kE8M0 ? format::ActivationFormat::kMxfp8
                                                         : format::ActivationFormat::kFp8;
}

}  // namespace

std::optional<format::ActivationFormat> fp4_activations(const format::WeightFormat& weight) {
  if (weight == format::mx_format(format::kE2M1)) return format::ActivationFormat::kMxfp4;
  format::WeightFormat nvfp4 = format::nvfp4_format();
  nvfp4.outer_scale = weight.outer_scale;  // per channel where several were joined
  if (weight == nvfp4 && weight.outer_scale != format::OuterScale::kNone)
    return format::ActivationFormat::kNvfp4;
  return std::nullopt;
}

std::string_view execution_mode_name(ExecutionMode mode) {
  return kNames[static_cast<size_t>(mode)];
}

std::span<const ExecutionMode> invariant_modes() {
  static constexpr std::array kModes = {ExecutionMode::kWeightOnly, ExecutionMode::kPlain,
                                        ExecutionMode::kResidue, ExecutionMode::kFp8,
                                        ExecutionMode::kFp8Residue};
  return kModes;
}

Result<ExecutionMode> parse_execution_mode(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<ExecutionMode>(i);
  }
  return invalid_argument(
      fmt::format("the execution mode must be one of {}, got '{}'", fmt::join(kNames, ", "), name));
}

Status check_mode_options(const ModeOptions& options) {
  if (!options.prefill_ratio) return {};
  if (options.mode != ExecutionMode::kResidue && options.mode != ExecutionMode::kPaper) {
    return invalid_argument(
        fmt::format("a prefill ratio belongs to the modes residue and paper, not to '{}'",
                    execution_mode_name(options.mode)));
  }
  const float ratio = *options.prefill_ratio;
  for (const float known : {0.0f, 0.125f, 0.25f, 0.5f, 1.0f}) {
    if (ratio == known) return {};
  }
  return invalid_argument(
      fmt::format("the prefill ratio must be 0, 0.125, 0.25, 0.5 or 1, got {}", ratio));
}

kernels::AttentionKind attention_kind(const ModeOptions& options, kernels::KvType pages,
                                      RowClass row_class) {
  if (row_class == RowClass::kPrompt) return kernels::AttentionKind::k16Bit;
  if (options.attention) return *options.attention;
  const bool residue =
      options.mode == ExecutionMode::kResidue || options.mode == ExecutionMode::kPaper;
  return residue && pages == kernels::KvType::kNvfp4 ? kernels::AttentionKind::kResAttn
                                                     : kernels::AttentionKind::k16Bit;
}

float layer_prefill_ratio(const ModeOptions& options, const format::WeightFormat& weight,
                          bool has_quarter, std::optional<float> planned) {
  if (options.mode != ExecutionMode::kResidue && options.mode != ExecutionMode::kPaper) return 0;
  const auto format = fp4_activations(weight);
  if (!format) return 0;
  if (options.prefill_ratio) return *options.prefill_ratio;
  if (planned) return *planned;
  return *format == format::ActivationFormat::kMxfp4 && has_quarter ? 0.25f : 0.0f;
}

RowExecution row_execution(ExecutionMode mode, const format::WeightFormat& weight,
                           float prefill_ratio, RowClass row_class, int64_t step_rows) {
  if (weight.dense) return {};
  if (mode == ExecutionMode::kFp8 || mode == ExecutionMode::kFp8Residue) {
    return {.weight_only = false,
            .format = fp8_activations(weight),
            .ratio = mode == ExecutionMode::kFp8Residue ? 1.0f : 0.0f};
  }
  if (mode == ExecutionMode::kAuto || mode == ExecutionMode::kWeightOnly) return {};
  const auto format = fp4_activations(weight);
  if (!format) return {};
  RowExecution out{.weight_only = false, .format = *format};
  if (mode == ExecutionMode::kResidue)
    out.ratio = row_class == RowClass::kGenerated ? 1.0f : prefill_ratio;
  if (mode == ExecutionMode::kPaper) out.ratio = step_rows <= kPaperRows ? 1.0f : prefill_ratio;
  return out;
}

}  // namespace sub8::model
