#include "study/store_calibration.h"

#include "base/check.h"
#include "base/interrupt.h"
#include "model/execution_mode.h"
#include "quantize/extension.h"

namespace sub8::study {
namespace {

// Both cache types map amax to 448; zeros may have any scale.
float kv_scale(float amax) {
  const float alpha = format::fp8_alpha(amax);
  return alpha == 0 ? 1.0f : alpha;
}

}  // namespace

Result<StoreReport> store_calibration(const std::filesystem::path& model_directory,
                                      const checkpoint::WeightSource& source,
                                      const Calibration& calibration,
                                      const CalibrateOptions& calibrated,
                                      const StoreOptions& options, ThreadPool& pool) {
  checkpoint::Residue residue;
  checkpoint::ExtensionPlan plan;
  StoreReport report;
  if (options.original != nullptr) residue.original = options.original_name;
  residue.text = options.text_name;
  residue.samples = calibration.samples;
  residue.length = calibrated.length;
  residue.tokens = calibration.tokens;
  residue.seed = calibrated.seed;
  residue.alpha = options.alpha;
  for (const KvAmax& amax : calibration.kv)
    residue.kv_scales.push_back({kv_scale(amax.k), kv_scale(amax.v)});
  report.kv_layers = static_cast<int64_t>(residue.kv_scales.size());
  int64_t total = 0;
  for (const auto& [name, statistics] : calibration.modules) {
    const checkpoint::WeightInfo* info = source.find(name);
    SUB8_CHECK(info != nullptr);
    checkpoint::ResidueModule& module = residue.modules[name];
    module.mean_abs = statistics.mean_abs;
    module.amax = statistics.amax;
    checkpoint::select_channels(module);
    ++report.modules;
    if (!model::fp4_activations(info->format)) continue;
    std::vector<size_t> ratios = options.ratios;
    if (const auto planned = options.planned.find(name); planned != options.planned.end()) {
      module.prefill_ratio = planned->second;
      const auto index = checkpoint::select_ratio_index(planned->second);
      ratios = index ? std::vector<size_t>{*index} : std::vector<size_t>();
    }
    if (ratios.empty()) continue;
    total += static_cast<int64_t>(ratios.size());
    plan[name] = std::move(ratios);
    ++report.extended;
  }
  int64_t done = 0;
  const auto extend = [&](const std::string& name, size_t ratio) -> Result<StoredMatrix> {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    if (options.progress) options.progress(done++, total, name);
    SUB8_ASSIGN_OR_RETURN(const StoredMatrix base, source.matrix(name, format::DType::kBF16));
    SUB8_ASSIGN_OR_RETURN(StoredMatrix columns,
                          quantize::extension_columns(
                              base, options.original != nullptr ? *options.original : source, name,
                              residue.modules.at(name).masks[ratio], options.rules, pool));
    report.extension_bytes +=
        static_cast<int64_t>(columns.codes.size() + columns.block_scales.size());
    return columns;
  };
  SUB8_RETURN_IF_ERROR(checkpoint::write_residue(model_directory, residue, source, plan, extend));
  return report;
}

}  // namespace sub8::study
