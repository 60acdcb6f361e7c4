#include "quantize/matrix_quantizer.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "base/interrupt.h"
#include "format/block.h"

namespace sub8::quantize {
namespace {

using checkpoint::WeightInfo;
using checkpoint::WeightSource;
using format::OuterScale;
using format::WeightFormat;

constexpr int64_t kBatchValues = 65536;  // decoded at once by one thread: 256 KB
constexpr int64_t kChunkBytes = int64_t{32} << 20;

// The failure of the lowest row, whatever thread met it first.
class FirstFailure {
 public:
  void report(int64_t row, Error error) {
    const std::scoped_lock lock(mutex_);
    if (error_ && row_ <= row) return;
    row_ = row;
    error_ = std::move(error);
  }
  Status status() const { return error_ ? Status(*error_) : Status(); }

 private:
  std::mutex mutex_;
  int64_t row_ = 0;
  std::optional<Error> error_;
};

Status check_row(const WeightInfo& info, int64_t row, std::span<const float> x) {
  // One comparison finds all three: the magnitude's bits of infinity and NaN are the largest ones.
  uint32_t largest = 0;
  for (const float v : x) largest = std::max(largest, format::float_bits(v) & 0x7fffffffU);
  if (largest < format::float_bits(format::power_of_two(127))) return {};
  for (size_t k = 0; k < x.size(); ++k) {
    if (std::fabs(x[k]) < format::power_of_two(127)) continue;
    const char* what = std::isnan(x[k])   ? "NaN"
                       : std::isinf(x[k]) ? "infinite"
                                          : "2^127 or more in magnitude";
    return corrupt_data(info.name + ": the weight at row " + std::to_string(row) + ", column " +
                        std::to_string(k) + " is " + what +
                        (info.file.empty() ? "" : " (" + info.file.string() + ")") +
                        "; it cannot be quantised. The checkpoint is damaged or its training "
                        "diverged");
  }
  return {};
}

}  // namespace

Status for_each_row(const WeightSource& source, const WeightInfo& info, int64_t row, int64_t count,
                    ThreadPool& pool,
                    const std::function<void(int64_t, std::span<const float>)>& use) {
  FirstFailure failure;
  const int64_t batch = std::max<int64_t>(1, kBatchValues / std::max<int64_t>(1, info.cols));
  pool.for_ranges(count, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<float> values;
    for (int64_t at = begin; at < end; at += batch) {
      const int64_t rows = std::min(batch, end - at);
      if (interrupted()) return failure.report(row + at, cancelled("interrupted"));
      values.resize(static_cast<size_t>(rows * info.cols));
      const Status decoded = source.decode_rows(info.name, row + at, rows, values);
      if (!decoded.ok()) return failure.report(row + at, decoded.error());
      for (int64_t r = 0; r < rows; ++r) {
        const std::span<const float> x(values.data() + r * info.cols,
                                       static_cast<size_t>(info.cols));
        const Status checked = check_row(info, row + at + r, x);
        if (!checked.ok()) return failure.report(row + at + r, checked.error());
        use(at + r, x);
      }
    }
  });
  return failure.status();
}

Result<float> matrix_amax(const WeightSource& source, const WeightInfo& info, ThreadPool& pool) {
  std::vector<float> row_amax(static_cast<size_t>(info.rows));
  SUB8_RETURN_IF_ERROR(
      for_each_row(source, info, 0, info.rows, pool, [&](int64_t row, std::span<const float> x) {
        row_amax[static_cast<size_t>(row)] = format::abs_max(x.data(), info.cols);
      }));
  return format::abs_max(row_amax.data(), info.rows);
}

Status quantize_rows(const WeightSource& source, const WeightInfo& info, const WeightFormat& format,
                     const RowRules& rules, float alpha, int64_t row, int64_t count,
                     ThreadPool& pool, QuantizedRows& out) {
  const int64_t row_bytes = format.row_bytes(info.cols);
  const int64_t groups = format.groups(info.cols);
  const bool per_channel = format.outer_scale == OuterScale::kChannel;
  out.codes.resize(static_cast<size_t>(count * row_bytes));
  out.block_scales.resize(static_cast<size_t>(count * groups));
  out.outer_scales.resize(per_channel ? static_cast<size_t>(count) : 0);
  out.errors.resize(static_cast<size_t>(count));
  return for_each_row(source, info, row, count, pool, [&](int64_t r, std::span<const float> x) {
    thread_local std::vector<uint8_t> codes;
    codes.resize(x.size());
    const std::span<uint8_t> scales(out.block_scales.data() + r * groups,
                                    static_cast<size_t>(groups));
    const float outer = quantize_row(format, rules, x, alpha, codes, scales);
    format::pack_codes(codes.data(), info.cols, format.element.bits(),
                       out.codes.data() + r * row_bytes);
    if (per_channel) out.outer_scales[static_cast<size_t>(r)] = outer;
    out.errors[static_cast<size_t>(r)] = measure_row(format, x, outer, codes, scales);
  });
}

int64_t rows_per_chunk(const WeightFormat& format, int64_t rows, int64_t cols) {
  const int64_t bytes = std::max<int64_t>(1, format.row_bytes(cols) + format.groups(cols));
  return std::clamp<int64_t>(kChunkBytes / bytes, 1, std::max<int64_t>(1, rows));
}

}  // namespace sub8::quantize
