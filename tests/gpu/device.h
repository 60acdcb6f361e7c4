// What the GPU tests share: checked CUDA calls, arrays on the device, hashes, guarded rows.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#define CHECK_CUDA(x)                                                                    \
  do {                                                                                   \
    const cudaError_t e_ = (x);                                                          \
    if (e_ != cudaSuccess) {                                                             \
      std::printf("CUDA error %s at line %d: %s\n", cudaGetErrorName(e_), __LINE__, #x); \
      std::exit(2);                                                                      \
    }                                                                                    \
  } while (0)

namespace sub8 {

template <class T>
struct DeviceArray {
  T* p = nullptr;
  size_t n;
  explicit DeviceArray(size_t count) : n(count) { CHECK_CUDA(cudaMalloc(&p, (n + 1) * sizeof(T))); }
  explicit DeviceArray(const std::vector<T>& h) : DeviceArray(h.size()) { put(h); }
  DeviceArray(DeviceArray&& o) noexcept : p(o.p), n(o.n) { o.p = nullptr; }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(p); }
  void put(const std::vector<T>& h) {
    CHECK_CUDA(cudaMemcpy(p, h.data(), h.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get() const {
    std::vector<T> h(n);
    CHECK_CUDA(cudaMemcpy(h.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return h;
  }
};

__host__ __device__ inline uint32_t hash32(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352dU, x ^= x >> 15, x *= 0x846ca68bU, x ^= x >> 16;
  return x;
}

// Rows of `k` elements to rows of `ld`; NaN between them, which must not be read.
template <class T>
__global__ void spread_rows(const T* from, size_t m, size_t k, T* to, size_t ld, T nan) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < m * ld;
       i += size_t{gridDim.x} * blockDim.x)
    to[i] = i % ld < k ? from[i / ld * k + i % ld] : nan;
}

// Rows of X in a kernel's tile: the middle number of "..._256x16x128_w4".
inline int tokens_of(const std::string& kernel) {
  const size_t before_k = kernel.rfind('x');
  return std::atoi(kernel.c_str() + kernel.rfind('x', before_k - 1) + 1);
}

}  // namespace sub8
