#include "checkpoint/quantization_config.h"

#include <algorithm>
#include <cctype>

namespace sub8::checkpoint {
namespace {

using format::BlockScale;
using format::OuterScale;
using format::WeightFormat;

constexpr std::string_view kMethods =
    "sub8 reads \"sub8\", \"modelopt\" and \"compressed-tensors\" (NVFP4, MXFP4, FP8)";

WeightFormat fp8_tensor_format() {
  return {false, format::DType::kU8, format::kE4M3, BlockScale::kNone, 0, OuterScale::kTensor};
}

WeightFormat w4a8_format() {
  return {false, format::DType::kU8, format::kE2M1, BlockScale::kE4M3, 32, OuterScale::kTensor};
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// kv_cache_scheme: null, a name, or {num_bits, type}.
Result<std::string> read_kv_scheme(const JsonRef& node, std::string_view key) {
  const auto member = node.find(key);
  if (!member) return std::string();
  if (member->is_string()) {
    SUB8_ASSIGN_OR_RETURN(const std::string text, member->as_string());
    const std::string name = upper(text);
    if (name == "FP8") return std::string("fp8");
    if (name == "NVFP4") return std::string("nvfp4");
    if (name == "NONE") return std::string();
    return unsupported(member->where() + ": KV-cache format \"" + text.substr(0, 60) +
                       "\" is not supported; sub8 knows FP8 and NVFP4");
  }
  SUB8_ASSIGN_OR_RETURN(const int64_t bits, member->get_int("num_bits", 0, 0, 64));
  SUB8_ASSIGN_OR_RETURN(const std::string type, member->get_string("type", ""));
  if (type == "float" && bits == 8) return std::string("fp8");
  if (type == "float" && bits == 4) return std::string("nvfp4");
  return unsupported(member->where() + ": a KV cache of " + std::to_string(bits) + "-bit \"" +
                     type.substr(0, 60) + "\" is not supported");
}

struct Algorithm {
  std::string_view name;
  WeightFormat format;
};

Result<WeightFormat> modelopt_format(const JsonRef& node, const std::string& algo) {
  const Algorithm known[] = {{"NVFP4", format::nvfp4_format()},
                             {"W4A16_NVFP4", format::nvfp4_format()},
                             {"MXFP4", format::mx_format(format::kE2M1)},
                             {"FP8", fp8_tensor_format()},
                             {"W4A8_NVFP4_FP8", w4a8_format()}};
  for (const Algorithm& a : known) {
    if (a.name == upper(algo)) return a.format;
  }
  return unsupported(node.where() + ".quant_algo: ModelOpt's \"" + algo.substr(0, 60) +
                     "\" is not supported; sub8 reads NVFP4, W4A16_NVFP4, MXFP4, FP8 and "
                     "W4A8_NVFP4_FP8");
}

Status check_group_size(const JsonRef& node, const WeightFormat& expected) {
  if (expected.group == 0 || !node.find("group_size")) return {};
  SUB8_ASSIGN_OR_RETURN(const int64_t group, node.get_int("group_size", 0, 0, 1 << 20));
  if (group == expected.group) return {};
  return unsupported(node.where() + ".group_size: " + std::to_string(group) +
                     " is not supported; " + expected.name() + " has " +
                     std::to_string(expected.group));
}

// weights of one ModelOpt group: what it says must agree with quant_algo.
Status check_modelopt_weights(const JsonRef& weights, const WeightFormat& expected) {
  SUB8_RETURN_IF_ERROR(check_group_size(weights, expected));
  const int64_t bits = expected.element.bits();
  SUB8_ASSIGN_OR_RETURN(const int64_t stated, weights.get_int("num_bits", bits, 0, 64));
  SUB8_ASSIGN_OR_RETURN(const std::string type, weights.get_string("type", "float"));
  if (stated == bits && type == "float") return {};
  return unsupported(weights.where() + ": weights of " + std::to_string(stated) + "-bit \"" +
                     type.substr(0, 40) + "\" contradict quant_algo, which means " +
                     std::to_string(bits) + "-bit \"float\"");
}

// weights of one compressed-tensors group.
Result<WeightFormat> compressed_format(const JsonRef& weights) {
  SUB8_ASSIGN_OR_RETURN(const int64_t bits, weights.get_int("num_bits", 0, 0, 64));
  SUB8_ASSIGN_OR_RETURN(const std::string type, weights.get_string("type", "int"));
  SUB8_ASSIGN_OR_RETURN(const std::string strategy, weights.get_string("strategy", ""));
  SUB8_ASSIGN_OR_RETURN(const bool symmetric, weights.get_bool("symmetric", true));
  const auto refuse = [&](const std::string& what) {
    return unsupported(weights.where() + ": " + what +
                       " is not supported; sub8 reads NVFP4 "
                       "(tensor_group of 16), MXFP4 (group of 32) and FP8 (tensor, channel)");
  };
  if (type != "float") return refuse(std::to_string(bits) + "-bit \"" + type.substr(0, 40) + "\"");
  if (!symmetric) return refuse("asymmetric quantisation");
  if (const auto order = weights.find("actorder");
      order && !(order->is_bool() && !order->value().get_bool())) {
    return refuse("actorder");
  }
  if (bits == 4 && strategy == "tensor_group") {
    SUB8_RETURN_IF_ERROR(check_group_size(weights, format::nvfp4_format()));
    return format::nvfp4_format();
  }
  if (bits == 4 && strategy == "group") {
    const WeightFormat mx = format::mx_format(format::kE2M1);
    SUB8_RETURN_IF_ERROR(check_group_size(weights, mx));
    return mx;
  }
  if (bits == 8 && strategy == "tensor") return fp8_tensor_format();
  if (bits == 8 && strategy == "channel") return format::channel_format(format::kE4M3);
  return refuse("float of " + std::to_string(bits) + " bits with strategy \"" +
                strategy.substr(0, 40) + "\"");
}

Status check_compression_format(const JsonRef& node) {
  const auto member = node.find("format");
  if (!member) return {};
  SUB8_ASSIGN_OR_RETURN(const std::string name, member->as_string());
  for (const std::string_view known : {"nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                       "float-quantized", "naive-quantized", "mixed-precision"}) {
    if (name == known) return {};
  }
  return unsupported(member->where() + ": compressed-tensors format \"" + name.substr(0, 60) +
                     "\" is not supported");
}

// A member that must be absent, null or empty.
Status check_empty(const JsonRef& node, std::string_view key) {
  const auto member = node.find(key);
  if (!member) return {};
  const auto& value = member->value();
  if (value.is_object() && value.get_object().empty()) return {};
  if (value.is_object()) {
    // {"format": "dense"} and a null recipe say "nothing" too.
    bool nothing = true;
    for (const auto& entry : value.get_object()) {
      const auto& v = entry.value();
      nothing =
          nothing && (v.is_null() || (v.is_object() && v.get_object().empty()) ||
                      (v.is_array() && v.get_array().empty()) ||
                      (entry.key() == "format" && v.is_string() && v.get_string() == "dense"));
    }
    if (nothing) return {};
  }
  return unsupported(member->where() + ": this kind of compression is not supported");
}

}  // namespace

StorageNames storage_names(QuantMethod method, const WeightFormat& f) {
  StorageNames out;
  if (f.dense) {
    out.codes = "weight";
    return out;
  }
  const bool blocks = f.block_scale != BlockScale::kNone;
  const bool compressed = method == QuantMethod::kCompressedTensors;
  out.codes = compressed && f.element.bits() == 4 ? "weight_packed" : "weight";
  out.block_scale = blocks ? "weight_scale" : "";
  if (f.outer_scale == OuterScale::kTensor && blocks) {
    out.outer_scale = compressed ? "weight_global_scale" : "weight_scale_2";
    out.outer_is_reciprocal = compressed;
  } else if (f.outer_scale != OuterScale::kNone) {
    out.outer_scale = "weight_scale";
    if (blocks) out.block_scale = "weight_group_scale";
  }
  out.input_scale = out.outer_is_reciprocal ? "input_global_scale" : "input_scale";
  return out;
}

Result<QuantizationConfig> QuantizationConfig::read(const JsonRef& node) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef method_member, node.at("quant_method"));
  SUB8_ASSIGN_OR_RETURN(const std::string method, method_member.as_string());
  if (method == "sub8") return read_sub8(node);
  if (method == "modelopt" || method == "modelopt_fp4") return read_modelopt(node, "ignore");
  if (method == "compressed-tensors") return read_compressed_tensors(node);
  return unsupported(method_member.where() + ": quantisation method \"" + method.substr(0, 60) +
                     "\" is not supported; " + std::string(kMethods));
}

Result<QuantizationConfig> QuantizationConfig::read_hf_quant_config(const JsonRef& root) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef node, root.at("quantization"));
  return read_modelopt(node, "exclude_modules");
}

Result<QuantizationConfig> QuantizationConfig::read_sub8(const JsonRef& node) {
  QuantizationConfig out;
  out.method_ = QuantMethod::kSub8;
  out.description_ = "sub8";
  SUB8_ASSIGN_OR_RETURN(const JsonRef version, node.at("format_version"));
  SUB8_ASSIGN_OR_RETURN(const int64_t number, version.as_int(0, INT32_MAX));
  if (number != kSub8FormatVersion) {
    return unsupported(version.where() + ": format version " + std::to_string(number) +
                       " is not known; this sub8 reads version " +
                       std::to_string(kSub8FormatVersion));
  }
  SUB8_ASSIGN_OR_RETURN(const JsonRef modules, node.at("modules"));
  SUB8_ASSIGN_OR_RETURN(const auto members, modules.members());
  for (const auto& [name, value] : members) {
    SUB8_ASSIGN_OR_RETURN(const std::string text, value.as_string());
    const auto format = format::parse_weight_format(text);
    if (!format.ok()) return format.error().within(value.where());
    if (!format->dense) out.modules_.emplace_back(name, *format);
  }
  std::sort(out.modules_.begin(), out.modules_.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  SUB8_ASSIGN_OR_RETURN(out.kv_cache_, read_kv_scheme(node, "kv_cache_scheme"));
  return out;
}

Result<QuantizationConfig> QuantizationConfig::read_modelopt(const JsonRef& node,
                                                             std::string_view ignore_key) {
  QuantizationConfig out;
  out.method_ = QuantMethod::kModelOpt;
  for (const std::string_view key : {"kv_cache_scheme", "kv_cache_quant_algo"}) {
    SUB8_ASSIGN_OR_RETURN(const std::string scheme, read_kv_scheme(node, key));
    if (!scheme.empty()) out.kv_cache_ = scheme;
  }
  if (const auto layers = node.find("quantized_layers");
      layers && layers->is_object() && !layers->value().get_object().empty()) {
    return unsupported(layers->where() + ": ModelOpt's MIXED_PRECISION is not supported");
  }
  SUB8_ASSIGN_OR_RETURN(const std::string algo, node.get_string("quant_algo", ""));
  out.description_ = "modelopt " + upper(algo);
  if (algo.empty() || upper(algo) == "NONE") {
    out.description_ = "modelopt";
    return out;  // only the KV cache is quantised
  }
  Group group;
  SUB8_ASSIGN_OR_RETURN(group.format, modelopt_format(node, algo));
  SUB8_RETURN_IF_ERROR(check_group_size(node, group.format));
  if (const auto groups = node.find("config_groups")) {
    SUB8_ASSIGN_OR_RETURN(const auto members, groups->members());
    for (const auto& [name, value] : members) {
      if (const auto weights = value.find("weights")) {
        SUB8_RETURN_IF_ERROR(check_modelopt_weights(*weights, group.format));
      }
    }
  }
  out.groups_.push_back(std::move(group));
  std::optional<JsonRef> list = node.find(ignore_key);
  if (!list) list = node.find(ignore_key == "ignore" ? "exclude_modules" : "ignore");
  if (list) {
    SUB8_ASSIGN_OR_RETURN(const auto entries, list->elements());
    for (const JsonRef& entry : entries) {
      SUB8_ASSIGN_OR_RETURN(NameRule rule, NameRule::modelopt(entry));
      out.ignore_.push_back(std::move(rule));
    }
  }
  return out;
}

Result<QuantizationConfig> QuantizationConfig::read_compressed_tensors(const JsonRef& node) {
  QuantizationConfig out;
  out.method_ = QuantMethod::kCompressedTensors;
  out.description_ = "compressed-tensors";
  SUB8_RETURN_IF_ERROR(check_compression_format(node));
  SUB8_RETURN_IF_ERROR(check_empty(node, "sparsity_config"));
  SUB8_RETURN_IF_ERROR(check_empty(node, "transform_config"));
  SUB8_ASSIGN_OR_RETURN(const std::string status,
                        node.get_string("quantization_status", "compressed"));
  if (status != "compressed") {
    return unsupported(node.where() + ".quantization_status: \"" + status.substr(0, 60) +
                       "\" is not supported, only \"compressed\"");
  }
  SUB8_ASSIGN_OR_RETURN(out.kv_cache_, read_kv_scheme(node, "kv_cache_scheme"));
  SUB8_ASSIGN_OR_RETURN(const JsonRef groups, node.at("config_groups"));
  SUB8_ASSIGN_OR_RETURN(const auto members, groups.members());
  for (const auto& [name, value] : members) {
    SUB8_RETURN_IF_ERROR(check_compression_format(value));
    const auto weights = value.find("weights");
    if (!weights) continue;  // activations only: weights stay plain
    Group group;
    SUB8_ASSIGN_OR_RETURN(group.format, compressed_format(*weights));
    SUB8_ASSIGN_OR_RETURN(const JsonRef targets, value.at("targets"));
    SUB8_ASSIGN_OR_RETURN(const auto entries, targets.elements());
    for (const JsonRef& entry : entries) {
      SUB8_ASSIGN_OR_RETURN(NameRule rule, NameRule::compressed_tensors(entry));
      group.targets.push_back(std::move(rule));
    }
    out.description_ += out.groups_.empty() ? " " : "+";
    out.description_ += group.format.name();
    out.groups_.push_back(std::move(group));
  }
  if (const auto list = node.find("ignore")) {
    SUB8_ASSIGN_OR_RETURN(const auto entries, list->elements());
    for (const JsonRef& entry : entries) {
      SUB8_ASSIGN_OR_RETURN(NameRule rule, NameRule::compressed_tensors(entry));
      out.ignore_.push_back(std::move(rule));
    }
  }
  return out;
}

Result<bool> QuantizationConfig::ignored(std::span<const std::string> names, bool is_linear) const {
  for (const NameRule& rule : ignore_) {
    for (const std::string& name : names) {
      SUB8_ASSIGN_OR_RETURN(const bool hit, rule.matches(name, is_linear));
      if (hit) return true;
    }
  }
  return false;
}

Result<std::optional<WeightFormat>> QuantizationConfig::format_of(
    std::span<const std::string> names, bool is_linear) const {
  for (const std::string& name : names) {
    const auto at =
        std::lower_bound(modules_.begin(), modules_.end(), name,
                         [](const auto& a, const std::string& b) { return a.first < b; });
    if (at != modules_.end() && at->first == name) return std::optional<WeightFormat>(at->second);
  }
  if (groups_.empty()) return std::optional<WeightFormat>();
  SUB8_ASSIGN_OR_RETURN(const bool skip, ignored(names, is_linear));
  if (skip) return std::optional<WeightFormat>();
  for (const Group& group : groups_) {
    // ModelOpt has no targets: every Linear.
    if (group.targets.empty() && is_linear) return std::optional<WeightFormat>(group.format);
    for (const NameRule& rule : group.targets) {
      for (const std::string& name : names) {
        SUB8_ASSIGN_OR_RETURN(const bool hit, rule.matches(name, is_linear));
        if (hit) return std::optional<WeightFormat>(group.format);
      }
    }
  }
  return std::optional<WeightFormat>();
}

}  // namespace sub8::checkpoint
