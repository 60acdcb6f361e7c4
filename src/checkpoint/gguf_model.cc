#include "checkpoint/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "checkpoint/number_range.h"

namespace sub8::checkpoint {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 26;

Result<Architecture> architecture_of(const GgufFile& file, const std::string& name) {
  if (name == "llama") return Architecture::kLlama;
  if (name == "qwen2") return Architecture::kQwen2;
  if (name == "qwen3") return Architecture::kQwen3;
  if (name == "gemma3") return Architecture::kGemma3;
  return unsupported(file.source() + ": GGUF architecture \"" + name.substr(0, 60) +
                     "\" is not supported; sub8 reads llama, qwen2, qwen3 and gemma3");
}

// Metadata of one architecture: keys "llama.block_count", ...
class ArchKeys {
 public:
  ArchKeys(const GgufFile& file, std::string arch) : file_(file), arch_(std::move(arch)) {}

  std::string key(std::string_view name) const { return arch_ + "." + std::string(name); }

  Result<int64_t> size(std::string_view name, int64_t fallback) const {
    SUB8_ASSIGN_OR_RETURN(const auto value, file_.get_int(key(name), 1, kMaxSize));
    if (value) return *value;
    if (fallback > 0) return fallback;
    return corrupt_data(file_.source() + ": metadata \"" + key(name) + "\" is missing");
  }
  // `fallback` where the key is absent.
  Result<double> number(std::string_view name, double fallback, NumberRange range) const {
    SUB8_ASSIGN_OR_RETURN(const auto value, file_.get_double(key(name)));
    if (!value) return fallback;
    return require_in(range, *value, file_.source() + ": metadata \"" + key(name) + "\"");
  }
  // For a key that changes the result and that sub8 does not follow: only `neutral` and, as in
  // llama.cpp, 0 for "not set" are accepted.
  Status refuse_unless(std::string_view name, double neutral) const {
    SUB8_ASSIGN_OR_RETURN(const auto value, file_.get_double(key(name)));
    if (!value || *value == 0 || std::abs(*value - neutral) <= 1e-6 * std::abs(neutral)) return {};
    return unsupported(file_.source() + ": metadata \"" + key(name) + "\" is " +
                       std::to_string(*value) +
                       ", which is not supported and would change the "
                       "result");
  }
  // A count that may be given per layer; then all layers must agree.
  Result<int64_t> uniform(std::string_view name, int64_t fallback) const {
    const auto at = file_.metadata().find(key(name));
    if (at == file_.metadata().end() || !std::holds_alternative<GgufArray>(at->second.value)) {
      return size(name, fallback);
    }
    SUB8_ASSIGN_OR_RETURN(const auto values, file_.get_ints(key(name), 1, kMaxSize));
    if (values.empty() ||
        std::any_of(values.begin(), values.end(), [&](int64_t v) { return v != values[0]; })) {
      return unsupported(file_.source() + ": metadata \"" + key(name) +
                         "\" differs between layers, which is not supported");
    }
    return values[0];
  }

 private:
  const GgufFile& file_;
  std::string arch_;
};

Status refuse_out_of_scope(const GgufFile& file, const ArchKeys& keys) {
  SUB8_ASSIGN_OR_RETURN(const auto experts, file.get_int(keys.key("expert_count"), 0, kMaxSize));
  if (experts.value_or(0) > 0) {
    return unsupported(file.source() + ": mixture-of-experts models are not supported");
  }
  SUB8_ASSIGN_OR_RETURN(const auto splits, file.get_int("split.count", 0, 65535));
  if (splits.value_or(1) > 1) {
    return unsupported(file.source() +
                       ": this is one part of a split GGUF; merge it first (llama-gguf-split "
                       "--merge)");
  }
  SUB8_ASSIGN_OR_RETURN(const auto type, file.get_string("general.type"));
  if (type && *type != "model") {
    return unsupported(file.source() + ": a GGUF of type \"" + type->substr(0, 40) +
                       "\" is not a model");
  }
  return {};
}

// The factor by which llama3 scaling divides the frequency of pair `pair`.
double llama3_factor(const RopeConfig& rope, int64_t pair, int64_t head_dim) {
  const double frequency =
      std::pow(rope.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(rope.original_max_positions);
  if (wavelength < original / rope.high_freq_factor) return 1.0;
  if (wavelength > original / rope.low_freq_factor) return rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return 1.0 / ((1 - smooth) / rope.factor + smooth);
}

// rope_freqs.weight holds the factors of llama3 scaling without their parameters. They are found
// again by trying the values that models use; the table must agree to f32 rounding.
Status recover_llama3(const GgufFile& file, int64_t head_dim, RopeConfig& rope) {
  const GgufTensor* table = file.find("rope_freqs.weight");
  if (table == nullptr) return {};
  const std::string where = file.source() + ": tensor \"rope_freqs.weight\"";
  if (table->type != GgmlType::kF32 || table->rows != 1 || table->cols != head_dim / 2) {
    return corrupt_data(where + ": expected " + std::to_string(head_dim / 2) + " F32 values");
  }
  if (rope.type != RopeType::kDefault) {
    return unsupported(where + ": factors together with another rope scaling are not supported");
  }
  std::vector<float> factors(static_cast<size_t>(head_dim / 2));
  std::memcpy(factors.data(), table->data.data(), table->data.size());
  const auto largest = std::max_element(factors.begin(), factors.end());
  RopeConfig trial = rope;
  trial.type = RopeType::kLlama3;
  trial.factor = largest == factors.end() ? 1.0 : *largest;
  if (trial.factor == 1.0) return {};  // every frequency stays
  SUB8_ASSIGN_OR_RETURN(trial.factor, require_in(kRopeFactor, trial.factor, where));
  for (int64_t original = 16; original <= 1 << 20; original *= 2) {
    for (const double low : {1.0, 2.0}) {
      for (const double high : {2.0, 4.0, 8.0}) {
        trial.original_max_positions = original;
        trial.low_freq_factor = low;
        trial.high_freq_factor = high;
        if (high <= low) continue;
        bool same = true;
        for (size_t i = 0; i < factors.size() && same; ++i) {
          const double expected = llama3_factor(trial, static_cast<int64_t>(i), head_dim);
          same = std::abs(factors[i] - expected) <= 1e-5 * expected;
        }
        if (same) {
          rope = trial;
          return {};
        }
      }
    }
  }
  return unsupported(where +
                     ": these factors are not those of llama3 scaling; other factor tables "
                     "(longrope) are not supported");
}

Result<RopeConfig> read_rope(const GgufFile& file, const ArchKeys& keys, int64_t max_positions) {
  RopeConfig out;
  SUB8_ASSIGN_OR_RETURN(out.theta, keys.number("rope.freq_base", 10000.0, kRopeTheta));
  SUB8_ASSIGN_OR_RETURN(const auto type_text, file.get_string(keys.key("rope.scaling.type")));
  const std::string type = type_text.value_or("none");
  // 0 stands for "not set". Old files: rope.scale_linear.
  SUB8_ASSIGN_OR_RETURN(const auto set, file.get_double(keys.key("rope.scaling.factor")));
  SUB8_ASSIGN_OR_RETURN(
      const double factor,
      keys.number(set.value_or(0) == 0 ? "rope.scale_linear" : "rope.scaling.factor", 1.0,
                  kRopeFactor));
  if (type != "yarn") {
    SUB8_RETURN_IF_ERROR(keys.refuse_unless("rope.scaling.attn_factor", 1.0));
    SUB8_RETURN_IF_ERROR(keys.refuse_unless("rope.scaling.yarn_attn_factor", 1.0));
  }
  if (type == "none" && factor == 1.0) return out;
  if (type == "linear" || (type == "none" && !type_text)) {
    out.type = factor == 1.0 ? RopeType::kDefault : RopeType::kLinear;
    out.factor = factor;
    return out;
  }
  if (type == "none") return out;
  if (type != "yarn") {
    return unsupported(file.source() + ": rope scaling \"" + type.substr(0, 60) +
                       "\" is not supported; sub8 has none, linear, llama3 and yarn");
  }
  out.type = RopeType::kYarn;
  out.factor = factor;
  SUB8_ASSIGN_OR_RETURN(out.original_max_positions,
                        keys.size("rope.scaling.original_context_length", max_positions));
  SUB8_ASSIGN_OR_RETURN(out.beta_fast,
                        keys.number("rope.scaling.yarn_beta_fast", 32.0, kRopeBound));
  SUB8_ASSIGN_OR_RETURN(out.beta_slow, keys.number("rope.scaling.yarn_beta_slow", 1.0, kRopeBound));
  for (const std::string_view name :
       {"rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor"}) {
    if (file.has(keys.key(name))) {
      return unsupported(file.source() + ": metadata \"" + keys.key(name) + "\" is not supported");
    }
  }
  // A factor on top of YaRN's own: 0.1 ln(factor) + 1.
  SUB8_ASSIGN_OR_RETURN(double extra,
                        keys.number("rope.scaling.attn_factor", 1.0, kRopeAttentionFactor));
  SUB8_ASSIGN_OR_RETURN(extra,
                        keys.number("rope.scaling.yarn_attn_factor", extra, kRopeAttentionFactor));
  out.attention_factor = extra * (factor > 1 ? 0.1 * std::log(factor) + 1.0 : 1.0);
  return out;
}

Status read_gemma3(const ArchKeys& keys, ModelConfig& out) {
  out.activation = Activation::kGeluTanh;
  out.norm_weight_plus_one = true;
  out.qk_norm = true;
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
  // The file has no query_pre_attn_scalar: it is head_dim but for the 27B (62 layers).
  const double scalar = out.layers == 62
                            ? static_cast<double>(out.hidden_size) / static_cast<double>(out.heads)
                            : static_cast<double>(out.head_dim);
  out.attention_scale = 1.0 / std::sqrt(scalar);
  SUB8_ASSIGN_OR_RETURN(const double scale, keys.number("attention.scale", 0.0, kAttentionScale));
  if (scale > 0) out.attention_scale = scale;
  SUB8_ASSIGN_OR_RETURN(out.final_softcap, keys.number("final_logit_softcapping", 0.0, kSoftcap));
  SUB8_ASSIGN_OR_RETURN(out.attention_softcap,
                        keys.number("attn_logit_softcapping", 0.0, kSoftcap));
  out.rope_local = RopeConfig{};
  SUB8_ASSIGN_OR_RETURN(out.rope_local.theta,
                        keys.number("rope.freq_base_swa", 10000.0, kRopeTheta));
  return {};
}

// Factors and caps on activations and logits that no model of these architectures has.
Status refuse_scales(const ArchKeys& keys, const ModelConfig& config) {
  for (const std::string_view name : {"logit_scale", "residual_scale", "embedding_scale"}) {
    SUB8_RETURN_IF_ERROR(keys.refuse_unless(name, 1.0));
  }
  for (const std::string_view name : {"attention.clamp_kqv", "attention.max_alibi_bias"}) {
    SUB8_RETURN_IF_ERROR(keys.refuse_unless(name, 0.0));
  }
  if (config.architecture == Architecture::kGemma3) return {};  // read_gemma3 follows the others
  for (const std::string_view name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    SUB8_RETURN_IF_ERROR(keys.refuse_unless(name, 0.0));
  }
  return keys.refuse_unless("attention.scale", config.attention_scale);
}

// Sliding layers: a boolean per layer, a period, or Gemma3's period of six.
Status read_windows(const GgufFile& file, const ArchKeys& keys, ModelConfig& out) {
  out.layer_slides.assign(static_cast<size_t>(out.layers), false);
  SUB8_ASSIGN_OR_RETURN(const auto window,
                        file.get_int(keys.key("attention.sliding_window"), 0, kMaxSize));
  if (window.value_or(0) == 0) return {};
  out.sliding_window = *window;
  const std::string pattern_key = keys.key("attention.sliding_window_pattern");
  const auto at = file.metadata().find(pattern_key);
  const auto* array =
      at == file.metadata().end() ? nullptr : std::get_if<GgufArray>(&at->second.value);
  if (array != nullptr) {
    if (static_cast<int64_t>(array->size) != out.layers) {
      return corrupt_data(file.source() + ": metadata \"" + pattern_key + "\": expected " +
                          std::to_string(out.layers) + " values");
    }
    for (size_t i = 0; i < array->size; ++i) {
      const GgufValue value = array->at(i);
      const auto* flag = std::get_if<bool>(&value.value);
      if (flag == nullptr) {
        return corrupt_data(file.source() + ": metadata \"" + pattern_key +
                            "\": expected booleans");
      }
      out.layer_slides[i] = *flag;
    }
    return {};
  }
  if (out.architecture == Architecture::kGemma3) {
    SUB8_ASSIGN_OR_RETURN(const auto period, file.get_int(pattern_key, 1, kMaxSize));
    for (int64_t i = 0; i < out.layers; ++i) {
      out.layer_slides[static_cast<size_t>(i)] = (i + 1) % period.value_or(6) != 0;
    }
  } else {
    out.layer_slides.assign(static_cast<size_t>(out.layers), true);
    if (out.architecture == Architecture::kLlama) out.model_type = "mistral";
  }
  return {};
}

Status read_sizes(const GgufFile& file, const ArchKeys& keys, ModelConfig& out) {
  SUB8_ASSIGN_OR_RETURN(out.hidden_size, keys.size("embedding_length", 0));
  SUB8_ASSIGN_OR_RETURN(out.layers, keys.size("block_count", 0));
  SUB8_ASSIGN_OR_RETURN(out.intermediate_size, keys.uniform("feed_forward_length", 0));
  SUB8_ASSIGN_OR_RETURN(out.heads, keys.uniform("attention.head_count", 0));
  SUB8_ASSIGN_OR_RETURN(out.kv_heads, keys.uniform("attention.head_count_kv", out.heads));
  SUB8_ASSIGN_OR_RETURN(out.max_positions, keys.size("context_length", 0));
  const int64_t derived = out.hidden_size % out.heads == 0 ? out.hidden_size / out.heads : 0;
  SUB8_ASSIGN_OR_RETURN(const auto rotated,
                        file.get_int(keys.key("rope.dimension_count"), 1, kMaxSize));
  SUB8_ASSIGN_OR_RETURN(out.head_dim, keys.size("attention.key_length", rotated.value_or(derived)));
  SUB8_ASSIGN_OR_RETURN(const int64_t value_length,
                        keys.size("attention.value_length", out.head_dim));
  if (value_length != out.head_dim) {
    return unsupported(file.source() + ": key and value heads of different width (" +
                       std::to_string(out.head_dim) + ", " + std::to_string(value_length) +
                       ") are not supported");
  }
  if (rotated && *rotated != out.head_dim) {
    return unsupported(file.source() + ": rope over " + std::to_string(*rotated) + " of " +
                       std::to_string(out.head_dim) + " dimensions: sub8 rotates whole heads only");
  }
  const GgufTensor* table = file.find("token_embd.weight");
  if (table == nullptr) {
    return corrupt_data(file.source() + ": tensor \"token_embd.weight\" is missing");
  }
  out.vocab_size = table->rows;
  SUB8_ASSIGN_OR_RETURN(const auto vocabulary, file.get_int(keys.key("vocab_size"), 1, kMaxSize));
  if (vocabulary && *vocabulary != out.vocab_size) {
    return corrupt_data(file.source() + ": metadata \"" + keys.key("vocab_size") + "\" is " +
                        std::to_string(*vocabulary) + ", token_embd.weight has " +
                        std::to_string(out.vocab_size) + " rows");
  }
  return {};
}

}  // namespace

Result<ModelConfig> gguf_model_config(const GgufFile& file) {
  SUB8_ASSIGN_OR_RETURN(const auto arch, file.get_string("general.architecture"));
  if (!arch) {
    return corrupt_data(file.source() + ": metadata \"general.architecture\" is missing");
  }
  ModelConfig out;
  SUB8_ASSIGN_OR_RETURN(out.architecture, architecture_of(file, *arch));
  const ArchKeys keys(file, *arch);
  SUB8_RETURN_IF_ERROR(refuse_out_of_scope(file, keys));
  out.model_type = *arch == "gemma3" ? "gemma3_text" : *arch;
  SUB8_RETURN_IF_ERROR(read_sizes(file, keys, out));
  if (out.layers > 4096) return corrupt_data(file.source() + ": more than 4096 layers");
  SUB8_ASSIGN_OR_RETURN(out.norm_eps,
                        keys.number("attention.layer_norm_rms_epsilon", 1e-6, kNormEps));
  out.embedding_dim = out.hidden_size;
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  out.tie_word_embeddings = file.find("output.weight") == nullptr;
  out.qk_norm = out.architecture == Architecture::kQwen3;
  out.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  out.attention_out_bias = file.find("blk.0.attn_output.bias") != nullptr;
  out.mlp_bias = file.find("blk.0.ffn_up.bias") != nullptr;
  SUB8_ASSIGN_OR_RETURN(out.rope, read_rope(file, keys, out.max_positions));
  SUB8_RETURN_IF_ERROR(recover_llama3(file, out.head_dim, out.rope));
  out.rope_local = out.rope;
  SUB8_RETURN_IF_ERROR(refuse_scales(keys, out));
  if (out.architecture == Architecture::kGemma3) {
    SUB8_RETURN_IF_ERROR(read_gemma3(keys, out));
  }
  SUB8_RETURN_IF_ERROR(read_windows(file, keys, out));
  SUB8_ASSIGN_OR_RETURN(out.bos_token_id, file.get_int("tokenizer.ggml.bos_token_id", 0, kMaxSize));
  SUB8_ASSIGN_OR_RETURN(out.pad_token_id,
                        file.get_int("tokenizer.ggml.padding_token_id", 0, kMaxSize));
  SUB8_ASSIGN_OR_RETURN(const auto eos, file.get_int("tokenizer.ggml.eos_token_id", 0, kMaxSize));
  if (eos) out.eos_token_ids.push_back(*eos);
  SUB8_RETURN_IF_ERROR(validate_model_config(out, file.source()));
  return out;
}

std::string gguf_name(Architecture architecture, std::string_view module) {
  const bool gemma = architecture == Architecture::kGemma3;
  if (module == "model.embed_tokens") return "token_embd";
  if (module == "model.norm") return "output_norm";
  if (module == "lm_head") return "output";
  constexpr std::string_view kLayers = "model.layers.";
  if (!module.starts_with(kLayers)) return {};
  const size_t dot = module.find('.', kLayers.size());
  if (dot == std::string_view::npos) return {};
  const std::string block =
      "blk." + std::string(module.substr(kLayers.size(), dot - kLayers.size())) + ".";
  const std::string_view rest = module.substr(dot + 1);
  struct Name {
    std::string_view hf, gguf;
  };
  constexpr std::array<Name, 12> kNames{{{"input_layernorm", "attn_norm"},
                                         {"self_attn.q_proj", "attn_q"},
                                         {"self_attn.k_proj", "attn_k"},
                                         {"self_attn.v_proj", "attn_v"},
                                         {"self_attn.o_proj", "attn_output"},
                                         {"self_attn.q_norm", "attn_q_norm"},
                                         {"self_attn.k_norm", "attn_k_norm"},
                                         {"mlp.gate_proj", "ffn_gate"},
                                         {"mlp.up_proj", "ffn_up"},
                                         {"mlp.down_proj", "ffn_down"},
                                         {"pre_feedforward_layernorm", "ffn_norm"},
                                         {"post_feedforward_layernorm", "post_ffw_norm"}}};
  if (rest == "post_attention_layernorm") {
    return block + (gemma ? "post_attention_norm" : "ffn_norm");
  }
  for (const Name& name : kNames) {
    if (name.hf == rest) return block + std::string(name.gguf);
  }
  return {};
}

}  // namespace sub8::checkpoint
