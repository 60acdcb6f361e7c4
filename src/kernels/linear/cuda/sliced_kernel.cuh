// The main loop for up to 16 tokens: CTAs with few rows (32 or 64) and all of K, so that small
// layers need no exchange of sums between CTAs, and large ones none at the end of a call. Sixteen
// warps share a tile's rows and cut each stage's K into slices; a tile's sums meet in shared
// memory, and a warp with nothing else to do, the finisher, adds and writes them. What remains when
// whole tiles are dealt out evenly is split along K among all CTAs, and done first: its sums travel
// through global memory while whole tiles are worked on.
//
// Weights and activations meet in registers as fragments of mma.sync. A slot is given back after
// the first use of every register that was loaded from it.
#pragma once

#include "arch/cuda/sm80/atom.cuh"
#include "kernels/linear/cuda/codec.cuh"
#include "kernels/linear/cuda/epilogue.cuh"
#include "kernels/linear/cuda/ring.cuh"
#include "kernels/linear/cuda/split_k.cuh"

namespace sub8::kernels::linear {

template <class CodecType, int Tokens, int Rows, int Units, int Residents>
struct SlicedPolicy {
  using Codec = CodecType;
  using Atom = arch::sm80::MmaAtom<Codec::kType, Tokens>;
  static constexpr int kTokens = Tokens;
  static constexpr int kRows = Rows;
  static constexpr int kCluster = 1;
  static constexpr int kCtasPerSm = 1;
  static constexpr int kResidents = Residents;
  static constexpr int kWarps = 16;
  static constexpr int kRow16 = Rows / 16;
  static constexpr int kSlices = kWarps / kRow16;
  static constexpr int kUnits = Units;  // of 64 k per stage
  static constexpr int kSteps = Units / kSlices;
  static_assert(kSlices * kRow16 == kWarps && kSteps * kSlices == Units);
  static_assert(Rows == 32 || Rows == 64);
  static constexpr int kTeams = kWarps;
  static constexpr int kConsumerThreads = kWarps * 32;
  static constexpr int kThreads = kConsumerThreads + 64;  // a producer and a finisher, a warp each
  static constexpr uint32_t kXBytes = kUnits * Tokens * 128;  // at most
  static constexpr int kValues = Atom::kAccumulators;
  static constexpr uint32_t kBesideBytes = kWarps * 32 * kValues * 4;

  // Parts of a unit (pack/cuda/linear_layout.h) as the copies bring them: bytes per 64 k.
  static constexpr int kQuads = Codec::kWords / 4;
  static constexpr uint32_t kQuadSlice = kRows * 32;
  static constexpr uint32_t kQuadBytes = kQuads * kQuadSlice;
  static constexpr uint32_t kPairBytes = (Codec::kWords & 2) != 0 ? kRows * 16 : 0;
  static constexpr uint32_t kSingleBytes = (Codec::kWords & 1) != 0 ? kRows * 8 : 0;
  __device__ static uint32_t scale_bytes(const RingParams& p) {
    return (Codec::piece_bytes(p) - Codec::kUnitBytes) * kRows / 64;
  }
};

// The segments of a worker, in the order of work.
struct SlicedWalk {
  int32_t position;
  int32_t end;
  int32_t tile;  // next whole tile
  __device__ SlicedWalk(const SlicedParams& p, int worker)
      : position(range_begin(p.ring, worker)),
        end(range_begin(p.ring, worker + 1)),
        tile(p.rest_tiles + worker) {}
  __device__ bool next(const SlicedParams& p, Segment& s) {
    if (position < end) {
      s.tile = position / p.ring.k_stages;
      s.k_begin = position - s.tile * p.ring.k_stages;
      const int32_t left = end - position + s.k_begin;
      s.k_end = left < p.ring.k_stages ? left : p.ring.k_stages;
      position += s.k_end - s.k_begin;
      return true;
    }
    if (tile >= p.ring.row_tiles) return false;
    s.tile = tile, s.k_begin = 0, s.k_end = p.ring.k_stages;
    tile += p.ring.workers;
    return true;
  }
  __device__ bool at_end(const SlicedParams& p) const {
    return position >= end && tile >= p.ring.row_tiles;
  }
};
__device__ __forceinline__ bool is_whole(const SlicedParams& p, const Segment& s) {
  return s.k_begin == 0 && s.k_end == p.ring.k_stages;
}

// ---- producer: one warp ----

template <class P>
__device__ __forceinline__ void copy_sliced_weights(const SlicedParams& p, const Ring& ring,
                                                    uint32_t s, const Segment& seg, int k,
                                                    uint32_t x_bytes, uint64_t policy) {
  const uint32_t scales = P::scale_bytes(p.ring);
  constexpr uint32_t kCodes = P::kQuadBytes + P::kPairBytes + P::kSingleBytes;
  const uint32_t bar = ring.full_bar(s);
  ptx::mbarrier_expect_bytes(bar, P::kUnits * (kCodes + scales) + x_bytes);
  const int32_t row = seg.tile * P::kRows;
  const int32_t tile = row / pack::kTileRows;
  const int32_t block = row % pack::kTileRows / pack::kPieceRows;
  const int32_t slice = row % pack::kPieceRows / P::kRows;  // of a block
  const int32_t unit = k * P::kUnits;
  uint32_t to = ring.x(s) + P::kUnits * p.x_pitch;
  const auto copy = [&](int part, uint32_t bytes, uint32_t words) {
    // Coordinates along a block's part count 8 bytes.
    ptx::tensor_copy_5d(to, &p.parts[part], slice * static_cast<int32_t>(words / 8), 0, block, unit,
                        tile, bar, policy);
    to += P::kUnits * bytes;
  };
  if constexpr (P::kQuadBytes != 0) copy(0, P::kQuadBytes, P::kQuadSlice);
  if constexpr (P::kPairBytes != 0) copy(1, P::kPairBytes, P::kPairBytes);
  if constexpr (P::kSingleBytes != 0) copy(2, P::kSingleBytes, P::kSingleBytes);
  if constexpr (P::Codec::kGroups != GroupKind::kNone) copy(3, scales, scales);
}

template <class P>
__device__ void produce_sliced(const SlicedParams& p, const Ring& ring, int worker) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t stream_policy = ptx::policy_evict_first();
  const uint64_t keep_policy = ptx::policy_evict_last();
  const uint32_t x_bytes = P::kUnits * static_cast<uint32_t>(p.ring.m) * 128;
  // Weights do not depend on the kernel before this one: the ring is filled before waiting for it.
  if (lane == 0) {
    SlicedWalk walk(p, worker);
    Segment seg;
    uint32_t slot = 0;
    while (slot < ring.count && walk.next(p, seg))
      for (int k = seg.k_begin; k < seg.k_end && slot < ring.count; ++k, ++slot)
        copy_sliced_weights<P>(p, ring, slot, seg, k, x_bytes, stream_policy);
  }
  ptx::wait_for_previous_grid();
  SlicedWalk walk(p, worker);
  Segment seg;
  RingCursor cursor;
  cursor.phase = 1;
  bool first = true;
  while (walk.next(p, seg)) {
#pragma unroll 1
    for (int k = seg.k_begin; k < seg.k_end; ++k) {
      if (!first) {
        ptx::mbarrier_wait(ring.empty_bar(cursor.slot), cursor.phase);
        if (lane == 0) copy_sliced_weights<P>(p, ring, cursor.slot, seg, k, x_bytes, stream_policy);
      }
      __syncwarp();
      for (int box = lane; box < P::kUnits; box += 32)
        ptx::tensor_copy_2d(ring.x(cursor.slot) + box * p.x_pitch, &p.ring.x,
                            (P::kUnits * k + box) * 64, 0, ring.full_bar(cursor.slot), keep_policy);
      cursor.advance(ring.count);
      if (cursor.slot == 0) first = false;
    }
  }
}

// ---- consumers ----

template <class P>
struct SlicedLane {
  uint32_t quads, pairs, singles, scales, tokens;  // addresses within slot 0
  typename P::Codec::ScaleAccess access;
};

template <class P>
__device__ __forceinline__ SlicedLane<P> sliced_lane(const SlicedParams& params, const Ring& ring) {
  const RingParams& p = params.ring;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t slice = warp / P::kRow16;
  const int t = 32 * (warp % P::kRow16) + lane;
  SlicedLane<P> a;
  a.access = P::Codec::scale_access(p, t);
  uint32_t at = ring.slots + P::kUnits * params.x_pitch;
  a.quads = ptx::opaque(at + slice * P::kQuadBytes + 16 * t);
  at += P::kUnits * P::kQuadBytes;
  a.pairs = ptx::opaque(at + slice * P::kPairBytes + 8 * t);
  at += P::kUnits * P::kPairBytes;
  a.singles = ptx::opaque(at + slice * P::kSingleBytes + 4 * t);
  at += P::kUnits * P::kSingleBytes;
  a.scales = ptx::opaque(at + slice * P::scale_bytes(p) + a.access.offset);
  // Fewer rows than the tile's leave less room between boxes. The lanes of missing rows read a row
  // of zeros (clear_missing_rows). The swizzle follows the address, and a step of the loop keeps
  // its phase.
  const uint32_t room = params.x_pitch / 128;
  const uint32_t row = min(P::Atom::lane_row(lane), room - 1);
  const uint32_t line = slice * room + row;
  a.tokens = ptx::opaque(ring.slots + line * 128 + ((P::Atom::lane_chunk(lane) ^ (line & 7)) << 4));
  return a;
}

// The warp's unit number `step` of a stage. `slot`: byte offset.
template <class P>
__device__ __forceinline__ void load_sliced(const RingParams& p, const SlicedLane<P>& a,
                                            uint32_t slot, int step, typename P::Codec::Loaded& q) {
  const uint32_t units = step * P::kSlices;
#pragma unroll
  for (int i = 0; i < P::kQuads; ++i) {
    const uint4 v =
        ptx::load_shared_128(a.quads + slot + units * P::kQuadBytes + i * P::kQuadSlice);
    q.words[4 * i] = v.x, q.words[4 * i + 1] = v.y, q.words[4 * i + 2] = v.z,
                q.words[4 * i + 3] = v.w;
  }
  if constexpr (P::kPairBytes != 0) {
    const uint2 v = ptx::load_shared_64(a.pairs + slot + units * P::kPairBytes);
    q.words[4 * P::kQuads] = v.x, q.words[4 * P::kQuads + 1] = v.y;
  }
  if constexpr (P::kSingleBytes != 0)
    q.words[P::Codec::kWords - 1] = ptx::load_shared_32(a.singles + slot + units * P::kSingleBytes);
  P::Codec::load_scales(a.scales + slot + units * P::scale_bytes(p), q);
}

template <class P>
__device__ __forceinline__ int32_t sliced_channel(const Segment& seg, int row16) {
  return seg.tile * P::kRows + row16 * 16 + ptx::thread_index() % 32 / 4;
}
template <class P>
__device__ __forceinline__ void load_channels(const RingParams& p, const Segment& seg, int row16,
                                              Channel (&channels)[2]) {
  const int32_t n = sliced_channel<P>(seg, row16);
  channels[0] = make_channel(p, n), channels[1] = make_channel(p, n + 8);
}

// Named barriers. The finisher takes part in the first two.
enum : int { kSumsReady = 1, kAreaFree = 2, kLastSumsReady = 3 };

// This lane's place in a warp's part of the area where slices' sums meet.
template <class P>
__device__ __forceinline__ float4* area_of(float4* area, int warp) {
  return area + warp * (P::kValues / 4 * 32) + threadIdx.x % 32;
}
template <class P>
__device__ __forceinline__ void put_sums(float4* area, int warp, const float (&d)[P::kValues]) {
  float4* to = area_of<P>(area, warp);
#pragma unroll
  for (int v = 0; v < P::kValues / 4; ++v)
    to[32 * v] = make_float4(d[4 * v], d[4 * v + 1], d[4 * v + 2], d[4 * v + 3]);
}
// Adds the sums of slices First and up, in their order.
template <class P, int First>
__device__ __forceinline__ void add_slices(float4* area, int row16, float (&d)[P::kValues]) {
#pragma unroll
  for (int s = First; s < P::kSlices; ++s) {
    const float4* from = area_of<P>(area, s * P::kRow16 + row16);
#pragma unroll
    for (int v = 0; v < P::kValues / 4; ++v) {
      const float4 x = from[32 * v];
      d[4 * v] += x.x, d[4 * v + 1] += x.y, d[4 * v + 2] += x.z, d[4 * v + 3] += x.w;
    }
  }
}

// A segment's end. All but a worker's last whole tile are left to the finisher, so that the next
// one starts at once. `again`: not the first segment.
template <class P>
__device__ void end_segment(const SlicedParams& p, const Segment& seg, bool last, bool again,
                            float4* area, float (&d)[P::kValues]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (again) ptx::named_barrier(kAreaFree, P::kConsumerThreads + 32);
  if (!last || !is_whole(p, seg)) {
    put_sums<P>(area, warp, d);
    ptx::named_barrier_arrive(kSumsReady, P::kConsumerThreads + 32);
    return;
  }
  if (warp >= P::kRow16) {
    put_sums<P>(area, warp, d);
    ptx::named_barrier_arrive(kLastSumsReady, P::kConsumerThreads);
    return;
  }
  Channel channels[2];
  load_channels<P>(p.ring, seg, warp, channels);
  ptx::named_barrier(kLastSumsReady, P::kConsumerThreads);
  add_slices<P, 1>(area, warp, d);
  write_tile<P::kTokens>(p.ring, channels, 0, d);
}

template <class P>
__device__ void consume_sliced(const SlicedParams& p, const Ring& ring, int worker, float4* area) {
  using Codec = typename P::Codec;
  using Atom = typename P::Atom;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const SlicedLane<P> at = sliced_lane<P>(p, ring);
  SlicedWalk walk(p, worker);
  Segment seg;
  RingCursor cursor;
  bool again = false;
  float d[P::kValues];
  typename Codec::Loaded q;
  while (walk.next(p, seg)) {
    if (warp < P::kRow16) prefetch_channel(p.ring, sliced_channel<P>(seg, warp));
#pragma unroll
    for (int i = 0; i < P::kValues; ++i) d[i] = 0.0f;
#pragma unroll 1
    for (int i = seg.k_begin; i < seg.k_end; ++i) {
      ptx::mbarrier_wait(ring.full_bar(cursor.slot), cursor.phase);
      const uint32_t slot = cursor.slot * ring.slot_bytes;
      load_sliced<P>(p.ring, at, slot, 0, q);
#pragma unroll
      for (int step = 0; step < P::kSteps; ++step) {
        uint32_t a[4][4];
        Codec::template dequantise<0, 4>(p.ring, at.access, q, a);
        // The next words come in while this unit is multiplied.
        if (step + 1 < P::kSteps) load_sliced<P>(p.ring, at, slot, step + 1, q);
#pragma unroll
        for (int k = 0; k < 4; k += Atom::kStepsPerLoad) {
          uint32_t b[Atom::kStepsPerLoad][P::kTokens / 8][2];
          Atom::load_tokens(at.tokens + slot, step * P::kSlices * p.x_pitch, k, b);
#pragma unroll
          for (int j = 0; j < Atom::kStepsPerLoad; ++j) Atom::mma(d, a[k + j], b[j]);
        }
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ring.empty_bar(cursor.slot));
      cursor.advance(ring.count);
    }
    end_segment<P>(p, seg, walk.at_end(p), again, area, d);
    again = true;
  }
}

// ---- finisher: one warp ----

// The finisher's latencies count where a call has few tiles: all rows of a tile are loaded at once.
template <class P>
struct FinisherTile {
  Channel channels[P::kRow16][2];
  float d[P::kRow16][P::kValues];
};
template <class P>
__device__ __forceinline__ void load_all_channels(const RingParams& p, const Segment& seg,
                                                  FinisherTile<P>& t) {
#pragma unroll
  for (int r = 0; r < P::kRow16; ++r) load_channels<P>(p, seg, r, t.channels[r]);
}
template <class P>
__device__ __forceinline__ void write_all(const RingParams& p, const FinisherTile<P>& t) {
#pragma unroll
  for (int r = 0; r < P::kRow16; ++r) write_tile<P::kTokens>(p, t.channels[r], 0, t.d[r]);
}

// Adds what the parts of a tile that is split along K have left in global memory, and writes it.
template <class P>
__device__ void finish_shared_tile(const SlicedParams& p, const Segment& owned, int worker,
                                   FinisherTile<P>& t) {
  const int last = worker_of(p.ring, (owned.tile + 1) * p.ring.k_stages - 1);
  load_all_channels<P>(p.ring, owned, t);
  if (threadIdx.x % 32 == 0) {
    uint32_t* counter = p.ring.counters + owned.tile;
    while (ptx::load_acquire(counter) != static_cast<uint32_t>(last - worker + 1)) {
    }
    *counter = 0;
  }
  __syncwarp();
#pragma unroll
  for (int r = 0; r < P::kRow16; ++r)
#pragma unroll
    for (int i = 0; i < P::kValues; ++i) t.d[r][i] = 0.0f;
#pragma unroll 1
  for (int w = worker; w <= last; ++w) {
    float4 x[P::kRow16][P::kValues / 4];
#pragma unroll
    for (int r = 0; r < P::kRow16; ++r)
#pragma unroll
      for (int v = 0; v < P::kValues / 4; ++v)
        x[r][v] = ptx::load_l2(
            stored_sums<P::kValues>(p.ring, 2 * w + (w == worker), r, P::kRow16) + 32 * v);
#pragma unroll
    for (int r = 0; r < P::kRow16; ++r)
#pragma unroll
      for (int v = 0; v < P::kValues / 4; ++v) {
        float* sum = t.d[r] + 4 * v;
        sum[0] += x[r][v].x, sum[1] += x[r][v].y, sum[2] += x[r][v].z, sum[3] += x[r][v].w;
      }
  }
  write_all<P>(p.ring, t);
}

// Takes the sums of segments from the area: writes whole tiles; stores and announces parts, and
// completes the tile of which this worker has the lowest k, which is the last part it works on.
template <class P>
__device__ void finish_segments(const SlicedParams& p, int worker, float4* area) {
  SlicedWalk walk(p, worker);
  Segment seg;
  FinisherTile<P> t;
  while (walk.next(p, seg)) {
    const bool whole = is_whole(p, seg);
    const bool last = walk.at_end(p);
    if (whole && last) break;  // the consumers' own
    if (whole) load_all_channels<P>(p.ring, seg, t);
    ptx::named_barrier(kSumsReady, P::kConsumerThreads + 32);
#pragma unroll
    for (int r = 0; r < P::kRow16; ++r) {
#pragma unroll
      for (int i = 0; i < P::kValues; ++i) t.d[r][i] = 0.0f;
      add_slices<P, 0>(area, r, t.d[r]);
    }
    __syncwarp();
    if (!last) ptx::named_barrier_arrive(kAreaFree, P::kConsumerThreads + 32);
    if (whole) {
      write_all<P>(p.ring, t);
      continue;
    }
#pragma unroll
    for (int r = 0; r < P::kRow16; ++r)
      store_sums(p.ring, 2 * worker + (seg.k_begin == 0), r, P::kRow16, t.d[r]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::add_release(p.ring.counters + seg.tile, 1);
    if (seg.k_begin == 0) finish_shared_tile<P>(p, seg, worker, t);
  }
}

// Rows that the copies never write: what multiplies zeros costs less power.
template <class P>
__device__ __forceinline__ void clear_missing_rows(const SlicedParams& p, const Ring& ring) {
  const int room = static_cast<int>(p.x_pitch / 128);
  const int missing = room - p.ring.m;
  if (missing <= 0) return;
  const int lines = static_cast<int>(ring.count) * P::kUnits * missing * 8;
  for (int i = static_cast<int>(threadIdx.x); i < lines; i += P::kThreads) {
    const int line = i / 8;
    const int box = line / missing;
    ptx::store_shared_128(ring.x(box / P::kUnits) + box % P::kUnits * p.x_pitch +
                              (p.ring.m + line % missing) * 128 + i % 8 * 16,
                          make_uint4(0, 0, 0, 0));
  }
}

template <class P>
__global__ void __launch_bounds__(P::kThreads, P::kResidents)
    sliced_kernel(const __grid_constant__ SlicedParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t unaligned = ptx::shared_address(shared);
  const uint32_t base = (unaligned + 1023) & ~1023u;
  constexpr uint32_t kArea = (P::kBesideBytes + 1023) & ~1023u;
  const uint32_t weights = P::kUnits * P::kRows / pack::kPieceRows * P::Codec::piece_bytes(p.ring);
  const Ring ring{base,
                  base + 8 * kMaxSlots,
                  base + 16 * kMaxSlots,
                  base + kBarrierBytes + kArea,
                  ring_slot_bytes(P::kUnits * p.x_pitch, weights),
                  p.ring.stages};
  const int worker = p.ring.workers - 1 - static_cast<int>(blockIdx.x);
  if (threadIdx.x == P::kConsumerThreads) {
    init_ring(ring, P::kWarps, 1);
    ptx::prefetch_tensor_map(&p.ring.x);
  }
  clear_missing_rows<P>(p, ring);
  __syncthreads();
  ptx::allow_next_grid();
  float4* const area = reinterpret_cast<float4*>(shared + (base - unaligned) + kBarrierBytes);
  if (threadIdx.x / 32 == P::kWarps) {
    produce_sliced<P>(p, ring, worker);
    return;
  }
  ptx::wait_for_previous_grid();
  if (threadIdx.x / 32 > P::kWarps)
    finish_segments<P>(p, worker, area);
  else
    consume_sliced<P>(p, ring, worker, area);
}

}  // namespace sub8::kernels::linear
