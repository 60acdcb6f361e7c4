// Reading and checking; residue_writer.cc writes.
#include "checkpoint/residue.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/checked_math.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_keys.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/model_file.h"
#include "checkpoint/residue_names.h"
#include "checkpoint/safetensors.h"
#include "format/activation.h"
#include "tensor/decode.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;
namespace {

using format::DType;
using format::OuterScale;

constexpr std::string_view kAgain = "; run `sub8 calibrate --overwrite` again";

// Takes the tensors of one module from the file and checks each.
class ModuleReader {
 public:
  // `name` is the module's: a tied head's weight has the table's.
  ModuleReader(const std::string& name, const WeightInfo& info,
               std::map<std::string, const Tensor*, std::less<>>& tensors, const fs::path& path)
      : name_(name), info_(info), tensors_(tensors), path_(path) {}

  Status read(const std::vector<size_t>& extended, ResidueModule& out) {
    const int64_t groups = ceil_div<int64_t>(info_.cols, format::kSelectGroup);
    SUB8_ASSIGN_OR_RETURN(out.mean_abs, floats("mean_abs", {info_.cols}));
    SUB8_ASSIGN_OR_RETURN(const std::vector<float> amax, floats("amax", {}));
    out.amax = amax[0];
    for (size_t r = 0; r < kSelectRatios.size(); ++r) {
      SUB8_ASSIGN_OR_RETURN(const Tensor* tensor, take(mask_name(r), DType::kU8, {groups}));
      out.masks[r].assign(tensor->data.begin(), tensor->data.end());
      SUB8_RETURN_IF_ERROR(check_masks(r, out.masks[r]));
    }
    SUB8_RETURN_IF_ERROR(check_against_means(out));
    for (const size_t r : extended) {
      SUB8_ASSIGN_OR_RETURN(out.extensions[r], extension(r, groups));
    }
    return {};
  }

 private:
  Error fault(std::string_view tensor, std::string_view what) const {
    return corrupt_data(fmt::format("{}: {}.{} {}", path_.string(), name_, tensor, what));
  }

  Result<const Tensor*> take(const std::string& name, DType type,
                             const std::vector<int64_t>& shape) {
    const auto found = tensors_.find(name_ + "." + name);
    if (found == tensors_.end()) return fault(name, fmt::format("is missing{}", kAgain));
    const Tensor* tensor = found->second;
    tensors_.erase(found);
    if (tensor->dtype != type || tensor->shape != shape) {
      return fault(name, fmt::format("is {} {}, expected {} {}", format::dtype_name(tensor->dtype),
                                     shape_text(tensor->shape), format::dtype_name(type),
                                     shape_text(shape)));
    }
    return tensor;
  }

  Result<std::vector<float>> floats(const std::string& name, const std::vector<int64_t>& shape) {
    SUB8_ASSIGN_OR_RETURN(const Tensor* tensor, take(name, DType::kF32, shape));
    std::vector<float> out(static_cast<size_t>(tensor->elements()));
    std::memcpy(out.data(), tensor->data.data(), tensor->data.size());
    for (size_t i = 0; i < out.size(); ++i) {
      if (!(out[i] >= 0) || !std::isfinite(out[i]))
        return fault(
            name,
            fmt::format("has the value {} at {}, expected a finite one of at least 0", out[i], i));
    }
    return out;
  }

  Status check_masks(size_t ratio, const std::vector<uint8_t>& masks) const {
    const int wanted = format::selected_per_group(kSelectRatios[ratio]);
    for (size_t g = 0; g < masks.size(); ++g) {
      if (std::popcount(masks[g]) != wanted) {
        return fault(mask_name(ratio),
                     fmt::format("selects {} channels of group {}, a ratio of {} selects {}",
                                 std::popcount(masks[g]), g, kSelectRatios[ratio], wanted));
      }
    }
    // Channels that the last group lacks come after all that it has, lowest first.
    const auto real = static_cast<int>(info_.cols % format::kSelectGroup);
    if (real == 0) return {};
    const uint32_t missing = masks.back() >> real;
    const int filled = std::max(0, wanted - real);
    if (missing != (1u << filled) - 1u) {
      return fault(mask_name(ratio),
                   fmt::format("selects channels beyond the last one, {}", info_.cols - 1));
    }
    return {};
  }

  // Masks and amax follow from the same rows as the means.
  Status check_against_means(const ResidueModule& module) const {
    const auto largest = std::max_element(module.mean_abs.begin(), module.mean_abs.end());
    if (*largest > module.amax) {
      return fault("amax", fmt::format("is {}, less than the mean {} of channel {}{}", module.amax,
                                       *largest, largest - module.mean_abs.begin(), kAgain));
    }
    ResidueModule expected;
    expected.mean_abs = module.mean_abs;
    select_channels(expected);
    for (size_t r = 0; r < kSelectRatios.size(); ++r) {
      const auto [got, want] =
          std::mismatch(module.masks[r].begin(), module.masks[r].end(), expected.masks[r].begin());
      if (got == module.masks[r].end()) continue;
      return fault(mask_name(r),
                   fmt::format("selects other channels of group {} ({:#04x}) than those with the "
                               "largest means ({:#04x}){}",
                               got - module.masks[r].begin(), *got, *want, kAgain));
    }
    return {};
  }

  Result<StoredMatrix> extension(size_t ratio, int64_t groups) {
    const std::string prefix = extension_name(ratio);
    StoredMatrix out;
    out.format = info_.format;
    out.rows = info_.rows;
    out.cols = groups * format::selected_per_group(kSelectRatios[ratio]);
    SUB8_ASSIGN_OR_RETURN(const Tensor* codes, take(prefix + ".weight", DType::kU8,
                                                    {out.rows, out.format.row_bytes(out.cols)}));
    SUB8_ASSIGN_OR_RETURN(const Tensor* scales,
                          take(prefix + ".weight_scale", block_scale_type(out.format),
                               {out.rows, out.format.groups(out.cols)}));
    out.codes = codes->data;
    out.block_scales = scales->data;
    out.owner = codes->owner;
    if (out.format.outer_scale != OuterScale::kNone) {
      const std::string name = prefix + ".weight_scale_2";
      SUB8_ASSIGN_OR_RETURN(out.outer_scales, floats(name, outer_scale_shape(out)));
      for (const float scale : out.outer_scales) {
        if (scale == 0) return fault(name, "is zero, expected the tensor scale of the weight");
      }
    }
    const std::string name = path_.string() + ": " + name_ + "." + prefix;
    SUB8_RETURN_IF_ERROR(check_matrix(out, name));
    SUB8_RETURN_IF_ERROR(check_finite(out, 0, out.rows, name));
    return out;
  }

  const std::string& name_;
  const WeightInfo& info_;
  std::map<std::string, const Tensor*, std::less<>>& tensors_;
  const fs::path& path_;
};

// A member of "modules": the weight it belongs to, and the extensions that it has.
struct Entry {
  const WeightInfo* info = nullptr;
  std::vector<size_t> extended;
  std::optional<float> prefill_ratio;
};

// A plan's ratio: 0, 1, or one that has columns.
Result<std::optional<float>> read_prefill_ratio(const JsonRef& node, const Entry& entry) {
  const auto ratio_node = node.find("prefill_ratio");
  if (!ratio_node) return std::optional<float>();
  SUB8_ASSIGN_OR_RETURN(const double value, ratio_node->as_double());
  const auto ratio = static_cast<float>(value);
  const auto index = select_ratio_index(ratio);
  const bool stored = index && std::find(entry.extended.begin(), entry.extended.end(), *index) !=
                                   entry.extended.end();
  if (stored || ratio == 0 || ratio == 1) return std::optional(ratio);
  return corrupt_data(fmt::format("{} is {}, expected 0, 1 or one of the module's \"extensions\"{}",
                                  ratio_node->where(), value, kAgain));
}

Result<Entry> read_entry(const std::string& name, const JsonRef& node, const WeightSource& source) {
  Entry out;
  out.info = source.find(name);
  if (out.info == nullptr || out.info->kind == WeightKind::kVector) {
    return corrupt_data(fmt::format("{}: the model has no module \"{}\"{}", node.where(),
                                    name.substr(0, 100), kAgain));
  }
  SUB8_ASSIGN_OR_RETURN(const JsonRef format_node, node.at("format"));
  SUB8_ASSIGN_OR_RETURN(const std::string format, format_node.as_string());
  SUB8_ASSIGN_OR_RETURN(const JsonRef shape_node, node.at("shape"));
  SUB8_ASSIGN_OR_RETURN(const auto shape, shape_node.elements());
  std::vector<int64_t> sizes;
  for (const JsonRef& size : shape) {
    SUB8_ASSIGN_OR_RETURN(const int64_t value, size.as_int(1, int64_t{1} << 40));
    sizes.push_back(value);
  }
  if (format != out.info->format.name() ||
      sizes != std::vector<int64_t>{out.info->rows, out.info->cols}) {
    return corrupt_data(fmt::format("{} was calibrated as {} {}, the model has {} [{}, {}]{}",
                                    node.where(), format.substr(0, 40), shape_text(sizes),
                                    out.info->format.name(), out.info->rows, out.info->cols,
                                    kAgain));
  }
  SUB8_ASSIGN_OR_RETURN(const JsonRef ratios_node, node.at("extensions"));
  SUB8_ASSIGN_OR_RETURN(const auto ratios, ratios_node.elements());
  for (const JsonRef& ratio : ratios) {
    SUB8_ASSIGN_OR_RETURN(const double value, ratio.as_double());
    const auto index = select_ratio_index(static_cast<float>(value));
    if (!index || (!out.extended.empty() && *index <= out.extended.back())) {
      return corrupt_data(
          fmt::format("{}: expected an ascending list of 0.125, 0.25, 0.5", ratio.where()));
    }
    out.extended.push_back(*index);
  }
  if (!out.extended.empty() && out.info->format.block_scale == format::BlockScale::kNone) {
    return corrupt_data(fmt::format("{}: weights of format {} have no extension",
                                    ratios_node.where(), out.info->format.name()));
  }
  SUB8_ASSIGN_OR_RETURN(out.prefill_ratio, read_prefill_ratio(node, out));
  return out;
}

// Other weights than these have other statistics.
Status check_model(const JsonRef& root, const WeightSource& source) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef node, root.at("model"));
  ModelFingerprint stored;
  SUB8_ASSIGN_OR_RETURN(const JsonRef layout, node.at("layout"));
  SUB8_ASSIGN_OR_RETURN(stored.layout, layout.as_string());
  SUB8_ASSIGN_OR_RETURN(const JsonRef content, node.at("content"));
  SUB8_ASSIGN_OR_RETURN(stored.content, content.as_string());
  SUB8_ASSIGN_OR_RETURN(const ModelFingerprint model, fingerprint(source));
  if (model == stored) return {};
  const bool other_layout = model.layout != stored.layout;
  return corrupt_data(
      fmt::format("{}: made for another model: {} differ (file {}, this model {}){}", node.where(),
                  other_layout ? "names, shapes or stored types" : "the weights' values",
                  (other_layout ? stored.layout : stored.content).substr(0, 40),
                  other_layout ? model.layout : model.content, kAgain));
}

Status read_alpha(const JsonRef& root, Residue& out) {
  SUB8_ASSIGN_OR_RETURN(const std::string name, root.get_string("activation_alpha", ""));
  if (name.empty()) return {};
  const auto source = format::parse_alpha_source(name);
  if (!source || *source == format::AlphaSource::kTensor) {
    return corrupt_data(fmt::format("{}.activation_alpha is '{}', expected 'row', 'static' or null",
                                    root.where(), name.substr(0, 40)));
  }
  out.alpha = source;
  return {};
}

// Takes both tensors from the file; `layers` of the model, or 0 where the file has none.
Status read_kv_scales(int64_t layers, std::map<std::string, const Tensor*, std::less<>>& tensors,
                      const fs::path& path, std::vector<KvScalePair>& out) {
  out.resize(static_cast<size_t>(layers));
  if (layers == 0) return {};
  for (const std::string_view name : kKvScaleNames) {
    const auto found = tensors.find(name);
    if (found == tensors.end())
      return corrupt_data(fmt::format("{}: {} is missing{}", path.string(), name, kAgain));
    const Tensor& tensor = *found->second;
    tensors.erase(found);
    if (tensor.dtype != DType::kF32 || tensor.shape != std::vector<int64_t>{layers}) {
      return corrupt_data(fmt::format("{}: {} is {} {}, expected F32 [{}]", path.string(), name,
                                      format::dtype_name(tensor.dtype), shape_text(tensor.shape),
                                      layers));
    }
    for (size_t layer = 0; layer < out.size(); ++layer) {
      float value = 0;
      std::memcpy(&value, tensor.data.data() + layer * sizeof value, sizeof value);
      if (!(value > 0) || !std::isfinite(value)) {
        return corrupt_data(
            fmt::format("{}: {} has the value {} for layer {}, expected a finite "
                        "one above 0{}",
                        path.string(), name, value, layer, kAgain));
      }
      (name == kKvScaleNames[0] ? out[layer].k : out[layer].v) = value;
    }
  }
  return {};
}

Status read_header(const JsonRef& root, Residue& out) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef version_node, root.at("format_version"));
  SUB8_ASSIGN_OR_RETURN(const int64_t version, version_node.as_int(0, INT32_MAX));
  if (version != kResidueFormatVersion) {
    return unsupported(fmt::format("{}: this program reads version {}, the file has {}{}",
                                   version_node.where(), kResidueFormatVersion, version, kAgain));
  }
  SUB8_RETURN_IF_ERROR(read_alpha(root, out));
  SUB8_ASSIGN_OR_RETURN(out.original, root.get_string("original", ""));
  SUB8_ASSIGN_OR_RETURN(const JsonRef calibration, root.at("calibration"));
  constexpr int64_t kMost = int64_t{1} << 53;
  SUB8_ASSIGN_OR_RETURN(out.text, calibration.get_string("text", ""));
  SUB8_ASSIGN_OR_RETURN(out.samples, calibration.get_int("samples", 0, 0, kMost));
  SUB8_ASSIGN_OR_RETURN(out.length, calibration.get_int("length", 0, 0, kMost));
  SUB8_ASSIGN_OR_RETURN(out.tokens, calibration.get_int("tokens", 0, 0, kMost));
  SUB8_ASSIGN_OR_RETURN(const int64_t seed, calibration.get_int("seed", 0, 0, kMost));
  out.seed = static_cast<uint64_t>(seed);
  return {};
}

}  // namespace

std::optional<size_t> select_ratio_index(float ratio) {
  for (size_t i = 0; i < kSelectRatios.size(); ++i) {
    if (kSelectRatios[i] == ratio) return i;
  }
  return std::nullopt;
}

const ResidueModule* Residue::find(std::string_view module) const {
  const auto found = modules.find(module);
  return found == modules.end() ? nullptr : &found->second;
}

void select_channels(ResidueModule& module) {
  const auto cols = static_cast<int64_t>(module.mean_abs.size());
  for (size_t r = 0; r < kSelectRatios.size(); ++r) {
    module.masks[r].clear();
    for (int64_t k = 0; k < cols; k += format::kSelectGroup) {
      module.masks[r].push_back(format::select_mask(
          module.mean_abs.data() + k, std::min<int64_t>(format::kSelectGroup, cols - k),
          format::selected_per_group(kSelectRatios[r])));
    }
  }
}

bool has_residue(const fs::path& model_directory) {
  return is_present(residue_json_path(model_directory)) ||
         is_present(residue_tensors_path(model_directory));
}

Result<std::shared_ptr<const Residue>> read_residue(const fs::path& model_directory,
                                                    const WeightSource& source) {
  const fs::path json_path = residue_json_path(model_directory);
  const fs::path tensors_path = residue_tensors_path(model_directory);
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(json_path));
  SUB8_ASSIGN_OR_RETURN(const boost::json::value value, parse_json(text, json_path.string()));
  SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(text, json_path.string()));
  const JsonRef root(value, json_path.string());
  auto out = std::make_shared<Residue>();
  SUB8_RETURN_IF_ERROR(read_header(root, *out));
  SUB8_RETURN_IF_ERROR(check_model(root, source));
  SUB8_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(tensors_path));
  SUB8_ASSIGN_OR_RETURN(const JsonRef id_node, root.at("id"));
  SUB8_ASSIGN_OR_RETURN(const std::string id, id_node.as_string());
  const auto stored = file.metadata().find(std::string(kResidueIdKey));
  if (stored == file.metadata().end() || stored->second != id) {
    return corrupt_data(fmt::format("{} and {} are not of one calibration{}", json_path.string(),
                                    tensors_path.string(), kAgain));
  }
  std::map<std::string, const Tensor*, std::less<>> tensors;
  for (const Tensor& tensor : file.tensors()) tensors[tensor.name] = &tensor;
  SUB8_ASSIGN_OR_RETURN(const JsonRef modules_node, root.at("modules"));
  SUB8_ASSIGN_OR_RETURN(const auto modules, modules_node.members());
  for (const auto& [name, node] : modules) {
    SUB8_ASSIGN_OR_RETURN(const Entry entry, read_entry(name, node, source));
    SUB8_RETURN_IF_ERROR(ModuleReader(name, *entry.info, tensors, tensors_path)
                             .read(entry.extended, out->modules[name]));
    out->modules[name].prefill_ratio = entry.prefill_ratio;
  }
  SUB8_ASSIGN_OR_RETURN(const int64_t layers, root.get_int("kv_scale_layers", 0, 0, INT32_MAX));
  if (layers != 0 && layers != source.config().layers) {
    return corrupt_data(fmt::format("{}.kv_scale_layers is {}, the model has {} layers{}",
                                    root.where(), layers, source.config().layers, kAgain));
  }
  SUB8_RETURN_IF_ERROR(read_kv_scales(layers, tensors, tensors_path, out->kv_scales));
  if (!tensors.empty()) {
    return corrupt_data(fmt::format("{}: the tensor \"{}\" belongs to no module of residue.json",
                                    tensors_path.string(), tensors.begin()->first.substr(0, 100)));
  }
  return std::shared_ptr<const Residue>(std::move(out));
}

}  // namespace sub8::checkpoint
