#include "kernels/embed/embed.h"

#include <string>

#include "base/check.h"
#include "tensor/decode.h"

namespace sub8::kernels {
namespace {

Status check_ids(const StoredMatrix& table, std::span<const int32_t> ids, int32_t offset,
                 std::string_view what) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t row = int64_t{ids[i]} + offset;
    if (ids[i] < 0 || row < 0 || row >= table.rows) {
      return invalid_argument(std::string(what) + " " + std::to_string(ids[i]) + " (entry " +
                              std::to_string(i) + " of the step) is outside the table of " +
                              std::to_string(table.rows) + " rows" +
                              (offset != 0 ? ", offset " + std::to_string(offset) : ""));
    }
  }
  return {};
}

}  // namespace

Status embed(ThreadPool& pool, const StoredMatrix& table, std::span<const int32_t> ids,
             float multiplier, float* out, int64_t out_stride) {
  SUB8_RETURN_IF_ERROR(check_ids(table, ids, 0, "token id"));
  if (ids.empty()) return {};
  SUB8_CHECK_GE(out_stride, table.cols);
  pool.for_ranges(static_cast<int64_t>(ids.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = out + r * out_stride;
      decode_rows(table, ids[static_cast<size_t>(r)], 1, {row, static_cast<size_t>(table.cols)});
      if (multiplier == 1.0f) continue;
      for (int64_t i = 0; i < table.cols; ++i) row[i] *= multiplier;
    }
  });
  return {};
}

Status add_position_embedding(ThreadPool& pool, const StoredMatrix& table,
                              std::span<const int32_t> positions, int32_t offset, float* out,
                              int64_t out_stride, std::span<float> scratch) {
  SUB8_RETURN_IF_ERROR(check_ids(table, positions, offset, "position"));
  if (positions.empty()) return {};
  SUB8_CHECK_GE(out_stride, table.cols);
  SUB8_CHECK_GE(static_cast<int64_t>(scratch.size()), table.cols * pool.size());
  pool.for_ranges(static_cast<int64_t>(positions.size()), 1,
                  [&](int64_t begin, int64_t end, int part) {
                    const std::span<float> learned = scratch.subspan(
                        static_cast<size_t>(part * table.cols), static_cast<size_t>(table.cols));
                    for (int64_t r = begin; r < end; ++r) {
                      decode_rows(table, positions[static_cast<size_t>(r)] + offset, 1, learned);
                      float* row = out + r * out_stride;
                      for (int64_t i = 0; i < table.cols; ++i) row[i] += learned[i];
                    }
                  });
  return {};
}

}  // namespace sub8::kernels
