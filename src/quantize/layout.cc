#include "quantize/layout.h"

#include "base/check.h"
#include "checkpoint/quantization_config.h"

namespace sub8::quantize {
namespace {

namespace json = boost::json;
using checkpoint::TensorSpec;
using checkpoint::WeightKind;
using format::BlockScale;
using format::DType;
using format::OuterScale;

constexpr std::string_view kProducer = "sub8";

checkpoint::QuantMethod method_of(Layout layout) {
  return layout == Layout::kModelOpt            ? checkpoint::QuantMethod::kModelOpt
         : layout == Layout::kCompressedTensors ? checkpoint::QuantMethod::kCompressedTensors
                                                : checkpoint::QuantMethod::kSub8;
}

bool is_kept_matrix(const PlannedWeight& w) {
  return w.kind != WeightKind::kVector && w.format.dense;
}

// Names of matrices that stay as they are, the table and the head included.
json::array kept_modules(const Plan& plan) {
  json::array out;
  for (const PlannedWeight& w : plan.weights) {
    if (is_kept_matrix(w)) out.emplace_back(w.name);
  }
  // Other engines look for a head of its own name also where it is the table.
  if (plan.tied_head) out.emplace_back("lm_head");
  return out;
}

// kv_cache_scheme as exporters write it: an object for FP8, a name for NVFP4, null for none.
json::value kv_scheme(const Plan& plan) {
  if (plan.kv_cache_scheme == "fp8") {
    json::object out = {{"num_bits", 8}, {"type", "float"}, {"dynamic", false}};
    if (plan.layout == Layout::kCompressedTensors) {
      out["strategy"] = "tensor";
      out["symmetric"] = true;
    }
    return out;
  }
  return plan.kv_cache_scheme == "nvfp4" ? json::value("NVFP4") : json::value(nullptr);
}

json::object sub8_config(const Plan& plan) {
  json::object modules;
  for (const PlannedWeight& w : plan.weights) {
    if (w.kind != WeightKind::kVector && !w.format.dense) modules[w.name] = w.format.name();
  }
  json::object out = {{"quant_method", "sub8"},
                      {"format_version", checkpoint::kSub8FormatVersion},
                      {"modules", std::move(modules)}};
  if (!plan.kv_cache_scheme.empty()) out["kv_cache_scheme"] = kv_scheme(plan);
  return out;
}

const char* modelopt_algorithm(const Plan& plan) {
  return plan.input_scales ? "NVFP4" : "W4A16_NVFP4";
}

json::object modelopt_config(const Plan& plan, std::string_view version) {
  const json::object weights = {
      {"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  json::object group = {{"weights", weights}, {"targets", json::array{"Linear"}}};
  if (plan.input_scales) group["input_activations"] = weights;
  json::object out = {{"quant_method", "modelopt"},
                      {"quant_algo", modelopt_algorithm(plan)},
                      {"config_groups", json::object{{"group_0", group}}},
                      {"ignore", kept_modules(plan)},
                      {"producer", json::object{{"name", kProducer}, {"version", version}}}};
  if (!plan.kv_cache_scheme.empty()) out["kv_cache_scheme"] = kv_scheme(plan);
  return out;
}

json::object compressed_tensors_config(const Plan& plan) {
  bool nvfp4 = false;
  for (const PlannedWeight& w : plan.weights) {
    nvfp4 = nvfp4 || (w.kind != WeightKind::kVector && w.format == format::nvfp4_format());
  }
  const char* name = nvfp4 ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
  const json::object weights = {{"num_bits", 4},
                                {"type", "float"},
                                {"strategy", nvfp4 ? "tensor_group" : "group"},
                                {"group_size", nvfp4 ? 16 : 32},
                                {"symmetric", true},
                                {"dynamic", false},
                                {"scale_dtype", nvfp4 ? "torch.float8_e4m3fn" : "torch.uint8"}};
  json::value activations = nullptr;
  if (plan.input_scales) {  // block scales are found at run time, the tensor scale is stored
    activations = weights;
    activations.as_object()["dynamic"] = "local";
  }
  const json::object group = {{"format", name},
                              {"weights", weights},
                              {"input_activations", activations},
                              {"output_activations", nullptr},
                              {"targets", json::array{"Linear"}}};
  json::array ignore;
  for (const PlannedWeight& w : plan.weights) {  // of class Linear only: tables are no target
    if (is_kept_matrix(w) && w.kind == WeightKind::kLinear) ignore.emplace_back(w.name);
  }
  if (plan.tied_head) ignore.emplace_back("lm_head");
  return {
      {"quant_method", "compressed-tensors"}, {"format", name},
      {"quantization_status", "compressed"},  {"config_groups", json::object{{"group_0", group}}},
      {"ignore", std::move(ignore)},          {"kv_cache_scheme", kv_scheme(plan)}};
}

}  // namespace

ModuleTensors module_tensors(const PlannedWeight& w, Layout layout) {
  SUB8_CHECK(layout != Layout::kAuto);
  ModuleTensors out;
  if (w.kind == WeightKind::kVector) {
    out.codes = {w.name, w.format.dtype, {w.rows}};
    return out;
  }
  if (w.format.dense) {
    out.codes = {w.name + ".weight", w.format.dtype, {w.rows, w.cols}};
    return out;
  }
  const checkpoint::StorageNames names = checkpoint::storage_names(method_of(layout), w.format);
  const auto named = [&](std::string_view suffix) { return w.name + "." + std::string(suffix); };
  out.codes = {named(names.codes), DType::kU8, {w.rows, w.format.row_bytes(w.cols)}};
  if (w.format.block_scale != BlockScale::kNone) {
    const bool e4m3 = w.format.block_scale == BlockScale::kE4M3;
    out.block_scales = TensorSpec{named(names.block_scale),
                                  e4m3 ? DType::kF8E4M3 : DType::kU8,
                                  {w.rows, w.format.groups(w.cols)}};
  }
  if (w.format.outer_scale != OuterScale::kNone) {
    std::vector<int64_t> shape;  // [] but for compressed-tensors' [1] and one scale per channel
    if (w.format.outer_scale == OuterScale::kChannel) shape = {w.rows};
    if (w.format.outer_scale == OuterScale::kTensor && names.outer_is_reciprocal) shape = {1};
    out.outer_scales = TensorSpec{named(names.outer_scale), DType::kF32, std::move(shape)};
    out.outer_is_reciprocal = names.outer_is_reciprocal;
  }
  if (w.input_scale) {
    const bool one = names.outer_is_reciprocal;
    out.input_scale = TensorSpec{named(names.input_scale), DType::kF32,
                                 one ? std::vector<int64_t>{1} : std::vector<int64_t>{}};
  }
  return out;
}

TensorSpec kv_scale_tensor(const KvScale& scale, const checkpoint::ModelConfig& config,
                           Layout layout) {
  const bool compressed = layout == Layout::kCompressedTensors;
  const std::string layers = config.architecture == checkpoint::Architecture::kOpt
                                 ? "model.decoder.layers."
                                 : "model.layers.";
  const std::string side = scale.value_side ? "v" : "k";
  const std::string name = layers + std::to_string(scale.layer) + ".self_attn." +
                           (compressed ? "" : side + "_proj.") + side + "_scale";
  return {name, DType::kF32, compressed ? std::vector<int64_t>{1} : std::vector<int64_t>{}};
}

json::object quantization_config(const Plan& plan, std::string_view version) {
  switch (plan.layout) {
    case Layout::kModelOpt:
      return modelopt_config(plan, version);
    case Layout::kCompressedTensors:
      return compressed_tensors_config(plan);
    default:
      return sub8_config(plan);
  }
}

std::optional<json::object> hf_quant_config(const Plan& plan, std::string_view version) {
  if (plan.layout != Layout::kModelOpt) return std::nullopt;
  const json::value kv = plan.kv_cache_scheme == "fp8"     ? json::value("FP8")
                         : plan.kv_cache_scheme == "nvfp4" ? json::value("NVFP4")
                                                           : json::value(nullptr);
  return json::object{{"producer", json::object{{"name", kProducer}, {"version", version}}},
                      {"quantization", json::object{{"quant_algo", modelopt_algorithm(plan)},
                                                    {"kv_cache_quant_algo", kv},
                                                    {"group_size", 16},
                                                    {"exclude_modules", kept_modules(plan)}}}};
}

}  // namespace sub8::quantize
