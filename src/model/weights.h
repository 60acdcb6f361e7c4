// A model's weights in memory: packed for the kernels of this machine, in the order they are used.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/residue.h"
#include "checkpoint/weight_source.h"
#include "format/dtype.h"
#include "model/execution_mode.h"
#include "model/program.h"
#include "pack/linear_cpu.h"

namespace sub8::model {

struct LoadProgress {
  std::string_view module;
  int64_t done_bytes = 0;  // of stored weights
  int64_t total_bytes = 0;
};
using LoadProgressFn = std::function<void(const LoadProgress&)>;

// K-Ext's columns of a weight that is quantised at load; `base` are the weight's codes and scales,
// `masks` the channels.
using ExtendFn = std::function<Result<StoredMatrix>(
    const StoredMatrix& base, std::string_view module, std::span<const uint8_t> masks)>;

// What execution needs to know to pack a weight.
struct ExecutionOptions {
  ModeOptions mode;
  bool mixed_modes = false;                            // rows may run in every mode
  std::shared_ptr<const checkpoint::Residue> residue;  // or null
  ExtendFn extend;  // in the place of the residue's stored columns; or empty
};

// Reads from a source and keeps what it packed. Pointers it returns stay valid as long as it lives.
class Weights {
 public:
  Weights(const checkpoint::WeightSource& source, CpuPath path, ThreadPool& pool,
          format::DType decoded, ExecutionOptions execution, LoadProgressFn progress)
      : source_(source),
        path_(path),
        pool_(pool),
        decoded_(decoded),
        execution_(std::move(execution)),
        progress_(std::move(progress)) {}

  // One or several modules that share their input, packed as one matrix where their formats and
  // static alphas allow it. `prefix` + names[i] are the modules; the result holds one or
  // names.size() matrices, in order.
  struct Linear {
    std::string name;                  // the modules' names, joined
    std::vector<std::string> modules;  // in the order of the matrix' rows
    const PackedMatrix* matrix;
    const float* bias;                  // or null
    InputAlpha nvfp4_alpha, fp8_alpha;  // the parts have the same
    Compensation prompt;
  };
  Result<std::vector<Linear>> linear(std::string_view prefix, const std::vector<std::string>& names,
                                     bool with_bias);

  // A table that is looked up by row.
  Result<const StoredMatrix*> table(std::string_view module);

  // A norm weight or bias, f32; `cols` is checked.
  Result<const float*> vector(std::string_view name, int64_t cols);

  int64_t packed_bytes() const { return packed_bytes_; }
  const std::deque<PackedMatrix>& matrices() const { return matrices_; }
  // Columns that K-Ext appends.
  const std::deque<PackedMatrix>& extensions() const { return extensions_; }

 private:
  void report(std::string_view module);
  // The alpha of a module's activations in NVFP4 or FP8.
  Result<InputAlpha> alpha(const std::string& module, const format::WeightFormat& weight,
                           format::ActivationFormat activations) const;
  // The columns of ratio `index`: stored, or made from `base`; nothing where there are none.
  Result<std::optional<StoredMatrix>> columns(const std::string& module, const StoredMatrix& base,
                                              size_t index) const;
  bool has_columns(const std::string& module, size_t index) const;
  Result<Compensation> compensation(const std::vector<std::string>& modules,
                                    const std::vector<const StoredMatrix*>& parts);

  const checkpoint::WeightSource& source_;
  CpuPath path_;
  ThreadPool& pool_;
  format::DType decoded_;  // what GGUF block types become: bf16, or f32 for exact f32 weights
  ExecutionOptions execution_;
  LoadProgressFn progress_;
  int64_t done_bytes_ = 0;
  int64_t packed_bytes_ = 0;
  Arena arena_;
  std::deque<PackedMatrix> matrices_;
  std::deque<PackedMatrix> extensions_;
  std::deque<StoredMatrix> tables_;
  std::deque<std::vector<float>> vectors_;
};

}  // namespace sub8::model
