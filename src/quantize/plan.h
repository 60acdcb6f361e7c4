// A recipe applied to a model: what each weight becomes, and how large the result is. Nothing is
// read from the weights yet; whatever can be refused is refused here, before anything is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/weight_source.h"
#include "quantize/recipe.h"

namespace sub8::quantize {

struct PlannedWeight {
  size_t index = 0;  // in source.weights()
  std::string name;
  checkpoint::WeightKind kind = checkpoint::WeightKind::kVector;
  int64_t rows = 0;
  int64_t cols = 1;
  bool quantize = false;        // else kept
  format::WeightFormat format;  // as written; vectors are dense
  // nvfp4: which tensor scale it has; weights with one number share it (q/k/v, gate/up). -1: none.
  int scale_group = -1;
  // Static activation scale that is written with it, a multiplier.
  std::optional<float> input_scale;
  int64_t source_bytes = 0;

  int64_t bytes() const { return format.storage_bytes(rows, cols); }
};

// A static scale of the KV cache that the source has, written as it is.
struct KvScale {
  int64_t layer = 0;
  bool value_side = false;  // of V; else of K
  float scale = 1.0F;       // multiplier: value = code * scale
};

struct Plan {
  std::vector<PlannedWeight> weights;  // in the source's order
  int scale_groups = 0;
  Layout layout = Layout::kSub8;  // resolved: never kAuto
  bool tied_head = false;
  std::string kv_cache_scheme;  // as of the source: "", "fp8" or "nvfp4"
  std::vector<KvScale> kv_scales;
  bool input_scales = false;  // every weight that can have an input_scale has it
  std::vector<std::string> warnings;
};

// Refuses by name: patterns that match nothing, shapes that the chosen layout cannot hold, layouts
// that cannot hold the recipe.
Result<Plan> plan_quantization(const checkpoint::WeightSource& source, const Recipe& recipe);

// What modules that other engines fuse share in their names (q/k/v: "...qkv_proj", gate/up:
// "...gate_up_proj"); of others the name itself. They share one tensor scale, and one format in a
// layer plan.
std::string fused_group(std::string_view module);

// The format in which a kept matrix is written: as stored, or what a GGUF block type is decoded to.
format::WeightFormat kept_format(const checkpoint::WeightInfo& info, format::DType decoded);

// ---- Sizes (dry runs, `inspect`) ---------------------------------------------------------------

struct FormatSize {
  std::string format;  // "e3m2", "bf16", "Q4_1"
  int64_t modules = 0;
  int64_t weights = 0;
  int64_t bytes = 0;  // codes and scales
};

struct SizeTable {
  std::vector<FormatSize> matrices;  // by first appearance in the model
  FormatSize vectors;                // norms and biases together
  int64_t quantized_weights = 0;     // Linears (and a quantised table) below 16 bits
  int64_t quantized_bytes = 0;
  int64_t total_bytes = 0;
  // 8 * bytes (codes and scales) / weights over quantised modules; 0 where there are none.
  double storage_bits() const {
    return quantized_weights == 0 ? 0.0
                                  : 8.0 * static_cast<double>(quantized_bytes) /
                                        static_cast<double>(quantized_weights);
  }
};

SizeTable size_table(const checkpoint::WeightSource& source);  // as stored
SizeTable size_table(const Plan& plan);                        // as it will be

}  // namespace sub8::quantize
