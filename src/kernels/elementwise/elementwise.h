// Residual additions and conversions of rows. M = 0 is valid.
#pragma once

#include <cstdint>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace sub8::kernels {

// x[r] += y[r], f32.
void add_rows(CpuPath path, ThreadPool& pool, float* x, int64_t x_stride, InputRows y, int64_t rows,
              int64_t cols);

// out[r] = x[r], rounded to bf16 or copied.
void convert_rows(CpuPath path, ThreadPool& pool, InputRows x, int64_t rows, int64_t cols,
                  OutputRows out);

}  // namespace sub8::kernels
