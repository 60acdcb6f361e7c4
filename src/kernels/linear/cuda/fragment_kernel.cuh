// The main loop for few tokens: weights and activations both in registers as fragments of mma.sync.
// A producer warp fills a ring (ring.cuh); eight consumer warps turn packed words into A fragments
// and multiply them with B fragments of up to 16 tokens. Warps never wait for each other, and a CTA
// is small enough that a part of the next launch fits beside two of this one and fills its ring
// while this one ends (programmatic dependent launch).
//
// A slot is given back after the first use of every register that was loaded from it.
#pragma once

#include "arch/cuda/sm80/atom.cuh"
#include "kernels/linear/cuda/codec.cuh"
#include "kernels/linear/cuda/epilogue.cuh"
#include "kernels/linear/cuda/ring.cuh"
#include "kernels/linear/cuda/split_k.cuh"

namespace sub8::kernels::linear {

template <class CodecType, int Tokens, int Warps, int RowTiles, int Residents>
struct FragmentPolicy {
  using Codec = CodecType;
  using Atom = arch::sm80::MmaAtom<Codec::kType, Tokens>;
  static constexpr int kCtasPerSm = Residents < 2 ? Residents : 2;
  static constexpr int kResidents = Residents;
  static constexpr int kTokens = Tokens;
  static constexpr int kCluster = 1;
  static constexpr int kBoxCols = 64;
  static constexpr int kBoxRows = Tokens;
  static constexpr int kWarps = Warps;
  static constexpr int kRowTiles = RowTiles;  // tiles of 16 rows per warp
  static constexpr int kPieces = kWarps * kRowTiles / 4;
  static constexpr int kRows = kPieces * pack::kPieceRows;
  static constexpr uint32_t kBesideBytes = 0;
  static constexpr int kUnits = 2;  // of 64 k per stage
  using Weights = SlotWeights<kPieces, kUnits>;
  static constexpr int kTeams = kWarps;
  static constexpr int kConsumerThreads = kWarps * 32;
  static constexpr int kThreads =
      kConsumerThreads + 64;  // a producer and an announcer, a warp each
  static constexpr uint32_t kXBoxBytes = Tokens * 128;
  static constexpr uint32_t kXBytes = kUnits * kXBoxBytes;
};

// The 16 rows of row tile `tile` of a warp, counted within the CTA's tile.
template <class P>
__device__ __forceinline__ int row16_of(int tile) {
  const int warp = ptx::thread_index() / 32;
  return 4 * (warp / 4 + P::kWarps / 4 * tile) + warp % 4;
}
// This lane's first output channel of them; the other is 8 further.
template <class P>
__device__ __forceinline__ int32_t first_channel(int32_t row_tile, int tile) {
  return (row_tile * P::kPieces * 4 + row16_of<P>(tile)) * 16 + ptx::thread_index() % 32 / 4;
}

// Stores a contribution, or completes the tile and writes it.
template <class P>
__device__ void finish_segment(const RingParams& p, const Ring& ring, const Segment& seg,
                               int worker, float (&d)[P::kRowTiles][P::Atom::kAccumulators]) {
  constexpr int kRows16 = P::kPieces * 4;
#pragma unroll
  for (int r = 0; r < P::kRowTiles; ++r) {
    const int row16 = row16_of<P>(r);
    if (seg.k_begin > 0) {
      store_sums(p, worker, row16, kRows16, d[r]);
      continue;
    }
    const int32_t n = first_channel<P>(seg.row_tile, r);
    const Channel channels[2] = {make_channel(p, n), make_channel(p, n + 8)};
    if (seg.k_end < p.k_stages) add_sums(p, seg, worker, row16, kRows16, d[r]);
    write_tile<P::kTokens>(p, channels, seg.token_tile * P::kTokens, d[r]);
  }
  if (seg.k_begin > 0) {
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) ptx::mbarrier_arrive(ring.stored);
  }
}

template <class P>
__device__ void consume_fragments(const RingParams& p, const Ring& ring, int worker) {
  using Codec = typename P::Codec;
  using Atom = typename P::Atom;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int t = 32 * (warp % 4) + lane;  // thread of the unit (pack/cuda/linear_layout.h)
  // Row tile i of this warp lies in piece first_piece + kWarps / 4 * i.
  const int first_piece = warp / 4;
  const auto access = Codec::scale_access(p, t);
  const uint32_t piece_bytes = Codec::piece_bytes(p);
  const uint32_t first = ring.slots + P::kXBytes + P::Weights::at(first_piece, 0) * piece_bytes;
  const uint32_t words_at = ptx::opaque(first + 16 * t);
  const uint32_t scales_at = ptx::opaque(first + Codec::kUnitBytes + access.offset);
  const uint32_t tokens_at = ptx::opaque(ring.slots + Atom::lane_offset(lane));
  const WorkRange range = work_range(p, worker);
  RingCursor cursor;
  float d[P::kRowTiles][Atom::kAccumulators];

#pragma unroll 1
  for (int32_t position = range.begin; position < range.end;) {
    const Segment seg = segment_at(p, position, range.end);
    const int count = seg.k_end - seg.k_begin;
#pragma unroll
    for (int r = 0; r < P::kRowTiles; ++r) {
      prefetch_channel(p, first_channel<P>(seg.row_tile, r));
#pragma unroll
      for (int i = 0; i < Atom::kAccumulators; ++i) d[r][i] = 0.0f;
    }
    const auto load = [&](uint32_t slot, int unit, typename Codec::Loaded(&q)[P::kRowTiles]) {
#pragma unroll
      for (int tile = 0; tile < P::kRowTiles; ++tile) {
        const uint32_t at =
            slot * ring.slot_bytes + P::Weights::at(P::kWarps / 4 * tile, unit) * piece_bytes;
        Codec::load(words_at + at, scales_at + at, t, q[tile]);
      }
    };
    typename Codec::Loaded q[P::kRowTiles];
    const auto begin_stage = [&] {
      ptx::mbarrier_wait(ring.full_bar(cursor.slot), cursor.phase);
      load(cursor.slot, 0, q);
    };
    // With 16 tokens registers do not suffice to look ahead into the next stage.
    constexpr bool kAhead = P::kTokens <= 8;
    if (kAhead) begin_stage();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if (!kAhead) begin_stage();
      const uint32_t slot = cursor.slot;
      cursor.advance(ring.count);
#pragma unroll
      for (int unit = 0; unit < P::kUnits; ++unit) {
        uint32_t a[P::kRowTiles][4][4];
#pragma unroll
        for (int tile = 0; tile < P::kRowTiles; ++tile)
          Codec::template dequantise<0, 4>(p, access, q[tile], a[tile]);
        // The next words come in while this unit is multiplied.
        if (unit + 1 < P::kUnits) {
          load(slot, unit + 1, q);
        } else if (kAhead && i + 1 < count) {
          begin_stage();
        }
#pragma unroll
        for (int k = 0; k < 4; k += Atom::kStepsPerLoad) {
          uint32_t b[Atom::kStepsPerLoad][P::kTokens / 8][2];
          Atom::load_tokens(tokens_at + slot * ring.slot_bytes, unit * P::kXBoxBytes, k, b);
#pragma unroll
          for (int tile = 0; tile < P::kRowTiles; ++tile)
#pragma unroll
            for (int j = 0; j < Atom::kStepsPerLoad; ++j) Atom::mma(d[tile], a[tile][k + j], b[j]);
        }
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ring.empty_bar(slot));
    }
    finish_segment<P>(p, ring, segment_at(p, ptx::opaque(position), range.end), worker, d);
    position += count;
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, P::kResidents)
    fragment_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const Ring ring = make_ring<P>(p, base);
  const int worker = p.workers - 1 - static_cast<int>(blockIdx.x);
  if (threadIdx.x == P::kConsumerThreads) {
    ptx::prefetch_tensor_map(&p.x);
    init_ring(ring, P::kWarps, P::kWarps);
  }
  __syncthreads();
  ptx::allow_next_grid();
  if (threadIdx.x >= P::kConsumerThreads) {
    if (threadIdx.x == P::kConsumerThreads) produce<P>(p, ring, worker, 0);
    if (threadIdx.x >= P::kConsumerThreads + 32)
      announce_sums(p, worker, 0, P::kPieces * 4, P::kPieces * 4, ring.stored);
  } else {
    ptx::wait_for_previous_grid();
    consume_fragments<P>(p, ring, worker);
  }
}

}  // namespace sub8::kernels::linear
