// config.json from a ModelConfig: for directories written from a GGUF.
#include <charconv>
#include <cmath>

#include "checkpoint/model_config.h"
#include "checkpoint/pretty_json.h"

namespace sub8::checkpoint {
namespace {

namespace json = boost::json;

// Metadata of a GGUF holds f32 values; the shortest text of the f32 (1e-05, not
// 9.999999747378752e-06) is what the model's own config.json has.
double tidy(double value) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  char text[40];
  const auto written = std::to_chars(text, text + sizeof text, narrow);
  double out = value;
  std::from_chars(text, written.ptr, out);
  return out;
}

json::value rope_scaling(const RopeConfig& rope) {
  if (rope.type == RopeType::kDefault) return nullptr;
  json::object out{{"rope_type", std::string(rope_type_name(rope.type))},
                   {"factor", tidy(rope.factor)}};
  if (rope.type == RopeType::kLlama3) {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
    out["original_max_position_embeddings"] = rope.original_max_positions;
  }
  if (rope.type == RopeType::kYarn) {
    out["beta_fast"] = rope.beta_fast;
    out["beta_slow"] = rope.beta_slow;
    out["truncate"] = rope.truncate;
    out["attention_factor"] = rope.attention_factor;
    out["original_max_position_embeddings"] = rope.original_max_positions;
  }
  return out;
}

struct Names {
  const char* model_type;
  const char* class_name;
};

Names names_of(const ModelConfig& config) {
  switch (config.architecture) {
    case Architecture::kLlama:
      return config.model_type == "mistral" ? Names{"mistral", "MistralForCausalLM"}
                                            : Names{"llama", "LlamaForCausalLM"};
    case Architecture::kQwen2:
      return {"qwen2", "Qwen2ForCausalLM"};
    case Architecture::kQwen3:
      return {"qwen3", "Qwen3ForCausalLM"};
    case Architecture::kGemma3:
      return {"gemma3_text", "Gemma3ForCausalLM"};
    case Architecture::kOpt:
      return {"opt", "OPTForCausalLM"};
  }
  return {"llama", "LlamaForCausalLM"};
}

void put_windows(const ModelConfig& config, json::object& out) {
  if (config.sliding_window == 0) {
    if (config.architecture == Architecture::kQwen2 ||
        config.architecture == Architecture::kQwen3) {
      out["use_sliding_window"] = false;
    }
    out["sliding_window"] = nullptr;
    return;
  }
  out["sliding_window"] = config.sliding_window;
  if (config.architecture == Architecture::kLlama) return;  // Mistral: every layer slides
  if (config.architecture != Architecture::kGemma3) out["use_sliding_window"] = true;
  json::array types;
  for (const bool slides : config.layer_slides) {
    types.emplace_back(slides ? "sliding_attention" : "full_attention");
  }
  out["layer_types"] = std::move(types);
}

void put_architecture(const ModelConfig& config, json::object& out) {
  if (config.architecture == Architecture::kOpt) {
    out["ffn_dim"] = config.intermediate_size;
    out["activation_function"] = std::string(activation_name(config.activation));
    out["do_layer_norm_before"] = config.norm_before;
    out["_remove_final_layer_norm"] = config.norm_before && !config.final_norm;
    out["layer_norm_elementwise_affine"] = config.norm_affine;
    out["word_embed_proj_dim"] = config.embedding_dim;
    out["enable_bias"] = config.qkv_bias;
    return;
  }
  out["intermediate_size"] = config.intermediate_size;
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["rms_norm_eps"] = tidy(config.norm_eps);
  out["rope_theta"] = tidy(config.rope.theta);
  out["rope_scaling"] = rope_scaling(config.rope);
  put_windows(config, out);
  if (config.architecture == Architecture::kGemma3) {
    out["hidden_activation"] = std::string(activation_name(config.activation));
    out["rope_local_base_freq"] = tidy(config.rope_local.theta);
    const double scale = config.attention_scale;
    out["query_pre_attn_scalar"] = std::round(1e6 / (scale * scale)) / 1e6;
    out["attn_logit_softcapping"] =
        config.attention_softcap == 0 ? json::value() : json::value(config.attention_softcap);
    out["final_logit_softcapping"] =
        config.final_softcap == 0 ? json::value() : json::value(config.final_softcap);
  } else {
    out["hidden_act"] = std::string(activation_name(config.activation));
  }
  if (config.architecture != Architecture::kQwen2) {
    out["attention_bias"] = config.attention_out_bias;
  }
  if (config.architecture == Architecture::kLlama) out["mlp_bias"] = config.mlp_bias;
}

}  // namespace

std::string model_config_json(const ModelConfig& config, std::string_view dtype) {
  const Names names = names_of(config);
  json::object out{{"architectures", json::array{names.class_name}},
                   {"model_type", names.model_type},
                   {"hidden_size", config.hidden_size},
                   {"num_hidden_layers", config.layers},
                   {"num_attention_heads", config.heads},
                   {"vocab_size", config.vocab_size},
                   {"max_position_embeddings", config.max_positions},
                   {"tie_word_embeddings", config.tie_word_embeddings},
                   {"torch_dtype", std::string(dtype)}};
  put_architecture(config, out);
  if (config.bos_token_id) out["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) out["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) {
    out["eos_token_id"] = json::array(config.eos_token_ids.begin(), config.eos_token_ids.end());
  }
  if (config.pad_token_id) out["pad_token_id"] = *config.pad_token_id;
  return pretty_json(out);
}

}  // namespace sub8::checkpoint
