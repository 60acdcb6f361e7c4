// Rows of one matrix of a weight source, quantised on all threads.
//
// Each thread decodes, checks and quantises a few rows at a time, so beside the result only small
// buffers exist. A row's result depends on the row, the format, the rules and the tensor's alpha
// alone: neither threads nor chunks change a bit.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "quantize/row_quantizer.h"

namespace sub8::quantize {

// Calls use(r, x) for each row + r of [row, row+count), x its exact f32 values, on all threads.
// Refuses NaN, infinity and magnitudes of 2^127 or more, naming module, row and column (the first
// one in row order); stops with `cancelled` after an interrupt.
Status for_each_row(const checkpoint::WeightSource& source, const checkpoint::WeightInfo& info,
                    int64_t row, int64_t count, ThreadPool& pool,
                    const std::function<void(int64_t r, std::span<const float> x)>& use);

// The largest magnitude of a matrix. Refuses what for_each_row refuses.
Result<float> matrix_amax(const checkpoint::WeightSource& source,
                          const checkpoint::WeightInfo& info, ThreadPool& pool);

struct QuantizedRows {
  std::vector<uint8_t> codes;         // count * row_bytes, packed
  std::vector<uint8_t> block_scales;  // count * groups
  std::vector<float> outer_scales;    // `count` where the scale is per channel, else empty
  std::vector<RowError> errors;       // `count`
};

// Rows [row, row+count). `alpha` is nvfp4's tensor scale (0: the tensor is zero). Refuses what
// for_each_row refuses.
Status quantize_rows(const checkpoint::WeightSource& source, const checkpoint::WeightInfo& info,
                     const format::WeightFormat& format, const RowRules& rules, float alpha,
                     int64_t row, int64_t count, ThreadPool& pool, QuantizedRows& out);

// How many rows to take at once so that the result of one call stays near 32 MB.
int64_t rows_per_chunk(const format::WeightFormat& format, int64_t rows, int64_t cols);

}  // namespace sub8::quantize
