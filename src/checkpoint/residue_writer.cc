#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/file.h"
#include "base/fnv1a.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/pretty_json.h"
#include "checkpoint/residue.h"
#include "checkpoint/residue_names.h"
#include "checkpoint/safetensors.h"
#include "format/activation.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;
namespace json = boost::json;
namespace {

using format::DType;
using format::OuterScale;

template <class T>
std::span<const uint8_t> bytes_of(const T* values, size_t count) {
  return {reinterpret_cast<const uint8_t*>(values), count * sizeof(T)};
}

json::object description(const Residue& residue, const ModelFingerprint& model,
                         const WeightSource& source, const ExtensionPlan& plan) {
  json::object modules;
  for (const auto& [name, module] : residue.modules) {
    const WeightInfo* info = source.find(name);
    SUB8_CHECK(info != nullptr);
    SUB8_CHECK_EQ(static_cast<int64_t>(module.mean_abs.size()), info->cols);
    json::array ratios;
    if (const auto extended = plan.find(name); extended != plan.end()) {
      for (const size_t r : extended->second) ratios.emplace_back(kSelectRatios[r]);
    }
    json::object entry = {{"format", info->format.name()},
                          {"shape", {info->rows, info->cols}},
                          {"extensions", std::move(ratios)}};
    if (module.prefill_ratio) entry["prefill_ratio"] = *module.prefill_ratio;
    modules[name] = std::move(entry);
  }
  return {
      {"format_version", kResidueFormatVersion},
      {"id", ""},
      {"model", json::object{{"layout", model.layout}, {"content", model.content}}},
      {"original", residue.original.empty() ? json::value(nullptr) : json::value(residue.original)},
      {"calibration", json::object{{"text", residue.text},
                                   {"samples", residue.samples},
                                   {"length", residue.length},
                                   {"tokens", residue.tokens},
                                   {"seed", residue.seed}}},
      {"activation_alpha", residue.alpha ? json::value(format::alpha_source_name(*residue.alpha))
                                         : json::value(nullptr)},
      {"kv_scale_layers", residue.kv_scales.size()},
      {"modules", std::move(modules)}};
}

// The extension's sizes are known before its bytes.
StoredMatrix extension_shape(const WeightInfo& info, size_t ratio) {
  StoredMatrix out;
  out.format = info.format;
  out.rows = info.rows;
  out.cols = ceil_div<int64_t>(info.cols, format::kSelectGroup) *
             format::selected_per_group(kSelectRatios[ratio]);
  return out;
}

std::vector<TensorSpec> tensor_specs(const Residue& residue, const WeightSource& source,
                                     const ExtensionPlan& plan) {
  std::vector<TensorSpec> out;
  for (const auto& [name, module] : residue.modules) {
    const auto cols = static_cast<int64_t>(module.mean_abs.size());
    out.push_back({name + ".mean_abs", DType::kF32, {cols}});
    out.push_back({name + ".amax", DType::kF32, {}});
    for (size_t r = 0; r < kSelectRatios.size(); ++r) {
      out.push_back(
          {name + "." + mask_name(r), DType::kU8, {ceil_div<int64_t>(cols, format::kSelectGroup)}});
    }
    const auto extended = plan.find(name);
    if (extended == plan.end()) continue;
    for (const size_t r : extended->second) {
      const StoredMatrix m = extension_shape(*source.find(name), r);
      const std::string prefix = name + "." + extension_name(r);
      out.push_back({prefix + ".weight", DType::kU8, {m.rows, m.format.row_bytes(m.cols)}});
      out.push_back({prefix + ".weight_scale",
                     block_scale_type(m.format),
                     {m.rows, m.format.groups(m.cols)}});
      if (m.format.outer_scale != OuterScale::kNone)
        out.push_back({prefix + ".weight_scale_2", DType::kF32, outer_scale_shape(m)});
    }
  }
  if (residue.kv_scales.empty()) return out;
  for (const std::string_view name : kKvScaleNames)
    out.push_back(
        {std::string(name), DType::kF32, {static_cast<int64_t>(residue.kv_scales.size())}});
  return out;
}

Status write_kv_scales(SafetensorsWriter& writer, const std::vector<KvScalePair>& scales) {
  if (scales.empty()) return {};
  std::vector<float> k;
  std::vector<float> v;
  for (const KvScalePair& pair : scales) {
    SUB8_CHECK(pair.k > 0 && pair.v > 0);
    k.push_back(pair.k);
    v.push_back(pair.v);
  }
  SUB8_RETURN_IF_ERROR(writer.write(std::string(kKvScaleNames[0]), bytes_of(k.data(), k.size())));
  return writer.write(std::string(kKvScaleNames[1]), bytes_of(v.data(), v.size()));
}

Status write_module(SafetensorsWriter& writer, const std::string& name,
                    const ResidueModule& module) {
  SUB8_RETURN_IF_ERROR(
      writer.write(name + ".mean_abs", bytes_of(module.mean_abs.data(), module.mean_abs.size())));
  SUB8_RETURN_IF_ERROR(writer.write(name + ".amax", bytes_of(&module.amax, 1)));
  for (size_t r = 0; r < kSelectRatios.size(); ++r)
    SUB8_RETURN_IF_ERROR(writer.write(name + "." + mask_name(r), module.masks[r]));
  return {};
}

Status write_extension(SafetensorsWriter& writer, const std::string& prefix,
                       const StoredMatrix& m) {
  SUB8_RETURN_IF_ERROR(writer.write(prefix + ".weight", m.codes));
  SUB8_RETURN_IF_ERROR(writer.write(prefix + ".weight_scale", m.block_scales));
  if (m.format.outer_scale == OuterScale::kNone) return {};
  return writer.write(prefix + ".weight_scale_2",
                      bytes_of(m.outer_scales.data(), m.outer_scales.size()));
}

// The new folder, with everything of the old one but the pair itself.
Result<OutputDirectory> make_folder(const fs::path& model_directory) {
  std::error_code error;
  if (!fs::is_directory(model_directory, error)) {
    return invalid_argument(fmt::format(
        "'{}' is not a directory: nothing can be stored beside a single file; `sub8 quantize` "
        "makes a directory of it, and `sub8 calibrate --out DIR` stores elsewhere",
        model_directory.string()));
  }
  const fs::path folder = model_directory / "sub8";
  SUB8_ASSIGN_OR_RETURN(OutputDirectory out, OutputDirectory::create(folder, true));
  if (!fs::exists(folder, error)) return out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const fs::path name = entry.path().filename();
    if (name == residue_json_path("").filename() || name == residue_tensors_path("").filename())
      continue;
    fs::copy(entry.path(), out.path() / name,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks, error);
    if (error) {
      return resource_exhausted(fmt::format("could not copy '{}' beside the new calibration: {}",
                                            entry.path().string(), error.message()));
    }
  }
  if (error) {
    return resource_exhausted(
        fmt::format("could not read the folder '{}': {}", folder.string(), error.message()));
  }
  return out;
}

// On the disk before the folders change places.
Status write_text(const fs::path& path, std::string_view text) {
  SUB8_ASSIGN_OR_RETURN(FileWriter writer, FileWriter::create(path));
  SUB8_RETURN_IF_ERROR(writer.write(text));
  return writer.finish();
}

}  // namespace

Status write_residue(const fs::path& model_directory, const Residue& residue,
                     const WeightSource& source, const ExtensionPlan& plan,
                     const ExtensionFn& extend) {
  SUB8_ASSIGN_OR_RETURN(const ModelFingerprint model, fingerprint(source));
  json::object root = description(residue, model, source, plan);
  Fnv1a id;
  const std::string text = json::serialize(root);
  id.add(bytes_of(text.data(), text.size()));
  for (const auto& [name, module] : residue.modules)
    id.add(bytes_of(module.mean_abs.data(), module.mean_abs.size()));
  root["id"] = id.text();

  SUB8_ASSIGN_OR_RETURN(OutputDirectory output, make_folder(model_directory));
  SUB8_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::create(output.path(), tensor_specs(residue, source, plan),
                                {{std::string(kResidueIdKey), id.text()}}, INT64_MAX));
  for (const auto& [name, module] : residue.modules) {
    SUB8_RETURN_IF_ERROR(write_module(writer, name, module));
    const auto extended = plan.find(name);
    if (extended == plan.end()) continue;
    for (const size_t r : extended->second) {
      SUB8_ASSIGN_OR_RETURN(const StoredMatrix columns, extend(name, r));
      SUB8_RETURN_IF_ERROR(write_extension(writer, name + "." + extension_name(r), columns));
    }
  }
  SUB8_RETURN_IF_ERROR(write_kv_scales(writer, residue.kv_scales));
  SUB8_RETURN_IF_ERROR(writer.finish());
  const fs::path target = output.path() / residue_tensors_path("").filename();
  std::error_code error;
  fs::rename(output.path() / "model.safetensors", target, error);
  if (error) {
    return resource_exhausted(fmt::format("could not move the finished file to '{}': {}",
                                          target.string(), error.message()));
  }
  SUB8_RETURN_IF_ERROR(
      write_text(output.path() / residue_json_path("").filename(), pretty_json(root)));
  return output.commit();
}

}  // namespace sub8::checkpoint
