// Measured sensitivities on disk, so that an interrupted `sub8 plan` goes on where it stopped and a
// second budget costs nothing. Keys: docs/planner.md.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "checkpoint/fingerprint.h"
#include "quantize/layer_plan.h"

namespace sub8::study {

// What a measurement depends on. Files of another key are refused.
struct SensitivityKey {
  checkpoint::ModelFingerprint model;
  std::string text_hash;  // of the text's bytes
  quantize::PlanSample sample;
  quantize::RowRules rules;
  bool residue = false;  // the mode: what 4-bit formats compute with
};

class SensitivityCache {
 public:
  // Reads `path` where it exists; empty: nothing is kept. Errors: a file that is damaged, truncated
  // or of another key, values that are negative or not finite; each says what to do.
  static Result<SensitivityCache> open(const std::filesystem::path& path, SensitivityKey key);

  // KL divergence with `layer` (its first module) alone in `option` (LayerOption::name).
  std::optional<double> find(const std::string& layer, const std::string& option) const;
  void set(const std::string& layer, const std::string& option, double kl_divergence);
  size_t size() const { return values_.size(); }
  // Writes all values; the file has the old or the new content, whatever happens.
  Status save() const;

 private:
  std::filesystem::path path_;
  SensitivityKey key_;
  std::map<std::pair<std::string, std::string>, double> values_;
};

}  // namespace sub8::study
