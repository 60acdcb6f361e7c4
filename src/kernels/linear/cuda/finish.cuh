// End of a segment in the loops with warpgroups: exchange of sums, epilogue. Warpgroup w of a CTA
// has row blocks (of 64) w / kSlices * kRowBlocks and the following ones of the CTA's kPieces; P is
// a loop's policy.
#pragma once

#include "kernels/linear/cuda/epilogue.cuh"
#include "kernels/linear/cuda/ring.cuh"
#include "kernels/linear/cuda/split_k.cuh"

namespace sub8::kernels::linear {

// The 16 rows of a warp in row block `block` of its warpgroup, counted within the cluster's tile.
template <class P>
__device__ __forceinline__ int row16_of(uint32_t rank, int block) {
  const int warp = ptx::thread_index() / 32;
  return 4 * (static_cast<int>(rank) * P::kPieces + warp / 4 / P::kSlices * P::kRowBlocks + block) +
         warp % 4;
}
// This lane's first output channel of them; the other is 8 further.
template <class P>
__device__ __forceinline__ int32_t first_channel(int32_t row_tile, uint32_t rank, int block) {
  return (row_tile * P::kCluster * P::kPieces * 4 + row16_of<P>(rank, block)) * 16 +
         ptx::thread_index() % 32 / 4;
}

// Stores a contribution, or completes the tile and writes it.
template <class P>
__device__ void finish_segment(const RingParams& p, const Ring& ring, const Segment& seg,
                               int worker, uint32_t rank,
                               float (&d)[P::kRowBlocks][P::kTokens / 2]) {
  constexpr int kRows16 = P::kCluster * P::kPieces * 4;
#pragma unroll
  for (int b = 0; b < P::kRowBlocks; ++b) {
    const int row16 = row16_of<P>(rank, b);
    if (seg.k_begin > 0) {
      store_sums(p, worker, row16, kRows16, d[b]);
      continue;
    }
    const int32_t n = first_channel<P>(seg.row_tile, rank, b);
    const Channel channels[2] = {make_channel(p, n), make_channel(p, n + 8)};
    if (seg.k_end < p.k_stages) add_sums(p, seg, worker, row16, kRows16, d[b]);
    write_tile<P::kTokens>(p, channels, seg.token_tile * P::kTokens, d[b]);
  }
  if (seg.k_begin > 0) {
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) ptx::mbarrier_arrive(ring.stored);
  }
}

}  // namespace sub8::kernels::linear
