// What a checkpoint says about how its Linear weights are stored: `quantization_config` of
// config.json (sub8, ModelOpt, compressed-tensors) and ModelOpt's hf_quant_config.json.
//
// Weight-only: activation settings are remembered where they have tensors (static input scales),
// and otherwise leave the weights as they are. Methods and schemes that sub8 does not read are
// refused by name.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "format/weight_format.h"

namespace sub8::checkpoint {

enum class QuantMethod : uint8_t { kNone, kSub8, kModelOpt, kCompressedTensors };

inline constexpr int64_t kSub8FormatVersion = 1;

// The tensors of one module, as suffixes of its name; empty: there is none.
struct StorageNames {
  std::string_view codes;
  std::string_view block_scale;
  std::string_view outer_scale;
  std::string_view input_scale;
  bool outer_is_reciprocal = false;  // compressed-tensors stores 1/scale, input scale likewise
};
StorageNames storage_names(QuantMethod method, const format::WeightFormat& format);

// A pattern of an ignore or target list.
class NameRule {
 public:
  // ModelOpt: wildcards * and ?; without them the rule names a module or, as in old exports, a run
  // of whole name components ("mlp.gate" matches model.layers.0.mlp.gate.x, not mlp.gate_proj).
  static Result<NameRule> modelopt(const JsonRef& entry);
  // compressed-tensors: "re:" + regular expression anchored at the start, a module class (Linear,
  // Embedding), or an exact module name.
  static Result<NameRule> compressed_tensors(const JsonRef& entry);

  // Names of fused modules match their parts (qkv_proj: q_proj, k_proj, v_proj; gate_up_proj:
  // gate_proj, up_proj); a trailing ".linear" does not count. Fails where a regular expression
  // exceeds its matching limits.
  Result<bool> matches(std::string_view module, bool is_linear) const;

 private:
  enum class Kind : uint8_t {
    kComponents,
    kWildcard,
    kRegex,
    kExact,
    kLinearClass,
    kEmbeddingClass
  };
  NameRule() = default;
  Result<bool> matches_one(std::string_view name, bool is_linear) const;
  Kind kind_ = Kind::kExact;
  std::string text_;
  std::string where_;
  std::shared_ptr<const void> regex_;  // pcre2_code
};

class QuantizationConfig {
 public:
  QuantizationConfig() = default;  // nothing is quantised

  // `node` is config.json's quantization_config.
  static Result<QuantizationConfig> read(const JsonRef& node);
  // `root` is hf_quant_config.json.
  static Result<QuantizationConfig> read_hf_quant_config(const JsonRef& root);

  QuantMethod method() const { return method_; }
  const std::string& description() const { return description_; }   // "modelopt NVFP4"
  const std::string& kv_cache_scheme() const { return kv_cache_; }  // "", "fp8", "nvfp4"
  const std::vector<std::string>& warnings() const { return warnings_; }

  // How a module is stored; nothing where it is plain. `names` are the names it goes by (in the
  // file and canonical); a rule that matches one of them matches.
  Result<std::optional<format::WeightFormat>> format_of(std::span<const std::string> names,
                                                        bool is_linear) const;
  // The per-module map of a sub8 file: every name must exist in the checkpoint.
  const std::vector<std::pair<std::string, format::WeightFormat>>& modules() const {
    return modules_;
  }

 private:
  struct Group {
    format::WeightFormat format;
    std::vector<NameRule> targets;
  };
  static Result<QuantizationConfig> read_sub8(const JsonRef& node);
  static Result<QuantizationConfig> read_modelopt(const JsonRef& node, std::string_view ignore_key);
  static Result<QuantizationConfig> read_compressed_tensors(const JsonRef& node);
  Result<bool> ignored(std::span<const std::string> names, bool is_linear) const;

  QuantMethod method_ = QuantMethod::kNone;
  std::string description_;
  std::string kv_cache_;
  std::vector<Group> groups_;
  std::vector<NameRule> ignore_;
  std::vector<std::pair<std::string, format::WeightFormat>> modules_;
  std::vector<std::string> warnings_;
};

}  // namespace sub8::checkpoint
