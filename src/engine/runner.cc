#include "engine/runner.h"

#include "kernels/kv_write/kv_pages.h"
#include "model/mode_summary.h"

namespace sub8::engine {
namespace {

class ModelRunner final : public Runner {
 public:
  explicit ModelRunner(std::unique_ptr<model::Model> model) : model_(std::move(model)) {
    const model::ModelOptions& options = model_->options();
    info_.vocab_size = model_->config().vocab_size;
    info_.max_rows = options.max_rows;
    info_.max_logit_rows = options.max_logit_rows;
    info_.max_context = options.max_context;
    info_.kv_pages = options.kv_pages;
    info_.kv_bytes = model_->kv_bytes();
    info_.weight_bytes = model_->weight_bytes();
    info_.kv_type = kernels::kv_type_name(options.kv_type);
    info_.kv_scales = model_->kv_scale_origin();
    info_.path = options.path;
    info_.attention =
        kernels::attention_kind_name(model_->attention(model_->mode(), RowClass::kGenerated));
    info_.mode = model_->mode();
    info_.modes.assign(model_->row_modes().begin(), model_->row_modes().end());
    info_.mode_text = model::describe_mode(model_->program(), info_.mode);
  }

  const RunnerInfo& info() const override { return info_; }
  uint64_t row_key(model::ExecutionMode mode, RowClass row_class) const override {
    const bool generated =
        row_class == RowClass::kGenerated && !model_->same_order_for_all_rows(mode);
    return 2 * static_cast<uint64_t>(mode) + (generated ? 1 : 0) + 1;
  }
  Status forward(const model::Batch& batch) override { return model_->forward(batch); }
  Result<std::span<const float>> logits(std::span<const int32_t> rows) override {
    return model_->logits(rows);
  }
  ThreadPool* pool() override { return &model_->pool(); }

 private:
  std::unique_ptr<model::Model> model_;
  RunnerInfo info_;
};

}  // namespace

std::unique_ptr<Runner> make_model_runner(std::unique_ptr<model::Model> model) {
  return std::make_unique<ModelRunner>(std::move(model));
}

}  // namespace sub8::engine
