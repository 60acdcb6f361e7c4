// Split-K. A tile cut by split points has several contributors. All but the one with the lowest k
// store their sums in global memory and go on at once. The contributor of the lowest k, for which
// the tile is the last piece of work, adds what the others stored to its own sums, in order of k,
// and writes the tile. So equal calls give equal bits.
//
// There are no flags: a word of the exchange buffer that has not been stored yet holds kEmpty, a
// pattern that no sum has, and whoever reads a sum puts kEmpty back. That saves two trips to L2 and
// a fence at the end of every call.
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

inline constexpr uint32_t kEmpty = 0xffffffffu;  // a NaN; those that arithmetic makes are 0x7fffffff

template <int Values>
__device__ __forceinline__ uint4* exchange(const RingParams& p, int worker, int row16, int rows16) {
  return reinterpret_cast<uint4*>(p.partials) +
         (int64_t{worker} * rows16 + row16) * (Values / 4 * 32) + threadIdx.x % 32;
}

__device__ __forceinline__ uint32_t not_empty(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits == kEmpty ? 0x7fffffffu : bits;
}

template <int Values>
__device__ __forceinline__ void store_sums(const RingParams& p, int worker, int row16, int rows16,
                                           const float (&d)[Values]) {
  uint4* out = exchange<Values>(p, worker, row16, rows16);
#pragma unroll
  for (int v = 0; v < Values / 4; ++v)
    ptx::store_l2(out + v * 32, make_uint4(not_empty(d[4 * v]), not_empty(d[4 * v + 1]),
                                           not_empty(d[4 * v + 2]), not_empty(d[4 * v + 3])));
}

// By the contributor of the lowest k: adds what the others stored.
template <int Values>
__device__ void add_sums(const RingParams& p, const Segment& seg, int worker, int row16, int rows16,
                         float (&d)[Values]) {
  constexpr int kVectors = Values / 4;
  // A few loads are under way at once: of several contributions, or of parts of one.
  constexpr int kBatch = kVectors <= 2 ? 8 / kVectors : kVectors <= 4 ? 2 : 1;
  constexpr int kPart = kVectors <= 8 ? kVectors : 8;
  const int last = worker_of(p, seg.tile * p.k_stages + p.k_stages - 1);
#pragma unroll 1
  for (int w = worker + 1; w <= last; w += kBatch) {
#pragma unroll
    for (int part = 0; part < kVectors; part += kPart) {
      uint4 x[kBatch][kPart];
      bool all;
      do {
        all = true;
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (w + b > last) break;
          const uint4* from = exchange<Values>(p, w + b, row16, rows16) + part * 32;
#pragma unroll
          for (int v = 0; v < kPart; ++v) x[b][v] = ptx::load_l2(from + v * 32);
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (w + b > last) break;
#pragma unroll
          for (int v = 0; v < kPart; ++v)
            all = all && x[b][v].x != kEmpty && x[b][v].y != kEmpty && x[b][v].z != kEmpty &&
                  x[b][v].w != kEmpty;
        }
      } while (!all);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (w + b > last) break;
        uint4* from = exchange<Values>(p, w + b, row16, rows16) + part * 32;
#pragma unroll
        for (int v = 0; v < kPart; ++v) {
          float* sum = d + 4 * (part + v);
          sum[0] += __uint_as_float(x[b][v].x), sum[1] += __uint_as_float(x[b][v].y);
          sum[2] += __uint_as_float(x[b][v].z), sum[3] += __uint_as_float(x[b][v].w);
          ptx::store_l2(from + v * 32, make_uint4(kEmpty, kEmpty, kEmpty, kEmpty));
        }
      }
    }
  }
}

}  // namespace sub8::kernels::linear
