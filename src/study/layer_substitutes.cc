#include "study/layer_substitutes.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "quantize/extension.h"
#include "quantize/load_source.h"
#include "quantize/plan.h"

namespace sub8::study {

using checkpoint::WeightSource;

Result<std::vector<LayerGroup>> layer_groups(const WeightSource& source) {
  std::vector<LayerGroup> out;
  std::map<std::string, size_t> places;
  for (const checkpoint::WeightInfo& info : source.weights()) {
    if (info.kind != checkpoint::WeightKind::kLinear || info.name == "lm_head") continue;
    if (!info.format.dense) {
      return unsupported(fmt::format(
          "{} is stored as {}: a plan is made from floating-point weights. Give the checkpoint "
          "that the model was quantised from",
          info.name, info.stored_type));
    }
    const auto [at, added] = places.try_emplace(quantize::fused_group(info.name), out.size());
    if (added) out.emplace_back();
    LayerGroup& group = out[at->second];
    if (!added && group.cols != info.cols)
      return internal_error(fmt::format("{} has other inputs than {}", info.name, group.name()));
    group.modules.push_back(info.name);
    group.rows.push_back(info.rows);
    group.cols = info.cols;
    group.weights += info.rows * info.cols;
    group.original_bytes +=
        quantize::kept_format(info, format::DType::kBF16).storage_bytes(info.rows, info.cols);
  }
  if (out.empty()) return invalid_argument("the model has no linear layer to plan");
  return out;
}

Result<size_t> find_operation(const model::Program& program, const LayerGroup& group) {
  for (size_t i = 0; i < program.body.size(); ++i) {
    const auto* linear = std::get_if<model::LinearOp>(&program.body[i]);
    if (linear == nullptr || linear->modules.size() != group.modules.size()) continue;
    if (std::is_permutation(linear->modules.begin(), linear->modules.end(), group.modules.begin()))
      return i;
  }
  return internal_error(fmt::format("no operation computes {} alone", group.name()));
}

Result<const WeightSource*> LayerSubstitutes::quantized(const format::WeightFormat& format) {
  std::unique_ptr<WeightSource>& source = quantized_[format.name()];
  if (!source) {
    SUB8_ASSIGN_OR_RETURN(auto opened, options_.open());
    quantize::Recipe recipe;
    recipe.weights = format;
    recipe.rules = options_.rules;
    recipe.layout = quantize::Layout::kSub8;
    SUB8_ASSIGN_OR_RETURN(
        source, quantize::quantize_at_load(std::move(opened), recipe, model_.pool().size()));
  }
  return source.get();
}

Result<std::vector<uint8_t>> LayerSubstitutes::masks(const std::string& module, float ratio) {
  if (calibrated_.empty()) {
    SUB8_ASSIGN_OR_RETURN(const Calibration calibration, calibrate(model_, samples_, {}));
    for (const auto& [name, statistics] : calibration.modules) {
      checkpoint::ResidueModule& entry = calibrated_[name];
      entry.mean_abs = statistics.mean_abs;
      checkpoint::select_channels(entry);
    }
  }
  const auto found = calibrated_.find(module);
  SUB8_CHECK(found != calibrated_.end());
  return found->second.masks[*checkpoint::select_ratio_index(ratio)];
}

Result<model::LinearSubstitute> LayerSubstitutes::make(size_t op,
                                                       const quantize::LayerOption& option) {
  SUB8_CHECK(option.format.has_value());
  const auto& linear = std::get<model::LinearOp>(model_.program().body[op]);
  SUB8_ASSIGN_OR_RETURN(const WeightSource* source, quantized(*option.format));
  const float ratio = option.prefill_ratio;
  const bool selective = ratio > 0 && ratio < 1;
  std::vector<uint8_t> selected;
  if (selective) {
    SUB8_ASSIGN_OR_RETURN(selected, masks(linear.modules[0], ratio));
  }
  std::vector<StoredMatrix> parts, columns;
  for (const std::string& module : linear.modules) {
    SUB8_ASSIGN_OR_RETURN(StoredMatrix part, source->matrix(module, format::DType::kBF16));
    if (selective) {
      SUB8_ASSIGN_OR_RETURN(StoredMatrix extension,
                            quantize::extension_columns(part, source_, module, selected,
                                                        options_.rules.block, model_.pool()));
      columns.push_back(std::move(extension));
    }
    parts.push_back(std::move(part));
  }
  const auto pointers = [](const std::vector<StoredMatrix>& matrices) {
    std::vector<const StoredMatrix*> out;
    out.reserve(matrices.size());
    for (const StoredMatrix& m : matrices) out.push_back(&m);
    return out;
  };
  return model_.pack_substitute(op, pointers(parts), ratio, std::move(selected), pointers(columns));
}

}  // namespace sub8::study
