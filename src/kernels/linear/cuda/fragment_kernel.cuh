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

template <class CodecType, int Tokens, int Residents>
struct FragmentPolicy {
  using Codec = CodecType;
  using Atom = arch::sm80::MmaAtom<Codec::kType, Tokens>;
  static constexpr int kResidents = Residents;
  static constexpr int kTokens = Tokens;
  static constexpr int kCluster = 1;
  static constexpr int kBoxRows = Tokens;
  static constexpr int kWarps = 8;
  static constexpr int kRowTiles = 2;  // tiles of 16 rows per warp
  static constexpr int kPieces = kWarps * kRowTiles / 4;
  static constexpr int kConsumerThreads = kWarps * 32;
  static constexpr int kThreads = kConsumerThreads + 32;
  static constexpr uint32_t kXBoxBytes = Tokens * 128;
  static constexpr uint32_t kXBytes = 2 * kXBoxBytes;
};

template <class P>
__device__ void consume_fragments(const RingParams& p, const Ring& ring, int worker) {
  using Codec = typename P::Codec;
  using Atom = typename P::Atom;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int t = 32 * (warp % 4) + lane;  // thread of the unit (pack/cuda/linear_layout.h)
  // Row tile i of this warp lies in piece first_piece + 2 * i.
  const int first_piece = warp / 4;
  const auto access = Codec::scale_access(p, t);
  const uint32_t pieces = ring.slots + P::kXBytes + first_piece * p.piece_bytes;
  const uint32_t words_at = ptx::opaque(pieces + 16 * t);
  const uint32_t scales_at = ptx::opaque(pieces + 2 * Codec::kUnitBytes + access.offset);
  const uint32_t tokens_at = ptx::opaque(ring.slots + Atom::lane_offset(lane));
  const uint32_t second_tile = ptx::opaque(2 * p.piece_bytes);
  const WorkRange range = work_range(p, worker);
  RingCursor cursor;
  float d[P::kRowTiles][Atom::kAccumulators];
  struct Loaded {
    uint32_t words[Codec::kWords];
    uint32_t scales[4];
  };

#pragma unroll 1
  for (int32_t position = range.begin; position < range.end;) {
    const Segment seg = segment_at(p, position, range.end);
    const int count = seg.k_end - seg.k_begin;
#pragma unroll
    for (int r = 0; r < P::kRowTiles; ++r)
#pragma unroll
      for (int i = 0; i < Atom::kAccumulators; ++i) d[r][i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      ptx::mbarrier_wait(ring.full_bar(cursor.slot), cursor.phase);
      const uint32_t offset = cursor.slot * ring.slot_bytes;
      const auto load = [&](int tile, int unit, Loaded& q) {
        const uint32_t at = offset + (tile != 0 ? second_tile : 0u);
        load_words(words_at + at + unit * Codec::kUnitBytes, t, q.words);
        Codec::load_scales(p, access, scales_at + at, unit, q.scales);
      };
      Loaded q[2][P::kRowTiles];
#pragma unroll
      for (int tile = 0; tile < P::kRowTiles; ++tile) load(tile, 0, q[0][tile]);
#pragma unroll
      for (int unit = 0; unit < 2; ++unit) {
        uint32_t a[P::kRowTiles][4][4];
#pragma unroll
        for (int tile = 0; tile < P::kRowTiles; ++tile) {
          if (unit == 0) load(tile, 1, q[1][tile]);
          Codec::dequantise(q[unit][tile].words, q[unit][tile].scales, a[tile]);
        }
#pragma unroll
        for (int k = 0; k < 4; k += Atom::kStepsPerLoad) {
          uint32_t b[Atom::kStepsPerLoad][P::kTokens / 8][2];
          Atom::load_tokens(tokens_at + offset, unit * P::kXBoxBytes, k, b);
#pragma unroll
          for (int tile = 0; tile < P::kRowTiles; ++tile)
#pragma unroll
            for (int i = 0; i < Atom::kStepsPerLoad; ++i) Atom::mma(d[tile], a[tile][k + i], b[i]);
        }
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ring.empty_bar(cursor.slot));
      cursor.advance(ring.count);
    }
    position += count;
#pragma unroll
    for (int r = 0; r < P::kRowTiles; ++r) {
      const int block = 4 * (first_piece + 2 * r) + warp % 4;  // of 16 rows
      const int32_t n = seg.row_tile * P::kPieces * 64 + block * 16 + lane / 4;
      const Channel channels[2] = {make_channel(p, n), make_channel(p, n + 8)};
      const bool whole =
          count == p.k_stages ||
          add_contributions<32>(p, seg, worker, block, P::kPieces * 4, nullptr, d[r]);
      if (whole) write_tile<P::kTokens>(p, channels, seg.token_tile * P::kTokens, d[r]);
    }
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, P::kResidents)
    fragment_kernel(const __grid_constant__ RingParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const Ring ring{base, base + 8 * kMaxSlots, base + kBarrierBytes,
                  ring_slot_bytes(P::kXBytes, P::kPieces * p.piece_bytes), p.stages};
  if (threadIdx.x == P::kConsumerThreads) {
    ptx::prefetch_tensor_map(&p.x);
    init_ring(ring, P::kWarps);
  }
  __syncthreads();
  ptx::allow_next_grid();
  if (threadIdx.x >= P::kConsumerThreads) {
    if (threadIdx.x == P::kConsumerThreads) produce<P>(p, ring, blockIdx.x, 0);
  } else {
    ptx::wait_for_previous_grid();
    consume_fragments<P>(p, ring, blockIdx.x);
  }
}

}  // namespace sub8::kernels::linear
