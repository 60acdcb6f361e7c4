#include "kernels/norm/norm.h"

#include "base/check.h"
#include "kernels/norm/kernels.h"

namespace sub8::kernels {

void rms_norm(CpuPath path, ThreadPool& pool, InputRows x, int64_t rows, int64_t cols,
              const RmsNormWeights& weights, OutputRows out) {
  if (rows == 0) return;
  SUB8_CHECK_GE(x.stride, cols);
  SUB8_CHECK_GE(out.stride, cols);
  const NormKernels& kernels = SUB8_PICK_KERNELS(path, kNorm);
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      kernels.rms_norm(x.data + r * x.stride, weights.weight, weights.eps, weights.plus_one, cols,
                       out.row(r), out.is_bf16());
    }
  });
}

void rms_norm_heads(CpuPath path, ThreadPool& pool, float* x, int64_t rows, int64_t stride,
                    int heads, int head_dim, const RmsNormWeights& weights) {
  if (rows == 0) return;
  SUB8_CHECK_GE(stride, int64_t{heads} * head_dim);
  const NormKernels& kernels = SUB8_PICK_KERNELS(path, kNorm);
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int h = 0; h < heads; ++h) {
        float* head = x + r * stride + int64_t{h} * head_dim;
        kernels.rms_norm(head, weights.weight, weights.eps, weights.plus_one, head_dim, head,
                         false);
      }
    }
  });
}

void layer_norm(CpuPath path, ThreadPool& pool, InputRows x, int64_t rows, int64_t cols,
                const LayerNormWeights& weights, OutputRows out) {
  if (rows == 0) return;
  SUB8_CHECK_GE(x.stride, cols);
  SUB8_CHECK_GE(out.stride, cols);
  const NormKernels& kernels = SUB8_PICK_KERNELS(path, kNorm);
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      kernels.layer_norm(x.data + r * x.stride, weights.weight, weights.bias, weights.eps, cols,
                         out.row(r), out.is_bf16());
    }
  });
}

}  // namespace sub8::kernels
