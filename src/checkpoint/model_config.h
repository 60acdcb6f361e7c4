// What a forward pass needs to know about a model, whatever file it came from.
//
// Read from a Hugging Face config.json (transformers v4 and v5 spellings, text_config of multimodal
// wrappers included) or made from GGUF metadata (gguf_model.h). Every wrong value is an Error that
// names the JSON path; what sub8 does not run (mixtures of experts, hybrid layers, other rope
// types) is refused by name.
//
// Sources: the configuration classes of transformers 4.x/5.x for defaults and names; YaRN (Peng et
// al. 2023), section 3.4, for the attention factor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace sub8::checkpoint {

enum class Architecture : uint8_t {
  kLlama,  // Llama, SmolLM2, Mistral
  kQwen2,
  kQwen3,
  kGemma3,
  kOpt
};
std::string_view architecture_name(Architecture architecture);  // "llama", "qwen2", ...

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };
std::string_view activation_name(Activation activation);  // transformers' names

enum class RopeType : uint8_t { kDefault, kLinear, kLlama3, kYarn };
std::string_view rope_type_name(RopeType type);

// Rotary embedding of one kind of layer. Half-split (NeoX) pairs (i, i + head_dim/2); base
// frequency of pair i: theta^(-2i/head_dim). Fields that a type does not use keep their defaults.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                 // linear, llama3, yarn
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  int64_t original_max_positions = 0;  // llama3, yarn
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn: floor/ceil of the ramp's limits
  // Multiplies cos and sin. Resolved: the file's value if it has one, for yarn else
  // 0.1*ln(factor)+1 (or the mscale ratio), otherwise 1.
  double attention_factor = 1.0;

  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string model_type;  // as the file says: "llama", "mistral", "gemma3_text", ...

  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim =
      0;  // never derived anew: q_proj is heads*head_dim wide, hidden_size may differ
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  double norm_eps = 1e-6;
  Activation activation = Activation::kSilu;
  bool tie_word_embeddings = false;

  bool qkv_bias = false;            // q_proj, k_proj, v_proj
  bool attention_out_bias = false;  // o_proj (OPT: out_proj)
  bool mlp_bias = false;            // gate/up/down_proj (OPT: fc1, fc2)
  bool qk_norm = false;             // per-head RMSNorm on q and k before rope
  // RMSNorm multiplies by (1 + weight): norm weights are always handed over in that convention,
  // also when they come from a GGUF, which stores 1 + weight.
  bool norm_weight_plus_one = false;
  double embedding_scale = 1.0;    // Gemma3: sqrt(hidden_size), not yet rounded to a 16-bit type
  double attention_scale = 0.0;    // on q.k: head_dim^-0.5 or query_pre_attn_scalar^-0.5
  double attention_softcap = 0.0;  // 0: none
  double final_softcap = 0.0;      // 0: none

  // Window of a sliding layer: a query at position i sees keys j with i - j < sliding_window.
  // 0: no layer slides.
  int64_t sliding_window = 0;
  std::vector<bool> layer_slides;  // `layers` entries

  RopeConfig rope;        // layers with full attention (all layers where sliding_rope is unused)
  RopeConfig rope_local;  // sliding layers; equals `rope` but for Gemma3

  // OPT only.
  bool norm_before = true;      // do_layer_norm_before; false: post-norm and no final norm
  bool final_norm = true;       // model.decoder.final_layer_norm exists
  bool norm_affine = true;      // layer_norm_elementwise_affine
  int64_t embedding_dim = 0;    // word_embed_proj_dim; differs from hidden_size: project_in/out
  int64_t position_offset = 0;  // learned positions: row of position p is p + offset (2)
  bool learned_positions = false;

  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;

  // Things to tell the user: unknown rope keys, parts of the file that are not used.
  std::vector<std::string> warnings;

  const RopeConfig& rope_of(int64_t layer) const {
    return layer_slides[static_cast<size_t>(layer)] ? rope_local : rope;
  }
};

// `text` is a config.json; `source` names it in errors.
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view source);
Result<ModelConfig> read_model_config(const JsonRef& root);

// Rejects contradictions between fields, whatever their source: called by every reader.
Status validate_model_config(const ModelConfig& config, const std::string& source);

// A complete Hugging Face config.json (transformers v4 spelling, which v5 reads too).
// `dtype` is "bfloat16", "float16" or "float32".
std::string model_config_json(const ModelConfig& config, std::string_view dtype);

// Sampling defaults of generation_config.json. Absent members stay empty; values are range-checked.
struct GenerationConfig {
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;
  std::optional<bool> do_sample;
  std::optional<double> temperature;         // >= 0
  std::optional<int64_t> top_k;              // 0 and -1 both mean "off": given as 0
  std::optional<double> top_p;               // [0, 1]
  std::optional<double> min_p;               // [0, 1]
  std::optional<double> repetition_penalty;  // > 0
  std::optional<double> presence_penalty;    // [-2, 2]
  std::optional<double> frequency_penalty;   // [-2, 2]
  std::optional<int64_t> max_new_tokens;
};

Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view source);
std::string generation_config_json(const GenerationConfig& config);

}  // namespace sub8::checkpoint
