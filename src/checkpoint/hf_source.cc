#include "checkpoint/hf_source.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/checked_math.h"
#include "base/json_keys.h"
#include "checkpoint/hf_tensors.h"
#include "checkpoint/model_file.h"
#include "checkpoint/model_layout.h"
#include "checkpoint/quantization_config.h"
#include "checkpoint/token_ids.h"
#include "tensor/decode.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;
namespace {

using format::BlockScale;
using format::DType;
using format::OuterScale;
using format::WeightFormat;

// Rows of a fused tensor that make up one module.
struct Slice {
  std::string module;  // where the tensors are
  int64_t row = 0;
  int64_t total_rows = 0;
  int part = 0;   // which of `parts`
  int parts = 1;  // modules that share the tensor
};

// What one matrix or vector is made of.
struct Entry {
  const Tensor* codes = nullptr;  // or the dense values, or the vector
  const Tensor* block_scales = nullptr;
  const Tensor* outer_scales = nullptr;
  bool outer_is_reciprocal = false;
  WeightFormat format;
  int64_t rows = 0;  // of this module
  int64_t cols = 1;
  Slice slice;
};

std::string tensor_label(const Tensor& tensor) {
  return tensor.path().string() + ": tensor \"" + tensor.name + "\"";
}

Status check_shape(const Tensor& tensor, std::initializer_list<int64_t> expected,
                   const std::string& why) {
  if (std::equal(tensor.shape.begin(), tensor.shape.end(), expected.begin(), expected.end())) {
    return {};
  }
  return corrupt_data(tensor_label(tensor) + " has shape " + shape_text(tensor.shape) +
                      ", expected " + shape_text(std::vector<int64_t>(expected)) + " " + why);
}

Status check_dtype(const Tensor& tensor, std::initializer_list<DType> expected) {
  if (std::find(expected.begin(), expected.end(), tensor.dtype) != expected.end()) return {};
  std::string names;
  for (const DType type : expected) {
    names += (names.empty() ? "" : " or ") + std::string(format::dtype_name(type));
  }
  return corrupt_data(tensor_label(tensor) + " has dtype " +
                      std::string(format::dtype_name(tensor.dtype)) + ", expected " + names);
}

class HfSource final : public WeightSource {
 public:
  static Result<std::unique_ptr<WeightSource>> open(const fs::path& directory);

  const ModelConfig& config() const override { return config_; }
  bool tied_head() const override { return tied_; }
  Result<std::optional<float>> kv_scale(int64_t layer, bool value_side) const override;
  Result<StoredMatrix> matrix(std::string_view module, DType decoded) const override;
  Status decode_rows(std::string_view module, int64_t row, int64_t count,
                     std::span<float> out) const override;
  Result<std::vector<float>> vector(std::string_view name) const override;
  void release(std::string_view module) const override;

 private:
  Status read_texts(const fs::path& directory);
  Status read_quantization(const fs::path& directory, const JsonRef& root);
  Status resolve_all();
  Status resolve(const ExpectedWeight& expected);
  Status resolve_dense(const ExpectedWeight& expected, Entry& entry);
  Status resolve_coded(const ExpectedWeight& expected, Entry& entry);
  Result<Slice> find_slice(const ExpectedWeight& expected) const;
  Status take_input_scale(const Slice& slice, const WeightFormat& format, WeightInfo& info);
  Status collect_kv_scales();
  Status account_for_unused();
  Result<const Entry*> entry(std::string_view name, bool matrix) const;
  Result<StoredMatrix> view(const Entry& entry) const;
  std::string label(const Entry& entry, std::string_view name) const;

  ModelConfig config_;
  QuantizationConfig quantization_config_;
  HfTensors tensors_;
  bool tied_ = false;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::pair<int64_t, bool>, float> kv_scales_;
};

// chat_template of tokenizer_config.json: a string, or a list of {name, template}.
Result<std::string> embedded_template(const std::string& tokenizer_config,
                                      const std::string& source) {
  if (tokenizer_config.empty()) return std::string();
  SUB8_ASSIGN_OR_RETURN(const auto document, parse_json(tokenizer_config, source));
  SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(tokenizer_config, source));
  const JsonRef root(document, source);
  const auto member = root.find("chat_template");
  if (!member) return std::string();
  if (member->is_string()) return member->as_string();
  SUB8_ASSIGN_OR_RETURN(const auto elements, member->elements());
  for (const JsonRef& element : elements) {
    SUB8_ASSIGN_OR_RETURN(const std::string name, element.get_string("name", ""));
    if (name == "default") return element.get_string("template", "");
  }
  return std::string();
}

Status HfSource::read_texts(const fs::path& directory) {
  SUB8_ASSIGN_OR_RETURN(texts_.generation_config,
                        read_optional_model_file(directory / "generation_config.json"));
  SUB8_ASSIGN_OR_RETURN(texts_.tokenizer, read_optional_model_file(directory / "tokenizer.json"));
  SUB8_ASSIGN_OR_RETURN(texts_.tokenizer_config,
                        read_optional_model_file(directory / "tokenizer_config.json"));
  SUB8_ASSIGN_OR_RETURN(texts_.special_tokens_map,
                        read_optional_model_file(directory / "special_tokens_map.json"));
  SUB8_ASSIGN_OR_RETURN(texts_.chat_template,
                        read_optional_model_file(directory / "chat_template.jinja"));
  if (texts_.chat_template.empty()) {
    SUB8_ASSIGN_OR_RETURN(
        texts_.chat_template,
        embedded_template(texts_.tokenizer_config, (directory / "tokenizer_config.json").string()));
  }
  if (!texts_.generation_config.empty()) {
    const std::string name = (directory / "generation_config.json").string();
    SUB8_ASSIGN_OR_RETURN(generation_config_,
                          parse_generation_config(texts_.generation_config, name));
    SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(texts_.generation_config, name));
    SUB8_RETURN_IF_ERROR(check_token_ids(name, generation_config_, config_.vocab_size));
  }
  if (generation_config_.eos_token_ids.empty()) {
    generation_config_.eos_token_ids = config_.eos_token_ids;
  }
  if (!generation_config_.bos_token_id) generation_config_.bos_token_id = config_.bos_token_id;
  return {};
}

Status HfSource::read_quantization(const fs::path& directory, const JsonRef& root) {
  std::optional<JsonRef> node = root.find("quantization_config");
  if (!node) node = root.find("compression_config");
  if (const auto text = root.find("text_config"); !node && text) {
    node = text->find("quantization_config");
  }
  if (node) {
    SUB8_ASSIGN_OR_RETURN(quantization_config_, QuantizationConfig::read(*node));
  }
  const fs::path extra = directory / "hf_quant_config.json";
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_optional_model_file(extra));
  if (!text.empty()) {
    SUB8_ASSIGN_OR_RETURN(const auto document, parse_json(text, extra.string()));
    SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(text, extra.string()));
    SUB8_ASSIGN_OR_RETURN(QuantizationConfig other, QuantizationConfig::read_hf_quant_config(
                                                        JsonRef(document, extra.string())));
    if (!node) {
      quantization_config_ = std::move(other);
    } else if (quantization_config_.method() == QuantMethod::kModelOpt &&
               other.description() != quantization_config_.description()) {
      return corrupt_data(extra.string() + ": it says \"" + other.description() +
                          "\", config.json says \"" + quantization_config_.description() + "\"");
    }
  }
  quantization_ = quantization_config_.description();
  kv_cache_scheme_ = quantization_config_.kv_cache_scheme();
  return {};
}

Result<std::unique_ptr<WeightSource>> HfSource::open(const fs::path& directory) {
  auto out = std::make_unique<HfSource>();
  out->path_ = directory;
  const fs::path config_path = directory / "config.json";
  SUB8_ASSIGN_OR_RETURN(out->texts_.config, read_model_file(config_path));
  SUB8_ASSIGN_OR_RETURN(const auto document, parse_json(out->texts_.config, config_path.string()));
  SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(out->texts_.config, config_path.string()));
  const JsonRef root(document, config_path.string());
  SUB8_ASSIGN_OR_RETURN(out->config_, read_model_config(root));
  out->warnings_ = out->config_.warnings;
  SUB8_RETURN_IF_ERROR(out->read_quantization(directory, root));
  SUB8_RETURN_IF_ERROR(out->read_texts(directory));
  SUB8_ASSIGN_OR_RETURN(SafetensorsModel model, SafetensorsModel::open(directory));
  SUB8_ASSIGN_OR_RETURN(out->tensors_,
                        HfTensors::create(std::move(model), out->config_.architecture));
  SUB8_RETURN_IF_ERROR(out->resolve_all());
  return std::unique_ptr<WeightSource>(std::move(out));
}

// Where a module's tensors are: under its own name, or inside qkv_proj / gate_up_proj.
Result<Slice> HfSource::find_slice(const ExpectedWeight& expected) const {
  const bool is_bias = expected.kind == WeightKind::kVector;
  std::string module = expected.name;
  if (is_bias) module = module.substr(0, module.rfind('.'));
  Slice own{module, 0, expected.rows, 0, 1};
  const std::string suffix = is_bias ? expected.name.substr(module.size()) : "";
  const auto exists = [&](const std::string& name) {
    if (is_bias) return tensors_.has(name + suffix);
    return tensors_.has(name + ".weight") || tensors_.has(name + ".weight_packed");
  };
  const size_t dot = module.rfind('.');
  if (exists(module) || dot == std::string::npos) return own;
  const std::string parent = module.substr(0, dot + 1);
  const std::string last = module.substr(dot + 1);
  const int64_t q = config_.heads * config_.head_dim;
  const int64_t kv = config_.kv_heads * config_.head_dim;
  const int64_t ffn = config_.intermediate_size;
  const Slice fused[] = {{parent + "qkv_proj", 0, q + 2 * kv, 0, 3},
                         {parent + "qkv_proj", q, q + 2 * kv, 1, 3},
                         {parent + "qkv_proj", q + kv, q + 2 * kv, 2, 3},
                         {parent + "gate_up_proj", 0, 2 * ffn, 0, 2},
                         {parent + "gate_up_proj", ffn, 2 * ffn, 1, 2}};
  const char* parts[] = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"};
  for (size_t i = 0; i < std::size(parts); ++i) {
    if (last == parts[i] && exists(fused[i].module)) return fused[i];
  }
  return own;
}

Status HfSource::resolve_dense(const ExpectedWeight& expected, Entry& entry) {
  const bool vector = expected.kind == WeightKind::kVector;
  const std::string name =
      entry.slice.module +
      (vector ? expected.name.substr(expected.name.rfind('.')) : std::string(".weight"));
  entry.codes = tensors_.take(name);
  if (entry.codes == nullptr) {
    if (tensors_.has(entry.slice.module + ".weight_packed")) {
      return corrupt_data(path_.string() + ": module \"" + expected.name +
                          "\" is not quantised according to the configuration, but has "
                          "weight_packed");
    }
    return corrupt_data(path_.string() + ": tensor \"" + name + "\" is missing" +
                        (expected.name == "lm_head"
                             ? " and config.json says that it is not tied to the embedding"
                             : ""));
  }
  if (vector) return check_shape(*entry.codes, {entry.slice.total_rows}, "by config.json");
  const DType type = entry.codes->dtype;
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
    return unsupported(tensor_label(*entry.codes) + " has dtype " +
                       std::string(format::dtype_name(type)) +
                       "; the configuration does not list it as quantised, so F32, F16 or BF16 "
                       "is expected");
  }
  entry.format = format::dense_format(type);
  return check_shape(*entry.codes, {entry.slice.total_rows, expected.cols}, "by config.json");
}

Status HfSource::resolve_coded(const ExpectedWeight& expected, Entry& entry) {
  const WeightFormat& f = entry.format;
  const StorageNames names = storage_names(quantization_config_.method(), f);
  const std::string prefix = entry.slice.module + ".";
  const auto take = [&](std::string_view suffix) -> Result<const Tensor*> {
    if (suffix.empty()) return static_cast<const Tensor*>(nullptr);
    const Tensor* found = tensors_.take(prefix + std::string(suffix));
    if (found != nullptr) return found;
    return corrupt_data(path_.string() + ": tensor \"" + prefix + std::string(suffix) +
                        "\" is missing; " + quantization_ + " stores \"" + expected.name +
                        "\" as " + f.name() +
                        (tensors_.has(prefix + "weight")
                             ? " (its weight is there: should the module be in the ignore list?)"
                             : ""));
  };
  SUB8_ASSIGN_OR_RETURN(entry.codes, take(names.codes));
  SUB8_ASSIGN_OR_RETURN(entry.block_scales, take(names.block_scale));
  SUB8_ASSIGN_OR_RETURN(entry.outer_scales, take(names.outer_scale));
  entry.outer_is_reciprocal = names.outer_is_reciprocal;
  const bool foreign = quantization_config_.method() != QuantMethod::kSub8;
  if (foreign && f.group != 0 && expected.cols % f.group != 0) {
    return unsupported(tensor_label(*entry.codes) + ": " + std::to_string(expected.cols) +
                       " input channels are not whole blocks of " + std::to_string(f.group));
  }
  const int64_t rows = entry.slice.total_rows;
  const std::string why = "for " + f.name() + " of " + shape_text(std::vector{rows, expected.cols});
  if (foreign && f.element.bits() == 8) {
    SUB8_RETURN_IF_ERROR(check_dtype(*entry.codes, {DType::kF8E4M3}));
  } else {
    SUB8_RETURN_IF_ERROR(check_dtype(*entry.codes, {DType::kU8}));
  }
  SUB8_RETURN_IF_ERROR(check_shape(*entry.codes, {rows, f.row_bytes(expected.cols)}, why));
  if (entry.block_scales != nullptr) {
    if (f.block_scale == BlockScale::kE4M3) {
      SUB8_RETURN_IF_ERROR(check_dtype(*entry.block_scales, {DType::kF8E4M3}));
    } else {
      SUB8_RETURN_IF_ERROR(check_dtype(*entry.block_scales, {DType::kU8, DType::kF8E8M0}));
    }
    SUB8_RETURN_IF_ERROR(check_shape(*entry.block_scales, {rows, f.groups(expected.cols)}, why));
  }
  // Reads the scales once, so that a bad dtype, shape or value is refused at load.
  return view(entry).ok() ? Status() : Status(view(entry).error());
}

Status HfSource::take_input_scale(const Slice& slice, const WeightFormat& format,
                                  WeightInfo& info) {
  const StorageNames names = storage_names(quantization_config_.method(), format);
  const Tensor* tensor = tensors_.take(slice.module + "." + std::string(names.input_scale));
  if (tensor == nullptr) return {};
  SUB8_ASSIGN_OR_RETURN(const std::vector<float> values, read_scales(*tensor, slice.parts));
  const float value = values[static_cast<size_t>(slice.part)];
  if (!(value > 0)) {
    return corrupt_data(tensor_label(*tensor) + ": an activation scale of " +
                        std::to_string(value));
  }
  info.input_scale = names.outer_is_reciprocal ? 1.0F / value : value;
  if (!(*info.input_scale >= format::power_of_two(-117)) || !std::isfinite(*info.input_scale)) {
    return corrupt_data(tensor_label(*tensor) + ": an activation scale of " +
                        std::to_string(value) + " is beyond what activations can be divided by");
  }
  const bool nvfp4 = format.element == format::kE2M1 && format.block_scale == BlockScale::kE4M3 &&
                     format.group == format::kNvfp4Block;
  info.input_format = nvfp4 ? format::ActivationFormat::kNvfp4 : format::ActivationFormat::kFp8;
  return {};
}

Status HfSource::resolve(const ExpectedWeight& expected) {
  Entry entry;
  entry.rows = expected.rows;
  entry.cols = expected.cols;
  SUB8_ASSIGN_OR_RETURN(entry.slice, find_slice(expected));
  std::optional<WeightFormat> format;
  if (expected.kind != WeightKind::kVector) {
    const std::vector<std::string> names{expected.name, tensors_.file_name(entry.slice.module)};
    SUB8_ASSIGN_OR_RETURN(
        format, quantization_config_.format_of(names, expected.kind == WeightKind::kLinear));
  }
  WeightInfo info;
  info.name = expected.name;
  info.kind = expected.kind;
  info.rows = expected.rows;
  info.cols = expected.cols;
  if (format) {
    entry.format = *format;
    SUB8_RETURN_IF_ERROR(resolve_coded(expected, entry));
    SUB8_RETURN_IF_ERROR(take_input_scale(entry.slice, *format, info));
    info.stored_type = entry.format.name();
    info.stored_bytes = entry.format.storage_bytes(expected.rows, expected.cols);
  } else {
    SUB8_RETURN_IF_ERROR(resolve_dense(expected, entry));
    info.stored_type = format::dtype_name(entry.codes->dtype);
    info.stored_bytes = expected.rows * expected.cols *
                        static_cast<int64_t>(format::dtype_bytes(entry.codes->dtype));
  }
  info.format = entry.format;
  info.file = entry.codes->path();
  add_weight(std::move(info));
  entries_.emplace(expected.name, std::move(entry));
  return {};
}

Status HfSource::resolve_all() {
  tied_ = config_.tie_word_embeddings;
  for (const ExpectedWeight& expected : expected_weights(config_, tied_)) {
    SUB8_RETURN_IF_ERROR(resolve(expected));
  }
  for (const auto& [name, format] : quantization_config_.modules()) {
    if (!entries_.contains(name)) {
      return corrupt_data(path_.string() + ": quantization_config lists the module \"" + name +
                          "\", which this model does not have");
    }
  }
  SUB8_RETURN_IF_ERROR(collect_kv_scales());
  return account_for_unused();
}

Status HfSource::collect_kv_scales() {
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const std::string attention =
        (config_.architecture == Architecture::kOpt ? "model.decoder.layers." : "model.layers.") +
        std::to_string(layer) + ".self_attn.";
    for (const bool value_side : {false, true}) {
      const std::string scale = value_side ? "v_scale" : "k_scale";
      const Tensor* tensor =
          tensors_.take(attention + (value_side ? "v_proj." : "k_proj.") + scale);
      if (tensor == nullptr) tensor = tensors_.take(attention + scale);
      if (tensor == nullptr) continue;
      SUB8_ASSIGN_OR_RETURN(const std::vector<float> values, read_scales(*tensor, 1));
      if (!(values[0] > 0)) {
        return corrupt_data(tensor_label(*tensor) + ": a KV-cache scale of " +
                            std::to_string(values[0]));
      }
      kv_scales_[{layer, value_side}] = values[0];
    }
  }
  return {};
}

Status HfSource::account_for_unused() {
  for (const std::string& name : tensors_.unused()) {
    const std::string module = name.substr(0, std::min(name.rfind('.'), name.size()));
    if (tied_ && module == "lm_head") {
      ignored_.push_back(name + ": the head is tied to " + embedding_module(config_));
      continue;
    }
    // A further tensor of a module that is in use would change what it computes.
    const bool used_module = entries_.contains(module) || entries_.contains(module + ".weight");
    if (used_module) {
      return unsupported(tensor_label(*tensors_.peek(name)) +
                         " is not something that sub8 understands, and leaving it out would "
                         "change the result");
    }
    SUB8_RETURN_IF_ERROR(check_unused_in_layers(name, layer_prefix(config_), config_,
                                                tensor_label(*tensors_.peek(name))));
    ignored_.push_back(name + ": not part of the text model");
  }
  return {};
}

Result<std::optional<float>> HfSource::kv_scale(int64_t layer, bool value_side) const {
  const auto at = kv_scales_.find({layer, value_side});
  return at == kv_scales_.end() ? std::optional<float>() : std::optional<float>(at->second);
}

Result<const Entry*> HfSource::entry(std::string_view name, bool matrix) const {
  const std::string own =
      name == "lm_head" && tied_ ? embedding_module(config_) : std::string(name);
  const auto at = entries_.find(own);
  const WeightInfo* info = find(own);
  if (at == entries_.end() || (info->kind != WeightKind::kVector) != matrix) {
    return not_found(path_.string() + ": no " + (matrix ? "matrix" : "vector") + " named \"" +
                     std::string(name) + "\"");
  }
  return &at->second;
}

// The module as a StoredMatrix over the mapped file; sizes checked, values not.
Result<StoredMatrix> HfSource::view(const Entry& entry) const {
  StoredMatrix whole;
  whole.format = entry.format;
  whole.rows = entry.slice.total_rows;
  whole.cols = entry.cols;
  whole.codes = entry.codes->data;
  if (entry.block_scales != nullptr) whole.block_scales = entry.block_scales->data;
  whole.owner = entry.codes->owner;
  if (entry.outer_scales != nullptr) {
    const Tensor& tensor = *entry.outer_scales;
    const bool channel = entry.format.outer_scale == OuterScale::kChannel;
    if (channel) {
      const int64_t count = tensor.shape.empty() ? 1 : tensor.elements();
      if (count != whole.rows) {
        return corrupt_data(tensor_label(tensor) + " has shape " + shape_text(tensor.shape) +
                            ", expected " + std::to_string(whole.rows) + " scales");
      }
      SUB8_ASSIGN_OR_RETURN(whole.outer_scales, read_floats(tensor));
    } else {
      SUB8_ASSIGN_OR_RETURN(const std::vector<float> values,
                            read_scales(tensor, entry.slice.parts));
      whole.outer_scales = {values[static_cast<size_t>(entry.slice.part)]};
    }
    for (float& scale : whole.outer_scales) {
      if (!(scale >= 0) || (entry.outer_is_reciprocal && scale == 0)) {
        return corrupt_data(tensor_label(tensor) + ": a scale of " + std::to_string(scale));
      }
      if (entry.outer_is_reciprocal) scale = 1.0F / scale;
    }
  }
  SUB8_RETURN_IF_ERROR(check_matrix(whole, tensor_label(*entry.codes)));
  if (entry.slice.parts == 1) return whole;
  return slice_rows(whole, entry.slice.row, entry.rows);
}

std::string HfSource::label(const Entry& entry, std::string_view name) const {
  return tensor_label(*entry.codes) + " (module " + std::string(name) + ")";
}

Result<StoredMatrix> HfSource::matrix(std::string_view module, DType) const {
  SUB8_ASSIGN_OR_RETURN(const Entry* const found, entry(module, true));
  SUB8_ASSIGN_OR_RETURN(StoredMatrix out, view(*found));
  SUB8_RETURN_IF_ERROR(check_finite(out, 0, out.rows, label(*found, module)));
  return out;
}

Status HfSource::decode_rows(std::string_view module, int64_t row, int64_t count,
                             std::span<float> out) const {
  SUB8_ASSIGN_OR_RETURN(const Entry* const found, entry(module, true));
  SUB8_ASSIGN_OR_RETURN(const StoredMatrix all, view(*found));
  if (row < 0 || count < 0 || count > all.rows - row ||
      static_cast<int64_t>(out.size()) != count * all.cols) {
    return invalid_argument("rows [" + std::to_string(row) + ", +" + std::to_string(count) +
                            ") of \"" + std::string(module) + "\" with " +
                            std::to_string(all.rows) + " rows");
  }
  SUB8_RETURN_IF_ERROR(check_finite(all, row, count, label(*found, module)));
  sub8::decode_rows(all, row, count, out);
  return {};
}

Result<std::vector<float>> HfSource::vector(std::string_view name) const {
  SUB8_ASSIGN_OR_RETURN(const Entry* const found, entry(name, false));
  SUB8_ASSIGN_OR_RETURN(std::vector<float> out, read_floats(*found->codes));
  if (found->slice.parts == 1) return out;
  const auto begin = out.begin() + found->slice.row;
  return std::vector<float>(begin, begin + found->rows);
}

void HfSource::release(std::string_view module) const {
  const auto found = entry(module, true);
  if (!found.ok()) return;
  for (const Tensor* tensor : {(*found)->codes, (*found)->block_scales}) {
    if (tensor != nullptr && tensor->file) {
      tensor->file->release(static_cast<size_t>(tensor->file_offset), tensor->data.size());
    }
  }
}

}  // namespace

Result<std::unique_ptr<WeightSource>> open_hf_directory(const fs::path& directory) {
  return HfSource::open(directory);
}

}  // namespace sub8::checkpoint
