// The sm_90a main loop: a producer warp streams weight stages (bulk copies) and activation boxes
// (tensor copies) through a ring of shared-memory slots; consumer warpgroups, each with one or two
// blocks of 64 of the tile's rows, turn packed words into wgmma's register operand and multiply.
// For small layers several warpgroups share rows and divide K. The grid is persistent; see
// schedule.cuh for the division of work.
//
// Rules that the code below keeps (each was a fault elsewhere that showed only under load):
// - a slot is given back after the first use of every register loaded from it and after the wgmma
//   that reads its activations has retired, never right after the loads;
// - a set of A registers is rewritten only after the group that reads it has retired; there are two
//   sets, so one group may run while the other set is filled;
// - accumulators are touched only when no group is running.
#pragma once

#include "arch/cuda/sm90a/atom.cuh"
#include "kernels/linear/cuda/codec.cuh"
#include "kernels/linear/cuda/finish.cuh"
#include "kernels/linear/cuda/ring.cuh"

namespace sub8::kernels::linear {

struct WarpgroupShape {
  int tokens;
  int cluster;      // CTAs that share activations (and have neighbouring rows)
  int warpgroups;   // of consumers
  int row_blocks;   // of 64 rows per warpgroup
  int units;        // of 64 k per stage
  int group_steps;  // k steps of 16 per group of wgmma: 2 or 4
  int sets;         // of A registers; with two, a unit is converted while another is multiplied
  int slices;       // of K: as many warpgroups share rows, each with every slices-th unit
};

template <class CodecType, WarpgroupShape Shape>
struct WarpgroupPolicy {
  using Codec = CodecType;
  using Atom = arch::sm90a::WgmmaAtom<Codec::kType, Shape.tokens>;
  static constexpr int kTokens = Shape.tokens;
  static constexpr int kCluster = Shape.cluster;
  static constexpr int kWarpgroups = Shape.warpgroups;
  static constexpr int kRowBlocks = Shape.row_blocks;
  static constexpr int kUnits = Shape.units;
  static constexpr int kGroupSteps = Shape.group_steps;
  static constexpr int kSets = Shape.sets;
  static constexpr int kSlices = Shape.slices;
  static constexpr int kPieces = kWarpgroups / kSlices * kRowBlocks;
  static constexpr int kRows = kPieces * pack::kPieceRows;
  static constexpr uint32_t kBesideBytes = (kSlices - 1) * kRows * kTokens * 4;
  using Weights = SlotWeights<kPieces, kUnits>;
  static constexpr int kTeams = kWarpgroups;
  static constexpr int kConsumerThreads = kWarpgroups * 128;
  static constexpr int kThreads = kConsumerThreads + 128;  // the producer: one thread of these
  // What the producer's warpgroup gives back, the consumers take; more than the launch allocated
  // would wait for ever.
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : 112;
  static_assert(kWarpgroups == 2 || kWarpgroups == 4);
  static_assert(kWarpgroups % kSlices == 0 && Shape.units % kSlices == 0);
  static_assert(kWarpgroups * kConsumerRegisters + kProducerRegisters <=
                65536 / (8 * kThreads) * 8 * kThreads / 128);
  static constexpr int kBoxCols = 64;
  static constexpr int kBoxRows = kTokens / kCluster;
  static constexpr uint32_t kXBoxBytes = kTokens * 128;  // 64 k of all tokens
  static constexpr uint32_t kXBytes = kUnits * kXBoxBytes;
  static constexpr int kCtasPerSm = 1;
  static constexpr int kResidents = 1;
};

// Fills register set `a` with the weights of k steps First.. of a unit and multiplies them.
template <class P, int First>
__device__ __forceinline__ void multiply_steps(const RingParams& p,
                                               const typename P::Codec::ScaleAccess& access,
                                               typename P::Codec::Loaded& q, uint32_t b_low,
                                               uint32_t (&a)[P::kGroupSteps][4],
                                               float (&d)[P::Atom::kAccumulators]) {
  // Nothing below may move up, where the group before last may still read `a`.
  ptx::pin(q.words);
  ptx::pin(q.scales);
  P::Codec::template dequantise<First, P::kGroupSteps>(p, access, q, a);
#pragma unroll
  for (int i = 0; i < P::kGroupSteps; ++i) ptx::pin(a[i]);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < P::kGroupSteps; ++i)
    P::Atom::mma(d, a[i], ptx::b_descriptor(b_low + 2 * (First + i)));
  ptx::wgmma_commit();
}

// Adds the sums of the other slices to those of the first, in order, through shared memory.
template <class P>
__device__ void join_slices(const Ring& ring, float (&d)[P::kRowBlocks][P::Atom::kAccumulators]) {
  constexpr int kVectors = P::Atom::kAccumulators / 4;
  constexpr uint32_t kSliceBytes = P::kRows * P::kTokens * 4;
  const int warpgroup = ptx::thread_index() / 128;
  const int slice = warpgroup % P::kSlices;
  const int part = warpgroup / P::kSlices;
  const uint32_t at = ring.slots + ring.count * ring.slot_bytes +
                      part * (P::kRowBlocks * kVectors * 2048) + ptx::thread_index() % 128 * 16;
  if (slice > 0) {
#pragma unroll
    for (int b = 0; b < P::kRowBlocks; ++b) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const float* x = d[b] + 4 * v;
        ptx::store_shared_128(at + (slice - 1) * kSliceBytes + (b * kVectors + v) * 2048,
                              make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                         __float_as_uint(x[2]), __float_as_uint(x[3])));
      }
    }
  }
  ptx::named_barrier(1 + part, P::kSlices * 128);
  if (slice == 0) {
#pragma unroll 1
    for (int s = 0; s + 1 < P::kSlices; ++s) {
#pragma unroll
      for (int b = 0; b < P::kRowBlocks; ++b) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const uint4 x = ptx::load_shared_128(at + s * kSliceBytes + (b * kVectors + v) * 2048);
          float* sum = d[b] + 4 * v;
          sum[0] += __uint_as_float(x.x), sum[1] += __uint_as_float(x.y);
          sum[2] += __uint_as_float(x.z), sum[3] += __uint_as_float(x.w);
        }
      }
    }
  }
  // The space is free again.
  ptx::named_barrier(1 + part, P::kSlices * 128);
}

template <class P>
__device__ void consume(const RingParams& p, const Ring& ring, int worker, uint32_t rank) {
  using Codec = typename P::Codec;
  constexpr int kSteps = P::kUnits / P::kSlices * P::kRowBlocks;  // units per stage and warpgroup
  // Register sets alternate from group to group, from one stage to the next too.
  static_assert(P::kSets == 1 || kSteps * 4 / P::kGroupSteps % 2 == 0);
  static_assert(P::kSets == 2 || (P::kGroupSteps == 4 && !Codec::kDense));
  const int warpgroup = threadIdx.x / 128;
  const int slice = warpgroup % P::kSlices;
  const int t = threadIdx.x % 128;
  const int first_block = warpgroup / P::kSlices * P::kRowBlocks;
  const auto access = Codec::scale_access(p, t);
  // Opaque, so that addresses stay in registers instead of being derived again in every stage.
  const uint32_t piece_bytes = Codec::piece_bytes(p);
  const uint32_t first = ring.slots + P::kXBytes + P::Weights::at(first_block, slice) * piece_bytes;
  const uint32_t words_at = ptx::opaque(first + 16 * t);
  const uint32_t scales_at = ptx::opaque(first + Codec::kUnitBytes + access.offset);
  const uint32_t b_at = ptx::opaque(ptx::b_descriptor_low(ring.slots + slice * P::kXBoxBytes));
  const uint32_t slot_bytes = ptx::opaque(ring.slot_bytes);
  const uint32_t full_at = ptx::opaque(ring.full);
  const WorkRange range = work_range(p, worker);
  RingCursor cursor;
  uint32_t a[P::kSets][P::kGroupSteps][4];
  float d[P::kRowBlocks][P::Atom::kAccumulators];

  const auto release = [&](uint32_t slot) {
    __syncwarp();
    if (ptx::elect_one()) {
      ptx::mbarrier_arrive(ring.empty_bar(slot));
      if constexpr (P::kCluster > 1) ptx::mbarrier_arrive_remote(ring.empty_bar(slot), rank ^ 1);
    }
  };
  // Dense weights are multiplied from the registers they are loaded into: two sets, and the next
  // load waits until its set's group has ended.
  constexpr bool kDirect = Codec::kDense && P::kGroupSteps == 4;
  typename Codec::Loaded q[kDirect ? 2 : 1];

#pragma unroll 1
  for (int32_t position = range.begin; position < range.end;) {
    const Segment seg = segment_at(p, position, range.end);
    const int count = seg.k_end - seg.k_begin;
#pragma unroll
    for (int b = 0; b < P::kRowBlocks; ++b) {
      prefetch_channel(p, first_channel<P>(seg.row_tile, rank, b));
#pragma unroll
      for (int i = 0; i < P::Atom::kAccumulators; ++i) d[b][i] = 0.0f;
      ptx::pin(d[b]);
    }
    // Loads the words of a step of the stage in `slot`.
    const auto load = [&](uint32_t slot, int step) {
      const int unit = step / P::kRowBlocks * P::kSlices;
      const uint32_t at =
          slot * slot_bytes + P::Weights::at(step % P::kRowBlocks, unit) * piece_bytes;
      Codec::load(words_at + at, scales_at + at, t, q[kDirect ? step % 2 : 0]);
    };
    ptx::mbarrier_wait(full_at + 8 * cursor.slot, cursor.phase);
    load(cursor.slot, 0);
    uint32_t previous = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      // Uniform across the warp, which the compiler sees only after a shuffle.
      const uint32_t b_low = ptx::uniform(b_at + cursor.slot * (slot_bytes >> 4));
      const uint32_t slot = cursor.slot;
      cursor.advance(ring.count);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int block = step % P::kRowBlocks;
        const uint32_t b = b_low + step / P::kRowBlocks * P::kSlices * (P::kXBoxBytes >> 4);
        // After each wait the group before the last has ended: its register set is free, and with
        // the first one so is the slot before.
        if constexpr (P::kGroupSteps == 4) {
          multiply_steps<P, 0>(p, access, q[kDirect ? step % 2 : 0], b, a[step % P::kSets],
                               d[block]);
        } else {
          multiply_steps<P, 0>(p, access, q[0], b, a[0], d[block]);
          ptx::wgmma_wait<1>();
          if (step == 0 && i > 0) release(previous);
          multiply_steps<P, 2>(p, access, q[0], b, a[1], d[block]);
        }
        if constexpr (kDirect) ptx::wgmma_wait<1>();
        // In half steps both sets are the registers of the one load.
        if constexpr (Codec::kDense && !kDirect) ptx::wgmma_wait<0>();
        // The next words come in while the tensor cores work.
        if (step + 1 < kSteps) {
          load(slot, step + 1);
        } else if (i + 1 < count) {
          ptx::mbarrier_wait(full_at + 8 * cursor.slot, cursor.phase);
          load(cursor.slot, 0);
        }
        if constexpr (P::kSets == 1) {
          ptx::wgmma_wait<0>();
#pragma unroll
          for (int j = 0; j < P::kGroupSteps; ++j) ptx::pin(a[0][j]);  // not reused before
          if (step + 1 == kSteps) release(slot);
          continue;
        }
        if constexpr (!kDirect) ptx::wgmma_wait<1>();
        if (P::kGroupSteps == 4 && step == 0 && i > 0) release(previous);
      }
      previous = slot;
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < P::kRowBlocks; ++b) ptx::pin(d[b]);
    if constexpr (P::kSets == 2) release(previous);
    if constexpr (P::kSlices > 1) join_slices<P>(ring, d);
    if (P::kSlices == 1 || warpgroup % P::kSlices == 0)
      finish_segment<P>(p, ring, segment_at(p, ptx::opaque(position), range.end), worker, rank, d);
    position += count;
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    warpgroup_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const Ring ring = make_ring<P>(p, base);
  const uint32_t rank = P::kCluster > 1 ? ptx::cluster_rank() : 0;
  const int worker = p.workers - 1 - static_cast<int>(blockIdx.x) / P::kCluster;
  if (threadIdx.x == P::kConsumerThreads) {
    ptx::prefetch_tensor_map(&p.x);
    init_ring(ring, P::kWarpgroups * 4 * P::kCluster, P::kWarpgroups / P::kSlices * 4);
  }
  __syncthreads();
  if constexpr (P::kCluster > 1) ptx::cluster_sync();
  ptx::allow_next_grid();
  if (threadIdx.x >= P::kConsumerThreads) {
    ptx::shrink_registers<P::kProducerRegisters>();
    if (threadIdx.x == P::kConsumerThreads) produce<P>(p, ring, worker, rank);
    if (threadIdx.x / 32 == P::kConsumerThreads / 32 + 1)
      announce_sums(p, worker, static_cast<int>(rank) * P::kPieces * 4, P::kPieces * 4,
                    P::kCluster * P::kPieces * 4, ring.stored);
  } else {
    ptx::grow_registers<P::kConsumerRegisters>();
    ptx::wait_for_previous_grid();
    consume<P>(p, ring, worker, rank);
  }
  // A CTA must not leave while its partner may still write to it or arrive at its barriers.
  if constexpr (P::kCluster > 1) {
    __syncwarp();
    ptx::cluster_sync();
  }
}

}  // namespace sub8::kernels::linear
