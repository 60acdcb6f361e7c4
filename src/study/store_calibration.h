// From calibration to the files beside the model: masks, and the weight columns of K-Ext.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/residue.h"
#include "checkpoint/weight_source.h"
#include "format/row.h"
#include "study/calibrate.h"

namespace sub8::study {

struct StoreOptions {
  std::vector<size_t> ratios = {1};  // places in checkpoint::kSelectRatios that get columns
  // A plan's prefill ratios by module: written for each, and its columns where it lies between 0
  // and 1, whatever `ratios` says. Modules without an entry have none.
  std::map<std::string, float, std::less<>> planned;
  // Whose columns are quantised; null: the decoded weights of the model itself.
  const checkpoint::WeightSource* original = nullptr;
  std::string original_name;  // a name, not a path of this machine
  std::string text_name;
  // What alphas of activations are taken from when the model runs; nothing: its own choice.
  std::optional<format::AlphaSource> alpha;
  format::BlockRules rules;  // of the columns
  // Called before each matrix of columns.
  std::function<void(int64_t done, int64_t total, std::string_view module)> progress;
};

struct StoreReport {
  int64_t modules = 0;          // with statistics and masks
  int64_t kv_layers = 0;        // with scales of K and V
  int64_t extended = 0;         // of them with columns: those with nvfp4 or mxfp4 weights
  int64_t extension_bytes = 0;  // codes and scales of all columns
};

// Writes sub8/residue.* into `model_directory`, whose weights `source` has. Errors of
// checkpoint::write_residue and quantize::extension_columns; `cancelled` after an interrupt.
Result<StoreReport> store_calibration(const std::filesystem::path& model_directory,
                                      const checkpoint::WeightSource& source,
                                      const Calibration& calibration,
                                      const CalibrateOptions& calibrated,
                                      const StoreOptions& options, ThreadPool& pool);

}  // namespace sub8::study
