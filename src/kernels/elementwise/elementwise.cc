#include "kernels/elementwise/elementwise.h"

#include "base/check.h"
#include "kernels/elementwise/kernels.h"

namespace sub8::kernels {

void add_rows(CpuPath path, ThreadPool& pool, float* x, int64_t x_stride, InputRows y, int64_t rows,
              int64_t cols) {
  if (rows == 0) return;
  SUB8_CHECK_GE(x_stride, cols);
  SUB8_CHECK_GE(y.stride, cols);
  const ElementwiseKernels& kernels = SUB8_PICK_KERNELS(path, kElementwise);
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      kernels.add(x + r * x_stride, y.data + r * y.stride, cols);
  });
}

void convert_rows(CpuPath path, ThreadPool& pool, InputRows x, int64_t rows, int64_t cols,
                  OutputRows out) {
  if (rows == 0) return;
  SUB8_CHECK_GE(x.stride, cols);
  SUB8_CHECK_GE(out.stride, cols);
  const ElementwiseKernels& kernels = SUB8_PICK_KERNELS(path, kElementwise);
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      kernels.convert(x.data + r * x.stride, cols, out.row(r), out.is_bf16());
  });
}

}  // namespace sub8::kernels
