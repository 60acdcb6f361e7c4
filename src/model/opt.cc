// OPT: learned positions, LayerNorm with bias, ReLU MLP, biases everywhere. The 350M model is
// post-norm, without a final norm, and has embeddings narrower than the hidden size.
#include <fmt/format.h>

#include "model/builder.h"
#include "model/model.h"

namespace sub8::model {
namespace {

using checkpoint::ModelConfig;

class OptBuilder {
 public:
  OptBuilder(const ModelConfig& config, Weights& weights) : c_(config), weights_(weights) {}

  Result<Program> build() {
    plan_buffers();
    SUB8_RETURN_IF_ERROR(add_embedding());
    for (int64_t layer = 0; layer < c_.layers; ++layer) SUB8_RETURN_IF_ERROR(add_layer(layer));
    SUB8_RETURN_IF_ERROR(add_head());
    return std::move(program_);
  }

 private:
  bool projects() const { return c_.embedding_dim != c_.hidden_size; }

  void plan_buffers() {
    x_ = program_.add_buffer("residual", BufferType::kF32, c_.hidden_size);
    normed_ = program_.add_buffer("normed", BufferType::kActivation, c_.hidden_size);
    qkv_ = program_.add_buffer("qkv", BufferType::kF32, 3 * c_.hidden_size);
    attended_ = program_.add_buffer("attended", BufferType::kActivation, c_.hidden_size);
    fc1_ = program_.add_buffer("fc1", BufferType::kF32, c_.intermediate_size);
    inner_ = program_.add_buffer("inner", BufferType::kActivation, c_.intermediate_size);
    if (projects()) {
      embedded_ = program_.add_buffer("embedded", BufferType::kF32, c_.embedding_dim);
      embedded_act_ =
          program_.add_buffer("embedded_activation", BufferType::kActivation, c_.embedding_dim);
      narrow_ = program_.add_buffer("narrow", BufferType::kF32, c_.embedding_dim, true);
      narrow_act_ =
          program_.add_buffer("narrow_activation", BufferType::kActivation, c_.embedding_dim, true);
    }
    wanted_ = program_.add_buffer("wanted", BufferType::kF32, c_.hidden_size, true);
    wanted_act_ =
        program_.add_buffer("wanted_activation", BufferType::kActivation, c_.hidden_size, true);
    program_.logits = program_.add_buffer("logits", BufferType::kF32, c_.vocab_size, true);
  }

  Status add_embedding() {
    SUB8_ASSIGN_OR_RETURN(const StoredMatrix* tokens, weights_.table("model.decoder.embed_tokens"));
    SUB8_ASSIGN_OR_RETURN(const StoredMatrix* positions,
                          weights_.table("model.decoder.embed_positions"));
    if (projects()) {
      program_.body.push_back(EmbedOp{tokens, 1.0f, program_.view(embedded_)});
      program_.body.push_back(ConvertOp{program_.view(embedded_), program_.view(embedded_act_)});
      SUB8_RETURN_IF_ERROR(add_linear(program_.body, "model.decoder.", {"project_in"}, false,
                                      program_.view(embedded_act_), program_.view(x_)));
    } else {
      program_.body.push_back(EmbedOp{tokens, 1.0f, program_.view(x_)});
    }
    program_.body.push_back(
        PositionOp{positions, static_cast<int32_t>(c_.position_offset), program_.view(x_)});
    return {};
  }

  Result<kernels::LayerNormWeights> norm(const std::string& prefix) {
    kernels::LayerNormWeights out;
    out.eps = static_cast<float>(c_.norm_eps);
    SUB8_ASSIGN_OR_RETURN(out.weight, weights_.vector(prefix + ".weight", c_.hidden_size));
    SUB8_ASSIGN_OR_RETURN(out.bias, weights_.vector(prefix + ".bias", c_.hidden_size));
    return out;
  }

  Status add_linear(std::vector<Op>& ops, const std::string& prefix,
                    const std::vector<std::string>& names, bool bias, View in, View out,
                    bool accumulate = false) {
    return model::add_linear(ops, weights_, prefix, names, bias, in, out, accumulate);
  }

  // What a block reads: the normed residual stream, or the stream itself where norms come after.
  Status add_block_input(const std::string& norm_name) {
    if (!c_.norm_before) {
      program_.body.push_back(ConvertOp{program_.view(x_), program_.view(normed_)});
      return {};
    }
    SUB8_ASSIGN_OR_RETURN(const auto weights, norm(norm_name));
    program_.body.push_back(LayerNormOp{weights, program_.view(x_), program_.view(normed_)});
    return {};
  }

  Status add_block_output_norm(const std::string& norm_name) {
    if (c_.norm_before) return {};
    SUB8_ASSIGN_OR_RETURN(const auto weights, norm(norm_name));
    program_.body.push_back(LayerNormOp{weights, program_.view(x_), program_.view(x_)});
    return {};
  }

  Status add_layer(int64_t layer) {
    const std::string prefix = fmt::format("model.decoder.layers.{}.", layer);
    const int64_t hidden = c_.hidden_size;
    const View q = program_.view(qkv_, 0, hidden);
    const View k = program_.view(qkv_, hidden, hidden);
    const View v = program_.view(qkv_, 2 * hidden, hidden);
    SUB8_RETURN_IF_ERROR(add_block_input(prefix + "self_attn_layer_norm"));
    SUB8_RETURN_IF_ERROR(add_linear(program_.body, prefix + "self_attn.",
                                    {"q_proj", "k_proj", "v_proj"}, c_.qkv_bias,
                                    program_.view(normed_), program_.view(qkv_)));
    program_.body.push_back(KvWriteOp{static_cast<int>(layer), k, v});
    program_.body.push_back(AttentionOp{static_cast<int>(layer), 0.0f,
                                        static_cast<float>(c_.attention_scale), 0, q,
                                        program_.view(attended_)});
    SUB8_RETURN_IF_ERROR(add_linear(program_.body, prefix + "self_attn.", {"out_proj"},
                                    c_.attention_out_bias, program_.view(attended_),
                                    program_.view(x_), true));
    SUB8_RETURN_IF_ERROR(add_block_output_norm(prefix + "self_attn_layer_norm"));
    SUB8_RETURN_IF_ERROR(add_block_input(prefix + "final_layer_norm"));
    SUB8_RETURN_IF_ERROR(add_linear(program_.body, prefix, {"fc1"}, c_.mlp_bias,
                                    program_.view(normed_), program_.view(fc1_)));
    program_.body.push_back(
        ActivationOp{kernel_activation(c_.activation), program_.view(fc1_), program_.view(inner_)});
    SUB8_RETURN_IF_ERROR(add_linear(program_.body, prefix, {"fc2"}, c_.mlp_bias,
                                    program_.view(inner_), program_.view(x_), true));
    SUB8_RETURN_IF_ERROR(add_block_output_norm(prefix + "final_layer_norm"));
    program_.body.push_back(LayerEndOp{static_cast<int>(layer), program_.view(x_)});
    return {};
  }

  Status add_head() {
    std::vector<Op>& head = program_.head;
    head.push_back(GatherOp{program_.view(x_), program_.view(wanted_)});
    if (c_.final_norm) {
      SUB8_ASSIGN_OR_RETURN(const auto weights, norm("model.decoder.final_layer_norm"));
      head.push_back(LayerNormOp{weights, program_.view(wanted_), program_.view(wanted_act_)});
    } else {
      head.push_back(ConvertOp{program_.view(wanted_), program_.view(wanted_act_)});
    }
    View in = program_.view(wanted_act_);
    if (projects()) {
      SUB8_RETURN_IF_ERROR(
          add_linear(head, "model.decoder.", {"project_out"}, false, in, program_.view(narrow_)));
      head.push_back(ConvertOp{program_.view(narrow_), program_.view(narrow_act_)});
      in = program_.view(narrow_act_);
    }
    return add_linear(head, "", {"lm_head"}, false, in, program_.view(program_.logits));
  }

  const ModelConfig& c_;
  Weights& weights_;
  Program program_;
  int x_ = 0, normed_ = 0, qkv_ = 0, attended_ = 0, fc1_ = 0, inner_ = 0, embedded_ = 0,
      embedded_act_ = 0, narrow_ = 0, narrow_act_ = 0, wanted_ = 0, wanted_act_ = 0;
};

}  // namespace

Result<Program> build_opt(const ModelConfig& config, const ModelOptions&, Weights& weights) {
  return OptBuilder(config, weights).build();
}

}  // namespace sub8::model
