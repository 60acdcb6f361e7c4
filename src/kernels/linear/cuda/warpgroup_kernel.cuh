// The sm_90a main loop: a producer warp streams weight stages (bulk copies) and activation boxes
// (tensor copies) through a ring of shared-memory slots; four consumer warpgroups, each with 64 of
// the tile's 256 rows, turn packed words into wgmma's register operand and multiply. The grid is
// persistent; see schedule.cuh for the division of work.
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
#include "kernels/linear/cuda/epilogue.cuh"
#include "kernels/linear/cuda/ring.cuh"
#include "kernels/linear/cuda/split_k.cuh"

namespace sub8::kernels::linear {

// Up to 64 tokens four warpgroups have 64 rows each. With 128 tokens the accumulators leave room
// for two warpgroups only, with two blocks of 64 rows each; the producer is then a whole warpgroup,
// so that its registers can be handed over.
template <class CodecType, int Tokens, int Cluster>
struct WarpgroupPolicy {
  static constexpr int kRowBlocks = Tokens > 64 ? 2 : 1;
  static constexpr int kWarpgroups = 4 / kRowBlocks;
  static constexpr int kPieces = kWarpgroups * kRowBlocks;
  static constexpr int kConsumerThreads = kWarpgroups * 128;
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : 112;
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32;
  static constexpr int kThreads = kConsumerThreads + 128;
  using Codec = CodecType;
  using Atom = arch::sm90a::WgmmaAtom<Codec::kType, Tokens>;
  static constexpr int kTokens = Tokens;
  static constexpr int kCluster = Cluster;
  static constexpr int kBoxRows = Tokens / Cluster;
  static constexpr uint32_t kXBoxBytes = Tokens * 128;  // 64 k of all tokens
  static constexpr uint32_t kXBytes = 2 * kXBoxBytes;
};

template <class P>
__device__ __forceinline__ void multiply_unit(const uint32_t (&a)[4][4], uint32_t b_low,
                                              float (&d)[P::Atom::kAccumulators]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) P::Atom::mma(d, a[i], ptx::b_descriptor(b_low + 2 * i));
  ptx::wgmma_commit();
}

template <int Count>
__device__ __forceinline__ void pin_set(uint32_t (&a)[Count][4]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) ptx::pin(a[i]);
}

template <class P>
__device__ void consume(const RingParams& p, const Ring& ring, int worker, uint32_t rank,
                        uint32_t* flags) {
  using Codec = typename P::Codec;
  constexpr int kSteps = 2 * P::kRowBlocks;  // units per stage and warpgroup
  const int warpgroup = threadIdx.x / 128;
  const int t = threadIdx.x % 128;
  const int first_block = warpgroup * P::kRowBlocks;
  const auto access = Codec::scale_access(p, t);
  // Opaque, so that addresses stay in registers instead of being derived again in every stage.
  const uint32_t pieces = ring.slots + P::kXBytes + first_block * p.piece_bytes;
  const uint32_t words_at = ptx::opaque(pieces + 16 * t);
  const uint32_t scales_at = ptx::opaque(pieces + 2 * Codec::kUnitBytes + access.offset);
  const uint32_t b_at = ptx::opaque(ptx::b_descriptor_low(ring.slots));
  const uint32_t slot_bytes = ptx::opaque(ring.slot_bytes);
  const uint32_t full_at = ptx::opaque(ring.full);
  const WorkRange range = work_range(p, worker);
  RingCursor cursor;
  uint32_t a[2][4][4];
  float d[P::kRowBlocks][P::Atom::kAccumulators];

  const auto release = [&](uint32_t slot) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_arrive(ring.empty_bar(slot));
      if constexpr (P::kCluster > 1) ptx::mbarrier_arrive_remote(ring.empty_bar(slot), rank ^ 1);
    }
  };
  struct Loaded {
    uint32_t words[Codec::kWords];
    uint32_t scales[4];
  };
  const auto load = [&](uint32_t offset, int unit, Loaded& q) {
    load_words(words_at + offset + unit * Codec::kUnitBytes, t, q.words);
    Codec::load_scales(p, access, scales_at + offset, unit, q.scales);
  };
  // Where registers allow it, both units of a stage are loaded before the first is used.
  constexpr bool kLoadAhead = P::kTokens <= 32 && Codec::kWords <= 8;

#pragma unroll 1
  for (int32_t position = range.begin; position < range.end;) {
    const Segment seg = segment_at(p, position, range.end);
    const int count = seg.k_end - seg.k_begin;
    // Read now, needed at the end: their latency hides behind the main loop.
    Channel channels[P::kRowBlocks][2];
#pragma unroll
    for (int b = 0; b < P::kRowBlocks; ++b) {
      const int32_t n = ((seg.row_tile * P::kCluster + rank) * P::kPieces + first_block + b) * 64 +
                        (t / 32) * 16 + (t % 32) / 4;
      channels[b][0] = make_channel(p, n);
      channels[b][1] = make_channel(p, n + 8);
#pragma unroll
      for (int i = 0; i < P::Atom::kAccumulators; ++i) d[b][i] = 0.0f;
      ptx::pin(d[b]);
    }
    uint32_t previous = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      // Uniform across the warp, which the compiler sees only after a shuffle.
      const uint32_t b_low = ptx::uniform(b_at + cursor.slot * (slot_bytes >> 4));
      ptx::mbarrier_wait(full_at + 8 * cursor.slot, cursor.phase);
      const uint32_t offset = cursor.slot * slot_bytes;
      Loaded q[2];
      load(offset, 0, q[0]);
      if constexpr (kLoadAhead) load(offset, 1, q[1]);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int block = step % P::kRowBlocks;
        const int unit = step / P::kRowBlocks;
        if (!kLoadAhead && step > 0) load(offset + block * p.piece_bytes, unit, q[step % 2]);
        Codec::dequantise(q[step % 2].words, q[step % 2].scales, a[step % 2]);
        pin_set(a[step % 2]);
        multiply_unit<P>(a[step % 2], b_low + unit * (P::kXBoxBytes >> 4), d[block]);
        ptx::wgmma_wait<1>();  // the group before this one: the other register set is free
        if (step == 0 && i > 0) release(previous);  // and so is the slot before
      }
      previous = cursor.slot;
      cursor.advance(ring.count);
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int b = 0; b < P::kRowBlocks; ++b) ptx::pin(d[b]);
    release(previous);
    position += count;
#pragma unroll
    for (int b = 0; b < P::kRowBlocks; ++b) {
      const bool whole = count == p.k_stages ||
                         add_contributions<128>(p, seg, worker, rank * P::kPieces + first_block + b,
                                                P::kCluster * P::kPieces, flags + warpgroup, d[b]);
      if (whole) write_tile<P::kTokens>(p, channels[b], seg.token_tile * P::kTokens, d[b]);
    }
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    warpgroup_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const Ring ring{base, base + 8 * kMaxSlots, base + kBarrierBytes,
                  ring_slot_bytes(P::kXBytes, P::kPieces * p.piece_bytes), p.stages};
  uint32_t* flags =
      reinterpret_cast<uint32_t*>(shared + (base - ptx::shared_address(shared)) + 16 * kMaxSlots);
  const uint32_t rank = P::kCluster > 1 ? ptx::cluster_rank() : 0;
  const int worker = blockIdx.x / P::kCluster;
  if (threadIdx.x == P::kConsumerThreads) {
    ptx::prefetch_tensor_map(&p.x);
    init_ring(ring, P::kWarpgroups * 4 * P::kCluster);
  }
  __syncthreads();
  if constexpr (P::kCluster > 1) ptx::cluster_sync();
  ptx::allow_next_grid();
  if (threadIdx.x >= P::kConsumerThreads) {
    ptx::shrink_registers<P::kProducerRegisters>();
    if (threadIdx.x == P::kConsumerThreads) produce<P>(p, ring, worker, rank);
  } else {
    ptx::grow_registers<P::kConsumerRegisters>();
    ptx::wait_for_previous_grid();
    consume<P>(p, ring, worker, rank, flags);
  }
  // A CTA must not leave while its partner may still write to it or arrive at its barriers.
  if constexpr (P::kCluster > 1) {
    __syncwarp();
    ptx::cluster_sync();
  }
}

}  // namespace sub8::kernels::linear
