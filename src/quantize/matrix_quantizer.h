// Rows of one matrix of a weight source, quantised on all threads.
//
// Each thread decodes, checks and quantises a few rows at a time, so beside the result only small
// buffers exist. A row's result depends on the row, the format, the rules and the tensor's alpha
// alone: neither threads nor chunks change a bit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "quantize/row_quantizer.h"

namespace sub8::quantize {

// The largest magnitude of a matrix. NaN, infinity and magnitudes of 2^127 or more are refused,
// naming module, row and column (the first one in row order).
Result<float> matrix_amax(const checkpoint::WeightSource& source,
                          const checkpoint::WeightInfo& info, ThreadPool& pool);

struct QuantizedRows {
  std::vector<uint8_t> codes;         // count * row_bytes, packed
  std::vector<uint8_t> block_scales;  // count * groups
  std::vector<float> outer_scales;    // `count` where the scale is per channel, else empty
  std::vector<RowError> errors;       // `count`
};

// Rows [row, row+count). `alpha` is nvfp4's tensor scale (0: the tensor is zero). Refuses what
// matrix_amax refuses; stops with `cancelled` after an interrupt.
Status quantize_rows(const checkpoint::WeightSource& source, const checkpoint::WeightInfo& info,
                     const format::WeightFormat& format, const RowRules& rules, float alpha,
                     int64_t row, int64_t count, ThreadPool& pool, QuantizedRows& out);

// How many rows to take at once so that the result of one call stays near 32 MB.
int64_t rows_per_chunk(const format::WeightFormat& format, int64_t rows, int64_t cols);

}  // namespace sub8::quantize
