#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/file.h"
#include "base/fnv1a.h"
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

json::object description(const Residue& residue, const WeightSource& source,
                         const ExtensionPlan& plan) {
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
      {"original", residue.original.empty() ? json::value(nullptr) : json::value(residue.original)},
      {"calibration", json::object{{"text", residue.text},
                                   {"samples", residue.samples},
                                   {"length", residue.length},
                                   {"tokens", residue.tokens},
                                   {"seed", residue.seed}}},
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
  return out;
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

Status make_folder(const fs::path& model_directory) {
  std::error_code error;
  if (!fs::is_directory(model_directory, error)) {
    return invalid_argument(fmt::format(
        "'{}' is not a directory: nothing can be stored beside a single file; `sub8 quantize` "
        "makes a directory of it",
        model_directory.string()));
  }
  fs::create_directory(model_directory / "sub8", error);
  if (error) {
    return resource_exhausted(fmt::format("could not create '{}': {}",
                                          (model_directory / "sub8").string(), error.message()));
  }
  return {};
}

}  // namespace

Status write_residue(const fs::path& model_directory, const Residue& residue,
                     const WeightSource& source, const ExtensionPlan& plan,
                     const ExtensionFn& extend) {
  json::object root = description(residue, source, plan);
  Fnv1a fingerprint;
  const std::string text = json::serialize(root);
  fingerprint.add(bytes_of(text.data(), text.size()));
  for (const auto& [name, module] : residue.modules)
    fingerprint.add(bytes_of(module.mean_abs.data(), module.mean_abs.size()));
  root["id"] = fingerprint.text();

  SUB8_RETURN_IF_ERROR(make_folder(model_directory));
  // Only its working directory is used: it vanishes with everything in it unless moved away.
  SUB8_ASSIGN_OR_RETURN(OutputDirectory output,
                        OutputDirectory::create(model_directory / "sub8" / "residue", false));
  SUB8_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::create(output.path(), tensor_specs(residue, source, plan),
                                {{std::string(kResidueIdKey), fingerprint.text()}}, INT64_MAX));
  for (const auto& [name, module] : residue.modules) {
    SUB8_RETURN_IF_ERROR(write_module(writer, name, module));
    const auto extended = plan.find(name);
    if (extended == plan.end()) continue;
    for (const size_t r : extended->second) {
      SUB8_ASSIGN_OR_RETURN(const StoredMatrix columns, extend(name, r));
      SUB8_RETURN_IF_ERROR(write_extension(writer, name + "." + extension_name(r), columns));
    }
  }
  SUB8_RETURN_IF_ERROR(writer.finish());
  const fs::path target = residue_tensors_path(model_directory);
  std::error_code error;
  fs::rename(output.path() / "model.safetensors", target, error);
  if (error) {
    return resource_exhausted(fmt::format("could not move the finished file to '{}': {}",
                                          target.string(), error.message()));
  }
  return write_file_atomic(residue_json_path(model_directory), pretty_json(root));
}

}  // namespace sub8::checkpoint
