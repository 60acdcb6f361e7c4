// Llama, SmolLM2, Mistral, Qwen2, Qwen3 and Gemma 3: one decoder, with switches from the
// configuration.
#include <cmath>

#include <fmt/format.h>

#include "format/dtype.h"
#include "model/builder.h"
#include "model/model.h"

namespace sub8::model {
namespace {

using checkpoint::ModelConfig;

kernels::RopeParameters rope_parameters(const checkpoint::RopeConfig& rope, int64_t head_dim) {
  kernels::RopeParameters out;
  switch (rope.type) {
    case checkpoint::RopeType::kDefault:
      out.type = kernels::RopeType::kDefault;
      break;
    case checkpoint::RopeType::kLinear:
      out.type = kernels::RopeType::kLinear;
      break;
    case checkpoint::RopeType::kLlama3:
      out.type = kernels::RopeType::kLlama3;
      break;
    case checkpoint::RopeType::kYarn:
      out.type = kernels::RopeType::kYarn;
      break;
  }
  out.theta = rope.theta;
  out.dims = static_cast<int>(head_dim);
  out.factor = rope.factor;
  out.original_max_position_embeddings = static_cast<double>(rope.original_max_positions);
  out.low_freq_factor = rope.low_freq_factor;
  out.high_freq_factor = rope.high_freq_factor;
  out.beta_fast = rope.beta_fast;
  out.beta_slow = rope.beta_slow;
  out.truncate = rope.truncate;
  out.attention_factor = rope.attention_factor;  // resolved by the reader
  return out;
}

class LlamaBuilder {
 public:
  LlamaBuilder(const ModelConfig& config, const ModelOptions& options, Weights& weights)
      : c_(config), options_(options), weights_(weights) {}

  Result<Program> build() {
    SUB8_RETURN_IF_ERROR(add_rope_tables());
    plan_buffers();
    SUB8_ASSIGN_OR_RETURN(const StoredMatrix* table, weights_.table("model.embed_tokens"));
    auto multiplier = static_cast<float>(c_.embedding_scale);
    if (options_.activations == ActivationType::kBF16)
      multiplier = format::round_to_bf16(multiplier);
    program_.body.push_back(EmbedOp{table, multiplier, program_.view(x_)});
    for (int64_t layer = 0; layer < c_.layers; ++layer) SUB8_RETURN_IF_ERROR(add_layer(layer));
    SUB8_RETURN_IF_ERROR(add_head());
    return std::move(program_);
  }

 private:
  Status add_rope_tables() {
    const auto add = [&](const checkpoint::RopeConfig& rope) -> Status {
      SUB8_ASSIGN_OR_RETURN(auto frequencies,
                            kernels::rope_frequencies(rope_parameters(rope, c_.head_dim)));
      program_.rope_tables.push_back(std::move(frequencies));
      return {};
    };
    SUB8_RETURN_IF_ERROR(add(c_.rope));
    if (!(c_.rope_local == c_.rope)) SUB8_RETURN_IF_ERROR(add(c_.rope_local));
    return {};
  }

  void plan_buffers() {
    const int64_t q = c_.heads * c_.head_dim;
    const int64_t kv = c_.kv_heads * c_.head_dim;
    x_ = program_.add_buffer("residual", BufferType::kF32, c_.hidden_size);
    normed_ = program_.add_buffer("normed", BufferType::kActivation, c_.hidden_size);
    qkv_ = program_.add_buffer("qkv", BufferType::kF32, q + 2 * kv);
    attended_ = program_.add_buffer("attended", BufferType::kActivation, q);
    gate_up_ = program_.add_buffer("gate_up", BufferType::kF32, 2 * c_.intermediate_size);
    inner_ = program_.add_buffer("inner", BufferType::kActivation, c_.intermediate_size);
    if (post_norms())
      projected_ = program_.add_buffer("projected", BufferType::kF32, c_.hidden_size);
    wanted_ = program_.add_buffer("wanted", BufferType::kF32, c_.hidden_size, true);
    wanted_normed_ =
        program_.add_buffer("wanted_normed", BufferType::kActivation, c_.hidden_size, true);
    program_.logits = program_.add_buffer("logits", BufferType::kF32, c_.vocab_size, true);
  }

  // Gemma 3 normalises the output of attention and MLP before adding it.
  bool post_norms() const { return c_.architecture == checkpoint::Architecture::kGemma3; }

  Result<kernels::RmsNormWeights> norm(const std::string& name, int64_t cols) {
    SUB8_ASSIGN_OR_RETURN(const float* weight, weights_.vector(name, cols));
    return kernels::RmsNormWeights{weight, static_cast<float>(c_.norm_eps),
                                   c_.norm_weight_plus_one};
  }

  Status add_norm(const std::string& name, View in, View out) {
    SUB8_ASSIGN_OR_RETURN(const auto weights, norm(name, in.cols));
    program_.body.push_back(RmsNormOp{weights, in, out});
    return {};
  }

  Status add_linear(const std::string& prefix, const std::vector<std::string>& names, bool bias,
                    View in, View out, bool accumulate = false) {
    return model::add_linear(program_.body, weights_, prefix, names, bias, in, out, accumulate);
  }

  // The block's output joins the residual stream: directly, or through a norm of its own.
  Status add_output(const std::string& prefix, const std::string& name, bool bias, View in,
                    const std::string& norm_name) {
    if (!post_norms()) return add_linear(prefix, {name}, bias, in, program_.view(x_), true);
    const View projected = program_.view(projected_);
    SUB8_RETURN_IF_ERROR(add_linear(prefix, {name}, bias, in, projected));
    SUB8_RETURN_IF_ERROR(add_norm(norm_name, projected, projected));
    program_.body.push_back(AddOp{program_.view(x_), projected});
    return {};
  }

  Status add_layer(int64_t layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    SUB8_RETURN_IF_ERROR(add_attention(layer, prefix));
    const View normed = program_.view(normed_);
    const std::string mlp_norm =
        post_norms() ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
    SUB8_RETURN_IF_ERROR(add_norm(prefix + mlp_norm, program_.view(x_), normed));
    SUB8_RETURN_IF_ERROR(add_linear(prefix + "mlp.", {"gate_proj", "up_proj"}, c_.mlp_bias, normed,
                                    program_.view(gate_up_)));
    const int64_t inner = c_.intermediate_size;
    program_.body.push_back(GatedOp{kernel_activation(c_.activation),
                                    program_.view(gate_up_, 0, inner),
                                    program_.view(gate_up_, inner, inner), program_.view(inner_)});
    SUB8_RETURN_IF_ERROR(add_output(prefix + "mlp.", "down_proj", c_.mlp_bias,
                                    program_.view(inner_),
                                    prefix + "post_feedforward_layernorm.weight"));
    program_.body.push_back(LayerEndOp{static_cast<int>(layer), program_.view(x_)});
    return {};
  }

  Status add_attention(int64_t layer, const std::string& prefix) {
    const int64_t q_cols = c_.heads * c_.head_dim;
    const int64_t kv_cols = c_.kv_heads * c_.head_dim;
    const View normed = program_.view(normed_);
    const View q = program_.view(qkv_, 0, q_cols);
    const View k = program_.view(qkv_, q_cols, kv_cols);
    const View v = program_.view(qkv_, q_cols + kv_cols, kv_cols);
    const std::string attention = prefix + "self_attn.";
    SUB8_RETURN_IF_ERROR(add_norm(prefix + "input_layernorm.weight", program_.view(x_), normed));
    SUB8_RETURN_IF_ERROR(add_linear(attention, {"q_proj", "k_proj", "v_proj"}, c_.qkv_bias, normed,
                                    program_.view(qkv_)));
    const auto heads = static_cast<int>(c_.heads);
    const auto kv_heads = static_cast<int>(c_.kv_heads);
    if (c_.qk_norm) {
      SUB8_ASSIGN_OR_RETURN(const auto q_norm, norm(attention + "q_norm.weight", c_.head_dim));
      SUB8_ASSIGN_OR_RETURN(const auto k_norm, norm(attention + "k_norm.weight", c_.head_dim));
      program_.body.push_back(HeadNormOp{q_norm, q, heads});
      program_.body.push_back(HeadNormOp{k_norm, k, kv_heads});
    }
    const bool slides = c_.layer_slides[static_cast<size_t>(layer)];
    const int table = slides && program_.rope_tables.size() > 1 ? 1 : 0;
    program_.body.push_back(RopeOp{table, q, heads});
    program_.body.push_back(RopeOp{table, k, kv_heads});
    program_.body.push_back(KvWriteOp{static_cast<int>(layer), k, v});
    program_.body.push_back(
        AttentionOp{static_cast<int>(layer), static_cast<float>(c_.attention_softcap),
                    static_cast<float>(c_.attention_scale),
                    slides ? static_cast<int>(c_.sliding_window) : 0, q, program_.view(attended_)});
    return add_output(attention, "o_proj", c_.attention_out_bias, program_.view(attended_),
                      prefix + "post_attention_layernorm.weight");
  }

  Status add_head() {
    SUB8_ASSIGN_OR_RETURN(const auto final_norm, norm("model.norm.weight", c_.hidden_size));
    const View normed = program_.view(wanted_normed_);
    const View logits = program_.view(program_.logits);
    program_.head = {GatherOp{program_.view(x_), program_.view(wanted_)},
                     RmsNormOp{final_norm, program_.view(wanted_), normed}};
    SUB8_RETURN_IF_ERROR(
        model::add_linear(program_.head, weights_, "", {"lm_head"}, false, normed, logits));
    if (c_.final_softcap > 0)
      program_.head.push_back(SoftCapOp{static_cast<float>(c_.final_softcap), logits});
    return {};
  }

  const ModelConfig& c_;
  const ModelOptions& options_;
  Weights& weights_;
  Program program_;
  int x_ = 0, normed_ = 0, qkv_ = 0, attended_ = 0, gate_up_ = 0, inner_ = 0, projected_ = 0,
      wanted_ = 0, wanted_normed_ = 0;
};

}  // namespace

Result<Program> build_llama(const ModelConfig& config, const ModelOptions& options,
                            Weights& weights) {
  return LlamaBuilder(config, options, weights).build();
}

}  // namespace sub8::model
