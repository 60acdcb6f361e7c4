// A recipe: which weight gets which format, and how scales are chosen. Architecture-free; plan.h
// applies it to a model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/weight_format.h"
#include "quantize/name_pattern.h"
#include "quantize/row_quantizer.h"

namespace sub8::quantize {

// How the result is laid out on disk. None changes a code or a scale, with one exception:
// compressed-tensors stores the reciprocal of nvfp4's tensor scale, so the scale itself becomes
// that reciprocal's reciprocal before codes are chosen.
enum class Layout : uint8_t {
  kAuto,               // modelopt for plain nvfp4, compressed-tensors for plain mxfp4, else sub8
  kSub8,               // any recipe
  kModelOpt,           // W4A16_NVFP4
  kCompressedTensors,  // nvfp4-pack-quantized, mxfp4-pack-quantized
};
std::string_view layout_name(Layout layout);  // "auto", "sub8", "modelopt", "compressed-tensors"
Result<Layout> parse_layout(std::string_view name);

// Weights that match `pattern` are stored as `format` in place of the recipe's default.
struct FormatOverride {
  NamePattern pattern;
  format::WeightFormat format;
};
// "PATTERN=FORMAT", split at the last '='.
Result<FormatOverride> parse_override(std::string_view text);

struct Recipe {
  // Every Linear weight inside the layers. Embeddings, norms and biases stay as they are.
  format::WeightFormat weights;
  // The output head; nothing: it stays as it is. A tied table is stored once in this format and
  // serves lookup and head.
  std::optional<format::WeightFormat> lm_head;
  // Modules that stay as they are. A pattern that matches nothing is an error. Skips win over
  // overrides; of several matching overrides the first one counts. Neither reaches the head.
  std::vector<NamePattern> skip;
  std::vector<FormatOverride> overrides;
  // A plan's (layer_plan.h): the format of every Linear weight inside the layers by its name;
  // nothing: it stays as it is. Then `weights` has no meaning, skips and overrides are refused.
  std::optional<std::map<std::string, std::optional<format::WeightFormat>, std::less<>>> modules;

  RowRules rules;  // scale method, MX exponent rule, four-over-six
  Layout layout = Layout::kAuto;
  // Static activation scales (NVFP4's for nvfp4 weights, else FP8's; MX formats have none): from
  // `input_amax`, the calibrated largest |x| by module, else those of the source. sub8's layout
  // always gets what the source has; with `export_input_scales` every layout does, and a module
  // without a scale is an error.
  bool export_input_scales = false;
  std::map<std::string, float, std::less<>> input_amax;
  // What weights that are not quantised become when they come decoded from a GGUF block type: bf16,
  // or f32 (exact).
  format::DType decoded_dtype = format::DType::kBF16;
};

// Whether the recipe makes sense by itself: formats that sub8 writes, four-over-six only with
// nvfp4.
Status check_recipe(const Recipe& recipe);

}  // namespace sub8::quantize
