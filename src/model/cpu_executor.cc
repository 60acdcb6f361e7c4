// Runs a program's operations on the CPU, in order, each over all rows of the step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/attention/attention.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embed/embed.h"
#include "kernels/kv_write/kv_write.h"
#include "kernels/linear/op.h"
#include "model/mode_summary.h"
#include "model/model.h"

namespace sub8::model {

class CpuExecutor {
 public:
  CpuExecutor(Model& model, const Batch& batch, std::span<const int32_t> logit_rows,
              Observer* observer)
      : m_(model),
        batch_(batch),
        logit_rows_(logit_rows),
        observer_(observer),
        pool_(*model.pool_),
        path_(model.options_.path) {}

  Status operator()(const EmbedOp& op) {
    return kernels::embed(pool_, *op.table, batch_.tokens, op.multiplier, f32(op.out),
                          stride(op.out));
  }
  Status operator()(const PositionOp& op) {
    return kernels::add_position_embedding(pool_, *op.table, batch_.positions, op.offset,
                                           f32(op.out), stride(op.out),
                                           m_.position_scratch_.span());
  }
  Status operator()(const RmsNormOp& op) {
    kernels::rms_norm(path_, pool_, input(op.in), rows(op.in), op.in.cols, op.weights,
                      output(op.out));
    return {};
  }
  Status operator()(const LayerNormOp& op) {
    kernels::layer_norm(path_, pool_, input(op.in), rows(op.in), op.in.cols, op.weights,
                        output(op.out));
    return {};
  }
  Status operator()(const HeadNormOp& op) {
    kernels::rms_norm_heads(path_, pool_, f32(op.x), rows(op.x), stride(op.x), op.heads, head_dim(),
                            op.weights);
    return {};
  }
  Status operator()(const LinearOp& op) {
    const int64_t all = rows(op.in);
    if (observer_ != nullptr && !is_f32(op.in)) {
      observer_->linear_input(op, reinterpret_cast<const uint16_t*>(base(op.in)), stride(op.in),
                              all);
    }
    // Neighbouring groups are one call where mode and class make no difference to this layer.
    const bool logits = plan(op.in).logit_rows;
    int64_t first = 0;  // of the call
    int64_t count = 0;
    int64_t end = 0;  // of the group, in rows of the step
    const RowGroup* kind = nullptr;
    for (const RowGroup& group : m_.groups_) {
      end += group.rows;
      const int64_t rows = logits ? logit_rows_before(end) - first - count : group.rows;
      if (rows == 0) continue;
      if (kind != nullptr && !alike(op, *kind, group)) {
        linear(op, first, count, *kind);
        first += std::exchange(count, 0);
      }
      if (count == 0) kind = &group;
      count += rows;
    }
    if (count > 0) linear(op, first, count, *kind);
    if (observer_ != nullptr) observer_->linear_done(op);
    return {};
  }
  Status operator()(const RopeOp& op) {
    const auto table = static_cast<size_t>(op.table);
    kernels::apply_rope(path_, pool_, f32(op.x), rows(op.x), stride(op.x), op.heads, head_dim(),
                        m_.program_.rope_tables[table].dims(), m_.rope_tables_[table].data());
    return {};
  }
  Status operator()(const KvWriteOp& op) {
    keys_ = input(op.k);
    values_ = input(op.v);
    kernels::kv_write(path_, pool_, input(op.k), input(op.v), batch_.rows(), batch_.slots.data(),
                      pages(op.layer));
    return {};
  }
  Status operator()(const AttentionOp& op) {
    if (observer_ != nullptr)
      observer_->attention_input(op, input(op.q), keys_, values_, m_.last_rows_);
    // Neighbouring groups that attend alike are one call.
    int64_t first = 0;
    int64_t count = 0;
    kernels::AttentionKind kind{};
    for (const RowGroup& group : m_.groups_) {
      const kernels::AttentionKind next = m_.attention(group.mode, group.row_class);
      if (count > 0 && next != kind) {
        SUB8_RETURN_IF_ERROR(attend(op, first, count, kind));
        first += std::exchange(count, 0);
      }
      kind = next;
      count += group.rows;
    }
    return attend(op, first, count, kind);
  }
  Status operator()(const GatedOp& op) {
    kernels::gated_activation(path_, pool_, op.function, input(op.gate), input(op.up),
                              rows(op.gate), op.gate.cols, output(op.out));
    return {};
  }
  Status operator()(const ActivationOp& op) {
    kernels::activation(path_, pool_, op.function, input(op.in), rows(op.in), op.in.cols,
                        output(op.out));
    return {};
  }
  Status operator()(const AddOp& op) {
    kernels::add_rows(path_, pool_, f32(op.x), stride(op.x), input(op.y), rows(op.x), op.x.cols);
    return {};
  }
  Status operator()(const ConvertOp& op) {
    kernels::convert_rows(path_, pool_, input(op.in), rows(op.in), op.in.cols, output(op.out));
    return {};
  }
  Status operator()(const GatherOp& op) {
    const float* in = f32(op.in);
    float* out = f32(op.out);
    for (size_t i = 0; i < logit_rows_.size(); ++i) {
      std::memcpy(out + static_cast<int64_t>(i) * stride(op.out),
                  in + logit_rows_[i] * stride(op.in),
                  static_cast<size_t>(op.in.cols) * sizeof(float));
    }
    return {};
  }
  Status operator()(const SoftCapOp& op) {
    float* x = f32(op.x);
    pool_.for_ranges(rows(op.x), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        float* values = x + row * stride(op.x);
        for (int64_t i = 0; i < op.x.cols; ++i) values[i] = op.cap * std::tanh(values[i] / op.cap);
      }
    });
    return {};
  }
  Status operator()(const LayerEndOp& op) {
    if (observer_ != nullptr) observer_->layer_output(op.layer, input(op.x), rows(op.x));
    return {};
  }

 private:
  const BufferPlan& plan(const View& view) const {
    return m_.program_.buffers[static_cast<size_t>(view.buffer)];
  }
  int64_t rows(const View& view) const {
    return plan(view).logit_rows ? static_cast<int64_t>(logit_rows_.size()) : m_.last_rows_;
  }
  int64_t stride(const View& view) const { return plan(view).cols; }
  bool is_f32(const View& view) const {
    return plan(view).type == BufferType::kF32 || m_.options_.activations == ActivationType::kF32;
  }
  std::byte* base(const View& view) const {
    return m_.buffers_[static_cast<size_t>(view.buffer)].data() +
           view.column * (is_f32(view) ? 4 : 2);
  }
  float* f32(const View& view) const {
    SUB8_CHECK(is_f32(view));
    return reinterpret_cast<float*>(base(view));
  }
  kernels::InputRows input(const View& view) const { return {f32(view), stride(view)}; }
  kernels::OutputRows output(const View& view) const {
    return {base(view), is_f32(view) ? format::DType::kF32 : format::DType::kBF16, stride(view)};
  }
  // Rows [first, first + count) of the step.
  Status attend(const AttentionOp& op, int64_t first, int64_t count, kernels::AttentionKind kind) {
    const kernels::KvPages cache = pages(op.layer);
    kernels::AttentionShape shape;
    shape.heads = static_cast<int>(m_.config_.heads);
    shape.kv = cache.layout;
    shape.kv_scales = cache.scales;
    shape.kind = kind;
    shape.scale = op.scale;
    shape.soft_cap = op.soft_cap;
    shape.window = op.window;
    shape.round_q = cache.round;
    kernels::InputRows q = input(op.q);
    kernels::OutputRows out = output(op.out);
    q.data += first * q.stride;
    out.data = out.row(first);
    return kernels::attention(
        path_, pool_, shape, cache.data, q,
        batch_.attention.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), out,
        m_.attention_workspace_.span());
  }
  int head_dim() const { return static_cast<int>(m_.config_.head_dim); }
  kernels::KvPages pages(int layer) const {
    return {{m_.options_.kv_type, static_cast<int>(m_.config_.kv_heads), head_dim()},
            m_.kv_[static_cast<size_t>(layer)].data(),
            m_.kv_scales(layer),
            m_.options_.activations == ActivationType::kBF16};
  }
  // Of the wanted rows, which are in ascending order, those before `row` of the step.
  int64_t logit_rows_before(int64_t row) const {
    return std::lower_bound(logit_rows_.begin(), logit_rows_.end(), row) - logit_rows_.begin();
  }
  RowExecution execution(const LinearOp& op, const RowGroup& group) const {
    return row_execution(group.mode, op.weight->format, op.prompt.ratio, group.row_class,
                         m_.last_rows_);
  }
  bool alike(const LinearOp& op, const RowGroup& a, const RowGroup& b) const {
    const ActivationType type = m_.options_.activations;
    return linear_order_id(*op.weight, type, a.row_class) ==
               linear_order_id(*op.weight, type, b.row_class) &&
           execution(op, a) == execution(op, b);
  }
  void linear(const LinearOp& op, int64_t first, int64_t count, const RowGroup& group) {
    const RowClass row_class = group.row_class;
    const RowExecution how = execution(op, group);
    if (!how.weight_only) {
      QuantizedLinearArgs args;
      args.x = reinterpret_cast<const uint16_t*>(base(op.in)) + first * stride(op.in);
      args.x_stride = stride(op.in);
      args.m = count;
      args.weight = op.weight;
      args.how = how;
      args.alpha = input_alpha(op, how).value_or(InputAlpha{});
      args.prompt = op.prompt;
      args.bias = op.bias;
      args.accumulate = op.accumulate;
      args.y = f32(op.out) + first * stride(op.out);
      args.y_stride = stride(op.out);
      args.row_class = row_class;
      quantized_linear(args, m_.quantized_, pool_, m_.linear_workspace_.span());
      return;
    }
    LinearArgs args;
    args.x = base(op.in) + first * stride(op.in) * (is_f32(op.in) ? 4 : 2);
    args.x_type = m_.options_.activations;
    args.x_stride = stride(op.in);
    args.m = count;
    args.w = op.weight;
    args.bias = op.bias;
    args.accumulate = op.accumulate;
    args.y = f32(op.out) + first * stride(op.out);
    args.y_stride = stride(op.out);
    args.row_class = row_class;
    sub8::linear(args, pool_, m_.linear_workspace_.span());
  }

  Model& m_;
  const Batch& batch_;
  std::span<const int32_t> logit_rows_;
  Observer* observer_;
  kernels::InputRows keys_, values_;  // of the last KvWriteOp
  ThreadPool& pool_;
  CpuPath path_;
};

Status Model::execute(std::span<const Op> ops, const Batch& batch,
                      std::span<const int32_t> logit_rows, Observer* observer) {
  CpuExecutor executor(*this, batch, logit_rows, observer);
  for (const Op& op : ops) SUB8_RETURN_IF_ERROR(std::visit(executor, op));
  return {};
}

}  // namespace sub8::model
