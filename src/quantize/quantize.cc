#include "quantize/quantize.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "checkpoint/pretty_json.h"
#include "format/dtype.h"
#include "quantize/layout.h"
#include "quantize/matrix_quantizer.h"

namespace sub8::quantize {
namespace {

namespace json = boost::json;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorSpec;
using checkpoint::WeightInfo;
using checkpoint::WeightKind;
using checkpoint::WeightSource;
using format::DType;

std::span<const uint8_t> bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

// Values in a 16- or 32-bit type, little endian.
void convert(std::span<const float> values, DType type, std::vector<uint8_t>& out) {
  out.resize(values.size() * format::dtype_bytes(type));
  if (type == DType::kF32) {
    if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half =
        type == DType::kF16 ? format::float_to_f16(values[i]) : format::float_to_bf16(values[i]);
    std::memcpy(out.data() + 2 * i, &half, 2);
  }
}

class Run {
 public:
  Run(const WeightSource& source, const Recipe& recipe, const Plan& plan, ThreadPool& pool,
      const ProgressFn& progress)
      : source_(source),
        recipe_(recipe),
        plan_(plan),
        pool_(pool),
        progress_(progress),
        scales_(source, plan, recipe) {
    for (const PlannedWeight& w : plan.weights) total_bytes_ += w.source_bytes;
  }

  Status write_all(SafetensorsWriter& writer, QuantizeReport& report) {
    for (const PlannedWeight& w : plan_.weights) {
      SUB8_RETURN_IF_ERROR(check_interrupt());
      advance(w, 0, w.rows);
      if (w.kind == WeightKind::kVector) {
        SUB8_RETURN_IF_ERROR(write_vector(writer, w));
      } else if (w.quantize) {
        SUB8_ASSIGN_OR_RETURN(const double nmse, write_quantized(writer, w));
        set_nmse(report, w.name, nmse);
      } else {
        SUB8_RETURN_IF_ERROR(write_kept(writer, w));
      }
      if (w.kind != WeightKind::kVector) source_.release(w.name);
      done_bytes_ += w.source_bytes;
      advance(w, 0, w.rows);
    }
    for (const KvScale& kv : plan_.kv_scales) {
      const TensorSpec spec = kv_scale_tensor(kv, source_.config(), plan_.layout);
      SUB8_RETURN_IF_ERROR(writer.write(spec.name, bytes_of({&kv.scale, 1})));
    }
    return {};
  }

 private:
  static void set_nmse(QuantizeReport& report, const std::string& name, double nmse) {
    for (LayerReport& layer : report.layers) {
      if (layer.name == name) layer.nmse = nmse;
    }
  }

  // `done` of `of` rows of the weight at hand.
  void advance(const PlannedWeight& w, int64_t done, int64_t of) {
    if (!progress_) return;
    const double part = of == 0 ? 0.0 : static_cast<double>(done) / static_cast<double>(of);
    progress_({done_bytes_ + static_cast<int64_t>(part * static_cast<double>(w.source_bytes)),
               total_bytes_, w.name});
  }

  Status write_vector(SafetensorsWriter& writer, const PlannedWeight& w) {
    SUB8_ASSIGN_OR_RETURN(const std::vector<float> values, source_.vector(w.name));
    std::vector<uint8_t> bytes;
    convert(values, w.format.dtype, bytes);
    return writer.write(w.name, bytes);
  }

  Result<double> write_quantized(SafetensorsWriter& writer, const PlannedWeight& w) {
    const WeightInfo& info = source_.weights()[w.index];
    SUB8_ASSIGN_OR_RETURN(const float alpha, scales_.alpha_of(w, pool_));
    const ModuleTensors tensors = module_tensors(w, plan_.layout);
    const int64_t chunk = rows_per_chunk(w.format, w.rows, w.cols);
    std::vector<float> outer;
    RowError total;
    QuantizedRows part;
    for (int64_t row = 0; row < w.rows; row += chunk) {
      const int64_t count = std::min(chunk, w.rows - row);
      SUB8_RETURN_IF_ERROR(
          quantize_rows(source_, info, w.format, recipe_.rules, alpha, row, count, pool_, part));
      SUB8_RETURN_IF_ERROR(
          writer.write_part(tensors.codes.name, row * w.format.row_bytes(w.cols), part.codes));
      if (tensors.block_scales) {
        SUB8_RETURN_IF_ERROR(writer.write_part(tensors.block_scales->name,
                                               row * w.format.groups(w.cols), part.block_scales));
      }
      outer.insert(outer.end(), part.outer_scales.begin(), part.outer_scales.end());
      for (const RowError& e : part.errors) {  // in row order, whatever the chunks
        total.error += e.error;
        total.energy += e.energy;
      }
      advance(w, row + count, w.rows);
    }
    if (tensors.outer_scales) {
      if (outer.empty()) outer = {format::stored_outer_scale(alpha)};
      if (tensors.outer_is_reciprocal) {
        for (float& scale : outer) scale = 1.0F / scale;
      }
      SUB8_RETURN_IF_ERROR(writer.write(tensors.outer_scales->name, bytes_of(outer)));
    }
    SUB8_RETURN_IF_ERROR(write_input_scale(writer, w, tensors));
    return total.energy == 0 ? 0.0 : total.error / total.energy;
  }

  static Status write_input_scale(SafetensorsWriter& writer, const PlannedWeight& w,
                                  const ModuleTensors& tensors) {
    if (!tensors.input_scale) return {};
    const float stored = tensors.outer_is_reciprocal ? 1.0F / *w.input_scale : *w.input_scale;
    return writer.write(tensors.input_scale->name, bytes_of({&stored, 1}));
  }

  Status write_kept(SafetensorsWriter& writer, const PlannedWeight& w) {
    const WeightInfo& info = source_.weights()[w.index];
    const ModuleTensors tensors = module_tensors(w, plan_.layout);
    const bool as_stored = w.format == info.format && (!w.format.dense || is_plain(info));
    if (!as_stored) return write_decoded(writer, w, tensors.codes.name);
    SUB8_ASSIGN_OR_RETURN(const StoredMatrix matrix, source_.matrix(w.name, recipe_.decoded_dtype));
    // In pieces, so that an interrupt is noticed within a large table.
    constexpr size_t kPiece = size_t{64} << 20;
    for (size_t at = 0; at < matrix.codes.size(); at += kPiece) {
      SUB8_RETURN_IF_ERROR(check_interrupt());
      const auto piece = matrix.codes.subspan(at, std::min(kPiece, matrix.codes.size() - at));
      SUB8_RETURN_IF_ERROR(writer.write_part(tensors.codes.name, static_cast<int64_t>(at), piece));
    }
    if (tensors.block_scales) {
      SUB8_RETURN_IF_ERROR(writer.write(tensors.block_scales->name, matrix.block_scales));
    }
    if (tensors.outer_scales) {
      std::vector<float> outer = matrix.outer_scales;
      if (tensors.outer_is_reciprocal) {
        for (float& scale : outer) scale = 1.0F / scale;
      }
      SUB8_RETURN_IF_ERROR(writer.write(tensors.outer_scales->name, bytes_of(outer)));
    }
    return write_input_scale(writer, w, tensors);
  }

  static bool is_plain(const WeightInfo& info) {
    return info.stored_type == "BF16" || info.stored_type == "F16" || info.stored_type == "F32";
  }

  // A GGUF block type as bf16 or f32, a few rows at a time.
  Status write_decoded(SafetensorsWriter& writer, const PlannedWeight& w, const std::string& name) {
    // The f32 values are in memory beside the output, so a quarter of the usual rows.
    const int64_t chunk = std::max<int64_t>(rows_per_chunk(w.format, w.rows, w.cols) / 4, 1);
    std::vector<float> values;
    std::vector<uint8_t> bytes;
    for (int64_t row = 0; row < w.rows; row += chunk) {
      SUB8_RETURN_IF_ERROR(check_interrupt());
      const int64_t count = std::min(chunk, w.rows - row);
      values.resize(static_cast<size_t>(count * w.cols));
      SUB8_RETURN_IF_ERROR(source_.decode_rows(w.name, row, count, values));
      convert(values, w.format.dtype, bytes);
      SUB8_RETURN_IF_ERROR(writer.write_part(name, row * w.format.row_bytes(w.cols), bytes));
      advance(w, row + count, w.rows);
    }
    return {};
  }

  const WeightSource& source_;
  const Recipe& recipe_;
  const Plan& plan_;
  ThreadPool& pool_;
  const ProgressFn& progress_;
  ScaleGroups scales_;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

std::vector<TensorSpec> all_tensors(const Plan& plan, const checkpoint::ModelConfig& config) {
  std::vector<TensorSpec> out;
  for (const PlannedWeight& w : plan.weights) {
    ModuleTensors tensors = module_tensors(w, plan.layout);
    out.push_back(std::move(tensors.codes));
    if (tensors.block_scales) out.push_back(std::move(*tensors.block_scales));
    if (tensors.outer_scales) out.push_back(std::move(*tensors.outer_scales));
    if (tensors.input_scale) out.push_back(std::move(*tensors.input_scale));
  }
  for (const KvScale& scale : plan.kv_scales) {
    out.push_back(kv_scale_tensor(scale, config, plan.layout));
  }
  return out;
}

Result<std::string> config_text(const WeightSource& source, const Plan& plan,
                                std::string_view version) {
  SUB8_ASSIGN_OR_RETURN(json::value config, parse_json(source.texts().config, "config.json"));
  // Names in the output have no wrapper prefix, so the configuration must not be a wrapper's.
  if (config.is_object() && config.get_object().contains("text_config")) {
    SUB8_ASSIGN_OR_RETURN(
        config,
        parse_json(checkpoint::model_config_json(source.config(), "bfloat16"), "config.json"));
  }
  if (!config.is_object()) return corrupt_data("config.json: expected an object");
  json::object& root = config.get_object();
  root.erase("compression_config");
  root["quantization_config"] = quantization_config(plan, version);
  return checkpoint::pretty_json(config);
}

std::string provenance_text(const WeightSource& source, const Recipe& recipe,
                            const OutputOptions& options, const QuantizeReport& report) {
  json::array skip;
  for (const NamePattern& p : recipe.skip) skip.emplace_back(p.text());
  json::array overrides;
  for (const FormatOverride& o : recipe.overrides) {
    overrides.emplace_back(o.pattern.text() + "=" + o.format.name());
  }
  json::object layers;
  for (const LayerReport& layer : report.layers) {
    if (!layer.nmse) continue;
    layers[layer.name] = json::object{
        {"source", layer.source_type}, {"format", layer.format}, {"nmse", *layer.nmse}};
  }
  const json::object head = {
      {"format", recipe.lm_head ? json::value(recipe.lm_head->name()) : json::value(nullptr)},
      {"tied", source.tied_head()}};
  const json::value weights =
      recipe.modules ? json::value("plan") : json::value(recipe.weights.name());
  const json::object made = {
      {"schema_version", 1},
      {"producer", json::object{{"name", "sub8"}, {"version", options.version}}},
      {"source", json::object{{"name", options.source_name},
                              {"quantization", source.quantization()},
                              {"weight_bytes", report.source.total_bytes}}},
      {"recipe", json::object{{"weights", weights},
                              {"lm_head", head},
                              {"skip", std::move(skip)},
                              {"overrides", std::move(overrides)},
                              {"scale", scale_method_name(recipe.rules.scale)},
                              {"mx_rule", mx_rule_name(recipe.rules.block.mx)},
                              {"four_over_six", recipe.rules.block.four_over_six}}},
      {"layout", layout_name(report.layout)},
      {"storage_bits", report.output.storage_bits()},
      {"layers", std::move(layers)}};
  return checkpoint::pretty_json(made);
}

Status check_extra_files(const OutputOptions& options) {
  std::set<std::string> names = {"config.json", "generation_config.json", "hf_quant_config.json",
                                 "model.safetensors.index.json", "sub8"};
  for (const ExtraFile& file : options.extra_files) {
    if (file.name.empty() || file.name.starts_with('.') ||
        file.name.find('/') != std::string::npos || file.name.ends_with(".safetensors") ||
        !names.insert(file.name).second) {
      return invalid_argument("'" + file.name + "' cannot be an extra file of the output");
    }
  }
  return {};
}

// Everything but the weights.
Status write_texts(const WeightSource& source, const Recipe& recipe, const OutputOptions& options,
                   const Plan& plan, const QuantizeReport& report,
                   const std::filesystem::path& directory) {
  SUB8_ASSIGN_OR_RETURN(const std::string config, config_text(source, plan, options.version));
  SUB8_RETURN_IF_ERROR(write_file_atomic(directory / "config.json", config));
  if (const auto node = hf_quant_config(plan, options.version)) {
    SUB8_RETURN_IF_ERROR(
        write_file_atomic(directory / "hf_quant_config.json", checkpoint::pretty_json(*node)));
  }
  if (!source.texts().generation_config.empty()) {
    SUB8_RETURN_IF_ERROR(
        write_file_atomic(directory / "generation_config.json", source.texts().generation_config));
  }
  for (const ExtraFile& file : options.extra_files) {
    SUB8_RETURN_IF_ERROR(write_file_atomic(directory / file.name, file.content));
  }
  std::error_code error;
  std::filesystem::create_directory(directory / "sub8", error);
  if (error) {
    return resource_exhausted((directory / "sub8").string() +
                              ": cannot create the directory: " + error.message());
  }
  return write_file_atomic(directory / "sub8" / "provenance.json",
                           provenance_text(source, recipe, options, report));
}

QuantizeReport planned_report(const WeightSource& source, const Plan& plan) {
  QuantizeReport report;
  report.layout = plan.layout;
  report.source = size_table(source);
  report.output = size_table(plan);
  report.warnings = plan.warnings;
  for (const PlannedWeight& w : plan.weights) {
    if (w.kind == WeightKind::kVector) continue;
    report.layers.push_back({w.name, source.weights()[w.index].stored_type, w.format.name(), w.rows,
                             w.cols, w.bytes(), std::nullopt});
  }
  return report;
}

}  // namespace

Result<float> ScaleGroups::alpha_of(const PlannedWeight& weight, ThreadPool& pool) {
  if (weight.scale_group < 0) return 1.0F;
  std::optional<float>& known = alphas_[static_cast<size_t>(weight.scale_group)];
  if (known) return *known;
  float amax = 0;
  for (const PlannedWeight& w : plan_.weights) {
    if (w.scale_group != weight.scale_group) continue;
    SUB8_ASSIGN_OR_RETURN(const float here, matrix_amax(source_, source_.weights()[w.index], pool));
    amax = std::max(amax, here);
  }
  float alpha = format::choose_outer_scale(weight.format, amax, recipe_.rules.block.four_over_six);
  if (plan_.layout == Layout::kCompressedTensors && alpha != 0.0F) {
    alpha = 1.0F / (1.0F / alpha);  // what a reader of the stored reciprocal gets
  }
  known = alpha;
  return alpha;
}

namespace {

// --overwrite replaces what sub8 wrote, and nothing else: not the source, not a directory around it
// or around the caller, not a directory of other things.
Status check_replaceable(const WeightSource& source, const OutputOptions& options) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path target = fs::weakly_canonical(options.directory, failed);
  if (failed || !fs::is_directory(target, failed)) return {};
  const auto inside = [&](const fs::path& path) {
    const fs::path absolute = fs::weakly_canonical(path, failed);
    const fs::path relative = absolute.lexically_relative(target);
    return !relative.empty() && *relative.begin() != "..";
  };
  const std::string name = "'" + options.directory.string() + "'";
  for (const checkpoint::WeightInfo& info : source.weights()) {
    if (inside(info.file)) {
      return invalid_argument("the output " + name + " holds the source '" + info.file.string() +
                              "' and would replace it; choose another directory");
    }
  }
  if (inside(fs::current_path(failed))) {
    return invalid_argument("the output " + name +
                            " is or holds the working directory; choose another directory");
  }
  const bool ours = fs::is_regular_file(target / "sub8" / "provenance.json", failed);
  if (options.overwrite && !ours && !fs::is_empty(target, failed)) {
    return invalid_argument("the output " + name +
                            " is a directory that sub8 did not write (it has no "
                            "sub8/provenance.json) and is not empty: --overwrite does not replace "
                            "it; remove it yourself or choose another directory");
  }
  return {};
}

}  // namespace

Result<QuantizeReport> quantize_checkpoint(const WeightSource& source, const Recipe& recipe,
                                           const OutputOptions& options, ThreadPool& pool,
                                           const ProgressFn& progress) {
  SUB8_ASSIGN_OR_RETURN(const Plan plan, plan_quantization(source, recipe));
  SUB8_RETURN_IF_ERROR(check_extra_files(options));
  QuantizeReport report = planned_report(source, plan);
  if (options.dry_run) return report;

  SUB8_RETURN_IF_ERROR(check_replaceable(source, options));
  SUB8_ASSIGN_OR_RETURN(OutputDirectory output,
                        OutputDirectory::create(options.directory, options.overwrite));
  SUB8_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                        SafetensorsWriter::create(output.path(), all_tensors(plan, source.config()),
                                                  {{"format", "pt"}}, options.shard_bytes));
  Run run(source, recipe, plan, pool, progress);
  SUB8_RETURN_IF_ERROR(run.write_all(writer, report));
  SUB8_RETURN_IF_ERROR(writer.finish());
  report.file_bytes = writer.total_bytes();
  SUB8_RETURN_IF_ERROR(write_texts(source, recipe, options, plan, report, output.path()));
  if (options.complete) SUB8_RETURN_IF_ERROR(options.complete(output.path()));
  SUB8_RETURN_IF_ERROR(check_interrupt());
  SUB8_RETURN_IF_ERROR(output.commit());
  return report;
}

}  // namespace sub8::quantize
