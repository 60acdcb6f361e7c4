#include "quantize/recipe.h"

namespace sub8::quantize {
namespace {

Status check_format(const format::WeightFormat& format, const std::string& what) {
  const Status status = format::check_quantizable(format);
  if (!status.ok()) return status.error().within(what);
  return {};
}

}  // namespace

std::string_view layout_name(Layout layout) {
  switch (layout) {
    case Layout::kAuto:
      return "auto";
    case Layout::kSub8:
      return "sub8";
    case Layout::kModelOpt:
      return "modelopt";
    case Layout::kCompressedTensors:
      return "compressed-tensors";
  }
  return "?";
}

Result<Layout> parse_layout(std::string_view name) {
  for (const Layout layout :
       {Layout::kAuto, Layout::kSub8, Layout::kModelOpt, Layout::kCompressedTensors}) {
    if (name == layout_name(layout)) return layout;
  }
  return invalid_argument("unknown layout '" + std::string(name) +
                          "'; known: auto, sub8, modelopt, compressed-tensors");
}

Result<FormatOverride> parse_override(std::string_view text) {
  const size_t at = text.rfind('=');
  if (at == std::string_view::npos) {
    return invalid_argument("override '" + std::string(text) +
                            "': expected PATTERN=FORMAT, such as mlp.down_proj=e3m3");
  }
  SUB8_ASSIGN_OR_RETURN(NamePattern pattern, NamePattern::parse(text.substr(0, at)));
  SUB8_ASSIGN_OR_RETURN(format::WeightFormat format,
                        format::parse_weight_format(text.substr(at + 1)));
  return FormatOverride{std::move(pattern), format};
}

Status check_recipe(const Recipe& recipe) {
  bool any_nvfp4 = false;
  if (recipe.modules) {
    if (!recipe.skip.empty() || !recipe.overrides.empty())
      return invalid_argument(
          "a plan names every layer's format: it goes with no skip or override");
    for (const auto& [name, format] : *recipe.modules) {
      if (!format) continue;
      SUB8_RETURN_IF_ERROR(check_format(*format, name));
      any_nvfp4 = any_nvfp4 || *format == format::nvfp4_format();
    }
  } else {
    SUB8_RETURN_IF_ERROR(check_format(recipe.weights, "weights"));
    any_nvfp4 = recipe.weights == format::nvfp4_format();
  }
  if (recipe.lm_head) {
    SUB8_RETURN_IF_ERROR(check_format(*recipe.lm_head, "output head"));
    any_nvfp4 = any_nvfp4 || *recipe.lm_head == format::nvfp4_format();
  }
  for (const FormatOverride& o : recipe.overrides) {
    SUB8_RETURN_IF_ERROR(check_format(o.format, "override '" + o.pattern.text() + "'"));
    any_nvfp4 = any_nvfp4 || o.format == format::nvfp4_format();
  }
  if (recipe.rules.block.four_over_six && !any_nvfp4) {
    return invalid_argument("four-over-six applies to nvfp4, and nothing in this recipe is nvfp4");
  }
  if (recipe.decoded_dtype != format::DType::kBF16 && recipe.decoded_dtype != format::DType::kF32) {
    return invalid_argument("decoded weights are kept as bf16 or f32");
  }
  return {};
}

}  // namespace sub8::quantize
