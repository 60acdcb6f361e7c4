// Split-K: several workers contribute to a tile. Each contribution is a block of rows held by a
// team of threads (a warp or a warpgroup) in its accumulators.
#pragma once

#include "arch/cuda/ptx/sync.cuh"
#include "kernels/linear/cuda/schedule.cuh"

namespace sub8::kernels::linear {

template <int Threads>
struct Team;
template <>
struct Team<32> {
  uint32_t* unused;
  __device__ int rank() const { return static_cast<int>(threadIdx.x) % 32; }
  // f() of the first thread, called after everything the team did before.
  template <class F>
  __device__ uint32_t ask_first(F f) const {
    __syncwarp();
    uint32_t v = 0;
    if (rank() == 0) v = f();
    return __shfl_sync(~0u, v, 0);
  }
};
template <>
struct Team<128> {
  uint32_t* flag;  // a shared word of this warpgroup
  __device__ int rank() const { return static_cast<int>(threadIdx.x) % 128; }
  template <class F>
  __device__ uint32_t ask_first(F f) const {
    const int id = 1 + static_cast<int>(threadIdx.x) / 128;
    ptx::named_barrier(id, 128);
    if (rank() == 0) *flag = f();
    ptx::named_barrier(id, 128);
    return *flag;
  }
};

// Adds up the contributions to block `block` (of `blocks` in a tile). Returns whether the caller
// holds the whole sum and must write it. Whoever arrives last adds, always in order of k, so nobody
// waits and the result does not depend on timing.
template <int Threads, int Values>
__device__ bool add_contributions(const RingParams& p, const Segment& seg, int worker, int block,
                                  int blocks, uint32_t* flag, float (&d)[Values]) {
  constexpr int kVectors = Values / 4;
  const Team<Threads> team{flag};
  const int32_t start = seg.tile * p.k_stages;
  const int first = worker_of(p, start);
  const int last = worker_of(p, start + p.k_stages - 1);
  const auto partial = [&](int w) {
    // A worker has at most two cut tiles: the one it begins with and the one it ends with.
    const int slot = 2 * w + (w == first ? 1 : 0);
    return reinterpret_cast<float4*>(p.partials) +
           (int64_t{slot} * blocks + block) * kVectors * Threads + team.rank();
  };
  // A worker is the first contributor of one cut tile at most, which names the counter.
  uint32_t* counter = p.counters + int64_t{first} * blocks + block;
  const uint32_t others = static_cast<uint32_t>(last - first);
  // The contributor of the lowest k works on this tile last of all it does; the others have usually
  // arrived by then, and it can go on from its registers.
  bool in_registers = false;
  if (worker == first)
    in_registers = team.ask_first([&] { return ptx::load_acquire(counter) == others; }) != 0;
  if (!in_registers) {
    float4* mine = partial(worker);
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      ptx::store_l2(mine + v * Threads,
                    make_float4(d[4 * v], d[4 * v + 1], d[4 * v + 2], d[4 * v + 3]));
    // ask_first orders the team's stores before its first thread's release, which is cumulative.
    if (team.ask_first([&] { return ptx::atomic_add_acq_rel(counter, 1) == others; }) == 0)
      return false;
    const float4* p0 = partial(first);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const float4 x = ptx::load_l2(p0 + v * Threads);
      d[4 * v] = x.x, d[4 * v + 1] = x.y, d[4 * v + 2] = x.z, d[4 * v + 3] = x.w;
    }
  }
  // Several contributions are fetched at once, then added one after the other.
  constexpr int kBatch = kVectors <= 2 ? 4 : kVectors <= 4 ? 2 : 1;
#pragma unroll 1
  for (int w = first + 1; w <= last; w += kBatch) {
    float4 x[kBatch][kVectors];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (w + b > last) break;
      const float4* other = partial(w + b);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) x[b][v] = ptx::load_l2(other + v * Threads);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (w + b > last) break;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        d[4 * v] += x[b][v].x, d[4 * v + 1] += x[b][v].y;
        d[4 * v + 2] += x[b][v].z, d[4 * v + 3] += x[b][v].w;
      }
    }
  }
  if (team.rank() == 0) *counter = 0;
  return true;
}

}  // namespace sub8::kernels::linear
