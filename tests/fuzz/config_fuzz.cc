// config.json with quantization_config, hf_quant_config.json, generation_config.json.
#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "base/json_keys.h"
#include "checkpoint/model_config.h"
#include "checkpoint/model_layout.h"
#include "checkpoint/quantization_config.h"

namespace {

using namespace sub8;              // NOLINT
using namespace sub8::checkpoint;  // NOLINT

void use(const Result<QuantizationConfig>& config) {
  if (!config.ok()) return;
  for (const std::string name :
       {"model.layers.0.self_attn.q_proj", "lm_head", "model.embed_tokens"}) {
    const std::string names[] = {name, "language_model." + name};
    (void)config->format_of(names, name != "model.embed_tokens");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_model_config(text, "config.json");
  if (config.ok()) {
    if (config->layers <= 64) (void)expected_weights(*config, config->tie_word_embeddings);
    (void)parse_model_config(model_config_json(*config, "float32"), "again");
  }
  const auto generation = parse_generation_config(text, "generation_config.json");
  if (generation.ok()) (void)generation_config_json(*generation);
  (void)check_no_duplicate_keys(text, "config.json");
  const auto document = parse_json(text, "config.json");
  if (!document.ok()) return 0;
  const JsonRef root(*document, "config.json");
  if (const auto node = root.find("quantization_config")) use(QuantizationConfig::read(*node));
  use(QuantizationConfig::read_hf_quant_config(root));
  return 0;
}
