// What the engine runs its steps on: a loaded model, or a fake in tests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/linear/op.h"
#include "model/execution_mode.h"
#include "model/model.h"

namespace sub8::engine {

struct RunnerInfo {
  int64_t vocab_size = 0;
  int64_t max_rows = 0;        // token rows per forward()
  int64_t max_logit_rows = 0;  // rows per logits()
  int64_t max_context = 0;     // positions are below
  int32_t kv_pages = 0;
  int64_t kv_bytes = 0;
  int64_t weight_bytes = 0;
  std::string kv_type;
  std::string kv_scales;            // of fp8 and nvfp4 pages: where they come from
  std::string attention;            // kind that generated rows use: "16-bit", "resattn", ...
  CpuPath path = CpuPath::kScalar;  // for what the host does with logits
  model::ExecutionMode mode = model::ExecutionMode::kWeightOnly;  // what kAuto means
  std::vector<model::ExecutionMode> modes;                        // what rows can be run in
  std::string mode_text;  // kAuto's mode in words, with its ratios (model/mode_summary.h)
};

// Driven by one thread at a time.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual const RunnerInfo& info() const = 0;

  // Rows with equal keys leave the same bits in the KV cache, given the same tokens before them.
  virtual uint64_t row_key(model::ExecutionMode mode, RowClass row_class) const = 0;

  // Runs all layers and writes the rows' K and V. The views of `batch` are valid during the call.
  virtual Status forward(const model::Batch& batch) = 0;

  // Logits of some rows of the last forward(), ascending, f32 [rows.size(), vocab_size]; valid
  // until the next call. May be called several times.
  virtual Result<std::span<const float>> logits(std::span<const int32_t> rows) = 0;

  // Where sampling may spread its work; null: on the caller's thread. Idle between the calls above.
  virtual ThreadPool* pool() = 0;
};

std::unique_ptr<Runner> make_model_runner(std::unique_ptr<model::Model> model);

}  // namespace sub8::engine
