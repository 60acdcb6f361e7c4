#include "study/residue_cost.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/interrupt.h"
#include "checkpoint/residue.h"
#include "format/dtype.h"
#include "kernels/linear/bench.h"
#include "model/quantized_linear.h"

namespace sub8::study {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kCopiedBytes = int64_t{96} << 20;  // of weights, so that no cache holds them
constexpr int kMaxCopies = 64;
constexpr size_t kMinRounds = 5;

double elapsed_us(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

// By the clock that the case names.
double now_us(bool cpu_time) {
  timespec time{};
  clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

// A way to compute the layer.
struct Form {
  std::string name;
  model::RowExecution how;
  ActivationType row_type = ActivationType::kBF16;
  std::vector<PackedMatrix> extensions;  // one for each copy of the weight
  std::vector<uint8_t> masks;
  int64_t extra_bytes = 0;
  std::vector<double> times;  // one for each round
};

Result<std::vector<PackedMatrix>> copies(const StoredMatrix& w, CpuPath path, size_t count,
                                         ThreadPool& pool) {
  Arena arena;
  const StoredMatrix* parts[] = {&w};
  std::vector<PackedMatrix> out;
  for (size_t i = 0; i < count; ++i) {
    SUB8_ASSIGN_OR_RETURN(PackedMatrix packed, pack_linear(parts, path, pool, &arena));
    out.push_back(std::move(packed));
  }
  return out;
}

int64_t storage_bytes(const StoredMatrix& w) {
  return static_cast<int64_t>(w.codes.size() + w.block_scales.size());
}

class Bench {
 public:
  static Result<Bench> make(const ResidueCostCase& what, std::span<const float> ratios,
                            ThreadPool& pool) {
    Bench out(what, pool);
    const StoredMatrix w = random_weight(what.weights, what.rows, what.cols);
    out.storage_ = storage_bytes(w);
    SUB8_ASSIGN_OR_RETURN(const int64_t bytes,
                          packed_bytes(what.weights, what.rows, what.cols, what.path));
    const auto count = static_cast<size_t>(
        std::clamp<int64_t>(kCopiedBytes / std::max<int64_t>(bytes, 1) + 1, 1, kMaxCopies));
    SUB8_ASSIGN_OR_RETURN(out.weights_, copies(w, what.path, count, pool));
    SUB8_RETURN_IF_ERROR(out.add_forms(ratios));
    SUB8_RETURN_IF_ERROR(out.allocate());
    return out;
  }

  // One call of every form.
  void round() {
    for (Form& form : forms_) {
      const size_t copy = next_++ % weights_.size();
      const double start = now_us(what_.cpu_time);
      run(form, copy);
      form.times.push_back(now_us(what_.cpu_time) - start);
    }
  }
  void forget() {
    for (Form& form : forms_) form.times.clear();
  }

  std::vector<ResidueCost> results(const MachineRates& rates) const {
    const std::vector<double>& plain = forms_[1].times;
    std::vector<ResidueCost> out;
    for (const Form& form : forms_) {
      std::vector<double> ratios;
      for (size_t i = 0; i < form.times.size(); ++i) ratios.push_back(form.times[i] / plain[i]);
      ResidueCost cost;
      cost.form = form.name;
      cost.best_us = *std::min_element(form.times.begin(), form.times.end());
      cost.median_us = median(form.times);
      cost.over_plain = median(std::move(ratios));
      cost.extra_bytes = form.extra_bytes;
      cost.growth = static_cast<double>(form.extra_bytes) / static_cast<double>(storage_);
      const int64_t rows = form.how.ratio == 1 ? 2 * what_.m : what_.m;
      cost.kernel = linear_kernel_id(weights_[0], rows, form.row_type, what_.row_class);
      set_floor(form, rates, cost);
      out.push_back(std::move(cost));
    }
    return out;
  }

 private:
  Bench(const ResidueCostCase& what, ThreadPool& pool) : what_(what), pool_(&pool) {}

  static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  Status add_forms(std::span<const float> ratios) {
    const auto activations = model::fp4_activations(what_.weights);
    if (!activations) {
      return invalid_argument(fmt::format(
          "{} weights have no 4-bit activations; nvfp4 and mxfp4 have them", what_.weights.name()));
    }
    forms_.push_back({.name = "weight-only", .how = {}});
    const model::RowExecution plain{.weight_only = false, .format = *activations};
    const ActivationType chosen =
        model::quantized_row_type(weights_[0], nullptr, plain, what_.row_class);
    forms_.push_back({.name = "plain", .how = plain, .row_type = chosen});
    if (chosen != ActivationType::kBF16)
      forms_.push_back({.name = "plain, bf16 rows", .how = plain});
    for (const float ratio : ratios) {
      Form form;
      form.how = plain;
      form.how.ratio = ratio;
      if (ratio == 1) {
        form.name = "M-Ext";
        form.row_type = chosen;
      } else {
        SUB8_RETURN_IF_ERROR(extend(ratio, form));
      }
      forms_.push_back(std::move(form));
    }
    return {};
  }

  Status extend(float ratio, Form& form) {
    const int per_group = format::selected_per_group(ratio);
    if (!checkpoint::select_ratio_index(ratio)) {
      return invalid_argument(
          fmt::format("ratio {}: K-Ext has 0.125, 0.25 and 0.5, M-Ext 1", ratio));
    }
    form.name = fmt::format("K-Ext {}", ratio);
    form.masks.assign(static_cast<size_t>(ceil_div<int64_t>(what_.cols, format::kSelectGroup)),
                      static_cast<uint8_t>((1 << per_group) - 1));
    const StoredMatrix columns = random_weight(what_.weights, what_.rows,
                                               static_cast<int64_t>(form.masks.size()) * per_group);
    form.extra_bytes = storage_bytes(columns) + static_cast<int64_t>(form.masks.size());
    SUB8_ASSIGN_OR_RETURN(form.extensions, copies(columns, what_.path, weights_.size(), *pool_));
    form.row_type =
        model::quantized_row_type(weights_[0], form.extensions.data(), form.how, what_.row_class);
    return {};
  }

  Status allocate() {
    x_.resize(static_cast<size_t>(what_.m * what_.cols));
    for (size_t i = 0; i < x_.size(); ++i)
      x_[i] = format::float_to_bf16(static_cast<float>(i * 7 % 61) / 16.0f - 1.9f);
    y_.resize(static_cast<size_t>(what_.m * what_.rows));
    const int64_t chunk = std::min(what_.m, model::kQuantizedRows);
    SUB8_ASSIGN_OR_RETURN(buffers_, model::QuantizedLinearBuffers::allocate(
                                        chunk, what_.cols, what_.rows, pool_->size()));
    size_t bytes = 0;
    const auto need = [&](const PackedMatrix& w) {
      const int64_t rows = std::max(what_.m, 2 * chunk);
      bytes = std::max(bytes, linear_workspace_bytes(w, rows, pool_->size()));
    };
    need(weights_[0]);
    for (const Form& form : forms_) {
      if (!form.extensions.empty()) need(form.extensions[0]);
    }
    SUB8_ASSIGN_OR_RETURN(workspace_, AlignedBuffer<std::byte>::uninitialized(bytes));
    return {};
  }

  void run(const Form& form, size_t copy) {
    if (form.how.weight_only) {
      LinearArgs args;
      args.x = x_.data();
      args.x_stride = what_.cols;
      args.m = what_.m;
      args.w = &weights_[copy];
      args.y = y_.data();
      args.y_stride = what_.rows;
      args.row_class = what_.row_class;
      linear(args, *pool_, workspace_.span());
      return;
    }
    model::QuantizedLinearArgs args;
    args.x = x_.data();
    args.x_stride = what_.cols;
    args.m = what_.m;
    args.weight = &weights_[copy];
    args.how = form.how;
    if (!form.extensions.empty())
      args.prompt = {form.how.ratio, form.masks, &form.extensions[copy]};
    args.y = y_.data();
    args.y_stride = what_.rows;
    args.row_class = what_.row_class;
    args.row_type = form.row_type;
    model::quantized_linear(args, buffers_, *pool_, workspace_.span());
  }

  void set_floor(const Form& form, const MachineRates& rates, ResidueCost& cost) const {
    if (rates.read_gb_per_s <= 0) return;
    const PackedMatrix& w = weights_[0];
    int64_t bytes = w.bytes();
    int64_t cols = w.cols * (form.how.ratio == 1 ? 2 : 1);
    if (!form.extensions.empty()) {
      bytes += form.extensions[0].bytes();
      cols += form.extensions[0].cols;
    }
    const double operations = 2e-9 * static_cast<double>(what_.m * w.rows * cols);
    const double rate =
        form.row_type == ActivationType::kE2M1 ? rates.byte_gop_per_s : rates.value_gop_per_s;
    const double read_us = 1e-3 * static_cast<double>(bytes) / rates.read_gb_per_s;
    const double product_us = 1e6 * operations / rate;
    cost.memory_bound = read_us >= product_us;
    cost.floor_us = std::max(read_us, product_us);
  }

  ResidueCostCase what_;
  ThreadPool* pool_;
  int64_t storage_ = 0;
  std::vector<PackedMatrix> weights_;
  std::vector<Form> forms_;  // weight-only, plain, ...
  size_t next_ = 0;
  std::vector<uint16_t> x_;
  std::vector<float> y_;
  model::QuantizedLinearBuffers buffers_;
  AlignedBuffer<std::byte> workspace_;
};

}  // namespace

Result<MachineRates> measure_machine_rates(CpuPath path, ThreadPool& pool) {
  MachineRates out;
  SUB8_ASSIGN_OR_RETURN(out.read_gb_per_s, measure_read_bandwidth(pool));
  out.byte_gop_per_s = measure_product_rate(path, ActivationType::kE2M1, pool);
  out.value_gop_per_s = measure_product_rate(path, ActivationType::kBF16, pool);
  return out;
}

Result<std::vector<ResidueCost>> measure_residue_cost(const ResidueCostCase& what,
                                                      std::span<const float> ratios,
                                                      const MachineRates& rates, double seconds,
                                                      ThreadPool& pool) {
  SUB8_CHECK(!what.cpu_time || pool.size() == 1);
  SUB8_ASSIGN_OR_RETURN(Bench bench, Bench::make(what, ratios, pool));
  bench.round();  // warms page tables and the pool
  bench.forget();
  const Clock::time_point start = Clock::now();
  for (size_t i = 0; i < kMinRounds || elapsed_us(start) < 1e6 * seconds; ++i) {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    bench.round();
  }
  return bench.results(rates);
}

}  // namespace sub8::study
