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

#include "arch/cuda/ptx/copy.cuh"
#include "arch/cuda/ptx/sync.cuh"
#include "arch/cuda/sm90a/atom.cuh"
#include "kernels/linear/cuda/codec.cuh"
#include "kernels/linear/cuda/epilogue.cuh"
#include "kernels/linear/cuda/schedule.cuh"

namespace sub8::kernels::linear {

inline constexpr int kBarrierBytes = 1024;  // barriers and flags, in front of the ring
inline constexpr int kMaxSlots = 32;

// Up to 64 tokens four warpgroups have 64 rows each. With 128 tokens the accumulators leave room
// for two warpgroups only, with two blocks of 64 rows each; the producer is then a whole warpgroup,
// so that its registers can be handed over.
template <class CodecType, int Tokens, int Cluster>
struct RingPolicy {
  static constexpr int kRowBlocks = Tokens > 64 ? 2 : 1;
  static constexpr int kWarpgroups = 4 / kRowBlocks;
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

// Shared-memory addresses of a CTA.
struct Ring {
  uint32_t full;
  uint32_t empty;
  uint32_t slots;
  uint32_t slot_bytes;
  uint32_t count;

  __device__ uint32_t full_bar(uint32_t s) const { return full + 8 * s; }
  __device__ uint32_t empty_bar(uint32_t s) const { return empty + 8 * s; }
  __device__ uint32_t x(uint32_t s) const { return slots + s * slot_bytes; }
};

struct RingCursor {
  uint32_t slot = 0;
  uint32_t phase = 0;
  __device__ void advance(uint32_t count) {
    if (++slot == count) slot = 0, phase ^= 1;
  }
};

// Slot layout: activation boxes first (1024-byte aligned), then the four pieces of weights.
__host__ __device__ inline uint32_t ring_slot_bytes(uint32_t x_bytes, uint32_t piece_bytes) {
  return (x_bytes + 4 * piece_bytes + 1023) & ~1023u;
}

template <class P>
__device__ __forceinline__ void copy_activations(const RingParams& p, const Ring& ring, uint32_t s,
                                                 const Segment& seg, int k, uint32_t rank,
                                                 uint64_t policy) {
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    const uint32_t dst = ring.x(s) + box * P::kXBoxBytes + rank * P::kBoxRows * 128;
    const int row = seg.token_tile * P::kTokens + rank * P::kBoxRows;
    const int col = (2 * k + box) * 64;
    if constexpr (P::kCluster == 1) {
      ptx::tensor_copy_2d(dst, &p.x, col, row, ring.full_bar(s), policy);
    } else {
      ptx::tensor_copy_2d_multicast(dst, &p.x, col, row, ring.full_bar(s), (1 << P::kCluster) - 1,
                                    policy);
    }
  }
}

template <class P>
__device__ void produce(const RingParams& p, const Ring& ring, int worker, uint32_t rank) {
  const uint64_t stream_policy = ptx::policy_evict_first();
  const uint64_t keep_policy = ptx::policy_evict_last();
  const uint32_t weight_bytes = 4 * p.piece_bytes;
  const WorkRange range = work_range(p, worker);
  const auto copy_weights = [&](uint32_t s, const Segment& seg, int k) {
    ptx::mbarrier_expect_bytes(ring.full_bar(s), weight_bytes + P::kXBytes);
    // The last cluster may have a CTA without rows; it streams the last tile and writes nothing.
    const int64_t wanted = int64_t{seg.row_tile} * P::kCluster + rank;
    const int64_t tile = wanted < p.weight_tiles ? wanted : p.weight_tiles - 1;
    ptx::bulk_copy(ring.x(s) + P::kXBytes, p.weights + (tile * p.k_stages + k) * weight_bytes,
                   weight_bytes, ring.full_bar(s),
                   p.token_tiles == 1 ? stream_policy : keep_policy);
  };
  // Weights do not depend on the kernel before this one: the ring is filled before waiting for it.
  const int32_t ahead = range.end - range.begin < static_cast<int32_t>(ring.count)
                            ? range.end - range.begin
                            : static_cast<int32_t>(ring.count);
  Segment seg = segment_at(p, range.begin, range.end);
  int k = seg.k_begin;
#pragma unroll 1
  for (int32_t i = 0; i < ahead; ++i, ++k) {
    if (k == seg.k_end) seg = segment_at(p, range.begin + i, range.end), k = seg.k_begin;
    copy_weights(static_cast<uint32_t>(i), seg, k);
  }
  ptx::wait_for_previous_grid();
  RingCursor cursor;
  cursor.phase = 1;
  seg = segment_at(p, range.begin, range.end);
  k = seg.k_begin;
#pragma unroll 1
  for (int32_t position = range.begin; position < range.end; ++position, ++k) {
    if (k == seg.k_end) seg = segment_at(p, position, range.end), k = seg.k_begin;
    ptx::mbarrier_wait(ring.empty_bar(cursor.slot), cursor.phase);
    if (position - range.begin >= ahead) copy_weights(cursor.slot, seg, k);
    copy_activations<P>(p, ring, cursor.slot, seg, k, rank, keep_policy);
    cursor.advance(ring.count);
  }
}

// Adds up the contributions to a block of 64 rows of a tile. Returns whether the caller holds the
// whole sum and must write it. Whoever arrives last adds, always in order of k, so nobody waits and
// the result does not depend on timing. `flag` is a shared word of this warpgroup.
template <class P>
__device__ bool reduce_block(const RingParams& p, const Segment& seg, int worker, uint32_t rank,
                             int block, uint32_t* flag, float (&d)[P::Atom::kAccumulators]) {
  constexpr int kVectors = P::Atom::kAccumulators / 4;
  const int32_t start = seg.tile * p.k_stages;
  const int first = worker_of(p, start);
  const int last = worker_of(p, start + p.k_stages - 1);
  const int t = threadIdx.x % 128;
  const auto partial = [&](int w) {
    // A worker has at most two cut tiles: the one it begins with and the one it ends with.
    const int slot = 2 * w + (w == first ? 1 : 0);
    return reinterpret_cast<float4*>(p.partials) +
           ((int64_t{slot} * P::kCluster + rank) * pack::kPiecesPerStage + block) * kVectors * 128 +
           t;
  };
  // A worker is the first contributor of one cut tile at most, which names the counter.
  uint32_t* counter =
      p.counters + (int64_t{first} * P::kCluster + rank) * pack::kPiecesPerStage + block;
  const uint32_t others = static_cast<uint32_t>(last - first);
  const int id = 1 + static_cast<int>(threadIdx.x) / 128;
  // The contributor of the lowest k works on this tile last of all it does; the others have usually
  // arrived by then, and it can go on from its registers.
  bool in_registers = false;
  if (worker == first) {
    if (t == 0) *flag = ptx::load_acquire(counter) == others;
    ptx::named_barrier(id, 128);
    in_registers = *flag != 0;
    ptx::named_barrier(id, 128);
  }
  if (!in_registers) {
    float4* mine = partial(worker);
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      ptx::store_l2(mine + v * 128,
                    make_float4(d[4 * v], d[4 * v + 1], d[4 * v + 2], d[4 * v + 3]));
    // The barrier orders the warpgroup's stores before thread 0's release, which is cumulative.
    ptx::named_barrier(id, 128);
    if (t == 0) *flag = ptx::atomic_add_acq_rel(counter, 1) == others;
    ptx::named_barrier(id, 128);
    if (*flag == 0) return false;
    const float4* p0 = partial(first);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const float4 x = ptx::load_l2(p0 + v * 128);
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
      for (int v = 0; v < kVectors; ++v) x[b][v] = ptx::load_l2(other + v * 128);
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
  if (t == 0) *counter = 0;
  return true;
}

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
      const int32_t n = (seg.row_tile * P::kCluster + rank) * pack::kTileRows +
                        (first_block + b) * 64 + (t / 32) * 16 + (t % 32) / 4;
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
      const bool whole =
          count == p.k_stages ||
          reduce_block<P>(p, seg, worker, rank, first_block + b, flags + warpgroup, d[b]);
      if (whole) write_tile<P::kTokens>(p, channels[b], seg.token_tile * P::kTokens, d[b]);
    }
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    ring_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const Ring ring{base, base + 8 * kMaxSlots, base + kBarrierBytes,
                  ring_slot_bytes(P::kXBytes, p.piece_bytes), p.stages};
  uint32_t* flags =
      reinterpret_cast<uint32_t*>(shared + (base - ptx::shared_address(shared)) + 16 * kMaxSlots);
  const uint32_t rank = P::kCluster > 1 ? ptx::cluster_rank() : 0;
  const int worker = blockIdx.x / P::kCluster;
  if (threadIdx.x == P::kConsumerThreads) {
    ptx::prefetch_tensor_map(&p.x);
    for (uint32_t s = 0; s < ring.count; ++s) {
      ptx::mbarrier_init(ring.full_bar(s), 1);
      ptx::mbarrier_init(ring.empty_bar(s), P::kWarpgroups * 4 * P::kCluster);
    }
    ptx::mbarrier_init_fence();
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
