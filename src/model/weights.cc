#include "model/weights.h"

#include <algorithm>

#include <fmt/format.h>

namespace sub8::model {

void Weights::report(std::string_view module) {
  if (const checkpoint::WeightInfo* info = source_.find(module)) done_bytes_ += info->stored_bytes;
  if (!progress_) return;
  int64_t total = 0;
  for (const checkpoint::WeightInfo& info : source_.weights()) total += info.stored_bytes;
  progress_({module, std::min(done_bytes_, total), total});
}

namespace {

// Whether a layer's activations are of this format in some mode that rows may have.
bool is_used(const ExecutionOptions& execution, const format::WeightFormat& weight,
             format::ActivationFormat activations) {
  const auto used = [&](ExecutionMode mode) {
    const RowExecution rows = row_execution(mode, weight, 0, RowClass::kGenerated, 1);
    return !rows.weight_only && rows.format == activations;
  };
  const auto modes = invariant_modes();
  return used(execution.mode.mode) ||
         (execution.mixed_modes && std::any_of(modes.begin(), modes.end(), used));
}

}  // namespace

Result<InputAlpha> Weights::alpha(const std::string& module, const format::WeightFormat& weight,
                                  format::ActivationFormat activations) const {
  if (!is_used(execution_, weight, activations)) return InputAlpha{};
  const checkpoint::Residue* residue = execution_.residue.get();
  const checkpoint::WeightInfo* info = source_.find(module);
  std::optional<format::AlphaSource> source = execution_.mode.alpha;
  if (!source && residue != nullptr) source = residue->alpha;
  if (!source) {
    const bool exported = info->input_scale && info->input_format == activations &&
                          activations == format::ActivationFormat::kNvfp4;
    return exported ? InputAlpha{format::AlphaSource::kStatic, *info->input_scale} : InputAlpha{};
  }
  if (*source != format::AlphaSource::kStatic) return InputAlpha{*source};
  std::optional<float> value = info->static_alpha(activations);
  const checkpoint::ResidueModule* calibrated =
      residue == nullptr ? nullptr : residue->find(module);
  if (calibrated != nullptr) value = format::activation_alpha(activations, calibrated->amax);
  if (!value) {
    return unsupported(
        fmt::format("static alphas need a calibration or an export with input scales, and {} has "
                    "neither; `sub8 "
                    "calibrate` measures them, --alpha row needs none",
                    module));
  }
  if (!(*value > 0)) {
    return corrupt_data(fmt::format(
        "the static alpha of {} is {}: its inputs were zero over the whole calibration; "
        "calibrate on more text, or use --alpha row",
        module, *value));
  }
  return InputAlpha{format::AlphaSource::kStatic, *value};
}

bool Weights::has_columns(const std::string& module, size_t index) const {
  const checkpoint::ResidueModule* found =
      execution_.residue == nullptr ? nullptr : execution_.residue->find(module);
  return found != nullptr && (execution_.extend || found->extensions[index]);
}

Result<std::optional<StoredMatrix>> Weights::columns(const std::string& module,
                                                     const StoredMatrix& base, size_t index) const {
  if (!has_columns(module, index)) return std::optional<StoredMatrix>();
  const checkpoint::ResidueModule& found = *execution_.residue->find(module);
  if (execution_.extend) {
    SUB8_ASSIGN_OR_RETURN(StoredMatrix made, execution_.extend(base, module, found.masks[index]));
    return std::optional(std::move(made));
  }
  if (found.extensions[index]->outer_scales != base.outer_scales) {
    return corrupt_data(
        fmt::format("sub8/residue.safetensors: the extension of {} was quantised by another "
                    "tensor scale than its weight; run `sub8 calibrate --overwrite` again",
                    module));
  }
  return found.extensions[index];
}

// Ratio, masks and columns of modules that are packed as one matrix.
Result<Compensation> Weights::compensation(const std::vector<std::string>& modules,
                                           const std::vector<const StoredMatrix*>& parts) {
  const checkpoint::Residue* residue = execution_.residue.get();
  const size_t quarter = *checkpoint::select_ratio_index(0.25f);
  const bool has_quarter = std::all_of(
      modules.begin(), modules.end(), [&](const auto& name) { return has_columns(name, quarter); });
  const auto planned = [&](const std::string& name) {
    const checkpoint::ResidueModule* module = residue == nullptr ? nullptr : residue->find(name);
    return module == nullptr ? std::nullopt : module->prefill_ratio;
  };
  for (const std::string& name : modules) {
    if (planned(name) == planned(modules[0])) continue;
    return corrupt_data(fmt::format(
        "sub8/residue.json: {} and {} are computed together, but have different prefill ratios; "
        "run `sub8 quantize` with the plan again",
        modules[0], name));
  }
  Compensation out;
  out.ratio =
      layer_prefill_ratio(execution_.mode, parts[0]->format, has_quarter, planned(modules[0]));
  const auto index = checkpoint::select_ratio_index(out.ratio);
  if (!index) return out;  // 0 and 1 need nothing
  std::vector<StoredMatrix> made;
  for (size_t i = 0; i < modules.size(); ++i) {
    SUB8_ASSIGN_OR_RETURN(auto extension, columns(modules[i], *parts[i], *index));
    if (!extension) {
      return unsupported(fmt::format(
          "a prefill ratio of {0} needs calibrated channel masks and extension columns, which the "
          "model does not have for {1}; `sub8 calibrate MODEL --ratios {0}` makes them for a "
          "directory of nvfp4 or mxfp4 weights. The ratios 0 and 1 need none",
          out.ratio, modules[i]));
    }
    const std::vector<uint8_t>& masks = residue->find(modules[i])->masks[*index];
    if (i == 0) out.masks = masks;
    if (!std::equal(masks.begin(), masks.end(), out.masks.begin(), out.masks.end())) {
      return corrupt_data(fmt::format(
          "sub8/residue.safetensors: {} and {} read the same input, but select different channels; "
          "run `sub8 calibrate --overwrite` again",
          modules[0], modules[i]));
    }
    made.push_back(std::move(*extension));
  }
  std::vector<const StoredMatrix*> extensions;
  extensions.reserve(made.size());
  for (const StoredMatrix& m : made) extensions.push_back(&m);
  Result<PackedMatrix> packed = pack_linear(extensions, path_, pool_, &arena_);
  if (!packed.ok()) return packed.error().within("the extension of " + modules[0]);
  packed_bytes_ += packed->bytes();
  extensions_.push_back(std::move(packed).value());
  out.extension = &extensions_.back();
  return out;
}

Result<std::vector<Weights::Linear>> Weights::linear(std::string_view prefix,
                                                     const std::vector<std::string>& names,
                                                     bool with_bias) {
  std::vector<StoredMatrix> parts;
  std::vector<std::string> modules;
  std::vector<std::pair<InputAlpha, InputAlpha>> alphas;  // NVFP4, FP8
  std::string joined;
  for (const std::string& name : names) {
    modules.push_back(std::string(prefix) + name);
    SUB8_ASSIGN_OR_RETURN(StoredMatrix part, source_.matrix(modules.back(), decoded_));
    SUB8_ASSIGN_OR_RETURN(const InputAlpha nvfp4,
                          alpha(modules.back(), part.format, format::ActivationFormat::kNvfp4));
    SUB8_ASSIGN_OR_RETURN(const InputAlpha fp8,
                          alpha(modules.back(), part.format, format::ActivationFormat::kFp8));
    alphas.emplace_back(nvfp4, fp8);
    parts.push_back(std::move(part));
    joined += (joined.empty() ? std::string(prefix) : "+") + name;
  }
  // A tensor scale and channel scales differ in how many values they have, not in what a kernel
  // does with them.
  const auto same_kind = [](const StoredMatrix& a, const StoredMatrix& b) {
    format::WeightFormat fa = a.format;
    fa.outer_scale = b.format.outer_scale;
    return fa == b.format && (a.format.outer_scale == format::OuterScale::kNone) ==
                                 (b.format.outer_scale == format::OuterScale::kNone);
  };
  const bool fused =
      std::all_of(parts.begin(), parts.end(),
                  [&](const StoredMatrix& p) { return same_kind(p, parts[0]); }) &&
      std::all_of(alphas.begin(), alphas.end(), [&](const auto& a) { return a == alphas[0]; });

  std::vector<Linear> out;
  std::vector<const StoredMatrix*> group;
  for (size_t i = 0; i < parts.size(); ++i) {
    group.push_back(&parts[i]);
    if (fused && i + 1 < parts.size()) continue;
    Result<PackedMatrix> packed = pack_linear(group, path_, pool_, &arena_);
    if (!packed.ok()) return packed.error().within(fused ? joined : modules[i]);
    packed_bytes_ += packed->bytes();
    matrices_.push_back(std::move(packed).value());
    const std::vector<std::string> names_here =
        fused ? modules : std::vector<std::string>{modules[i]};
    SUB8_ASSIGN_OR_RETURN(const Compensation prompt, compensation(names_here, group));
    out.push_back({fused ? joined : modules[i], names_here, &matrices_.back(), nullptr,
                   alphas[i].first, alphas[i].second, prompt});
    group.clear();
  }
  for (const std::string& module : modules) {
    source_.release(module);
    report(module);
  }
  if (with_bias) {
    std::vector<float> bias;
    for (size_t i = 0; i < modules.size(); ++i) {
      SUB8_ASSIGN_OR_RETURN(const std::vector<float> part, source_.vector(modules[i] + ".bias"));
      if (static_cast<int64_t>(part.size()) != parts[i].rows) {
        return corrupt_data(fmt::format("{}.bias has {} values, expected {}", modules[i],
                                        part.size(), parts[i].rows));
      }
      bias.insert(bias.end(), part.begin(), part.end());
    }
    vectors_.push_back(std::move(bias));
    const float* next = vectors_.back().data();
    for (Linear& linear : out) {
      linear.bias = next;
      next += linear.matrix->rows;
    }
  }
  return out;
}

Result<const StoredMatrix*> Weights::table(std::string_view module) {
  SUB8_ASSIGN_OR_RETURN(StoredMatrix table, source_.matrix(module, decoded_));
  tables_.push_back(std::move(table));
  report(module);
  return &tables_.back();
}

Result<const float*> Weights::vector(std::string_view name, int64_t cols) {
  SUB8_ASSIGN_OR_RETURN(std::vector<float> values, source_.vector(name));
  if (static_cast<int64_t>(values.size()) != cols) {
    return corrupt_data(fmt::format("{} has {} values, expected {}", name, values.size(), cols));
  }
  vectors_.push_back(std::move(values));
  return vectors_.back().data();
}

}  // namespace sub8::model
