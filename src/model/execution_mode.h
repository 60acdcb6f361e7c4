// How rows are executed over the weights as stored. What is stored never depends on the mode.
//
// | mode         | linear layers with FP4 weights                       | other coded weights   |
// | weight-only  | 16-bit activations                                   | 16-bit activations    |
// | plain        | activations in the weight's own 4-bit format         | 16-bit activations    |
// | residue      | the same; generated rows with their full residue     | 16-bit activations    |
// |              | (M-Ext), prompt rows by the prefill ratio            |                       |
// | fp8          | nvfp4, eXmY: E4M3 rows; mxfp4: MXFP8 rows            | E4M3 rows (mx: MXFP8) |
// | fp8-residue  | the same, all rows with their full residue           | likewise              |
// | paper        | as residue, but M-Ext for every row of a step that   | 16-bit activations    |
// |              | has at most 128 rows: not batch-invariant            |                       |
//
// Dense weights always see 16-bit activations.
//
// Attention: prompt rows use 16-bit queries over decoded K and V. What generated rows use is an
// AttentionKind (kernels/attention/attention_kind.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "format/activation.h"
#include "format/weight_format.h"
#include "kernels/attention/attention_kind.h"
#include "kernels/kv_write/kv_pages.h"
#include "kernels/linear/op.h"

namespace sub8::model {

enum class ExecutionMode : uint8_t {
  kAuto,  // what the machine does best: weight-only where it has no FP4 matrix instructions
  kWeightOnly,
  kPlain,
  kResidue,
  kFp8,
  kFp8Residue,
  kPaper,
};

// "auto", "weight-only", "plain", "residue", "fp8", "fp8-residue", "paper".
std::string_view execution_mode_name(ExecutionMode mode);
// An error that lists the names.
Result<ExecutionMode> parse_execution_mode(std::string_view name);
// Whether a row's result is the same whatever else is in the step.
constexpr bool batch_invariant(ExecutionMode mode) { return mode != ExecutionMode::kPaper; }

// Whether the mode computes some layers with activations in 4 or 8 bits.
constexpr bool quantises_activations(ExecutionMode mode) {
  return mode != ExecutionMode::kAuto && mode != ExecutionMode::kWeightOnly;
}

// Every batch-invariant mode but kAuto, in the order of the enumeration.
std::span<const ExecutionMode> invariant_modes();

// What one linear layer does with the rows of one class.
struct RowExecution {
  bool weight_only = true;
  format::ActivationFormat format{};  // else: of the activations
  // Share of the channels whose residue is added: 1 by M-Ext, less by K-Ext, 0 none.
  float ratio = 0;

  bool operator==(const RowExecution&) const = default;
};

struct ModeOptions {
  ExecutionMode mode = ExecutionMode::kAuto;
  // Share of the channels whose residue prompt rows get under kResidue and kPaper: 0, 1, or with
  // calibrated masks 0.125, 0.25, 0.5. Nothing: a plan's ratios, else defaults
  // (layer_prefill_ratio).
  std::optional<float> prefill_ratio;
  // Where the alphas of NVFP4 and FP8 activations come from. Nothing: what the calibration says,
  // else for NVFP4 the checkpoint's static input scale where it has one, else each row's own amax.
  std::optional<format::AlphaSource> alpha;
  // Attention of generated rows. Nothing: resattn under kResidue and kPaper over nvfp4 pages, else
  // 16-bit.
  std::optional<kernels::AttentionKind> attention;
};

// What rows of a class use.
kernels::AttentionKind attention_kind(const ModeOptions& options, kernels::KvType pages,
                                      RowClass row_class);

// The 4-bit activations that go with a weight: nvfp4 and mxfp4 have them, other formats none.
std::optional<format::ActivationFormat> fp4_activations(const format::WeightFormat& weight);

// An error for a ratio that does not exist, and for one without the mode it belongs to.
Status check_mode_options(const ModeOptions& options);

// The ratio of one layer's prompt rows: 0 where the mode has none or the weight is not FP4; what
// the options say; else what a plan chose (`planned`); else 0.25 for mxfp4 with stored columns for
// it (`has_quarter`), 0 otherwise.
float layer_prefill_ratio(const ModeOptions& options, const format::WeightFormat& weight,
                          bool has_quarter, std::optional<float> planned = std::nullopt);

// `prefill_ratio` is the layer's; `step_rows` is what kPaper's rule looks at, the other modes
// ignore it.
RowExecution row_execution(ExecutionMode mode, const format::WeightFormat& weight,
                           float prefill_ratio, RowClass row_class, int64_t step_rows);

// The most rows of a step that "paper" compensates in full.
inline constexpr int64_t kPaperRows = 128;

}  // namespace sub8::model
