#include "quantize/load_source.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "checkpoint/wrapped_source.h"
#include "quantize/matrix_quantizer.h"
#include "quantize/quantize.h"
#include "tensor/decode.h"

namespace sub8::quantize {
namespace {

using checkpoint::WeightInfo;
using checkpoint::WeightSource;
using format::OuterScale;

class QuantizedSource final : public checkpoint::WrappedSource {
 public:
  QuantizedSource(std::unique_ptr<WeightSource> source, const Recipe& recipe, Plan plan,
                  int threads)
      : WrappedSource(std::move(source)),
        recipe_(recipe),
        plan_(std::move(plan)),
        pool_(threads),
        scales_(this->source(), plan_, recipe_) {
    warnings_.insert(warnings_.end(), plan_.warnings.begin(), plan_.warnings.end());
    quantization_ = "sub8 at load from " + (quantization_.empty() ? "16/32-bit" : quantization_);
    for (const PlannedWeight& w : plan_.weights) {  // all weights, in the source's order
      WeightInfo info = this->source().weights()[w.index];
      if (w.quantize) {
        info.format = w.format;
        info.stored_type = w.format.name();
        info.stored_bytes = w.bytes();
        planned_[w.name] = &w;
      }
      add_weight(std::move(info));
    }
  }

  Result<StoredMatrix> matrix(std::string_view module, format::DType decoded) const override {
    const PlannedWeight* w = planned(module);
    if (w == nullptr) return source().matrix(module, decoded);
    const std::scoped_lock lock(mutex_);
    SUB8_ASSIGN_OR_RETURN(const float alpha, scales_.alpha_of(*w, pool_));
    return quantized(*w, alpha, 0, w->rows, pool_);
  }

  Status decode_rows(std::string_view module, int64_t row, int64_t count,
                     std::span<float> out) const override {
    const PlannedWeight* w = planned(module);
    if (w == nullptr) return source().decode_rows(module, row, count, out);
    float alpha = 1.0F;
    if (w->scale_group >= 0) {
      const std::scoped_lock lock(mutex_);
      SUB8_ASSIGN_OR_RETURN(alpha, scales_.alpha_of(*w, pool_));
    }
    ThreadPool serial(1);
    SUB8_ASSIGN_OR_RETURN(const StoredMatrix rows, quantized(*w, alpha, row, count, serial));
    sub8::decode_rows(rows, 0, count, out);
    return {};
  }

 private:
  // The plan of a quantised module; "lm_head" of a tied model is the table.
  const PlannedWeight* planned(std::string_view module) const {
    const WeightInfo* info = source().find(module);
    if (info == nullptr) return nullptr;
    const auto at = planned_.find(info->name);
    return at == planned_.end() ? nullptr : at->second;
  }

  Result<StoredMatrix> quantized(const PlannedWeight& w, float alpha, int64_t row, int64_t count,
                                 ThreadPool& pool) const {
    auto rows = std::make_shared<QuantizedRows>();
    SUB8_RETURN_IF_ERROR(quantize_rows(source(), source().weights()[w.index], w.format,
                                       recipe_.rules, alpha, row, count, pool, *rows));
    StoredMatrix out;
    out.format = w.format;
    out.rows = count;
    out.cols = w.cols;
    out.codes = rows->codes;
    out.block_scales = rows->block_scales;
    if (w.format.outer_scale == OuterScale::kChannel) {
      out.outer_scales = std::move(rows->outer_scales);
    } else if (w.format.outer_scale == OuterScale::kTensor) {
      out.outer_scales = {format::stored_outer_scale(alpha)};
    }
    out.owner = std::move(rows);
    return out;
  }

  const Recipe recipe_;
  const Plan plan_;
  mutable std::mutex mutex_;  // over pool_ and scales_
  mutable ThreadPool pool_;
  mutable ScaleGroups scales_;
  std::unordered_map<std::string, const PlannedWeight*> planned_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> quantize_at_load(std::unique_ptr<WeightSource> source,
                                                       const Recipe& recipe, int threads) {
  SUB8_ASSIGN_OR_RETURN(Plan plan, plan_quantization(*source, recipe));
  return std::unique_ptr<WeightSource>(
      std::make_unique<QuantizedSource>(std::move(source), recipe, std::move(plan), threads));
}

}  // namespace sub8::quantize
