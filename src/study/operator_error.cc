#include "study/operator_error.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "base/interrupt.h"
#include "checkpoint/residue.h"
#include "format/dtype.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_write/kv_write.h"
#include "kernels/quantize_act/quantize_act.h"
#include "kvcache/page_pool.h"
#include "model/quantized_linear.h"
#include "quantize/extension.h"

namespace sub8::study {
namespace {

using kernels::AttentionKind;
using kernels::KvType;
using model::ExecutionMode;

struct LinearInput {
  std::string name;
  std::vector<std::string> modules;
  std::vector<uint16_t> x;  // [rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> sum_abs;  // by channel, over the rows that K-Ext's channels are selected on
  int64_t calibration_rows = 0;
};

// One layer's rows of one window.
struct AttentionInput {
  model::AttentionOp op;
  std::vector<float> q, k, v;
};

// Keeps the first rows of every linear layer, and whole windows for attention.
class Capture final : public model::Observer {
 public:
  Capture(const checkpoint::ModelConfig& config, int64_t linear_rows)
      : config_(config), linear_rows_(linear_rows) {}

  void linear_input(const model::LinearOp& op, const uint16_t* x, int64_t stride,
                    int64_t rows) override {
    auto at = index_.find(op.name);
    if (at == index_.end()) {
      at = index_.emplace(op.name, linear.size()).first;
      linear.push_back({op.name, op.modules, {}, 0, op.in.cols, {}, 0});
      linear.back().sum_abs.resize(static_cast<size_t>(op.in.cols));
    }
    LinearInput& input = linear[at->second];
    if (calibrating) {
      input.calibration_rows += rows;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < input.cols; ++c) {
          input.sum_abs[static_cast<size_t>(c)] +=
              std::fabs(static_cast<double>(format::bf16_to_float(x[r * stride + c])));
        }
      }
      return;
    }
    for (int64_t r = 0; r < rows && input.rows < linear_rows_; ++r, ++input.rows)
      input.x.insert(input.x.end(), x + r * stride, x + r * stride + input.cols);
  }
  void attention_input(const model::AttentionOp& op, kernels::InputRows q, kernels::InputRows k,
                       kernels::InputRows v, int64_t rows) override {
    if (calibrating) return;
    const auto copy = [&](const kernels::InputRows& in, int64_t heads) {
      const int64_t cols = heads * config_.head_dim;
      std::vector<float> out;
      for (int64_t r = 0; r < rows; ++r)
        out.insert(out.end(), in.data + r * in.stride, in.data + r * in.stride + cols);
      return out;
    };
    attention.push_back(
        {op, copy(q, config_.heads), copy(k, config_.kv_heads), copy(v, config_.kv_heads)});
  }

  bool calibrating = false;               // rows only add to the channels' means
  std::vector<LinearInput> linear;        // in the model's order
  std::vector<AttentionInput> attention;  // of the last window, by layer

 private:
  const checkpoint::ModelConfig& config_;
  int64_t linear_rows_;
  std::map<std::string, size_t> index_;
};

SquaredError squared_error(std::span<const float> y, std::span<const float> reference) {
  SquaredError out;
  for (size_t i = 0; i < y.size(); ++i) {
    const double d = static_cast<double>(y[i]) - reference[i];
    out.error += d * d;
    out.energy += static_cast<double>(reference[i]) * reference[i];
  }
  return out;
}

// The entry of a variant, made when it is first seen.
OperatorError& variant(std::vector<OperatorError>& list, const std::string& name) {
  for (OperatorError& entry : list) {
    if (entry.variant == name) return entry;
  }
  list.push_back({.variant = name});
  return list.back();
}

void count_scales(std::vector<ScaleShares>& list, const std::string& what,
                  std::span<const uint8_t> e4m3) {
  auto at = std::find_if(list.begin(), list.end(),
                         [&](const ScaleShares& entry) { return entry.what == what; });
  if (at == list.end()) at = list.insert(at, {.what = what});
  for (const uint8_t byte : e4m3) {
    at->zero += byte == 0 ? 1 : 0;
    at->subnormal += byte > 0 && byte < 8 ? 1 : 0;
  }
  at->total += static_cast<int64_t>(e4m3.size());
}

Result<AlignedBuffer<std::byte>> scratch(size_t bytes) {
  return AlignedBuffer<std::byte>::uninitialized(bytes);
}

// ---- Linear layers -----------------------------------------------------------------------------

// One matrix of several modules, packed.
struct Packed {
  std::vector<StoredMatrix> parts;
  PackedMatrix matrix;
};
Status pack_parts(CpuPath path, ThreadPool& pool, Packed& out) {
  std::vector<const StoredMatrix*> pointers;
  for (const StoredMatrix& part : out.parts) pointers.push_back(&part);
  SUB8_ASSIGN_OR_RETURN(out.matrix, pack_linear(pointers, path, pool));
  return {};
}
Result<Packed> pack(const checkpoint::WeightSource& source, const std::vector<std::string>& modules,
                    format::DType decoded, CpuPath path, ThreadPool& pool) {
  Packed out;
  for (const std::string& module : modules) {
    SUB8_ASSIGN_OR_RETURN(StoredMatrix part, source.matrix(module, decoded));
    out.parts.push_back(std::move(part));
  }
  SUB8_RETURN_IF_ERROR(pack_parts(path, pool, out));
  return out;
}

Result<std::vector<float>> multiply(const PackedMatrix& w, const void* x, ActivationType type,
                                    int64_t rows, ThreadPool& pool) {
  std::vector<float> y(static_cast<size_t>(rows * w.rows));
  SUB8_ASSIGN_OR_RETURN(auto workspace, scratch(linear_workspace_bytes(w, rows, pool.size())));
  LinearArgs args;
  args.x = x;
  args.x_type = type;
  args.x_stride = w.cols;
  args.m = rows;
  args.w = &w;
  args.y = y.data();
  args.y_stride = w.rows;
  linear(args, pool, workspace.span());
  return y;
}

Result<std::vector<float>> multiply_quantized(const PackedMatrix& w, const LinearInput& in,
                                              const model::RowExecution& how,
                                              format::MxRule mx_rule, ThreadPool& pool,
                                              const model::Compensation& compensation = {}) {
  std::vector<float> y(static_cast<size_t>(in.rows * w.rows));
  const int64_t chunk = std::min(in.rows, model::kQuantizedRows);
  SUB8_ASSIGN_OR_RETURN(
      auto buffers, model::QuantizedLinearBuffers::allocate(chunk, w.cols, w.rows, pool.size()));
  size_t bytes = linear_workspace_bytes(w, 2 * chunk, pool.size());
  if (compensation.extension != nullptr) {
    bytes =
        std::max(bytes, linear_workspace_bytes(*compensation.extension, 2 * chunk, pool.size()));
  }
  SUB8_ASSIGN_OR_RETURN(auto workspace, scratch(bytes));
  model::QuantizedLinearArgs args;
  args.x = in.x.data();
  args.x_stride = w.cols;
  args.m = in.rows;
  args.weight = &w;
  args.how = how;
  args.mx_rule = mx_rule;
  args.prompt = compensation;
  args.y = y.data();
  args.y_stride = w.rows;
  model::quantized_linear(args, buffers, pool, workspace.span());
  return y;
}

// Block scales of NVFP4 activations and of their residue.
void count_activation_scales(const LinearInput& in, CpuPath path, ThreadPool& pool,
                             OperatorReport& report) {
  const int64_t groups = (in.cols + format::kNvfp4Block - 1) / format::kNvfp4Block;
  std::vector<uint8_t> codes(static_cast<size_t>(2 * in.rows * ((in.cols + 1) / 2)));
  std::vector<uint8_t> base(static_cast<size_t>(in.rows * groups));
  std::vector<uint8_t> residue(base.size());
  std::vector<float> alpha(static_cast<size_t>(in.rows));
  std::vector<std::byte> workspace(kernels::quantize_act_workspace_bytes(in.cols, pool.size()));
  kernels::QuantizeActArgs args;
  args.path = path;
  args.x = in.x.data();
  args.x_stride = args.k = in.cols;
  args.m = in.rows;
  args.residue = true;
  const int64_t stride = (in.cols + 1) / 2;
  args.out = {codes.data(), stride, base.data(), groups, nullptr, 0};
  args.second = {codes.data() + in.rows * stride, stride, residue.data(), groups, nullptr, 0};
  args.alpha = alpha.data();
  kernels::quantize_act(args, pool, workspace);
  count_scales(report.scales, "nvfp4 activations", base);
  count_scales(report.scales, "nvfp4 activation residue", residue);
}

using AddVariant = std::function<void(const std::string& name, std::span<const float> y)>;

// K-Ext at each ratio: the channels with the largest means, and the original's columns for them.
Status measure_k_ext(const LinearInput& in, const checkpoint::WeightSource& exact,
                     const OperatorWeights& source, const Packed& w, CpuPath path, ThreadPool& pool,
                     const AddVariant& add) {
  checkpoint::ResidueModule channels;
  for (const double sum : in.sum_abs)
    channels.mean_abs.push_back(static_cast<float>(sum / static_cast<double>(in.calibration_rows)));
  checkpoint::select_channels(channels);
  format::BlockRules rules;
  rules.mx = source.mx_rule;
  for (size_t i = 0; i < checkpoint::kSelectRatios.size(); ++i) {
    const float ratio = checkpoint::kSelectRatios[i];
    Packed extension;
    for (size_t part = 0; part < w.parts.size(); ++part) {
      SUB8_ASSIGN_OR_RETURN(StoredMatrix columns,
                            quantize::extension_columns(w.parts[part], exact, in.modules[part],
                                                        channels.masks[i], rules, pool));
      extension.parts.push_back(std::move(columns));
    }
    SUB8_RETURN_IF_ERROR(pack_parts(path, pool, extension));
    const model::RowExecution how = model::row_execution(ExecutionMode::kResidue, w.matrix.format,
                                                         ratio, RowClass::kPrompt, in.rows);
    SUB8_ASSIGN_OR_RETURN(const auto y,
                          multiply_quantized(w.matrix, in, how, source.mx_rule, pool,
                                             {ratio, channels.masks[i], &extension.matrix}));
    add(fmt::format("{} residue {}", source.name, ratio), y);
  }
  return {};
}

Status measure_linear(const LinearInput& in, const checkpoint::WeightSource& exact,
                      std::span<const OperatorWeights> weights, CpuPath path, ThreadPool& pool,
                      OperatorReport& report) {
  std::vector<float> x;
  for (const uint16_t bits : in.x) x.push_back(format::bf16_to_float(bits));
  std::vector<float> reference;
  {
    SUB8_ASSIGN_OR_RETURN(const Packed w, pack(exact, in.modules, format::DType::kF32, path, pool));
    SUB8_ASSIGN_OR_RETURN(reference,
                          multiply(w.matrix, x.data(), ActivationType::kF32, in.rows, pool));
  }
  count_activation_scales(in, path, pool, report);
  const auto add = [&](const std::string& name, std::span<const float> y) {
    OperatorError& entry = variant(report.linear, name);
    entry.layers.push_back(in.name);
    entry.per_layer.push_back(squared_error(y, reference));
  };
  for (const OperatorWeights& source : weights) {
    SUB8_ASSIGN_OR_RETURN(const Packed w,
                          pack(*source.source, in.modules, format::DType::kBF16, path, pool));
    for (const StoredMatrix& part : w.parts) {
      if (part.format.block_scale == format::BlockScale::kE4M3)
        count_scales(report.scales, source.name + " weights", part.block_scales);
    }
    SUB8_ASSIGN_OR_RETURN(const auto plain,
                          multiply(w.matrix, in.x.data(), ActivationType::kBF16, in.rows, pool));
    add(source.name + " weight-only", plain);
    for (const ExecutionMode mode : {ExecutionMode::kPlain, ExecutionMode::kResidue,
                                     ExecutionMode::kFp8, ExecutionMode::kFp8Residue}) {
      const model::RowExecution how =
          model::row_execution(mode, w.matrix.format, 0, RowClass::kGenerated, 1);
      if (how.weight_only) continue;
      SUB8_ASSIGN_OR_RETURN(const auto y,
                            multiply_quantized(w.matrix, in, how, source.mx_rule, pool));
      add(fmt::format("{} {}", source.name, model::execution_mode_name(mode)), y);
      if (mode == ExecutionMode::kPlain)
        SUB8_RETURN_IF_ERROR(measure_k_ext(in, exact, source, w, path, pool, add));
    }
  }
  return {};
}

// ---- Attention ---------------------------------------------------------------------------------

// A window's K and V in a cache of some type, and attention over it.
class WindowCache {
 public:
  static Result<WindowCache> make(const checkpoint::ModelConfig& config, KvType type,
                                  const kernels::KvScales& scales, const AttentionInput& in,
                                  CpuPath path, ThreadPool& pool) {
    WindowCache out;
    out.shape_.heads = static_cast<int>(config.heads);
    out.shape_.kv = {type, static_cast<int>(config.kv_heads), static_cast<int>(config.head_dim)};
    if (type == KvType::kNvfp4 || type == KvType::kFp8) out.shape_.kv_scales = scales;
    out.shape_.scale = in.op.scale;
    out.shape_.soft_cap = in.op.soft_cap;
    out.shape_.window = in.op.window;
    const int64_t cols = config.kv_heads * config.head_dim;
    out.rows_ = static_cast<int64_t>(in.k.size()) / cols;
    out.table_.resize(static_cast<size_t>((out.rows_ + 31) / 32));
    std::iota(out.table_.begin(), out.table_.end(), 0);
    SUB8_ASSIGN_OR_RETURN(out.memory_,
                          AlignedBuffer<uint8_t>::uninitialized(
                              out.table_.size() * static_cast<size_t>(out.shape_.kv.page_bytes())));
    std::fill_n(out.memory_.data(), out.memory_.size(), uint8_t{0});
    std::vector<int64_t> slots(static_cast<size_t>(out.rows_));
    std::iota(slots.begin(), slots.end(), 0);
    kernels::kv_write(path, pool, {in.k.data(), cols}, {in.v.data(), cols}, out.rows_, slots.data(),
                      {out.shape_.kv, out.memory_.data(), out.shape_.kv_scales});
    return out;
  }

  Result<std::vector<float>> attend(AttentionKind kind, const AttentionInput& in, CpuPath path,
                                    ThreadPool& pool) const {
    kernels::AttentionShape shape = shape_;
    shape.kind = kind;
    const int64_t cols = int64_t{shape.heads} * shape.kv.head_dim;
    std::vector<kernels::AttentionRow> rows;
    for (int64_t r = 0; r < rows_; ++r) rows.push_back({table_.data(), static_cast<int32_t>(r)});
    std::vector<float> out(in.q.size());
    SUB8_ASSIGN_OR_RETURN(auto workspace,
                          scratch(kernels::attention_workspace_bytes(shape, pool.size(), rows_)));
    SUB8_RETURN_IF_ERROR(kernels::attention(path, pool, shape, memory_.data(), {in.q.data(), cols},
                                            rows, kernels::f32_rows(out.data(), cols),
                                            workspace.span()));
    return out;
  }

  // Scale bytes of the tokens that exist; NVFP4 only.
  std::vector<uint8_t> scales(bool value_side) const {
    const kernels::KvLayout& kv = shape_.kv;
    std::vector<uint8_t> out;
    for (int64_t token = 0; token < rows_; ++token) {
      for (int h = 0; h < kv.kv_heads; ++h) {
        const uint8_t* at = memory_.data() + token / 32 * kv.page_bytes() +
                            (value_side ? kv.v_scales_offset() : kv.k_scales_offset()) +
                            h * kv.head_scales() + token % 32 * kv.token_scales();
        out.insert(out.end(), at, at + kv.token_scales());
      }
    }
    return out;
  }

 private:
  kernels::AttentionShape shape_;
  int64_t rows_ = 0;
  std::vector<int32_t> table_;
  AlignedBuffer<uint8_t> memory_;
};

Status measure_attention(const checkpoint::ModelConfig& config, const AttentionInput& in,
                         const kernels::KvScales& scales, CpuPath path, ThreadPool& pool,
                         OperatorReport& report) {
  SUB8_ASSIGN_OR_RETURN(const auto bf16,
                        WindowCache::make(config, KvType::kBF16, scales, in, path, pool));
  SUB8_ASSIGN_OR_RETURN(const auto original, bf16.attend(AttentionKind::k16Bit, in, path, pool));
  const std::string layer = fmt::format("layer {}", in.op.layer);
  for (const KvType type : {KvType::kFp8, KvType::kNvfp4}) {
    SUB8_ASSIGN_OR_RETURN(const auto cache,
                          WindowCache::make(config, type, scales, in, path, pool));
    SUB8_ASSIGN_OR_RETURN(const auto same, cache.attend(AttentionKind::k16Bit, in, path, pool));
    for (const AttentionKind kind :
         {AttentionKind::k16Bit, AttentionKind::kFp8Query, AttentionKind::kFp4Query,
          AttentionKind::kResAttn, AttentionKind::kResAttnV8, AttentionKind::kResAttnPv16}) {
      if (kernels::needs_nvfp4_pages(kind) && type != KvType::kNvfp4) continue;
      SUB8_ASSIGN_OR_RETURN(const auto y, cache.attend(kind, in, path, pool));
      OperatorError& entry =
          variant(report.attention, fmt::format("{} KV, {}", kernels::kv_type_name(type),
                                                kernels::attention_kind_name(kind)));
      // A layer's windows add up.
      if (entry.layers.empty() || entry.layers.size() <= static_cast<size_t>(in.op.layer)) {
        entry.layers.push_back(layer);
        entry.per_layer.emplace_back();
        entry.per_layer_original.emplace_back();
      }
      const auto at = static_cast<size_t>(in.op.layer);
      entry.per_layer[at].add(squared_error(y, same));
      entry.per_layer_original[at].add(squared_error(y, original));
    }
    if (type != KvType::kNvfp4) continue;
    count_scales(report.scales, "nvfp4 K", cache.scales(false));
    count_scales(report.scales, "nvfp4 V", cache.scales(true));
  }
  return {};
}

Result<kernels::KvScales> kv_scales(const checkpoint::WeightSource& source, int64_t layer) {
  SUB8_ASSIGN_OR_RETURN(const auto k, source.kv_scale(layer, false));
  SUB8_ASSIGN_OR_RETURN(const auto v, source.kv_scale(layer, true));
  return kernels::KvScales{k.value_or(1.0f), v.value_or(1.0f)};
}

SquaredError sum(const std::vector<SquaredError>& parts) {
  SquaredError out;
  for (const SquaredError& part : parts) out.add(part);
  return out;
}

Status run_window(model::Model& model, std::span<const int32_t> tokens, Capture& capture) {
  std::vector<int32_t> pages((tokens.size() + kvcache::kPageTokens - 1) / kvcache::kPageTokens);
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<kernels::AttentionRow> attention;
  for (size_t i = 0; i < tokens.size(); ++i) {
    positions.push_back(static_cast<int32_t>(i));
    slots.push_back(static_cast<int64_t>(i));
    attention.push_back({pages.data(), static_cast<int32_t>(i)});
  }
  return model.forward({tokens, positions, slots, attention, static_cast<int64_t>(tokens.size())},
                       &capture);
}

}  // namespace

SquaredError OperatorError::pooled() const { return sum(per_layer); }
SquaredError OperatorError::pooled_original() const { return sum(per_layer_original); }

Result<OperatorReport> operator_errors(model::Model& original,
                                       const checkpoint::WeightSource& exact,
                                       std::span<const OperatorWeights> weights,
                                       std::span<const int32_t> tokens,
                                       const OperatorOptions& options) {
  SUB8_CHECK(original.options().activations == ActivationType::kBF16);
  SUB8_CHECK_GE(original.options().max_rows, options.window);
  SUB8_CHECK_GE(options.calibration_windows, 1);
  const int64_t needed = options.window * (options.windows + options.calibration_windows);
  if (static_cast<int64_t>(tokens.size()) < needed) {
    return invalid_argument(fmt::format(
        "the text has {} tokens, fewer than the {} of {} windows of {} and the {} behind "
        "them that K-Ext's channels are selected on; give more text or fewer windows",
        tokens.size(), needed, options.windows, options.window, options.calibration_windows));
  }
  ThreadPool& pool = original.pool();
  const CpuPath path = original.options().path;
  OperatorReport report;
  Capture capture(original.config(), options.linear_rows);
  int64_t done = 0;
  int64_t total = 0;
  const auto step = [&](const std::string& layer) -> Status {
    if (options.progress) options.progress(done++, total, layer);
    return check_interrupt();
  };
  const auto run = [&](int64_t window) {
    return run_window(original,
                      tokens.subspan(static_cast<size_t>(window * options.window),
                                     static_cast<size_t>(options.window)),
                      capture);
  };
  for (int64_t w = 0; w < options.windows; ++w) {
    capture.attention.clear();
    SUB8_RETURN_IF_ERROR(run(w));
    total = options.windows * static_cast<int64_t>(capture.attention.size()) +
            static_cast<int64_t>(capture.linear.size());
    for (const AttentionInput& in : capture.attention) {
      SUB8_RETURN_IF_ERROR(step(fmt::format("attention of layer {}", in.op.layer)));
      SUB8_ASSIGN_OR_RETURN(const kernels::KvScales scales, kv_scales(exact, in.op.layer));
      SUB8_RETURN_IF_ERROR(measure_attention(original.config(), in, scales, path, pool, report));
    }
  }
  capture.calibrating = true;
  for (int64_t w = 0; w < options.calibration_windows; ++w)
    SUB8_RETURN_IF_ERROR(run(options.windows + w));
  for (const LinearInput& in : capture.linear) {
    SUB8_RETURN_IF_ERROR(step(in.name));
    SUB8_RETURN_IF_ERROR(measure_linear(in, exact, weights, path, pool, report));
  }
  return report;
}

}  // namespace sub8::study
