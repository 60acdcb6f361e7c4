// Rotary position embedding, half-split (NeoX): element i is paired with element i + dims/2.
//
// Once per model: rope_frequencies(). Once per step: fill_rope_table() for the positions of the
// step's rows, shared by all layers that have the same parameters. Per layer: apply_rope() on q and
// on k.
// Formulas: transformers, modeling_rope_utils (types default, linear, llama3, yarn); angles are the
// FP32 product position * inverse frequency, as there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace sub8::kernels {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

// Fields bear the names of rope_parameters in config.json; what a type does not read is ignored.
struct RopeParameters {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;  // rope_theta
  int dims = 0;            // rotated elements per head: head_dim * partial_rotary_factor; even
  double factor = 1.0;     // linear, llama3, yarn
  double original_max_position_embeddings = 0;  // llama3, yarn
  double low_freq_factor = 1.0;                 // llama3
  double high_freq_factor = 4.0;                // llama3
  double beta_fast = 32.0;                      // yarn
  double beta_slow = 1.0;                       // yarn
  bool truncate = true;                         // yarn: floor/ceil of the correction range
  double attention_factor = 1.0;                // multiplies cos and sin; resolved by the reader
};

struct RopeFrequencies {
  std::vector<float> inverse;     // [dims / 2], FP32 operations in the order of transformers
  float attention_factor = 1.0f;  // multiplies cos and sin
  int dims() const { return 2 * static_cast<int>(inverse.size()); }
};

// Refuses parameters that make no sense (odd dims, theta <= 0, a factor below 1, ...), naming the
// field.
Result<RopeFrequencies> rope_frequencies(const RopeParameters& parameters);

// table [rows, dims]: row r holds cos (dims/2 values), then sin (dims/2), of positions[r], times
// the attention factor. Positions are not negative.
void fill_rope_table(const RopeFrequencies& frequencies, ThreadPool& pool,
                     std::span<const int32_t> positions, float* table);

// Rotates in place the first `dims` elements of every head: row r, head h starts at
// x + r * stride + h * head_dim. `table` as filled by fill_rope_table for the same rows.
void apply_rope(CpuPath path, ThreadPool& pool, float* x, int64_t rows, int64_t stride, int heads,
                int head_dim, int dims, const float* table);

}  // namespace sub8::kernels
