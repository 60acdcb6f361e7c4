#include "quantize/awq.h"

#include <charconv>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/wrapped_source.h"
#include "format/dtype.h"

namespace sub8::quantize {
namespace fs = std::filesystem;
namespace {

using checkpoint::Architecture;
using checkpoint::ModelConfig;
using checkpoint::WeightInfo;
using checkpoint::WeightKind;
using checkpoint::WeightSource;
using format::DType;

constexpr std::string_view kSuffix = ".awq_scale";
constexpr std::string_view kVersionKey = "awq_format_version";
constexpr std::string_view kVersion = "1";

// Query heads read the values of the KV head they share.
std::vector<int64_t> value_rows(const ModelConfig& c) {
  std::vector<int64_t> out;
  const int64_t per_kv = c.heads / c.kv_heads;
  for (int64_t head = 0; head < c.heads; ++head) {
    for (int64_t i = 0; i < c.head_dim; ++i) out.push_back(head / per_kv * c.head_dim + i);
  }
  return out;
}

std::vector<int64_t> own_rows(int64_t count) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(i);
  return out;
}

std::vector<AwqSite> llama_sites(const ModelConfig& c, const std::string& layer) {
  const std::string attention = layer + "self_attn.";
  const std::string mlp = layer + "mlp.";
  const std::string mlp_norm = c.architecture == Architecture::kGemma3
                                   ? "pre_feedforward_layernorm.weight"
                                   : "post_attention_layernorm.weight";
  return {{{attention + "o_proj"}, "", attention + "v_proj", value_rows(c), c.heads * c.head_dim},
          {{mlp + "down_proj"},
           "",
           mlp + "up_proj",
           own_rows(c.intermediate_size),
           c.intermediate_size},
          {{attention + "q_proj", attention + "k_proj", attention + "v_proj"},
           layer + "input_layernorm.weight",
           "",
           {},
           c.hidden_size},
          {{mlp + "gate_proj", mlp + "up_proj"}, layer + mlp_norm, "", {}, c.hidden_size}};
}

// A norm after the residual sum makes the residual stream too, so it cannot be folded into.
std::vector<AwqSite> opt_sites(const ModelConfig& c, const std::string& layer) {
  const std::string attention = layer + "self_attn.";
  std::vector<AwqSite> out = {
      {{attention + "out_proj"}, "", attention + "v_proj", value_rows(c), c.heads * c.head_dim}};
  if (c.activation == checkpoint::Activation::kRelu) {
    out.push_back(
        {{layer + "fc2"}, "", layer + "fc1", own_rows(c.intermediate_size), c.intermediate_size});
  }
  if (!c.norm_before || !c.norm_affine) return out;
  out.push_back({{attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                 layer + "self_attn_layer_norm.weight",
                 "",
                 {},
                 c.hidden_size});
  out.push_back({{layer + "fc1"}, layer + "final_layer_norm.weight", "", {}, c.hidden_size});
  return out;
}

std::string bias_of(std::string_view weight_or_module) {
  constexpr std::string_view kWeight = ".weight";
  if (weight_or_module.ends_with(kWeight)) weight_or_module.remove_suffix(kWeight.size());
  return std::string(weight_or_module) + ".bias";
}

template <class Map>
auto find_in(const Map& map, std::string_view name) -> const typename Map::mapped_type* {
  const auto at = map.find(name);
  return at == map.end() ? nullptr : &at->second;
}

class AwqSource final : public checkpoint::WrappedSource {
 public:
  AwqSource(std::unique_ptr<WeightSource> source, AwqFold fold)
      : WrappedSource(std::move(source)), fold_(std::move(fold)) {
    bool coded = false;
    for (WeightInfo info : this->source().weights()) {
      if (info.kind == WeightKind::kVector) {
        if (fold_.vector(info.name) != nullptr) set_vector_type(info);
      } else if (is_folded(info.name)) {
        coded = coded || info.quantized();
        info.format = format::dense_format(DType::kF32);
        info.input_scale.reset();
      }
      add_weight(std::move(info));
    }
    if (coded) {
      warnings_.push_back("the source is already quantised (" + quantization_ +
                          "): errors add up, quantise the original weights where you have them");
    }
  }

  Result<StoredMatrix> matrix(std::string_view module, DType decoded) const override {
    if (!is_folded(module)) return source().matrix(module, decoded);
    const WeightInfo* info = find(module);
    auto values =
        std::make_shared<std::vector<float>>(static_cast<size_t>(info->rows * info->cols));
    SUB8_RETURN_IF_ERROR(decode_rows(module, 0, info->rows, *values));
    StoredMatrix out;
    out.format = info->format;
    out.rows = info->rows;
    out.cols = info->cols;
    out.codes = {reinterpret_cast<const uint8_t*>(values->data()), values->size() * sizeof(float)};
    out.owner = std::move(values);
    return out;
  }

  Status decode_rows(std::string_view module, int64_t row, int64_t count,
                     std::span<float> out) const override {
    SUB8_RETURN_IF_ERROR(source().decode_rows(module, row, count, out));
    if (!is_folded(module)) return {};
    const size_t cols = out.size() / static_cast<size_t>(std::max<int64_t>(count, 1));
    for (int64_t r = 0; r < count; ++r)
      fold_.apply(module, row + r, out.subspan(static_cast<size_t>(r) * cols, cols));
    return {};
  }

  Result<std::vector<float>> vector(std::string_view name) const override {
    const std::vector<float>* folded = fold_.vector(name);
    if (folded != nullptr) return *folded;
    return source().vector(name);
  }

 private:
  bool is_folded(std::string_view module) const {
    return fold_.columns(module) != nullptr || fold_.row_divisors(module) != nullptr;
  }
  // Norm weights are bf16 numbers, which f16 need not hold; folded biases are any numbers.
  static void set_vector_type(WeightInfo& info) {
    if (info.name.ends_with(".weight") && info.stored_type == "BF16") return;
    info.stored_type = "F32";
    info.stored_bytes = info.rows * 4;
  }

  AwqFold fold_;
};

std::string number_text(int64_t value) { return std::to_string(value); }

}  // namespace

Result<AwqFold> AwqFold::create(const WeightSource& source) {
  AwqFold out(source);
  const ModelConfig& c = source.config();
  const bool opt = c.architecture == Architecture::kOpt;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string prefix =
        fmt::format("{}{}.", opt ? "model.decoder.layers." : "model.layers.", layer);
    for (AwqSite& site : opt ? opt_sites(c, prefix) : llama_sites(c, prefix)) {
      for (const std::string& reader : site.readers) {
        const WeightInfo* info = source.find(reader);
        if (info == nullptr || info->cols != site.channels)
          return corrupt_data(fmt::format("{} does not read {} channels", reader, site.channels));
      }
      if (!site.norm.empty() && !source.has(site.norm))
        return corrupt_data(fmt::format("{} is missing", site.norm));
      out.sites_.push_back(std::move(site));
    }
  }
  return out;
}

Result<std::vector<float>> AwqFold::foldable(const AwqSite& site,
                                             std::span<const float> wanted) const {
  SUB8_CHECK_EQ(static_cast<int64_t>(wanted.size()), site.channels);
  std::vector<float> out(wanted.begin(), wanted.end());
  if (site.norm.empty()) {
    // The geometric mean over the channels that a row makes, where they differ.
    struct Row {
      double log_sum = 0;
      int count = 0;
      float first = 0;
      bool equal = true;
    };
    std::map<int64_t, Row> rows;
    for (size_t k = 0; k < out.size(); ++k) {
      Row& row = rows[site.rows[k]];
      if (row.count == 0) row.first = out[k];
      row.equal = row.equal && row.first == out[k];
      row.log_sum += std::log(static_cast<double>(out[k]));
      ++row.count;
    }
    for (size_t k = 0; k < out.size(); ++k) {
      const Row& row = rows[site.rows[k]];
      if (!row.equal) out[k] = static_cast<float>(std::exp(row.log_sum / row.count));
    }
    return out;
  }
  SUB8_ASSIGN_OR_RETURN(const std::vector<float> weight, source_->vector(site.norm));
  const float one = source_->config().norm_weight_plus_one ? 1.0F : 0.0F;
  for (size_t k = 0; k < out.size(); ++k) {
    const float factor = weight[k] + one;
    const float folded = format::round_to_bf16(factor / out[k] - one) + one;
    // A weight of zero makes zeros whatever its scale; one that would vanish stays.
    const bool fits = factor != 0 && folded != 0 && std::isfinite(folded) && folded / factor > 0;
    out[k] = fits ? factor / folded : 1.0F;
  }
  return out;
}

Status AwqFold::set(const AwqSite& site, std::span<const float> scales) {
  if (static_cast<int64_t>(scales.size()) != site.channels) {
    return corrupt_data(fmt::format("{} has {} AWQ scales, expected {}", site.name(), scales.size(),
                                    site.channels));
  }
  for (size_t k = 0; k < scales.size(); ++k) {
    if (scales[k] > 0 && std::isfinite(scales[k])) continue;
    return corrupt_data(
        fmt::format("{}: the AWQ scale of channel {} is {}, expected a finite one "
                    "above 0",
                    site.name(), k, scales[k]));
  }
  SUB8_ASSIGN_OR_RETURN(std::vector<float> used, foldable(site, scales));
  SUB8_RETURN_IF_ERROR(site.norm.empty() ? fold_producer(site, used) : fold_norm(site, used));
  for (const std::string& reader : site.readers) columns_[reader] = used;
  scales_[site.name()] = std::move(used);
  return {};
}

Status AwqFold::fold_norm(const AwqSite& site, const std::vector<float>& scales) {
  SUB8_ASSIGN_OR_RETURN(std::vector<float> weight, source_->vector(site.norm));
  const float one = source_->config().norm_weight_plus_one ? 1.0F : 0.0F;
  for (size_t k = 0; k < weight.size(); ++k) {
    if (scales[k] == 1.0F) continue;
    weight[k] = format::round_to_bf16((weight[k] + one) / scales[k] - one);
  }
  vectors_[site.norm] = std::move(weight);
  const std::string bias = bias_of(site.norm);
  if (!source_->has(bias)) return {};
  SUB8_ASSIGN_OR_RETURN(std::vector<float> values, source_->vector(bias));
  for (size_t k = 0; k < values.size(); ++k) values[k] /= scales[k];
  vectors_[bias] = std::move(values);
  return {};
}

Status AwqFold::fold_producer(const AwqSite& site, const std::vector<float>& scales) {
  const WeightInfo* info = source_->find(site.producer);
  SUB8_CHECK(info != nullptr);
  std::vector<float> divisors(static_cast<size_t>(info->rows), 1.0F);
  for (size_t k = 0; k < scales.size(); ++k)
    divisors[static_cast<size_t>(site.rows[k])] = scales[k];
  const std::string bias = bias_of(site.producer);
  if (source_->has(bias)) {
    SUB8_ASSIGN_OR_RETURN(std::vector<float> values, source_->vector(bias));
    for (size_t row = 0; row < values.size(); ++row) values[row] /= divisors[row];
    vectors_[bias] = std::move(values);
  }
  divisors_[site.producer] = std::move(divisors);
  return {};
}

const std::vector<float>* AwqFold::columns(std::string_view module) const {
  return find_in(columns_, module);
}
const std::vector<float>* AwqFold::row_divisors(std::string_view module) const {
  return find_in(divisors_, module);
}
const std::vector<float>* AwqFold::vector(std::string_view name) const {
  return find_in(vectors_, name);
}

void AwqFold::apply(std::string_view module, int64_t row, std::span<float> x) const {
  if (const std::vector<float>* divisors = row_divisors(module)) {
    const float divisor = (*divisors)[static_cast<size_t>(row)];
    for (float& value : x) value /= divisor;
  }
  if (const std::vector<float>* scales = columns(module)) {
    for (size_t k = 0; k < x.size(); ++k) x[k] *= (*scales)[k];
  }
}

Result<std::unique_ptr<WeightSource>> fold_awq(std::unique_ptr<WeightSource> source,
                                               const AwqScales& scales) {
  SUB8_ASSIGN_OR_RETURN(AwqFold fold, AwqFold::create(*source));
  size_t known = 0;
  for (const AwqSite& site : fold.sites()) {
    const auto found = scales.find(site.name());
    if (found == scales.end()) continue;
    SUB8_RETURN_IF_ERROR(fold.set(site, found->second));
    ++known;
  }
  if (known != scales.size()) {
    for (const auto& [name, values] : scales) {
      if (fold.scales().contains(name)) continue;
      return invalid_argument(fmt::format(
          "'{}' has no layer {} whose input can be scaled: the AWQ scales are of another model",
          source->path().string(), name.substr(0, 100)));
    }
  }
  return std::unique_ptr<WeightSource>(
      std::make_unique<AwqSource>(std::move(source), std::move(fold)));
}

Status write_awq(const fs::path& model_directory, const AwqRecord& record) {
  const fs::path folder = model_directory / "sub8";
  std::error_code error;
  fs::create_directory(folder, error);
  std::vector<checkpoint::TensorSpec> tensors;
  for (const auto& [name, values] : record.scales) {
    tensors.push_back(
        {name + std::string(kSuffix), DType::kF32, {static_cast<int64_t>(values.size())}});
  }
  SUB8_ASSIGN_OR_RETURN(auto writer, checkpoint::SafetensorsWriter::create(
                                         folder, tensors,
                                         {{std::string(kVersionKey), std::string(kVersion)},
                                          {"text", record.text},
                                          {"samples", number_text(record.samples)},
                                          {"tokens", number_text(record.tokens)}},
                                         INT64_MAX));
  for (const auto& [name, values] : record.scales) {
    SUB8_RETURN_IF_ERROR(writer.write(
        name + std::string(kSuffix),
        {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)}));
  }
  SUB8_RETURN_IF_ERROR(writer.finish());
  fs::rename(folder / "model.safetensors", folder / "awq.safetensors", error);
  if (!error) return {};
  return resource_exhausted(fmt::format("could not name the finished file '{}': {}",
                                        (folder / "awq.safetensors").string(), error.message()));
}

Result<std::optional<AwqRecord>> read_awq(const fs::path& model_directory) {
  const fs::path path = model_directory / "sub8" / "awq.safetensors";
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path, ignored))) return std::optional<AwqRecord>();
  SUB8_ASSIGN_OR_RETURN(const auto file, checkpoint::SafetensorsFile::open(path));
  const auto meta = [&](std::string_view key) {
    const auto at = file.metadata().find(std::string(key));
    return at == file.metadata().end() ? std::string() : at->second;
  };
  if (meta(kVersionKey) != kVersion) {
    return unsupported(fmt::format("{}: version '{}' of AWQ scales, this program reads {}",
                                   path.string(), meta(kVersionKey).substr(0, 20), kVersion));
  }
  AwqRecord out;
  out.text = meta("text");
  const auto number = [&](std::string_view key, int64_t& value) {
    const std::string text = meta(key);
    std::from_chars(text.data(), text.data() + text.size(), value);
  };
  number("samples", out.samples);
  number("tokens", out.tokens);
  for (const checkpoint::Tensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kSuffix) || tensor.dtype != DType::kF32 || tensor.shape.size() != 1)
      return corrupt_data(fmt::format("{}: the tensor \"{}\" holds no AWQ scales", path.string(),
                                      tensor.name.substr(0, 100)));
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    for (size_t k = 0; k < values.size(); ++k) {
      if (values[k] > 0 && std::isfinite(values[k])) continue;
      return corrupt_data(fmt::format("{}: {} is {} for channel {}, expected a finite one above 0",
                                      path.string(), tensor.name, values[k], k));
    }
    out.scales[tensor.name.substr(0, tensor.name.size() - kSuffix.size())] = std::move(values);
  }
  return std::optional(std::move(out));
}

}  // namespace sub8::quantize
