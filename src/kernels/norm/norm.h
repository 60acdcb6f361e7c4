// Normalisation of token rows. Statistics and products are FP32; the output is rounded once.
// A row's result depends on that row alone: not on M, threads or neighbours. M = 0 is valid and
// touches nothing.
#pragma once

#include <cstdint>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "kernels/rows.h"

namespace sub8::kernels {

// y = x / sqrt(mean(x^2) + eps) * g, with g = weight, or 1 + weight (Gemma, Qwen3-Next).
struct RmsNormWeights {
  const float* weight = nullptr;  // [cols]
  float eps = 1e-6f;
  bool plus_one = false;
};

// x f32 [rows, cols] -> out [rows, cols]. `out` may be x itself (f32, same stride).
void rms_norm(CpuPath path, ThreadPool& pool, InputRows x, int64_t rows, int64_t cols,
              const RmsNormWeights& weights, OutputRows out);

// QK norm: every head of every row is normalised on its own, in place. Row r, head h starts at
// x + r * stride + h * head_dim; the weight has head_dim values.
void rms_norm_heads(CpuPath path, ThreadPool& pool, float* x, int64_t rows, int64_t stride,
                    int heads, int head_dim, const RmsNormWeights& weights);

// y = (x - mean) / sqrt(var + eps) * weight + bias, var the biased variance about the mean (OPT).
struct LayerNormWeights {
  const float* weight = nullptr;  // [cols]
  const float* bias = nullptr;    // [cols], or null
  float eps = 1e-5f;
};

void layer_norm(CpuPath path, ThreadPool& pool, InputRows x, int64_t rows, int64_t cols,
                const LayerNormWeights& weights, OutputRows out);

}  // namespace sub8::kernels
