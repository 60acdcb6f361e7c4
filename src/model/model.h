// A loaded model: weights, KV memory, and the forward pass over a batch of token rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/residue.h"
#include "checkpoint/weight_source.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_write/kv_pages.h"
#include "kernels/linear/op.h"
#include "kernels/rows.h"
#include "model/execution_mode.h"
#include "model/program.h"
#include "model/quantized_linear.h"
#include "model/weights.h"

namespace sub8::model {

struct ModelOptions {
  CpuPath path = CpuPath::kScalar;
  // What linear layers read: kBF16, or kF32 for the reference mode (exact decoded weights,
  // unrounded activations).
  ActivationType activations = ActivationType::kBF16;
  kernels::KvType kv_type = kernels::KvType::kBF16;
  ModeOptions mode;
  // Rows may also be run in every other batch-invariant mode that some layer can use (row_modes()),
  // over the same weights. The prefill ratio is `mode`'s for all of them.
  bool mixed_modes = false;
  // Calibration: masks and columns of K-Ext, static alphas, KV scales; null where the model has
  // none (or the mode needs none).
  std::shared_ptr<const checkpoint::Residue> residue;
  // Makes K-Ext's columns where weights are quantised at load; empty: the residue's own.
  ExtendFn extend;
  int64_t max_rows = 512;       // token rows per step
  int64_t max_logit_rows = 16;  // rows per logits() call
  int64_t max_context = 0;      // longest sequence; 0: the model's limit
  int32_t kv_pages = 0;         // pages of 32 tokens, all sequences together
  // substitute_linear may put coded weights in the place of dense ones: buffers for them are there,
  // and a mode that none of the model's own layers can use is no error.
  bool substitution = false;
  LoadProgressFn progress;
};

// Neighbouring rows that are computed alike.
struct RowGroup {
  ExecutionMode mode = ExecutionMode::kAuto;  // kAuto: the loaded one
  RowClass row_class = RowClass::kPrompt;
  int64_t rows = 0;

  bool operator==(const RowGroup&) const = default;
};

// The token rows of one step. Rows of one sequence are neighbours, positions ascending. Row r
// writes its K and V to slots[r] and sees the keys of its page table up to its own position.
// Kernels are chosen by what `groups` says of mode and class, one after the other and all rows
// together. No groups: rows [0, prompt_rows) belong to prompts, the others were generated, all in
// the loaded mode.
struct Batch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;
  std::span<const int64_t> slots;
  std::span<const kernels::AttentionRow> attention;
  int64_t prompt_rows = 0;
  std::span<const RowGroup> groups = {};

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

// Looks into the forward pass (tests, calibration, evaluation). Called on the caller's thread
// between operations.
class Observer {
 public:
  virtual ~Observer() = default;
  // The residual stream after a layer, f32 [rows, hidden].
  virtual void layer_output(int /*layer*/, kernels::InputRows /*x*/, int64_t /*rows*/) {}
  // What a linear layer is about to read, bf16 [rows, op.in.cols] with `stride` elements between
  // rows. Not called with f32 activations.
  virtual void linear_input(const LinearOp& /*op*/, const uint16_t* /*x*/, int64_t /*stride*/,
                            int64_t /*rows*/) {}
  // What attention is about to read: queries [rows, heads * head_dim] after rope, and the step's
  // own rows of K and V [rows, kv_heads * head_dim], as they were before the cache's rounding.
  virtual void attention_input(const AttentionOp& /*op*/, kernels::InputRows /*q*/,
                               kernels::InputRows /*k*/, kernels::InputRows /*v*/,
                               int64_t /*rows*/) {}
  // A linear layer is done.
  virtual void linear_done(const LinearOp& /*op*/) {}
};

// Weights in the place of a linear layer's own.
struct LinearSubstitute {
  PackedMatrix weight;
  float ratio = 0;             // of prompt rows
  std::vector<uint8_t> masks;  // for a ratio between 0 and 1, as is the extension
  std::optional<PackedMatrix> extension;
};

// What lies in the buffers between two operations; of one model.
struct ActivationState {
  std::vector<std::vector<std::byte>> buffers;
};

class Model {
 public:
  // Reads and packs everything. `source` is not needed afterwards except for tables, which keep
  // their file mapped.
  static Result<std::unique_ptr<Model>> load(const checkpoint::WeightSource& source,
                                             const ModelOptions& options, ThreadPool& pool);

  const checkpoint::ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const Program& program() const { return program_; }
  ThreadPool& pool() const { return *pool_; }
  int64_t weight_bytes() const { return weights_->packed_bytes(); }
  int64_t kv_bytes() const;
  // Of a layer's fp8 or nvfp4 pages: calibrated, else the checkpoint's k_scale and v_scale, else 1.
  const kernels::KvScales& kv_scales(int layer) const {
    return kv_scales_[static_cast<size_t>(layer)];
  }
  // Where they come from, for people: "calibrated", "of the checkpoint", "of the checkpoint for 3
  // of 30 layers", "1"; empty where the pages have none.
  const std::string& kv_scale_origin() const { return kv_scale_origin_; }
  // How rows of a mode and class attend.
  kernels::AttentionKind attention(ExecutionMode mode, RowClass row_class) const;
  // What kAuto and the loaded mode come to: never kAuto.
  ExecutionMode mode() const;
  // What rows can be run in, mode() among them.
  std::span<const ExecutionMode> row_modes() const { return row_modes_; }
  // Whether prompt rows and generated rows of a mode are computed alike (mode, summation order), so
  // that either may stand for the other in the KV cache.
  bool same_order_for_all_rows(ExecutionMode mode) const;

  // Runs all layers for the batch. Token ids and positions must be in range (checked).
  Status forward(const Batch& batch, Observer* observer = nullptr);

  // ---- Looking at one layer at a time (planner, benchmarks) ------------------------------------

  // Operations [first, last) of program().body; forward() is all of them. Buffers hold what the
  // operations before `first` left, or what restore() brought back; KV pages likewise.
  Status run_body(const Batch& batch, size_t first, size_t last, Observer* observer = nullptr);
  // The buffers of the last batch's rows.
  ActivationState save() const;
  void restore(const ActivationState& state);

  // Packs weights that can replace those of the linear operation `op` of program().body: parts in
  // the order of its modules, all in one format; `extension` likewise for a ratio between 0 and 1.
  Result<LinearSubstitute> pack_substitute(size_t op, const std::vector<const StoredMatrix*>& parts,
                                           float ratio, std::vector<uint8_t> masks,
                                           const std::vector<const StoredMatrix*>& extension) const;
  // Until the next call, `op` computes with `substitute`, which must live as long; null: with its
  // own weights. One operation at a time. Needs ModelOptions::substitution.
  void substitute_linear(size_t op, const LinearSubstitute* substitute);

  // Logits of some rows of the last forward(), f32 [rows.size(), vocab_size]; valid until the next
  // call. May be called repeatedly for different rows.
  Result<std::span<const float>> logits(std::span<const int32_t> rows,
                                        Observer* observer = nullptr);

 private:
  Model() = default;
  Status allocate();
  Status allocate_quantized();
  // `useful`: some weight exists to which the mode makes a difference.
  Status check_mode(bool useful) const;
  Status check_alpha() const;
  bool uses(ExecutionMode mode, const format::WeightFormat& format) const;
  bool usable(ExecutionMode mode) const;
  void set_groups(const Batch& batch);
  Status read_kv_scales(const checkpoint::WeightSource& source);
  Status execute(std::span<const Op> ops, const Batch& batch, std::span<const int32_t> logit_rows,
                 Observer* observer);
  friend class CpuExecutor;

  checkpoint::ModelConfig config_;
  ModelOptions options_;
  ThreadPool* pool_ = nullptr;
  std::unique_ptr<Weights> weights_;
  Program program_;
  std::vector<AlignedBuffer<std::byte>> buffers_;  // as program_.buffers
  std::vector<AlignedBuffer<float>> rope_tables_;
  std::vector<AlignedBuffer<uint8_t>> kv_;  // per layer
  std::vector<kernels::KvScales> kv_scales_;
  std::string kv_scale_origin_;
  AlignedBuffer<std::byte> attention_workspace_;
  AlignedBuffer<std::byte> linear_workspace_;
  AlignedBuffer<float> position_scratch_;  // one row per thread
  int64_t last_rows_ = 0;
  std::vector<RowGroup> groups_;  // of the last forward(), none empty, no kAuto
  std::vector<ExecutionMode> row_modes_;
  // The operation that computes with other weights, as it was.
  std::optional<std::pair<size_t, LinearOp>> substituted_;

  QuantizedLinearBuffers quantized_;
};

// Builders, one per family.
Result<Program> build_llama(const checkpoint::ModelConfig& config, const ModelOptions& options,
                            Weights& weights);
Result<Program> build_opt(const checkpoint::ModelConfig& config, const ModelOptions& options,
                          Weights& weights);

}  // namespace sub8::model
