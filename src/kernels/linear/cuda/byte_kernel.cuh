// The sm_90a main loop of e4m3 activations: that of warpgroup_kernel.cuh with wgmma k32, whose sums
// keep 13 bits. So a unit of 64 rows x 128 k is summed into `part` registers, which are then added
// to FP32 accumulators ("promotion"); other warpgroups keep the tensor cores busy meanwhile. Block
// scales are part of the conversion (kFolded), or factors of sums over 32 k (kScaled: slower, for
// rows whose exponents spread too far and for scales that 8-bit operands cannot hold).
//
// Products of a unit form items: a row block times the tokens of one instruction. The rules of
// warpgroup_kernel.cuh hold: slots are given back after use, A registers are rewritten and sums
// read only after the group that uses them has retired.
#pragma once

#include "arch/cuda/sm90a/atom.cuh"
#include "kernels/linear/cuda/byte_codec.cuh"
#include "kernels/linear/cuda/finish.cuh"
#include "kernels/linear/cuda/ring.cuh"

namespace sub8::kernels::linear {

struct ByteShape {
  int tokens;
  int mma_tokens;  // of one instruction
  int cluster;     // CTAs that share activations (and have neighbouring rows)
  int warpgroups;  // of consumers
  int row_blocks;  // of 64 rows per warpgroup
  int units;       // of 128 k per stage
  int sets;        // of A registers: with two, the next unit is converted while products run
  int parts;       // of sums: with two, those of an item are promoted while the next one's run
};

template <class CodecType, ByteShape Shape>
struct BytePolicy {
  using Codec = CodecType;
  static constexpr int kTokens = Shape.tokens;
  static constexpr int kCluster = Shape.cluster;
  static constexpr int kWarpgroups = Shape.warpgroups;
  static constexpr int kRowBlocks = Shape.row_blocks;
  static constexpr int kUnits = Shape.units;
  static constexpr int kSets = Shape.sets;
  static constexpr int kParts = Shape.parts;
  static constexpr int kMmaTokens = Shape.mma_tokens;
  static constexpr int kTokenBlocks = kTokens / kMmaTokens;
  using Mma = arch::sm90a::ByteAtom<Codec::kE5M2, kMmaTokens>;
  // Of a whole tile: the map is that of one instruction of kTokens.
  static constexpr int kAccumulators = kTokens / 2;
  static constexpr int kPieces = kWarpgroups * kRowBlocks;
  static constexpr int kRows = kPieces * pack::kPieceRows;
  static constexpr uint32_t kBesideBytes = 0;
  using Weights = SlotWeights<kPieces, kUnits>;
  static constexpr int kTeams = kWarpgroups;
  static constexpr int kSlices = 1;
  static constexpr int kConsumerThreads = kWarpgroups * 128;
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : 112;
  static_assert(kWarpgroups == 2 || kWarpgroups == 4);
  static_assert(kWarpgroups * kConsumerRegisters + kProducerRegisters <=
                65536 / (8 * kThreads) * 8 * kThreads / 128);
  static constexpr int kBoxCols = 128;
  static constexpr int kBoxRows = kTokens / kCluster;
  static constexpr uint32_t kXBoxBytes = kTokens * 128;
  static constexpr uint32_t kXBytes = kUnits * kXBoxBytes;
  static constexpr int kCtasPerSm = 1;
  static constexpr int kResidents = 1;
  // Register sets alternate from stage to stage too.
  static constexpr int kLoads = kUnits * kRowBlocks;
  static constexpr int kItems = kLoads * kTokenBlocks;
  static_assert(kLoads % kSets == 0);
};

// What a consumer thread keeps while it works.
template <class P>
struct ByteConsumer {
  using Codec = typename P::Codec;
  using Mma = typename P::Mma;

  const RingParams& p;
  const Ring& ring;
  uint32_t rank;
  int t;
  uint32_t words_at, scales_at, b_at;  // of the first slot
  RingCursor cursor;
  typename Codec::Loaded q;
  uint32_t a[P::kSets][4][4];
  float part[P::kParts][Mma::kAccumulators];
  float sum[P::kRowBlocks][P::kTokens / 2];

  __device__ ByteConsumer(const RingParams& params, const Ring& r, uint32_t cta_rank)
      : p(params), ring(r), rank(cta_rank), t(static_cast<int>(threadIdx.x) % 128) {
    const int first_block = static_cast<int>(threadIdx.x) / 128 * P::kRowBlocks;
    const uint32_t first =
        ring.slots + P::kXBytes + P::Weights::at(first_block, 0) * Codec::kPieceBytes;
    // Opaque, so that addresses stay in registers instead of being derived again in every stage.
    words_at = ptx::opaque(first + 16 * t);
    scales_at = ptx::opaque(first + Codec::kUnitBytes + Codec::scale_offset(t));
    b_at = ptx::opaque(ptx::b_descriptor_low(ring.slots));
  }

  __device__ void release(uint32_t slot) {
    __syncwarp();
    if (ptx::elect_one()) {
      ptx::mbarrier_arrive(ring.empty_bar(slot));
      if constexpr (P::kCluster > 1) ptx::mbarrier_arrive_remote(ring.empty_bar(slot), rank ^ 1);
    }
  }
  // Loads words and scales of unit `index / kRowBlocks` and block `index % kRowBlocks`.
  __device__ void load(uint32_t slot, int index) {
    const uint32_t at =
        slot * ring.slot_bytes +
        P::Weights::at(index % P::kRowBlocks, index / P::kRowBlocks) * Codec::kPieceBytes;
    Codec::load(words_at + at, scales_at + at, t, q);
  }
  // After the last load of a stage: the first of the next one. The load itself is unconditional,
  // since ptxas serialises wgmma around loads in branches (C7518); without a next stage it reads
  // what nobody uses.
  __device__ void load_next(uint32_t slot, int index, bool more) {
    if (index + 1 < P::kLoads) {
      load(slot, index + 1);
    } else {
      if (more) ptx::mbarrier_wait(ring.full_bar(cursor.slot), cursor.phase);
      load(cursor.slot, 0);
    }
  }
  __device__ uint32_t b_of(uint32_t slot) const {
    // Uniform across the warp, which the compiler sees only after a shuffle.
    return ptx::uniform(b_at + slot * (ring.slot_bytes >> 4));
  }
  // Token block h of a unit: 64 rows of 128 bytes further.
  __device__ static uint32_t b_offset(int index, int h) {
    return index / P::kRowBlocks * (P::kXBoxBytes >> 4) + h * (P::kMmaTokens * 128 >> 4);
  }

  __device__ void clear() {
#pragma unroll
    for (int b = 0; b < P::kRowBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < P::kAccumulators; ++i) sum[b][i] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < P::kParts; ++j) {
#pragma unroll
      for (int i = 0; i < Mma::kAccumulators; ++i) part[j][i] = 0.0f;
      ptx::pin(part[j]);
    }
  }
  // Adds the sums of row block `b` and token block `h`, whose group has retired, to its
  // accumulators.
  __device__ void promote(int b, int h) {
    float(&from)[Mma::kAccumulators] = part[h % P::kParts];
    ptx::pin(from);
#pragma unroll
    for (int i = 0; i < Mma::kAccumulators; ++i) {
      float& to = sum[b][h * Mma::kAccumulators + i];
      to += from[i];
      ptx::pin(to);  // not later, when `from` is being summed again
    }
  }

  // A registers of the loaded words. Nothing of it may move up, where the set may still be read.
  __device__ void convert(uint32_t (&set)[4][4]) {
    Codec::pin(q);
    Codec::template dequantise<true>(q, set);
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::pin(set[i]);
  }

  // Stages whose block scales are part of the conversion, or that have none. No sums wait for
  // promotion across units: ptxas would serialise wgmma (C7514, C7518).
  __device__ void run_folded(int count) {
    convert(a[0]);
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
      const uint32_t b_low = b_of(cursor.slot);
      const uint32_t slot = cursor.slot;
      cursor.advance(ring.count);
#pragma unroll
      for (int index = 0; index < P::kLoads; ++index) {
        const int block = index % P::kRowBlocks;
#pragma unroll
        for (int h = 0; h < P::kTokenBlocks; ++h) {
          multiply(a[index % P::kSets], b_low + b_offset(index, h), part[h % P::kParts]);
          if constexpr (P::kParts == 2) {
            if (h > 0) {
              ptx::wgmma_wait<1>();
              promote(block, h - 1);
            }
          } else if (h + 1 < P::kTokenBlocks) {
            ptx::wgmma_wait<0>();
            promote(block, h);
          }
        }
        load_next(slot, index, s + 1 < count);
        if constexpr (P::kSets == 2) convert(a[(index + 1) % P::kSets]);
        ptx::wgmma_wait<0>();
        promote(block, P::kTokenBlocks - 1);
        if constexpr (P::kSets == 1) convert(a[0]);
      }
      release(slot);
    }
  }
  // The four k steps of an item.
  __device__ void multiply(uint32_t (&set)[4][4], uint32_t b, float (&d)[Mma::kAccumulators]) {
    ptx::wgmma_fence();
    Mma::template mma<false>(d, set[0], ptx::b_descriptor(b));
#pragma unroll
    for (int i = 1; i < 4; ++i) Mma::template mma<true>(d, set[i], ptx::b_descriptor(b + 2 * i));
    ptx::wgmma_commit();
  }

  // Stages whose block scales are factors of the sums over 32 k.
  __device__ void run_scaled(int count) {
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
      const uint32_t b_low = b_of(cursor.slot);
      const uint32_t slot = cursor.slot;
      cursor.advance(ring.count);
#pragma unroll
      for (int index = 0; index < P::kLoads; ++index) {
        Codec::pin(q);
        Codec::template dequantise<false>(q, a[0]);
#pragma unroll
        for (int i = 0; i < 4; ++i) ptx::pin(a[0][i]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float factors[2] = {Codec::factor(p, q, i, 0), Codec::factor(p, q, i, 1)};
#pragma unroll
          for (int h = 0; h < P::kTokenBlocks; ++h) {
            ptx::wgmma_fence();
            Mma::template mma<false>(part[0], a[0][i],
                                     ptx::b_descriptor(b_low + b_offset(index, h) + 2 * i));
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
            ptx::pin(part[0]);
            float* to = sum[index % P::kRowBlocks] + h * Mma::kAccumulators;
#pragma unroll
            for (int v = 0; v < Mma::kAccumulators; ++v)
              to[v] = __fmaf_rn(part[0][v], factors[(v >> 1) & 1], to[v]);
          }
        }
        if (index + 1 == P::kLoads) release(slot);
        load_next(slot, index, s + 1 < count);
      }
    }
  }
};

template <class P>
__device__ void consume_bytes(const RingParams& p, const Ring& ring, int worker, uint32_t rank) {
  using Codec = typename P::Codec;
  ByteConsumer<P> c(p, ring, rank);
  const WorkRange range = work_range(p, worker);
#pragma unroll 1
  for (int32_t position = range.begin; position < range.end;) {
    const Segment seg = segment_at(p, position, range.end);
    const int count = seg.k_end - seg.k_begin;
#pragma unroll
    for (int b = 0; b < P::kRowBlocks; ++b)
      prefetch_channel(p, first_channel<P>(seg.row_tile, rank, b));
    c.clear();
    ptx::mbarrier_wait(ring.full_bar(c.cursor.slot), c.cursor.phase);
    c.load(c.cursor.slot, 0);
    if constexpr (!Codec::kHasScales) {
      c.run_folded(count);
    } else if constexpr (!Codec::kTable) {
      c.run_scaled(count);
    } else {
      const int32_t piece = (seg.row_tile * P::kCluster + static_cast<int32_t>(rank)) * P::kPieces;
      // The last tiles may lie behind the weight; they write nothing.
      const int32_t tile = min(piece / pack::kPiecesPerTile, p.weight_tiles - 1);
      const uint32_t mode = ptx::uniform(p.scale_modes[tile]);
      if (mode == static_cast<uint32_t>(pack::ScaleMode::kFolded)) {
        c.run_folded(count);
      } else {
        c.run_scaled(count);
      }
    }
    finish_segment<P>(p, ring, segment_at(p, ptx::opaque(position), range.end), worker, rank,
                      c.sum);
    position += count;
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, 1)
    byte_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const Ring ring = make_ring<P>(p, base);
  const uint32_t rank = P::kCluster > 1 ? ptx::cluster_rank() : 0;
  const int worker = p.workers - 1 - static_cast<int>(blockIdx.x) / P::kCluster;
  if (threadIdx.x == P::kConsumerThreads) {
    ptx::prefetch_tensor_map(&p.x);
    init_ring(ring, P::kWarpgroups * 4 * P::kCluster, P::kWarpgroups * 4);
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
    consume_bytes<P>(p, ring, worker, rank);
  }
  // A CTA must not leave while its partner may still write to it or arrive at its barriers.
  if constexpr (P::kCluster > 1) {
    __syncwarp();
    ptx::cluster_sync();
  }
}

}  // namespace sub8::kernels::linear
