#include "checkpoint/hf_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sub8::checkpoint {
namespace {

using format::DType;

struct Prefix {
  std::string_view from, to;
};
constexpr Prefix kWrappers[] = {{"model.language_model.lm_head.", "lm_head."},
                                {"model.language_model.", "model."},
                                {"language_model.model.", "model."},
                                {"language_model.lm_head.", "lm_head."}};

std::string canonical_name(const std::string& name, bool bare_backbone, bool opt) {
  for (const Prefix& prefix : kWrappers) {
    if (name.starts_with(prefix.from)) {
      return std::string(prefix.to) + name.substr(prefix.from.size());
    }
  }
  if (opt && name.starts_with("decoder.")) return "model." + name;
  if (bare_backbone) {
    for (const std::string_view part : {"layers.", "embed_tokens.", "norm."}) {
      if (name.starts_with(part)) return "model." + name;
    }
  }
  return name;
}

float load(const Tensor& tensor, size_t index) {
  if (tensor.dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, tensor.data.data() + 4 * index, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, tensor.data.data() + 2 * index, 2);
  return tensor.dtype == DType::kF16 ? format::f16_to_float(bits) : format::bf16_to_float(bits);
}

}  // namespace

Result<HfTensors> HfTensors::create(SafetensorsModel model, Architecture architecture) {
  HfTensors out;
  out.model_ = std::move(model);
  const bool bare = out.model_.find("embed_tokens.weight") != nullptr;
  for (const Tensor& tensor : out.model_.tensors()) {
    const std::string name = canonical_name(tensor.name, bare, architecture == Architecture::kOpt);
    const auto [at, added] = out.by_name_.emplace(name, &tensor);
    if (!added) {
      return corrupt_data(tensor.path().string() + ": tensors \"" + tensor.name + "\" and \"" +
                          at->second->name + "\" are the same weight");
    }
  }
  return out;
}

const Tensor* HfTensors::take(std::string_view name) {
  const Tensor* found = peek(name);
  if (found != nullptr) used_.emplace(name);
  return found;
}

const Tensor* HfTensors::peek(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : at->second;
}

bool HfTensors::has(std::string_view name) const { return peek(name) != nullptr; }

std::string HfTensors::file_name(std::string_view canonical) const {
  const std::string prefix = std::string(canonical) + ".";
  const auto at = by_name_.lower_bound(prefix);
  if (at == by_name_.end() || !at->first.starts_with(prefix)) return std::string(canonical);
  const std::string& name = at->second->name;
  return name.substr(0, name.size() - (at->first.size() - canonical.size()));
}

std::vector<std::string> HfTensors::unused() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : by_name_) {
    if (!used_.contains(name)) out.push_back(name);
  }
  return out;
}

Result<std::vector<float>> read_floats(const Tensor& tensor) {
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16) {
    return unsupported(tensor.path().string() + ": tensor \"" + tensor.name + "\" has dtype " +
                       std::string(format::dtype_name(tensor.dtype)) +
                       ", expected F32, F16 or BF16");
  }
  std::vector<float> out(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = load(tensor, i);
    if (!std::isfinite(out[i])) {
      return corrupt_data(tensor.path().string() + ": tensor \"" + tensor.name + "\" has " +
                          (std::isnan(out[i]) ? "NaN" : "an infinity") + " at index " +
                          std::to_string(i));
    }
  }
  return out;
}

Result<std::vector<float>> read_scales(const Tensor& tensor, int64_t count) {
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= size;
  if (elements != 1 && elements != count) {
    return corrupt_data(
        tensor.path().string() + ": tensor \"" + tensor.name + "\" has shape " +
        shape_text(tensor.shape) + ", expected " +
        (count == 1 ? std::string("one value") : "1 or " + std::to_string(count) + " values"));
  }
  SUB8_ASSIGN_OR_RETURN(std::vector<float> out, read_floats(tensor));
  if (static_cast<int64_t>(out.size()) != count) {
    const float only = out[0];
    out.assign(static_cast<size_t>(count), only);
  }
  return out;
}

}  // namespace sub8::checkpoint
