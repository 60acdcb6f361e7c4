#include "quantize/extension.h"

#include <bit>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checked_math.h"
#include "format/activation.h"
#include "quantize/matrix_quantizer.h"

namespace sub8::quantize {
namespace {

using format::OuterScale;

struct Buffers {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
};

// The channels of the columns, in order; -1 for zeros.
std::vector<int64_t> selected_channels(std::span<const uint8_t> masks, int64_t cols) {
  std::vector<int64_t> out;
  for (size_t g = 0; g < masks.size(); ++g) {
    SUB8_CHECK_EQ(std::popcount(masks[g]), std::popcount(masks[0]));
    for (int bit = 0; bit < format::kSelectGroup; ++bit) {
      if ((masks[g] >> bit & 1) == 0) continue;
      const int64_t channel = static_cast<int64_t>(g) * format::kSelectGroup + bit;
      out.push_back(channel < cols ? channel : -1);
    }
  }
  return out;
}

}  // namespace

Result<StoredMatrix> extension_columns(const StoredMatrix& base,
                                       const checkpoint::WeightSource& columns,
                                       std::string_view module, std::span<const uint8_t> masks,
                                       const format::BlockRules& rules, ThreadPool& pool) {
  SUB8_CHECK_EQ(static_cast<int64_t>(masks.size()),
                ceil_div<int64_t>(base.cols, format::kSelectGroup));
  const checkpoint::WeightInfo* info = columns.find(module);
  if (info == nullptr) {
    return invalid_argument(fmt::format("the original has no module \"{}\"", module));
  }
  if (info->rows != base.rows || info->cols != base.cols) {
    return invalid_argument(
        fmt::format("{} is [{}, {}] in the original and [{}, {}] in the model: they do not belong "
                    "together",
                    module, info->rows, info->cols, base.rows, base.cols));
  }
  const std::vector<int64_t> channels = selected_channels(masks, base.cols);
  StoredMatrix out;
  out.format = base.format;
  out.rows = base.rows;
  out.cols = static_cast<int64_t>(channels.size());
  out.outer_scales = base.outer_scales;
  const int64_t row_bytes = out.format.row_bytes(out.cols);
  const int64_t groups = out.format.groups(out.cols);
  auto buffers = std::make_shared<Buffers>();
  buffers->codes.resize(static_cast<size_t>(out.rows * row_bytes));
  buffers->scales.resize(static_cast<size_t>(out.rows * groups));
  // Rows with tensor scales of their own (a fused file) are quantised like any other nvfp4 row.
  format::WeightFormat row_format = base.format;
  const bool per_row = row_format.outer_scale == OuterScale::kChannel;
  if (per_row) row_format.outer_scale = OuterScale::kTensor;
  SUB8_RETURN_IF_ERROR(
      for_each_row(columns, *info, 0, out.rows, pool, [&](int64_t r, std::span<const float> x) {
        thread_local std::vector<float> values;
        thread_local std::vector<uint8_t> codes;
        values.clear();
        for (const int64_t channel : channels)
          values.push_back(channel < 0 ? 0.0F : x[static_cast<size_t>(channel)]);
        codes.resize(values.size());
        const float outer = base.outer_scales.empty() ? 1.0F : base.outer_scales[per_row ? r : 0];
        format::quantize_row(row_format, rules, values, outer, codes,
                             {buffers->scales.data() + r * groups, static_cast<size_t>(groups)});
        format::pack_codes(codes.data(), out.cols, out.format.element.bits(),
                           buffers->codes.data() + r * row_bytes);
      }));
  out.codes = buffers->codes;
  out.block_scales = buffers->scales;
  out.owner = buffers;
  return out;
}

}  // namespace sub8::quantize
