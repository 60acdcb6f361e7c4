// Rows of an embedding table.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/rows.h"
#include "tensor/stored_matrix.h"

namespace sub8::kernels {

// out f32 [ids.size(), table.cols], out[r] = row ids[r] of the table (tensor/decode.h) * multiplier
// (1: none; Gemma: sqrt(hidden) rounded to bf16). Any weight format. An id outside the table is an
// invalid argument that names it; nothing is written then.
Status embed(ThreadPool& pool, const StoredMatrix& table, std::span<const int32_t> ids,
             float multiplier, float* out, int64_t out_stride);

// Learned positions (OPT: offset 2): out[r] += row positions[r] + offset of the table. `scratch`
// has pool.size() * table.cols values.
Status add_position_embedding(ThreadPool& pool, const StoredMatrix& table,
                              std::span<const int32_t> positions, int32_t offset, float* out,
                              int64_t out_stride, std::span<float> scratch);

}  // namespace sub8::kernels
