// WeightSource: where models and the quantiser get weights from, whatever the file format.
//
// Names are the canonical Hugging Face ones: modules for matrices
// ("model.layers.0.self_attn.q_proj", "model.embed_tokens", "lm_head"; OPT:
// "model.decoder.layers.0.fc1"), tensors for vectors ("model.norm.weight",
// "model.layers.0.self_attn.q_proj.bias"). GGUF names are mapped, q/k rows of GGUF llama files are
// put back into half-split order, prefixes of multimodal wrappers are removed, fused qkv_proj and
// gate_up_proj files appear as q/k/v_proj and gate/up_proj. Untrusted bytes end here: what a method
// returns has been checked against the configuration (shapes) and for NaN and infinity (codes and
// scales).
//
// All const methods may be called from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/model_config.h"
#include "format/activation.h"
#include "format/weight_format.h"
#include "tensor/stored_matrix.h"

namespace sub8::checkpoint {

enum class WeightKind : uint8_t {
  kLinear,     // [rows = outputs, cols = inputs]
  kEmbedding,  // token table (also serves as lm_head where tied), position table
  kVector,     // norm weight or bias: rows values
};

struct WeightInfo {
  std::string name;  // module for matrices, tensor for vectors
  WeightKind kind = WeightKind::kVector;
  int64_t rows = 0;
  int64_t cols = 1;
  // What matrix() returns: the stored format, but dense BF16 for a GGUF block type that is decoded
  // (matrix() then follows its `decoded` argument).
  format::WeightFormat format;
  std::string stored_type;   // "BF16", "Q4_1", "nvfp4", ...
  int64_t stored_bytes = 0;  // codes and scales in the file
  std::filesystem::path file;
  // Static activation scale of the layer as a multiplier (value = code * block scale * this), if
  // the export has one, and the activations that it is for: kNvfp4 or kFp8.
  std::optional<float> input_scale;
  format::ActivationFormat input_format = format::ActivationFormat::kNvfp4;
  // The static alpha for NVFP4 or FP8 activations: input_scale, or the same largest magnitude in
  // the other format.
  std::optional<float> static_alpha(format::ActivationFormat activations) const;

  bool quantized() const { return kind != WeightKind::kVector && !format.dense; }
};

// The files of a model that are not weights, as texts; empty where absent.
struct CheckpointTexts {
  std::string config;             // config.json (made from metadata for a GGUF)
  std::string generation_config;  // generation_config.json (likewise)
  std::string tokenizer;          // tokenizer.json; empty for a GGUF: see gguf_tokenizer()
  std::string tokenizer_config;   // tokenizer_config.json (made from metadata for a GGUF)
  std::string special_tokens_map;
  std::string chat_template;  // chat_template.jinja, else tokenizer_config.json's, else GGUF's
};

class WeightSource {
 public:
  virtual ~WeightSource();

  // The directory or the GGUF file, as it was named.
  const std::filesystem::path& path() const { return path_; }
  // What the files hold: this source itself, or the one whose weights it changes.
  virtual const WeightSource& stored() const { return *this; }
  virtual const ModelConfig& config() const = 0;
  const GenerationConfig& generation_config() const { return generation_config_; }
  const CheckpointTexts& texts() const { return texts_; }
  // The vocabulary inside a GGUF; null for a directory.
  virtual const GgufTokenizer* gguf_tokenizer() const { return nullptr; }

  // Every weight that a forward pass uses, in the model's order (embedding, layers, final norm,
  // head).
  const std::vector<WeightInfo>& weights() const { return weights_; }
  const WeightInfo* find(std::string_view name) const;
  // A module or vector exists. "lm_head" exists for tied models too and is then the embedding.
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Whether lm_head and the token embedding are one table. (Use this, not the config's flag.)
  virtual bool tied_head() const = 0;
  // Tensors in the files that nothing uses ("lm_head.weight: tied to model.embed_tokens"), and
  // other things to tell the user.
  const std::vector<std::string>& ignored() const { return ignored_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // "sub8", "modelopt NVFP4", "compressed-tensors", "gguf Q4_1", or "" for plain 16/32-bit files.
  const std::string& quantization() const { return quantization_; }
  // KV-cache scheme that the export asks for: "", "fp8" or "nvfp4"; kv_scale() has a layer's scales
  // (a multiplier; nothing where the files have none). The quantiser carries both over.
  const std::string& kv_cache_scheme() const { return kv_cache_scheme_; }
  virtual Result<std::optional<float>> kv_scale(int64_t layer, bool value_side) const;

  // A Linear or embedding weight in storage form. GGUF block types other than MXFP4 and NVFP4 come
  // decoded to `decoded` (kBF16 or kF32); everything else is as stored. The result keeps its file
  // mapped.
  virtual Result<StoredMatrix> matrix(std::string_view module, format::DType decoded) const = 0;

  // The exact f32 values of rows [row, row+count): out has count*cols elements.
  virtual Status decode_rows(std::string_view module, int64_t row, int64_t count,
                             std::span<float> out) const = 0;

  // A norm weight or bias as f32.
  virtual Result<std::vector<float>> vector(std::string_view name) const = 0;

  // Tells the kernel that a matrix will not be read again soon, so that its file pages may go.
  virtual void release(std::string_view module) const = 0;

 protected:
  // Appends to weights(); names are unique.
  void add_weight(WeightInfo info);

  std::filesystem::path path_;
  GenerationConfig generation_config_;
  CheckpointTexts texts_;
  std::vector<std::string> ignored_;
  std::vector<std::string> warnings_;
  std::string quantization_;
  std::string kv_cache_scheme_;

 private:
  std::vector<WeightInfo> weights_;
  std::map<std::string, size_t, std::less<>> index_;  // of weights_, by name
};

// A directory (safetensors, config.json) or a .gguf file. Something that exists as neither but
// looks like a hub id ("org/name") gets an error that says how to download it.
Result<std::unique_ptr<WeightSource>> open_checkpoint(const std::filesystem::path& model);

}  // namespace sub8::checkpoint
