#include "checkpoint/model_layout.h"

#include <charconv>
#include <system_error>

namespace sub8::checkpoint {
namespace {

class Layout {
 public:
  explicit Layout(std::vector<ExpectedWeight>& out) : out_(out) {}

  void linear(const std::string& name, int64_t rows, int64_t cols, bool bias) {
    out_.push_back({name, WeightKind::kLinear, rows, cols});
    if (bias) vector(name + ".bias", rows);
  }
  void embedding(const std::string& name, int64_t rows, int64_t cols) {
    out_.push_back({name, WeightKind::kEmbedding, rows, cols});
  }
  void vector(const std::string& name, int64_t size) {
    out_.push_back({name, WeightKind::kVector, size, 1});
  }
  void layer_norm(const std::string& name, int64_t size, bool affine) {
    if (!affine) return;
    vector(name + ".weight", size);
    vector(name + ".bias", size);
  }

 private:
  std::vector<ExpectedWeight>& out_;
};

void rope_model_layers(const ModelConfig& c, Layout& layout) {
  const bool gemma = c.architecture == Architecture::kGemma3;
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string layer = layer_prefix(c) + std::to_string(i) + ".";
    const std::string attention = layer + "self_attn.";
    const std::string mlp = layer + "mlp.";
    layout.vector(layer + "input_layernorm.weight", c.hidden_size);
    layout.linear(attention + "q_proj", c.heads * c.head_dim, c.hidden_size, c.qkv_bias);
    layout.linear(attention + "k_proj", c.kv_heads * c.head_dim, c.hidden_size, c.qkv_bias);
    layout.linear(attention + "v_proj", c.kv_heads * c.head_dim, c.hidden_size, c.qkv_bias);
    if (c.qk_norm) {
      layout.vector(attention + "q_norm.weight", c.head_dim);
      layout.vector(attention + "k_norm.weight", c.head_dim);
    }
    layout.linear(attention + "o_proj", c.hidden_size, c.heads * c.head_dim, c.attention_out_bias);
    layout.vector(layer + "post_attention_layernorm.weight", c.hidden_size);
    if (gemma) layout.vector(layer + "pre_feedforward_layernorm.weight", c.hidden_size);
    layout.linear(mlp + "gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    layout.linear(mlp + "up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    layout.linear(mlp + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
    if (gemma) layout.vector(layer + "post_feedforward_layernorm.weight", c.hidden_size);
  }
}

void opt_layers(const ModelConfig& c, Layout& layout) {
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string layer = layer_prefix(c) + std::to_string(i) + ".";
    const std::string attention = layer + "self_attn.";
    layout.layer_norm(layer + "self_attn_layer_norm", c.hidden_size, c.norm_affine);
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
      layout.linear(attention + part, c.hidden_size, c.hidden_size, c.qkv_bias);
    }
    layout.linear(attention + "out_proj", c.hidden_size, c.hidden_size, c.attention_out_bias);
    layout.layer_norm(layer + "final_layer_norm", c.hidden_size, c.norm_affine);
    layout.linear(layer + "fc1", c.intermediate_size, c.hidden_size, c.mlp_bias);
    layout.linear(layer + "fc2", c.hidden_size, c.intermediate_size, c.mlp_bias);
  }
}

}  // namespace

std::string layer_prefix(const ModelConfig& config) {
  return config.architecture == Architecture::kOpt ? "model.decoder.layers." : "model.layers.";
}

Status check_unused_in_layers(std::string_view name, std::string_view prefix,
                              const ModelConfig& config, const std::string& where) {
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return {};
  if (layer >= config.layers) {
    return corrupt_data(where + " belongs to layer " + std::to_string(layer) +
                        ", and by its configuration the model has " +
                        std::to_string(config.layers) +
                        " layers, from 0; the configuration is not that of these weights");
  }
  if (name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn_rot_embd")) return {};
  return unsupported(where + " is a part of a layer that " +
                     std::string(architecture_name(config.architecture)) +
                     " models do not have, and leaving it out would change the result");
}

std::string embedding_module(const ModelConfig& config) {
  return config.architecture == Architecture::kOpt ? "model.decoder.embed_tokens"
                                                   : "model.embed_tokens";
}

std::vector<ExpectedWeight> expected_weights(const ModelConfig& c, bool tied_head) {
  std::vector<ExpectedWeight> out;
  Layout layout(out);
  layout.embedding(embedding_module(c), c.vocab_size, c.embedding_dim);
  if (c.architecture == Architecture::kOpt) {
    layout.embedding("model.decoder.embed_positions", c.max_positions + c.position_offset,
                     c.hidden_size);
    if (c.embedding_dim != c.hidden_size) {
      layout.linear("model.decoder.project_in", c.hidden_size, c.embedding_dim, false);
    }
    opt_layers(c, layout);
    layout.layer_norm("model.decoder.final_layer_norm", c.hidden_size,
                      c.final_norm && c.norm_affine);
    if (c.embedding_dim != c.hidden_size) {
      layout.linear("model.decoder.project_out", c.embedding_dim, c.hidden_size, false);
    }
  } else {
    rope_model_layers(c, layout);
    layout.vector("model.norm.weight", c.hidden_size);
  }
  if (!tied_head) layout.linear("lm_head", c.vocab_size, c.embedding_dim, false);
  return out;
}

}  // namespace sub8::checkpoint
