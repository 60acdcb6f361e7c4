#include "quantize/plan.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/check.h"

namespace sub8::quantize {
namespace {

using checkpoint::WeightInfo;
using checkpoint::WeightKind;
using checkpoint::WeightSource;
using format::WeightFormat;

bool is_token_table(const WeightInfo& info) {
  return info.kind == WeightKind::kEmbedding && info.name.ends_with("embed_tokens");
}

// Matches of one pattern over a model's layers, so that a pattern without any is noticed.
class Matcher {
 public:
  explicit Matcher(const NamePattern& pattern) : pattern_(&pattern) {}
  Result<bool> operator()(std::string_view name) {
    SUB8_ASSIGN_OR_RETURN(const bool hit, pattern_->matches(name));
    used_ = used_ || hit;
    return hit;
  }
  Status require_used(std::string_view what, std::string_view example) const {
    if (used_) return {};
    if (Result<bool> head = pattern_->matches("lm_head"); head.ok() && *head) {
      return invalid_argument(std::string(what) + " '" + pattern_->text() +
                              "' matches the output head, which stays as it is unless --lm-head "
                              "FORMAT says otherwise; patterns are for the layers");
    }
    return invalid_argument(std::string(what) + " '" + pattern_->text() +
                            "' matches no Linear weight of the model; names look like '" +
                            std::string(example) + "'");
  }

 private:
  const NamePattern* pattern_;
  bool used_ = false;
};

// The format that each module gets, or nothing where it stays.
class FormatChooser {
 public:
  explicit FormatChooser(const Recipe& recipe) : recipe_(recipe) {
    for (const NamePattern& p : recipe.skip) skips_.emplace_back(p);
    for (const FormatOverride& o : recipe.overrides) overrides_.emplace_back(o.pattern);
  }

  Result<std::optional<WeightFormat>> choose(const WeightInfo& info, bool tied_head) {
    const bool head = info.name == "lm_head" || (tied_head && is_token_table(info));
    if (head) return recipe_.lm_head;
    if (info.kind != WeightKind::kLinear) return std::optional<WeightFormat>();
    if (recipe_.modules) {
      const auto planned = recipe_.modules->find(info.name);
      if (planned == recipe_.modules->end())
        return invalid_argument("the plan says nothing about " + info.name);
      return planned->second;
    }
    if (example_.empty()) example_ = info.name;
    bool skipped = false;
    for (Matcher& skip : skips_) {
      SUB8_ASSIGN_OR_RETURN(const bool hit, skip(info.name));
      skipped = skipped || hit;
    }
    std::optional<WeightFormat> format;
    for (size_t i = 0; i < overrides_.size(); ++i) {
      SUB8_ASSIGN_OR_RETURN(const bool hit, overrides_[i](info.name));
      if (hit && !format) format = recipe_.overrides[i].format;
    }
    if (skipped) return std::optional<WeightFormat>();
    return format ? format : recipe_.weights;
  }

  Status require_all_used() const {
    for (const Matcher& m : skips_) SUB8_RETURN_IF_ERROR(m.require_used("skip pattern", example_));
    for (const Matcher& m : overrides_) {
      SUB8_RETURN_IF_ERROR(m.require_used("override pattern", example_));
    }
    return {};
  }

 private:
  const Recipe& recipe_;
  std::vector<Matcher> skips_;
  std::vector<Matcher> overrides_;
  std::string example_;
};

// The activations that static scales of a weight are for; nothing for MX formats.
std::optional<format::ActivationFormat> scaled_activations(const WeightFormat& format) {
  if (format.dense || format.block_scale == format::BlockScale::kE8M0) return std::nullopt;
  return format == format::nvfp4_format() ? format::ActivationFormat::kNvfp4
                                          : format::ActivationFormat::kFp8;
}

// Which static activation scales are written, once the layout is known.
Status choose_input_scales(const WeightSource& source, const Recipe& recipe, Plan& plan) {
  bool source_has = false;
  bool kept = false;
  const PlannedWeight* without = nullptr;
  for (PlannedWeight& w : plan.weights) {
    if (w.kind == WeightKind::kVector || w.format.dense) continue;
    const WeightInfo& info = source.weights()[w.index];
    source_has = source_has || info.input_scale;
    const auto activations = scaled_activations(w.format);
    if (!activations) continue;
    w.input_scale = info.static_alpha(*activations);
    const auto calibrated = recipe.input_amax.find(w.name);
    if (calibrated != recipe.input_amax.end())
      w.input_scale = format::activation_alpha(*activations, calibrated->second);
    if (w.input_scale && !(*w.input_scale > 0)) {
      return invalid_argument(w.name +
                              " has no static activation scale: its inputs were zero over "
                              "the whole calibration");
    }
    if (!w.input_scale && without == nullptr) without = &w;
    kept = kept || w.input_scale;
  }
  plan.input_scales = kept && without == nullptr;
  if (recipe.export_input_scales && !plan.input_scales) {
    return invalid_argument(
        without != nullptr
            ? "no static activation scale for " + without->name +
                  ": the source has none; `sub8 calibrate` measures them"
            : std::string("no weight of this recipe has static activation scales: MX formats "
                          "have none"));
  }
  const bool wanted = recipe.export_input_scales || plan.layout == Layout::kSub8;
  if (wanted) return {};
  plan.input_scales = false;
  for (PlannedWeight& w : plan.weights) w.input_scale.reset();
  if (source_has && kept) {
    plan.warnings.push_back(
        "the source's static activation scales are left out, which makes the "
        "result weight-only; --export-input-scales keeps them");
  }
  return {};
}

// What is kept as stored needs a name that the file's map can hold.
Status check_kept_format(const PlannedWeight& w) {
  if (w.quantize || w.format.dense) return {};
  const auto parsed = format::parse_weight_format(w.format.name());
  if (parsed.ok() && *parsed == w.format) return {};
  return unsupported(w.name + " would be kept as it is stored (" + w.format.name() +
                     "), which sub8's layout cannot describe; give it a format of its own");
}

bool all_quantized_are(const Plan& plan, const WeightFormat& format) {
  bool any = false;
  for (const PlannedWeight& w : plan.weights) {
    if (w.kind == WeightKind::kVector || w.format.dense) continue;
    if (!(w.format == format)) return false;
    any = true;
  }
  return any;
}

// The first reason why `layout` cannot hold the plan.
Status check_foreign_layout(const Plan& plan, Layout layout) {
  const std::string name(layout_name(layout));
  for (const PlannedWeight& w : plan.weights) {
    if (w.kind == WeightKind::kVector || w.format.dense) continue;
    const bool nvfp4 = w.format == format::nvfp4_format();
    const bool mxfp4 = w.format == format::mx_format(format::kE2M1);
    if (!nvfp4 && !(mxfp4 && layout == Layout::kCompressedTensors)) {
      return unsupported("layout '" + name + "' cannot hold " + w.name + " as " + w.format.name() +
                         "; sub8 writes " +
                         (layout == Layout::kModelOpt ? "nvfp4" : "nvfp4 or mxfp4") +
                         " in it. Use --layout sub8");
    }
    if (w.kind == WeightKind::kEmbedding) {
      return unsupported("layout '" + name + "' cannot hold a quantised table (" + w.name +
                         ", tied to the output head). Use --layout sub8, or leave the head as it "
                         "is");
    }
    if (w.cols % w.format.group != 0) {
      return unsupported("layout '" + name + "': " + w.name + " has K = " + std::to_string(w.cols) +
                         ", which is no multiple of the block size " +
                         std::to_string(w.format.group) +
                         "; other engines cannot read a short last block. Use --layout sub8, or "
                         "skip this weight");
    }
  }
  const bool mixed = !all_quantized_are(plan, format::nvfp4_format()) &&
                     !all_quantized_are(plan, format::mx_format(format::kE2M1));
  if (mixed) {
    return unsupported("layout '" + name +
                       "': a mix of nvfp4 and mxfp4 is written as --layout sub8 only");
  }
  if (layout == Layout::kCompressedTensors && plan.kv_cache_scheme == "nvfp4") {
    return unsupported("layout '" + name +
                       "': no export of it has an NVFP4 KV cache, which this source asks for. Use "
                       "--layout sub8");
  }
  return {};
}

Status resolve_layout(Layout asked, Plan& plan) {
  if (asked == Layout::kSub8) {
    plan.layout = Layout::kSub8;
    return {};
  }
  if (asked != Layout::kAuto) {
    SUB8_RETURN_IF_ERROR(check_foreign_layout(plan, asked));
    plan.layout = asked;
    return {};
  }
  plan.layout = Layout::kSub8;
  Layout foreign = Layout::kSub8;
  if (all_quantized_are(plan, format::nvfp4_format())) foreign = Layout::kModelOpt;
  if (all_quantized_are(plan, format::mx_format(format::kE2M1))) {
    foreign = Layout::kCompressedTensors;
  }
  if (foreign == Layout::kSub8) return {};
  const Status fits = check_foreign_layout(plan, foreign);
  if (fits.ok()) {
    plan.layout = foreign;
  } else {  // said, not silent: the recipe is plain, but these files are for sub8 only
    plan.warnings.push_back("written in sub8's own layout, which other engines do not read: " +
                            fits.error().message);
  }
  return {};
}

void add(SizeTable& table, const std::string& format, WeightKind kind, bool quantized,
         int64_t weights, int64_t bytes) {
  table.total_bytes += bytes;
  FormatSize* entry = &table.vectors;
  if (kind != WeightKind::kVector) {
    const auto at = std::find_if(table.matrices.begin(), table.matrices.end(),
                                 [&](const FormatSize& f) { return f.format == format; });
    entry = at != table.matrices.end() ? &*at
                                       : &table.matrices.emplace_back(FormatSize{format, 0, 0, 0});
  }
  ++entry->modules;
  entry->weights += weights;
  entry->bytes += bytes;
  if (quantized) {
    table.quantized_weights += weights;
    table.quantized_bytes += bytes;
  }
}

}  // namespace

std::string fused_group(std::string_view module) {
  struct Part {
    std::string_view part, group;
  };
  constexpr Part kParts[] = {{".q_proj", ".qkv_proj"},
                             {".k_proj", ".qkv_proj"},
                             {".v_proj", ".qkv_proj"},
                             {".gate_proj", ".gate_up_proj"},
                             {".up_proj", ".gate_up_proj"}};
  for (const Part& p : kParts) {
    if (module.ends_with(p.part)) {
      return std::string(module.substr(0, module.size() - p.part.size())) + std::string(p.group);
    }
  }
  return std::string(module);
}

WeightFormat kept_format(const WeightInfo& info, format::DType decoded) {
  if (!info.format.dense) return info.format;
  const bool stored_dense =
      info.stored_type == "BF16" || info.stored_type == "F16" || info.stored_type == "F32";
  return stored_dense ? info.format : format::dense_format(decoded);
}

Result<Plan> plan_quantization(const WeightSource& source, const Recipe& recipe) {
  SUB8_RETURN_IF_ERROR(check_recipe(recipe));
  Plan plan;
  plan.tied_head = source.tied_head();
  FormatChooser chooser(recipe);
  std::map<std::string, int> groups;
  bool head_seen = false;
  for (size_t i = 0; i < source.weights().size(); ++i) {
    const WeightInfo& info = source.weights()[i];
    PlannedWeight w;
    w.index = i;
    w.name = info.name;
    w.kind = info.kind;
    w.rows = info.rows;
    w.cols = info.kind == WeightKind::kVector ? 1 : info.cols;
    w.source_bytes = info.stored_bytes;
    if (info.kind == WeightKind::kVector) {
      // As stored; every other stored type is exact in f32.
      w.format = format::dense_format(info.stored_type == "BF16"  ? format::DType::kBF16
                                      : info.stored_type == "F16" ? format::DType::kF16
                                                                  : format::DType::kF32);
    } else {
      SUB8_ASSIGN_OR_RETURN(const std::optional<WeightFormat> chosen,
                            chooser.choose(info, plan.tied_head));
      w.quantize = chosen.has_value();
      w.format = chosen ? *chosen : kept_format(info, recipe.decoded_dtype);
      SUB8_RETURN_IF_ERROR(check_kept_format(w));
      head_seen = head_seen || info.name == "lm_head" || (plan.tied_head && is_token_table(info));
    }
    if (w.quantize && w.format == format::nvfp4_format()) {
      const auto [at, added] = groups.try_emplace(fused_group(w.name), plan.scale_groups);
      if (added) ++plan.scale_groups;
      w.scale_group = at->second;
    }
    if (w.quantize && info.quantized() && plan.warnings.empty()) {
      plan.warnings.push_back(
          "the source is already quantised (" + source.quantization() +
          "): errors add up, quantise the original weights where you have them");
    }
    plan.weights.push_back(std::move(w));
  }
  SUB8_RETURN_IF_ERROR(chooser.require_all_used());
  if (recipe.lm_head && !head_seen) {
    return invalid_argument("the model has no output head to quantise");
  }
  plan.kv_cache_scheme = source.kv_cache_scheme();
  for (int64_t layer = 0; layer < source.config().layers; ++layer) {
    for (const bool value_side : {false, true}) {
      SUB8_ASSIGN_OR_RETURN(const auto scale, source.kv_scale(layer, value_side));
      if (scale) plan.kv_scales.push_back({layer, value_side, *scale});
    }
  }
  SUB8_RETURN_IF_ERROR(resolve_layout(recipe.layout, plan));
  SUB8_RETURN_IF_ERROR(choose_input_scales(source, recipe, plan));
  return plan;
}

SizeTable size_table(const WeightSource& source) {
  SizeTable table;
  for (const WeightInfo& info : source.weights()) {
    const bool vector = info.kind == WeightKind::kVector;
    const int64_t weights = info.rows * (vector ? 1 : info.cols);
    // A GGUF block type counts as quantised although it is decoded at load.
    const bool quantized = !vector && info.stored_bytes * 8 < weights * 16 &&
                           info.stored_type != "BF16" && info.stored_type != "F16";
    add(table, info.stored_type, info.kind, quantized, weights, info.stored_bytes);
  }
  return table;
}

SizeTable size_table(const Plan& plan) {
  SizeTable table;
  for (const PlannedWeight& w : plan.weights) {
    add(table, w.format.name(), w.kind, w.kind != WeightKind::kVector && !w.format.dense,
        w.rows * w.cols, w.bytes());
  }
  return table;
}

}  // namespace sub8::quantize
