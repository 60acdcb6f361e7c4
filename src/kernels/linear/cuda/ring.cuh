// The ring of shared-memory slots and the producer that fills it: weight stages by bulk copies,
// activation boxes by tensor copies. Shared by the main loops; P is a loop's policy.
#pragma once

#include "arch/cuda/ptx/copy.cuh"
#include "arch/cuda/ptx/sync.cuh"
#include "kernels/linear/cuda/schedule.cuh"
#include "pack/cuda/linear_layout.h"

namespace sub8::kernels::linear {

inline constexpr int kBarrierBytes = 1024;  // barriers, in front of the ring
inline constexpr int kMaxSlots = 32;

// Shared-memory addresses of a CTA.
struct Ring {
  uint32_t full;
  uint32_t empty;
  uint32_t stored;  // completes when all warps have stored their sums (split_k.cuh)
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

// Slot layout: activation boxes first (1024-byte aligned), then the pieces of weights.
__host__ __device__ inline uint32_t ring_slot_bytes(uint32_t x_bytes, uint32_t weight_bytes) {
  return (x_bytes + weight_bytes + 1023) & ~1023u;
}

template <class P>
__device__ __forceinline__ void copy_activations(const RingParams& p, const Ring& ring, uint32_t s,
                                                 const Segment& seg, int k, uint32_t rank,
                                                 uint64_t policy) {
#pragma unroll
  for (int box = 0; box < P::kUnits; ++box) {
    const uint32_t dst = ring.x(s) + box * P::kXBoxBytes + rank * P::kBoxRows * 128;
    const int row = seg.token_tile * P::kTokens + rank * P::kBoxRows;
    const int col = (P::kUnits * k + box) * P::kBoxCols;
    if constexpr (P::kCluster == 1) {
      ptx::tensor_copy_2d(dst, &p.x, col, row, ring.full_bar(s), policy);
    } else {
      ptx::tensor_copy_2d_multicast(dst, &p.x, col, row, ring.full_bar(s), (1 << P::kCluster) - 1,
                                    policy);
    }
  }
}

// Where the pieces of a stage (Pieces along N, Units along K) lie in a slot: as the copies bring
// them. A tile of the packed weight is contiguous along K; a part of one is copied unit by unit.
template <int Pieces, int Units>
struct SlotWeights {
  static constexpr int kChunk = Pieces < pack::kPiecesPerTile ? Pieces : pack::kPiecesPerTile;
  static constexpr bool kWhole = kChunk == pack::kPiecesPerTile;
  static_assert(Units <= 2 || !kWhole);  // produce() bounds units one by one
  static constexpr int kCopies = kWhole ? Pieces / kChunk : Units;
  static constexpr int kPiecesPerCopy = kWhole ? kChunk * Units : kChunk;
  // First piece along N and unit of copy c.
  __host__ __device__ static constexpr int row(int c) { return kWhole ? c * kChunk : 0; }
  __host__ __device__ static constexpr int unit(int c) { return kWhole ? 0 : c; }
  // Distance, in pieces, of piece b and unit u from the first.
  __host__ __device__ static constexpr int at(int b, int u) {
    return b / kChunk * kChunk * Units + u * kChunk + b % kChunk;
  }
};

// `base`: shared memory of the CTA, a multiple of 1024.
template <class P>
__device__ __forceinline__ Ring make_ring(const RingParams& p, uint32_t base) {
  const uint32_t weights = P::kUnits * P::kPieces * P::Codec::piece_bytes(p);
  return {base,
          base + 8 * kMaxSlots,
          base + 16 * kMaxSlots,
          base + kBarrierBytes,
          ring_slot_bytes(P::kXBytes, weights),
          p.stages};
}

// By one thread. `releases`: arrivals that free a slot; `warps`: consumers of this CTA.
__device__ __forceinline__ void init_ring(const Ring& ring, uint32_t releases, uint32_t warps) {
  ptx::mbarrier_init(ring.stored, warps);
  for (uint32_t s = 0; s < ring.count; ++s) {
    ptx::mbarrier_init(ring.full_bar(s), 1);
    ptx::mbarrier_init(ring.empty_bar(s), releases);
  }
  ptx::mbarrier_init_fence();
}

template <class P>
__device__ void produce(const RingParams& p, const Ring& ring, int worker, uint32_t rank) {
  const uint64_t stream_policy = ptx::policy_evict_first();
  const uint64_t keep_policy = ptx::policy_evict_last();
  const WorkRange range = work_range(p, worker);
  const auto copy_weights = [&](uint32_t s, const Segment& seg, int k) {
    const uint32_t piece_bytes = P::Codec::piece_bytes(p);
    ptx::mbarrier_expect_bytes(ring.full_bar(s), P::kUnits * P::kPieces * piece_bytes + P::kXBytes);
    const uint32_t bytes = P::Weights::kPiecesPerCopy * piece_bytes;
#pragma unroll
    for (int c = 0; c < P::Weights::kCopies; ++c) {
      const int32_t piece = (seg.row_tile * P::kCluster + rank) * P::kPieces + P::Weights::row(c);
      // The last tiles may lie behind the weight; they stream its last tile and write nothing.
      const int32_t wanted = piece / pack::kPiecesPerTile;
      const int64_t tile = wanted < p.weight_tiles ? wanted : p.weight_tiles - 1;
      int32_t unit = k * P::kUnits + P::Weights::unit(c);
      // K is padded to two pieces. What lies behind it is multiplied by zeros: any weights will do.
      if constexpr (P::kUnits > 2) unit = min(unit, p.k_pieces - 1);
      const int64_t source = (tile * p.k_pieces + unit) * pack::kPiecesPerTile +
                             static_cast<uint32_t>(piece) % pack::kPiecesPerTile;
      ptx::bulk_copy(ring.x(s) + P::kXBytes + c * bytes, p.weights + source * piece_bytes, bytes,
                     ring.full_bar(s), p.token_tiles == 1 ? stream_policy : keep_policy);
    }
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

}  // namespace sub8::kernels::linear
