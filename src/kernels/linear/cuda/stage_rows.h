// Copies activations whose rows the tensor copy cannot address (unaligned) into padded rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace sub8::kernels::linear {

// m rows of k values of 1 or 2 bytes, from stride src_ld to stride dst_ld (elements); the tail is
// not written.
cudaError_t stage_rows(const void* src, int64_t src_ld, void* dst, size_t dst_ld, int64_t m,
                       int64_t k, int element_bytes, cudaStream_t stream);

}  // namespace sub8::kernels::linear
