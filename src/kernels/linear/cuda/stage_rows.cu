#include "kernels/linear/cuda/stage_rows.h"

namespace sub8::kernels::linear {
namespace {

template <class T>
__global__ void stage_rows_kernel(const T* src, int64_t src_ld, T* dst, size_t dst_ld, int64_t m,
                                  int64_t k) {
  for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
    for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < k;
         i += int64_t{gridDim.x} * blockDim.x) {
      dst[row * dst_ld + i] = src[row * src_ld + i];
    }
  }
}

}  // namespace

cudaError_t stage_rows(const void* src, int64_t src_ld, void* dst, size_t dst_ld, int64_t m,
                       int64_t k, int element_bytes, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((k + 1023) / 1024),
                  static_cast<unsigned>(m < 32768 ? m : 32768));
  if (element_bytes == 1) {
    stage_rows_kernel<<<grid, 256, 0, stream>>>(static_cast<const uint8_t*>(src), src_ld,
                                                static_cast<uint8_t*>(dst), dst_ld, m, k);
  } else {
    stage_rows_kernel<<<grid, 256, 0, stream>>>(static_cast<const uint16_t*>(src), src_ld,
                                                static_cast<uint16_t*>(dst), dst_ld, m, k);
  }
  return cudaGetLastError();
}

}  // namespace sub8::kernels::linear
