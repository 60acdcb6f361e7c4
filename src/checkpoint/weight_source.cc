#include "checkpoint/weight_source.h"

#include <utility>

#include "base/check.h"
#include "checkpoint/gguf_source.h"
#include "checkpoint/hf_source.h"
#include "checkpoint/model_file.h"
#include "checkpoint/model_layout.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;
namespace {

bool looks_like_hub_id(const std::string& text) {
  const size_t slash = text.find('/');
  return slash != std::string::npos && slash != 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == std::string::npos && text[0] != '.' && text[0] != '~';
}

}  // namespace

std::optional<float> WeightInfo::static_alpha(format::ActivationFormat activations) const {
  if (!input_scale || activations == input_format) return input_scale;
  // amax is 2688 alpha in NVFP4 and 448 alpha in FP8.
  const bool from_nvfp4 = input_format == format::ActivationFormat::kNvfp4;
  return format::activation_alpha(activations, *input_scale * (from_nvfp4 ? 2688.0F : 448.0F));
}

WeightSource::~WeightSource() = default;

const WeightInfo* WeightSource::find(std::string_view name) const {
  const auto at = name == "lm_head" && tied_head() ? index_.find(embedding_module(config()))
                                                   : index_.find(name);
  return at == index_.end() ? nullptr : &weights_[at->second];
}

void WeightSource::add_weight(WeightInfo info) {
  const bool added = index_.emplace(info.name, weights_.size()).second;
  SUB8_CHECK(added);
  weights_.push_back(std::move(info));
}

Result<std::optional<float>> WeightSource::kv_scale(int64_t, bool) const {
  return std::optional<float>();
}

Result<std::unique_ptr<WeightSource>> open_checkpoint(const fs::path& model) {
  std::error_code ignored;
  if (fs::is_directory(model, ignored)) {
    if (!is_present(model / "config.json")) {
      SUB8_ASSIGN_OR_RETURN(const auto ggufs, files_with_extension(model, ".gguf"));
      return not_found("'" + model.string() + "' has no config.json" +
                       (ggufs.empty()
                            ? "; a model directory holds config.json, tokenizer.json and "
                              "*.safetensors"
                            : "; for a GGUF name the file itself: " + ggufs.front().string()));
    }
    return open_hf_directory(model);
  }
  if (is_present(model)) {
    if (model.extension() == ".safetensors") {
      return invalid_argument("'" + model.string() +
                              "' is a single safetensors file; name the directory that holds it "
                              "together with config.json and tokenizer.json");
    }
    return open_gguf(model);
  }
  const std::string text = model.string();
  if (looks_like_hub_id(text)) {
    return not_found("'" + text +
                     "' does not exist here. sub8 does not download models; if this is "
                     "a Hugging Face id, get it with\n  hf download " +
                     text + " --local-dir " + text.substr(text.find('/') + 1) +
                     "\nand pass that directory");
  }
  return not_found("'" + text + "' does not exist; expected a model directory or a .gguf file");
}

}  // namespace sub8::checkpoint
