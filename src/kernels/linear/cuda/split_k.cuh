// Split-K. A tile cut by split points has several contributors. All but the one with the lowest k
// store their sums in global memory and go on at once; a warp of their CTA that does nothing else
// announces them. The contributor of the lowest k, for which the tile is the last piece of work,
// waits for the announcements (long made, as a rule), adds the stored sums to its own in order of k
// and writes the tile. So equal calls give equal bits.
//
// Waiting is safe: a contributor waits only for workers with a higher number, and worker numbers
// run against block numbers, so those blocks were started before.
//
// Unit of exchange: the accumulators of one warp, 16 rows of a tile (`row16` of `rows16` that a
// worker has). A worker stores at most one tile's: that of its first segment.
#pragma once

#include "arch/cuda/ptx/sync.cuh"
#include "kernels/linear/cuda/schedule.cuh"

namespace sub8::kernels::linear {

template <int Values>
__device__ __forceinline__ float4* stored_sums(const RingParams& p, int worker, int row16,
                                               int rows16) {
  return reinterpret_cast<float4*>(p.partials) +
         (int64_t{worker} * rows16 + row16) * (Values / 4 * 32) + threadIdx.x % 32;
}

template <int Values>
__device__ __forceinline__ void store_sums(const RingParams& p, int worker, int row16, int rows16,
                                           const float (&d)[Values]) {
  float4* out = stored_sums<Values>(p, worker, row16, rows16);
#pragma unroll
  for (int v = 0; v < Values / 4; ++v)
    ptx::store_l2(out + v * 32, make_float4(d[4 * v], d[4 * v + 1], d[4 * v + 2], d[4 * v + 3]));
}

// By one warp, which all warps that stored have told so through the barrier `stored`. Announces
// rows16_here of the worker's rows, from first_row16 on.
__device__ __forceinline__ void announce_sums(const RingParams& p, int worker, int first_row16,
                                              int rows16_here, int rows16, uint32_t stored) {
  const WorkRange range = work_range(p, worker);
  const Segment seg = segment_at(p, range.begin, range.end);
  if (seg.k_begin == 0) return;
  const int owner = worker_of(p, seg.tile * p.k_stages);
  ptx::mbarrier_wait(stored, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < rows16_here)
    ptx::add_release(p.counters + int64_t{owner} * rows16 + first_row16 + lane, 1);
}

// By the contributor of the lowest k: adds what the others stored.
template <int Values>
__device__ void add_sums(const RingParams& p, const Segment& seg, int worker, int row16, int rows16,
                         float (&d)[Values]) {
  constexpr int kVectors = Values / 4;
  // A few loads are under way at once: of several contributions, or of parts of one.
  constexpr int kBatch = kVectors <= 2 ? 4 : kVectors <= 4 ? 2 : 1;
  constexpr int kPart = kVectors <= 8 ? kVectors : 8;
  const int last = worker_of(p, seg.tile * p.k_stages + p.k_stages - 1);
  uint32_t* counter = p.counters + int64_t{worker} * rows16 + row16;
  if (threadIdx.x % 32 == 0) {
    while (ptx::load_acquire(counter) != static_cast<uint32_t>(last - worker)) {
    }
    *counter = 0;
  }
  __syncwarp();
#pragma unroll 1
  for (int w = worker + 1; w <= last; w += kBatch) {
#pragma unroll
    for (int part = 0; part < kVectors; part += kPart) {
      float4 x[kBatch][kPart];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (w + b > last) break;
        const float4* other = stored_sums<Values>(p, w + b, row16, rows16) + part * 32;
#pragma unroll
        for (int v = 0; v < kPart; ++v) x[b][v] = ptx::load_l2(other + v * 32);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (w + b > last) break;
#pragma unroll
        for (int v = 0; v < kPart; ++v) {
          float* sum = d + 4 * (part + v);
          sum[0] += x[b][v].x, sum[1] += x[b][v].y, sum[2] += x[b][v].z, sum[3] += x[b][v].w;
        }
      }
    }
  }
}

}  // namespace sub8::kernels::linear
