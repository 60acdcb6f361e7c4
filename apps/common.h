// What several verbs share: options with the same meaning everywhere, loading with progress, output
// on the terminal.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/thread_pool.h"
#include "engine/bundle.h"
#include "quantize/layer_plan.h"

namespace sub8::apps {

// Whether stderr is a terminal that may be drawn on.
bool stderr_is_terminal();
// The same, and NO_COLOR is not set.
bool stderr_has_color();

// "12.3 MB", powers of 1000.
std::string format_bytes(double bytes);
// "3 min 20 s"
std::string format_duration(double seconds);

// A progress line on stderr: redrawn in place on a terminal, a plain line every few seconds
// elsewhere.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title)
      : title_(std::move(title)), start_(std::chrono::steady_clock::now()) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // done of total, and what is being worked on.
  void update(double done, double total, std::string_view detail);
  // Takes the line off the terminal.
  void clear();
  double seconds() const;

 private:
  std::string title_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_{};
  bool drawn_ = false;
};

// Options of every verb that runs a model.
struct ModelArgs {
  std::string model;
  std::string weights;         // quantise at load; empty: as stored
  std::string lm_head;         // likewise for the head
  bool four_over_six = false;  // likewise, for nvfp4
  std::string activations = "bf16";
  std::string mode = "auto";       // how rows are executed
  float prefill_ratio = -1;        // below 0: the mode's own
  std::string kv_cache_dtype;      // empty: bf16, or f32 with --activations f32
  std::string attention = "auto";  // of generated rows
  std::string alpha = "auto";      // of NVFP4 and FP8 activations
  std::string calibration;         // directory with sub8/residue.*; empty: the model's own
  int64_t max_model_len = 0;
  int threads = 0;  // 0: all that this process may use

  void add_to(CLI::App& app);
  Result<int> thread_count() const;
  Result<engine::RunOptions> run_options() const;
};

// Opens a checkpoint, quantising on the fly where `weights` says so; prints its warnings.
Result<std::unique_ptr<checkpoint::WeightSource>> open_source(const ModelArgs& args,
                                                              ThreadPool& pool);

// The calibration (--calibration, or the one beside the model) where the mode or the KV cache can
// use it; with weights that are quantised at load, also what makes their columns. `source` and
// `pool` must live until the model is loaded.
struct Calibrated {
  std::shared_ptr<const checkpoint::Residue> residue;  // or null
  model::ExtendFn extend;                              // or empty
};
bool can_use_calibration(const engine::RunOptions& run);
Result<Calibrated> open_calibration(const ModelArgs& args, const checkpoint::WeightSource& source,
                                    const engine::RunOptions& run, ThreadPool& pool);

// Says on stderr how much memory the weights of a GGUF will take once they are decoded; nothing
// where they are held as they are stored. `exact`: decoded to f32, else to bf16.
void say_decoded_memory(const checkpoint::WeightSource& source, bool exact);

// "KV cache nvfp4 (6480 bytes per token), attention of generated rows resattn"
std::string describe_cache(const engine::EngineInfo& info);

// Opens the model, loads it with a progress bar, and prints what is in force.
struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  engine::Bundle bundle;
  std::unique_ptr<engine::Engine> engine;
};
// `prepare`, when given, may change what the model's files say before the weights are loaded.
using Prepare = std::function<Status(engine::Bundle&, engine::RunOptions&)>;
Result<LoadedModel> load_model(const ModelArgs& args, engine::RunOptions options,
                               const Prepare& prepare = {});

// Whether a report can be written at `path` at the end: its directory exists and may be written.
// Empty and "-" are fine.
Status check_output_file(std::string_view option, const std::string& path);
// The same for all outputs of a verb, and that none of them would replace another, an input, or a
// file of a model directory among the inputs. Empty paths and "-" are no files.
struct NamedPath {
  std::string_view option;
  std::string path;
};
Status check_output_files(const std::vector<NamedPath>& outputs,
                          const std::vector<NamedPath>& inputs);

// Formats and prefill ratios of `sub8 plan` and `sub8 bench layers` (--formats, --ratios) as the
// options of a layer.
Result<std::vector<quantize::LayerOption>> parse_layer_options(
    const std::vector<std::string>& formats, std::vector<float> ratios, bool residue);

// --ratios of `calibrate` and `quantize` as places in checkpoint::kSelectRatios, ascending.
Result<std::vector<size_t>> parse_select_ratios(const std::vector<float>& ratios);

// Whether the formats and the mode of `args` exist and go together, as far as that shows without
// opening the model.
Status check_model_args(const ModelArgs& args);

void print_warning(std::string_view text);

// Text that may come from a file or the command line, safe for a terminal: control characters other
// than line feed, and bytes that are not UTF-8, become \xNN.
std::string printable(std::string_view text);
// `text` with U+FFFD for bytes that are no UTF-8: paths may be any bytes, JSON and SVG may not.
std::string valid_utf8(std::string_view text);

}  // namespace sub8::apps
