#include "checkpoint/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "checkpoint/number_range.h"
#include "checkpoint/rope_config.h"
#include "checkpoint/token_ids.h"

namespace sub8::checkpoint {
namespace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 24;  // hidden, intermediate, heads * head_dim
constexpr int64_t kMaxVocabulary = int64_t{1} << 26;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

struct ModelType {
  std::string_view name;
  Architecture architecture;
};
constexpr std::array<ModelType, 7> kModelTypes{{{"llama", Architecture::kLlama},
                                                {"mistral", Architecture::kLlama},
                                                {"qwen2", Architecture::kQwen2},
                                                {"qwen3", Architecture::kQwen3},
                                                {"gemma3_text", Architecture::kGemma3},
                                                {"gemma3", Architecture::kGemma3},
                                                {"opt", Architecture::kOpt}}};

// Why a known model family is refused, in words that its user recognises.
std::string_view refusal(std::string_view type) {
  const auto is = [&](std::string_view part) { return type.find(part) != std::string_view::npos; };
  if (is("moe") || type == "mixtral" || type == "gpt_oss" || is("deepseek") || type == "dbrx") {
    return "mixture-of-experts models are not supported";
  }
  if (is("qwen3_next") || is("qwen3_5") || is("mamba") || is("jamba") || is("rwkv") ||
      is("hybrid")) {
    return "hybrid and recurrent models are not supported";
  }
  return "this model type is not supported";
}

Result<Architecture> find_architecture(const JsonRef& config, const std::string& type) {
  for (const ModelType& known : kModelTypes) {
    if (known.name == type) return known.architecture;
  }
  return unsupported(config.where() + ".model_type: \"" + type.substr(0, 60) +
                     "\": " + std::string(refusal(type)) +
                     "; sub8 runs llama (SmolLM2), mistral, qwen2, qwen3, gemma3 and opt");
}

// The class that weights were trained in must be of the family that model_type names.
Status check_class_names(const JsonRef& config, Architecture architecture,
                         std::vector<std::string>& warnings) {
  struct Class {
    std::string_view name;
    Architecture architecture;
  };
  constexpr std::array<Class, 7> kClasses{
      {{"LlamaForCausalLM", Architecture::kLlama},
       {"MistralForCausalLM", Architecture::kLlama},
       {"Qwen2ForCausalLM", Architecture::kQwen2},
       {"Qwen3ForCausalLM", Architecture::kQwen3},
       {"Gemma3ForCausalLM", Architecture::kGemma3},
       {"Gemma3ForConditionalGeneration", Architecture::kGemma3},
       {"OPTForCausalLM", Architecture::kOpt}}};
  const auto list = config.find("architectures");
  if (!list) return {};
  SUB8_ASSIGN_OR_RETURN(const auto names, list->elements());
  for (const JsonRef& item : names) {
    SUB8_ASSIGN_OR_RETURN(const std::string name, item.as_string());
    const auto known = std::find_if(kClasses.begin(), kClasses.end(),
                                    [&](const Class& c) { return c.name == name; });
    if (known == kClasses.end()) {
      warnings.push_back(item.where() + ": sub8 does not know the class \"" + name.substr(0, 60) +
                         "\" and goes by model_type");
    } else if (known->architecture != architecture) {
      return corrupt_data(item.where() + ": \"" + name + "\" is not of the family of model_type, " +
                          std::string(architecture_name(architecture)) + "; correct one of them");
    }
  }
  return {};
}

Result<Activation> read_activation(const JsonRef& config, std::string_view key,
                                   std::string_view fallback) {
  SUB8_ASSIGN_OR_RETURN(const std::string name, config.get_string(key, fallback));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  return unsupported(config.where() + "." + std::string(key) + ": activation \"" +
                     name.substr(0, 60) + "\" is not supported");
}

Result<std::vector<int64_t>> read_ids(const JsonRef& config, std::string_view key) {
  std::vector<int64_t> out;
  const auto member = config.find(key);
  if (!member) return out;
  if (!member->is_array()) {
    SUB8_ASSIGN_OR_RETURN(const int64_t id, member->as_int(-1, kMaxVocabulary));
    if (id >= 0) out.push_back(id);  // some files write -1 for "none"
    return out;
  }
  SUB8_ASSIGN_OR_RETURN(const auto elements, member->elements());
  for (const JsonRef& element : elements) {
    SUB8_ASSIGN_OR_RETURN(const int64_t id, element.as_int(0, kMaxVocabulary));
    out.push_back(id);
  }
  return out;
}

Result<std::optional<int64_t>> read_id(const JsonRef& config, std::string_view key) {
  const auto member = config.find(key);
  if (!member) return std::optional<int64_t>();
  SUB8_ASSIGN_OR_RETURN(const int64_t id, member->as_int(-1, kMaxVocabulary));
  return id < 0 ? std::optional<int64_t>() : std::optional<int64_t>(id);
}

// Values that stand for an absent member; 0 means that the file must have it.
struct Defaults {
  int64_t heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, max_positions = 0, window = 0;
  double eps = 1e-6, theta = 10000.0;
  std::string_view activation = "silu";
  bool tie = false;
};

Defaults defaults_of(Architecture architecture, std::string_view type) {
  Defaults out;
  switch (architecture) {
    case Architecture::kLlama:
      out.max_positions = type == "mistral" ? 131072 : 2048;
      out.window = type == "mistral" ? 4096 : 0;
      break;
    case Architecture::kQwen2:
    case Architecture::kQwen3:
      out.max_positions = 32768;
      out.window = 4096;
      out.head_dim = architecture == Architecture::kQwen3 ? 128 : 0;
      break;
    case Architecture::kGemma3:
      out = {.heads = 8,
             .kv_heads = 4,
             .head_dim = 256,
             .vocab = 262208,
             .max_positions = 131072,
             .window = 4096,
             .eps = 1e-6,
             .theta = 1e6,
             .activation = "gelu_pytorch_tanh",
             .tie = true};
      break;
    case Architecture::kOpt:
      out = {.max_positions = 2048, .eps = 1e-5, .activation = "relu", .tie = true};
      break;
  }
  return out;
}

Result<int64_t> size_member(const JsonRef& config, std::string_view key, int64_t fallback,
                            int64_t high) {
  if (fallback == 0 && !config.find(key)) {
    return corrupt_data(config.where() + ": the member \"" + std::string(key) + "\" is missing");
  }
  return config.get_int(key, fallback, 1, high);
}

Status read_sizes(const JsonRef& config, const Defaults& defaults, ModelConfig& out) {
  SUB8_ASSIGN_OR_RETURN(out.hidden_size, size_member(config, "hidden_size", 0, kMaxWidth));
  const char* ffn = out.architecture == Architecture::kOpt ? "ffn_dim" : "intermediate_size";
  SUB8_ASSIGN_OR_RETURN(out.intermediate_size, size_member(config, ffn, 0, kMaxWidth));
  SUB8_ASSIGN_OR_RETURN(out.layers, size_member(config, "num_hidden_layers", 0, kMaxLayers));
  SUB8_ASSIGN_OR_RETURN(out.heads,
                        size_member(config, "num_attention_heads", defaults.heads, 65536));
  const int64_t kv_default = defaults.kv_heads != 0 ? defaults.kv_heads : out.heads;
  SUB8_ASSIGN_OR_RETURN(out.kv_heads, config.get_int("num_key_value_heads", kv_default, 1, 65536));
  // An explicit head_dim counts; null or absent means the architecture's default, and where that
  // has none hidden_size / heads.
  if (config.find("head_dim")) {
    SUB8_ASSIGN_OR_RETURN(out.head_dim, config.get_int("head_dim", 0, 1, 65536));
  } else if (defaults.head_dim != 0 &&
             !(config.value().is_object() && config.value().get_object().contains("head_dim"))) {
    out.head_dim = defaults.head_dim;
  } else if (out.hidden_size % out.heads == 0) {
    out.head_dim = out.hidden_size / out.heads;
  } else {
    return corrupt_data(config.where() + ": head_dim is absent and hidden_size " +
                        std::to_string(out.hidden_size) + " is not a multiple of " +
                        std::to_string(out.heads) + " heads");
  }
  SUB8_ASSIGN_OR_RETURN(out.vocab_size,
                        size_member(config, "vocab_size", defaults.vocab, kMaxVocabulary));
  SUB8_ASSIGN_OR_RETURN(
      out.max_positions,
      config.get_int("max_position_embeddings", defaults.max_positions, 1, kMaxPositions));
  const char* eps = out.architecture == Architecture::kOpt ? "layer_norm_eps" : "rms_norm_eps";
  SUB8_ASSIGN_OR_RETURN(out.norm_eps, config.get_double(eps, defaults.eps));
  SUB8_ASSIGN_OR_RETURN(out.norm_eps,
                        require_in(kNormEps, out.norm_eps, config.where() + "." + eps));
  return {};
}

// Which layers slide: layer_types if the file has it, else the architecture's rule.
Status read_windows(const JsonRef& config, const Defaults& defaults, ModelConfig& out) {
  out.layer_slides.assign(static_cast<size_t>(out.layers), false);
  const auto window_member = config.find("sliding_window");
  const bool explicit_null = config.value().is_object() &&
                             config.value().get_object().contains("sliding_window") &&
                             !window_member;
  int64_t window = explicit_null ? 0 : defaults.window;
  if (window_member) {
    SUB8_ASSIGN_OR_RETURN(window, window_member->as_int(0, kMaxPositions));
  }
  const bool qwen =
      out.architecture == Architecture::kQwen2 || out.architecture == Architecture::kQwen3;
  if (qwen) {
    SUB8_ASSIGN_OR_RETURN(const bool use, config.get_bool("use_sliding_window", false));
    if (!use) window = 0;
  }
  if (window == 0 || out.architecture == Architecture::kOpt) return {};
  out.sliding_window = window;
  if (const auto types = config.find("layer_types")) {
    SUB8_ASSIGN_OR_RETURN(const auto elements, types->elements());
    if (static_cast<int64_t>(elements.size()) != out.layers) {
      return corrupt_data(types->where() + ": expected " + std::to_string(out.layers) +
                          " entries (num_hidden_layers), got " + std::to_string(elements.size()));
    }
    for (size_t i = 0; i < elements.size(); ++i) {
      SUB8_ASSIGN_OR_RETURN(const std::string type, elements[i].as_string());
      if (type != "full_attention" && type != "sliding_attention") {
        return unsupported(elements[i].where() + ": layers of type \"" + type.substr(0, 60) +
                           "\" are not supported");
      }
      out.layer_slides[i] = type == "sliding_attention";
    }
  } else if (out.architecture == Architecture::kGemma3) {
    SUB8_ASSIGN_OR_RETURN(int64_t pattern, config.get_int("_sliding_window_pattern", 6, 1, 4096));
    SUB8_ASSIGN_OR_RETURN(pattern, config.get_int("sliding_window_pattern", pattern, 1, 4096));
    for (int64_t i = 0; i < out.layers; ++i) {
      out.layer_slides[static_cast<size_t>(i)] = (i + 1) % pattern != 0;
    }
  } else if (qwen) {
    SUB8_ASSIGN_OR_RETURN(const int64_t first, config.get_int("max_window_layers", 28, 0, 65536));
    for (int64_t i = first; i < out.layers; ++i) out.layer_slides[static_cast<size_t>(i)] = true;
  } else if (out.model_type == "mistral") {
    out.layer_slides.assign(static_cast<size_t>(out.layers), true);
  }
  if (std::none_of(out.layer_slides.begin(), out.layer_slides.end(), [](bool b) { return b; })) {
    out.sliding_window = 0;
  }
  return {};
}

Status read_gemma3(const JsonRef& config, ModelConfig& out) {
  out.qk_norm = true;
  out.norm_weight_plus_one = true;
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
  const auto number = [&](std::string_view key, double fallback,
                          NumberRange range) -> Result<double> {
    SUB8_ASSIGN_OR_RETURN(const double value, config.get_double(key, fallback));
    return require_in(range, value, config.where() + "." + std::string(key));
  };
  SUB8_ASSIGN_OR_RETURN(const double scalar,
                        number("query_pre_attn_scalar", 256, kAttentionScalar));
  out.attention_scale = 1.0 / std::sqrt(scalar);
  SUB8_ASSIGN_OR_RETURN(out.attention_softcap, number("attn_logit_softcapping", 0, kSoftcap));
  SUB8_ASSIGN_OR_RETURN(out.final_softcap, number("final_logit_softcapping", 0, kSoftcap));
  SUB8_ASSIGN_OR_RETURN(const bool both_ways,
                        config.get_bool("use_bidirectional_attention", false));
  if (both_ways) {
    return unsupported(config.where() +
                       ".use_bidirectional_attention: embedding models are not supported");
  }
  return {};
}

Status read_opt(const JsonRef& config, ModelConfig& out) {
  SUB8_ASSIGN_OR_RETURN(out.norm_before, config.get_bool("do_layer_norm_before", true));
  SUB8_ASSIGN_OR_RETURN(const bool no_final, config.get_bool("_remove_final_layer_norm", false));
  out.final_norm = out.norm_before && !no_final;
  SUB8_ASSIGN_OR_RETURN(out.norm_affine, config.get_bool("layer_norm_elementwise_affine", true));
  SUB8_ASSIGN_OR_RETURN(out.embedding_dim,
                        config.get_int("word_embed_proj_dim", out.hidden_size, 1, kMaxWidth));
  SUB8_ASSIGN_OR_RETURN(const bool bias, config.get_bool("enable_bias", true));
  out.qkv_bias = out.attention_out_bias = out.mlp_bias = bias;
  out.learned_positions = true;
  out.position_offset = 2;
  return {};
}

Status read_biases(const JsonRef& config, ModelConfig& out) {
  const bool qwen2 = out.architecture == Architecture::kQwen2;
  SUB8_ASSIGN_OR_RETURN(const bool attention, config.get_bool("attention_bias", false));
  SUB8_ASSIGN_OR_RETURN(out.mlp_bias, config.get_bool("mlp_bias", false));
  out.qkv_bias = qwen2 || attention;
  out.attention_out_bias = !qwen2 && attention;
  out.qk_norm = out.architecture == Architecture::kQwen3;
  return {};
}

Status refuse_out_of_scope(const JsonRef& config) {
  for (const std::string_view key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    SUB8_ASSIGN_OR_RETURN(const int64_t experts, config.get_int(key, 0, 0, 1 << 20));
    if (experts > 0) {
      return unsupported(config.where() + "." + std::string(key) +
                         ": mixture-of-experts models are not supported");
    }
  }
  SUB8_ASSIGN_OR_RETURN(const int64_t ranks, config.get_int("pretraining_tp", 1, 0, 65536));
  if (ranks > 1) {
    return unsupported(config.where() + ".pretraining_tp: " + std::to_string(ranks) +
                       ": weights summed in tensor-parallel slices are not supported");
  }
  SUB8_ASSIGN_OR_RETURN(const bool encoder_decoder, config.get_bool("is_encoder_decoder", false));
  if (encoder_decoder) {
    return unsupported(config.where() + ".is_encoder_decoder: only decoder models are supported");
  }
  return {};
}

// Whether a member of another family's configuration says "nothing": null, false, an empty list, or
// the number that changes nothing. A list has one entry per layer.
bool is_neutral(const boost::json::value& value, double neutral) {
  if (value.is_null() || (value.is_bool() && !value.get_bool())) return true;
  if (value.is_number()) return value.to_number<double>() == neutral;
  if (value.is_object()) return value.get_object().empty();
  if (!value.is_array()) return false;
  const boost::json::array& array = value.get_array();
  return std::all_of(array.begin(), array.end(), [&](const auto& entry) {
    return entry.is_number() && is_neutral(entry, neutral);
  });
}

// Members that other families' forward passes follow and this one does not: left out in silence
// they would change every logit.
Status refuse_foreign(const JsonRef& config, const ModelConfig& model) {
  struct Member {
    std::string_view key;
    double neutral;
    bool read = false;  // by this architecture
  };
  const bool gemma = model.architecture == Architecture::kGemma3;
  const Member members[] = {{"residual_multiplier", 1},
                            {"embedding_multiplier", 1},
                            {"attention_multiplier", 1},
                            {"logits_scaling", 1},
                            {"logit_scale", 1},
                            {"scale_emb", 1},
                            {"clip_qkv", 0},
                            {"no_rope_layers", 1},  // 1: a layer with rope
                            {"qk_layernorm", 0},
                            {"use_qk_norm", 0, model.qk_norm},
                            {"attn_logit_softcapping", 0, gemma},
                            {"final_logit_softcapping", 0, gemma}};
  for (const Member& member : members) {
    const auto found = config.find(member.key);
    if (member.read || !found || is_neutral(found->value(), member.neutral)) continue;
    return unsupported(found->where() + ": " +
                       boost::json::serialize(found->value()).substr(0, 60) +
                       " is not supported for model type \"" + model.model_type +
                       "\" and would change the result");
  }
  return {};
}

// The section with the text model's fields: the root, or text_config of a multimodal wrapper.
Result<JsonRef> text_section(const JsonRef& root, std::vector<std::string>& warnings) {
  const auto text = root.find("text_config");
  if (!text) return root;
  if (!text->is_object()) return corrupt_data(text->where() + ": expected an object");
  warnings.push_back(root.where() +
                     ": a multimodal model; only its text part is used, images are refused");
  return *text;
}

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kGemma3:
      return "gemma3";
    case Architecture::kOpt:
      return "opt";
  }
  return "?";
}

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_pytorch_tanh";
    case Activation::kRelu:
      return "relu";
  }
  return "?";
}

Result<ModelConfig> read_model_config(const JsonRef& root) {
  if (!root.is_object()) return corrupt_data(root.where() + ": expected an object");
  ModelConfig out;
  SUB8_ASSIGN_OR_RETURN(const JsonRef config, text_section(root, out.warnings));
  SUB8_ASSIGN_OR_RETURN(const std::string outer_type, root.get_string("model_type", ""));
  SUB8_ASSIGN_OR_RETURN(out.model_type, config.get_string("model_type", outer_type));
  if (out.model_type.empty()) {
    return corrupt_data(config.where() + ": the member \"model_type\" is missing");
  }
  SUB8_ASSIGN_OR_RETURN(out.architecture, find_architecture(config, out.model_type));
  SUB8_RETURN_IF_ERROR(check_class_names(root, out.architecture, out.warnings));
  SUB8_RETURN_IF_ERROR(refuse_out_of_scope(config));
  const Defaults defaults = defaults_of(out.architecture, out.model_type);
  SUB8_RETURN_IF_ERROR(read_sizes(config, defaults, out));
  const bool gemma = out.architecture == Architecture::kGemma3;
  const bool opt = out.architecture == Architecture::kOpt;
  const std::string_view activation_key = opt     ? "activation_function"
                                          : gemma ? "hidden_activation"
                                                  : "hidden_act";
  SUB8_ASSIGN_OR_RETURN(out.activation,
                        read_activation(config, activation_key, defaults.activation));
  // A wrapper may carry the flag outside, and then means it.
  SUB8_ASSIGN_OR_RETURN(const bool outer_tie, root.get_bool("tie_word_embeddings", defaults.tie));
  SUB8_ASSIGN_OR_RETURN(out.tie_word_embeddings, config.get_bool("tie_word_embeddings", outer_tie));
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  SUB8_RETURN_IF_ERROR(read_biases(config, out));
  SUB8_RETURN_IF_ERROR(read_windows(config, defaults, out));
  SUB8_RETURN_IF_ERROR(refuse_foreign(config, out));
  if (gemma) SUB8_RETURN_IF_ERROR(read_gemma3(config, out));
  out.embedding_dim = out.hidden_size;
  if (opt) {
    SUB8_RETURN_IF_ERROR(read_opt(config, out));
  } else {
    SUB8_ASSIGN_OR_RETURN(const RopePair rope, read_rope(config, out.architecture, defaults.theta,
                                                         out.max_positions, out.warnings));
    out.rope = rope.full;
    out.rope_local = rope.local;
  }
  SUB8_ASSIGN_OR_RETURN(out.bos_token_id, read_id(config, "bos_token_id"));
  SUB8_ASSIGN_OR_RETURN(out.eos_token_ids, read_ids(config, "eos_token_id"));
  SUB8_ASSIGN_OR_RETURN(out.pad_token_id, read_id(config, "pad_token_id"));
  SUB8_RETURN_IF_ERROR(validate_model_config(out, config.source()));
  return out;
}

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view source) {
  SUB8_ASSIGN_OR_RETURN(const auto document, parse_json(text, source));
  return read_model_config(JsonRef(document, std::string(source)));
}

Status validate_model_config(const ModelConfig& config, const std::string& source) {
  const auto fail = [&](const std::string& message) {
    return corrupt_data(source + ": " + message);
  };
  if (config.heads % config.kv_heads != 0) {
    return fail(std::to_string(config.heads) + " attention heads are not a multiple of " +
                std::to_string(config.kv_heads) + " key-value heads");
  }
  if (config.architecture != Architecture::kOpt && config.head_dim % 2 != 0) {
    return fail("head_dim " + std::to_string(config.head_dim) + " is odd; rope needs pairs");
  }
  if (config.heads * config.head_dim > kMaxWidth) {
    return fail(std::to_string(config.heads) + " heads of " + std::to_string(config.head_dim) +
                " are too wide");
  }
  if (config.architecture == Architecture::kOpt && config.kv_heads != config.heads) {
    return fail("OPT has as many key-value heads as heads");
  }
  if (static_cast<int64_t>(config.layer_slides.size()) != config.layers) {
    return fail("one layer type per layer is needed");
  }
  GenerationConfig ids;
  ids.bos_token_id = config.bos_token_id;
  ids.eos_token_ids = config.eos_token_ids;
  return check_token_ids(source, ids, config.vocab_size);
}

}  // namespace sub8::checkpoint
