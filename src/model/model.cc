#include "model/model.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checked_math.h"
#include "kernels/linear/op.h"

namespace sub8::model {
namespace {

size_t element_bytes(BufferType type, ActivationType activations) {
  return type == BufferType::kF32 || activations == ActivationType::kF32 ? 4 : 2;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(const checkpoint::WeightSource& source,
                                           const ModelOptions& options, ThreadPool& pool) {
  std::unique_ptr<Model> model(new Model);
  model->config_ = source.config();
  model->options_ = options;
  model->pool_ = &pool;
  const bool exact = options.activations == ActivationType::kF32;
  SUB8_RETURN_IF_ERROR(check_mode_options(options.mode));
  // Said before the weights are packed, which takes the time.
  const ExecutionMode wanted = model->mode();
  SUB8_RETURN_IF_ERROR(model->check_mode(
      wanted == ExecutionMode::kWeightOnly ||
      std::any_of(
          source.weights().begin(), source.weights().end(), [&](const checkpoint::WeightInfo& w) {
            return w.kind != checkpoint::WeightKind::kVector && model->uses(wanted, w.format);
          })));
  model->weights_ = std::make_unique<Weights>(
      source, options.path, pool, exact ? format::DType::kF32 : format::DType::kBF16,
      ExecutionOptions{options.mode, options.mixed_modes, options.residue, options.extend},
      options.progress);
  const auto build =
      model->config_.architecture == checkpoint::Architecture::kOpt ? build_opt : build_llama;
  SUB8_ASSIGN_OR_RETURN(model->program_, build(model->config_, options, *model->weights_));
  SUB8_RETURN_IF_ERROR(model->check_mode(model->usable(wanted)));
  SUB8_RETURN_IF_ERROR(model->check_alpha());
  SUB8_RETURN_IF_ERROR(model->read_kv_scales(source));
  model->row_modes_.push_back(model->mode());
  for (const ExecutionMode mode : invariant_modes()) {
    if (options.mixed_modes && mode != model->mode() && model->usable(mode))
      model->row_modes_.push_back(mode);
  }
  SUB8_RETURN_IF_ERROR(model->allocate());
  return model;
}

ExecutionMode Model::mode() const {
  const ExecutionMode mode = options_.mode.mode;
  return mode == ExecutionMode::kAuto ? ExecutionMode::kWeightOnly : mode;
}

kernels::AttentionKind Model::attention(ExecutionMode mode, RowClass row_class) const {
  ModeOptions options = options_.mode;
  options.mode = mode;
  return attention_kind(options, options_.kv_type, row_class);
}

// Whether a mode makes a difference to a weight, or to one in its place.
bool Model::uses(ExecutionMode mode, const format::WeightFormat& format) const {
  if (options_.substitution) return mode != ExecutionMode::kWeightOnly;
  return !row_execution(mode, format, 0, RowClass::kGenerated, 1).weight_only;
}

bool Model::usable(ExecutionMode mode) const {
  if (mode == ExecutionMode::kAuto || mode == ExecutionMode::kWeightOnly) return true;
  if (options_.activations == ActivationType::kF32) return false;
  const auto& matrices = weights_->matrices();
  return std::any_of(matrices.begin(), matrices.end(),
                     [&](const PackedMatrix& w) { return uses(mode, w.format); });
}

Status Model::check_mode(bool useful) const {
  const ExecutionMode mode = options_.mode.mode;
  const kernels::AttentionKind kind = attention(mode, RowClass::kGenerated);
  if (kernels::quantises_queries(kind) && options_.activations == ActivationType::kF32) {
    return invalid_argument(
        fmt::format("the attention '{}' quantises queries, which the reference mode (f32 "
                    "activations) excludes; use one of them",
                    kernels::attention_kind_name(kind)));
  }
  if (mode == ExecutionMode::kAuto || mode == ExecutionMode::kWeightOnly) return {};
  if (options_.activations == ActivationType::kF32) {
    return invalid_argument(
        fmt::format("the mode '{}' quantises activations, which the reference mode (f32 "
                    "activations) excludes; use one of them",
                    execution_mode_name(mode)));
  }
  if (useful) return {};
  const bool fp8 = mode == ExecutionMode::kFp8 || mode == ExecutionMode::kFp8Residue;
  return unsupported(fmt::format(
      "the mode '{}' needs {} weights, and this model has none; quantise it with --weights {}, or "
      "use weight-only",
      execution_mode_name(mode), fp8 ? "coded" : "nvfp4 or mxfp4", fp8 ? "e3m2" : "nvfp4"));
}

// An alpha that was asked for and that no layer has would go unnoticed.
Status Model::check_alpha() const {
  if (!options_.mode.alpha) return {};
  const bool asked_mode = quantises_activations(mode());
  if (!asked_mode && !options_.mixed_modes) {
    return invalid_argument(
        fmt::format("an alpha belongs to modes with activations in 4 or 8 bits, not to '{}'",
                    execution_mode_name(mode())));
  }
  if (options_.substitution || options_.mixed_modes) return {};
  const auto& matrices = weights_->matrices();
  const bool used = std::any_of(matrices.begin(), matrices.end(), [&](const PackedMatrix& w) {
    const RowExecution rows = row_execution(mode(), w.format, 0, RowClass::kGenerated, 1);
    return !rows.weight_only && format::has_alpha(rows.format);
  });
  if (used) return {};
  return invalid_argument(
      fmt::format("no layer has activations with an alpha in the mode '{}': NVFP4 and FP8 "
                  "activations have one, MXFP4 and MXFP8 have not",
                  execution_mode_name(mode())));
}

Status Model::read_kv_scales(const checkpoint::WeightSource& source) {
  const bool coded =
      options_.kv_type == kernels::KvType::kFp8 || options_.kv_type == kernels::KvType::kNvfp4;
  const checkpoint::Residue* residue = options_.residue.get();
  const bool calibrated = coded && residue != nullptr && !residue->kv_scales.empty();
  int64_t exported = 0;
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    kernels::KvScales scales;
    if (calibrated) {
      const checkpoint::KvScalePair& pair = residue->kv_scales.at(static_cast<size_t>(layer));
      scales = {pair.k, pair.v};
    } else if (coded) {
      SUB8_ASSIGN_OR_RETURN(const auto k, source.kv_scale(layer, false));
      SUB8_ASSIGN_OR_RETURN(const auto v, source.kv_scale(layer, true));
      scales = {k.value_or(1.0f), v.value_or(1.0f)};
      exported += k && v ? 1 : 0;
    }
    if (Status fits = kernels::check_kv_scales(scales); !fits.ok())
      return fits.error().within(fmt::format("layer {}", layer));
    kv_scales_.push_back(scales);
  }
  if (!coded) return {};
  kv_scale_origin_ = calibrated ? "calibrated" : exported > 0 ? "of the checkpoint" : "1";
  if (exported > 0 && exported < config_.layers)
    kv_scale_origin_ += fmt::format(" for {} of {} layers", exported, config_.layers);
  return {};
}

Status Model::allocate_quantized() {
  int64_t k = 0;
  int64_t n = 0;
  for (const PackedMatrix& w : weights_->matrices()) {
    const auto quantised = [&](ExecutionMode mode) { return uses(mode, w.format); };
    if (std::none_of(row_modes_.begin(), row_modes_.end(), quantised)) continue;
    k = std::max(k, w.cols);
    n = std::max(n, w.rows);
  }
  if (k == 0) return {};
  const int64_t rows =
      std::min(kQuantizedRows, std::max(options_.max_rows, options_.max_logit_rows));
  SUB8_ASSIGN_OR_RETURN(quantized_, QuantizedLinearBuffers::allocate(rows, k, n, pool_->size()));
  return {};
}

Status Model::allocate() {
  for (const BufferPlan& plan : program_.buffers) {
    const int64_t rows = plan.logit_rows ? options_.max_logit_rows : options_.max_rows;
    const auto bytes = checked_mul<int64_t>(
        rows * plan.cols, static_cast<int64_t>(element_bytes(plan.type, options_.activations)));
    if (!bytes) return resource_exhausted("the buffer '" + plan.name + "' is too large");
    SUB8_ASSIGN_OR_RETURN(auto buffer,
                          AlignedBuffer<std::byte>::uninitialized(static_cast<size_t>(*bytes)));
    buffers_.push_back(std::move(buffer));
  }
  for (const kernels::RopeFrequencies& rope : program_.rope_tables) {
    SUB8_ASSIGN_OR_RETURN(auto table, AlignedBuffer<float>::uninitialized(
                                          static_cast<size_t>(options_.max_rows * rope.dims())));
    rope_tables_.push_back(std::move(table));
  }
  const kernels::KvLayout layout{options_.kv_type, static_cast<int>(config_.kv_heads),
                                 static_cast<int>(config_.head_dim)};
  SUB8_RETURN_IF_ERROR(kernels::check_kv_layout(layout));
  Arena arena;
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const auto bytes =
        static_cast<size_t>(options_.kv_pages) * static_cast<size_t>(layout.page_bytes());
    SUB8_ASSIGN_OR_RETURN(auto pages, AlignedBuffer<uint8_t>::uninitialized(bytes, &arena));
    kv_.push_back(std::move(pages));
  }
  kernels::AttentionShape shape;
  shape.heads = static_cast<int>(config_.heads);
  shape.kv = layout;
  shape.kind = attention(mode(), RowClass::kGenerated);
  if (Status fits = kernels::check_attention(shape); !fits.ok()) {
    return kernels::quantises_queries(shape.kind)
               ? fits.error().within("--attention goes with --kv-cache-dtype")
               : fits;
  }
  SUB8_ASSIGN_OR_RETURN(attention_workspace_,
                        AlignedBuffer<std::byte>::uninitialized(kernels::attention_workspace_bytes(
                            shape, pool_->size(), options_.max_context)));
  SUB8_ASSIGN_OR_RETURN(position_scratch_, AlignedBuffer<float>::uninitialized(static_cast<size_t>(
                                               pool_->size() * config_.hidden_size)));
  SUB8_RETURN_IF_ERROR(allocate_quantized());
  size_t linear_bytes = 0;
  for (const auto* matrices : {&weights_->matrices(), &weights_->extensions()}) {
    for (const PackedMatrix& matrix : *matrices) {
      const int64_t most = quantized_.raw_sums.empty()
                               ? options_.max_rows
                               : std::max(options_.max_rows, 2 * kQuantizedRows);
      linear_bytes = std::max(linear_bytes, linear_workspace_bytes(matrix, most, pool_->size()));
    }
  }
  SUB8_ASSIGN_OR_RETURN(linear_workspace_, AlignedBuffer<std::byte>::uninitialized(linear_bytes));
  return {};
}

int64_t Model::kv_bytes() const {
  int64_t out = 0;
  for (const auto& pages : kv_) out += static_cast<int64_t>(pages.size());
  return out;
}

bool Model::same_order_for_all_rows(ExecutionMode mode) const {
  const auto alike = [&](const Op& op) {
    const auto* linear = std::get_if<LinearOp>(&op);
    if (linear == nullptr) return true;
    const PackedMatrix& w = *linear->weight;
    const auto how = [&](RowClass row_class) {
      return row_execution(mode, w.format, linear->prompt.ratio, row_class, 1);
    };
    return linear_order_id(w, options_.activations, RowClass::kPrompt) ==
               linear_order_id(w, options_.activations, RowClass::kGenerated) &&
           how(RowClass::kPrompt) == how(RowClass::kGenerated);
  };
  return attention(mode, RowClass::kGenerated) == attention(mode, RowClass::kPrompt) &&
         std::all_of(program_.body.begin(), program_.body.end(), alike) &&
         std::all_of(program_.head.begin(), program_.head.end(), alike);
}

void Model::set_groups(const Batch& batch) {
  groups_.clear();
  const auto add = [&](RowGroup group) {
    if (group.mode == ExecutionMode::kAuto) group.mode = mode();
    SUB8_CHECK(std::find(row_modes_.begin(), row_modes_.end(), group.mode) != row_modes_.end());
    if (group.rows > 0) groups_.push_back(group);
  };
  if (batch.groups.empty()) {
    const int64_t prompt = std::min(batch.prompt_rows, batch.rows());
    add({mode(), RowClass::kPrompt, prompt});
    add({mode(), RowClass::kGenerated, batch.rows() - prompt});
    return;
  }
  int64_t rows = 0;
  for (const RowGroup& group : batch.groups) {
    add(group);
    rows += group.rows;
  }
  SUB8_CHECK_EQ(rows, batch.rows());
}

Status Model::forward(const Batch& batch, Observer* observer) {
  return run_body(batch, 0, program_.body.size(), observer);
}

Status Model::run_body(const Batch& batch, size_t first, size_t last, Observer* observer) {
  SUB8_CHECK_LE(first, last);
  SUB8_CHECK_LE(last, program_.body.size());
  const int64_t rows = batch.rows();
  SUB8_CHECK_LE(rows, options_.max_rows);
  SUB8_CHECK_EQ(batch.positions.size(), batch.tokens.size());
  SUB8_CHECK_EQ(batch.slots.size(), batch.tokens.size());
  SUB8_CHECK_EQ(batch.attention.size(), batch.tokens.size());
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.tokens[i] < 0 || batch.tokens[i] >= config_.vocab_size) {
      return invalid_argument(fmt::format("token id {} is outside the model's vocabulary of {}",
                                          batch.tokens[i], config_.vocab_size));
    }
    if (batch.positions[i] < 0 || batch.positions[i] >= options_.max_context) {
      return invalid_argument(fmt::format("position {} is outside the context of {} tokens",
                                          batch.positions[i], options_.max_context));
    }
  }
  for (size_t i = 0; i < rope_tables_.size(); ++i) {
    kernels::fill_rope_table(program_.rope_tables[i], *pool_, batch.positions,
                             rope_tables_[i].data());
  }
  last_rows_ = rows;
  set_groups(batch);
  return execute(std::span(program_.body).subspan(first, last - first), batch, {}, observer);
}

Result<std::span<const float>> Model::logits(std::span<const int32_t> rows, Observer* observer) {
  SUB8_CHECK_LE(static_cast<int64_t>(rows.size()), options_.max_logit_rows);
  for (const int32_t row : rows) SUB8_CHECK(row >= 0 && row < last_rows_);
  SUB8_RETURN_IF_ERROR(execute(program_.head, {}, rows, observer));
  const auto* data =
      reinterpret_cast<const float*>(buffers_[static_cast<size_t>(program_.logits)].data());
  return std::span<const float>(data, rows.size() * static_cast<size_t>(config_.vocab_size));
}

}  // namespace sub8::model
