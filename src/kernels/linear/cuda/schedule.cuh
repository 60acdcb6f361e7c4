// Who works on what. The work is a line of row_tiles * token_tiles * k_stages stages, k innermost,
// cut into `workers` ranges whose lengths differ by one at most (the longer ones first). The split
// points depend on the shape, the tile and the number of workers alone. A tile cut by split points
// has several contributors, in order of k.
//
// Or, for tiles whose sums are large (TileWalk): whole tiles are dealt out evenly. Of each tile
// that is left, an owner works on the first owner_stages stages; workers without one of these
// tiles, the helpers, divide the line of the others' stages among them. Helpers do these parts
// first and owners theirs last, so that an owner finds the parts ready. A helper's part of a tile
// has the slot helper + tile in the exchange buffer: along the line either grows by one from part
// to part.
#pragma once

#include "kernels/linear/cuda/params.h"

namespace sub8::kernels::linear {

struct Segment {
  int32_t tile;
  int32_t row_tile;
  int32_t token_tile;
  int32_t k_begin;  // stages
  int32_t k_end;
};

struct WorkRange {
  int32_t begin;
  int32_t end;
};

__host__ __device__ inline int32_t range_begin(const RingParams& p, int32_t worker) {
  return worker * p.stages_per_worker + (worker < p.longer_workers ? worker : p.longer_workers);
}
__host__ __device__ inline WorkRange work_range(const RingParams& p, int32_t worker) {
  return {range_begin(p, worker), range_begin(p, worker + 1)};
}
// The part of the range that starts at `position` and stays in one tile.
__host__ __device__ inline Segment segment_at(const RingParams& p, int32_t position, int32_t end) {
  Segment s;
  s.tile = position / p.k_stages;
  s.row_tile = s.tile / p.token_tiles;
  s.token_tile = s.tile - s.row_tile * p.token_tiles;
  s.k_begin = position - s.tile * p.k_stages;
  const int32_t left = end - position + s.k_begin;
  s.k_end = left < p.k_stages ? left : p.k_stages;
  return s;
}
// The worker whose range holds stage `position`. No range is empty.
__host__ __device__ inline int32_t worker_of(const RingParams& p, int32_t position) {
  const int32_t longer = p.longer_workers * (p.stages_per_worker + 1);
  return position < longer ? position / (p.stages_per_worker + 1)
                           : p.longer_workers + (position - longer) / p.stages_per_worker;
}

// The segments of a worker of the line, in order.
struct LineWalk {
  int32_t position;
  int32_t end;
  __device__ LineWalk(const RingParams& p, int worker)
      : position(range_begin(p, worker)), end(range_begin(p, worker + 1)) {}
  __device__ bool next(const RingParams& p, Segment& s) {
    if (position >= end) return false;
    s = segment_at(p, position, end);
    position += s.k_end - s.k_begin;
    return true;
  }
};

struct TileWalk {
  int32_t position = 0;  // in the helpers' line
  int32_t end = 0;
  int32_t whole;  // next whole tile
  int32_t own;    // tile that this worker owns, or -1
  __device__ TileWalk(const RingParams& p, int worker)
      : whole(p.rest_tiles + worker), own(worker < p.rest_tiles ? worker : -1) {
    if (own >= 0) return;
    position = range_begin(p, worker - p.rest_tiles);
    end = range_begin(p, worker - p.rest_tiles + 1);
  }
  __device__ bool next(const RingParams& p, Segment& s) {
    s.k_begin = 0, s.k_end = p.k_stages;
    if (position < end) {
      const int32_t shared = p.k_stages - p.owner_stages;
      s.tile = position / shared;
      s.k_begin = p.owner_stages + position - s.tile * shared;
      const int32_t left = end - position + s.k_begin;
      if (left < s.k_end) s.k_end = left;
      position += s.k_end - s.k_begin;
    } else if (whole < p.row_tiles * p.token_tiles) {
      s.tile = whole, whole += p.workers;
    } else if (own >= 0) {
      s.tile = own, s.k_end = p.owner_stages, own = -1;
    } else {
      return false;
    }
    s.row_tile = s.tile / p.token_tiles;
    s.token_tile = s.tile - s.row_tile * p.token_tiles;
    return true;
  }
};
// Segment number `index` of a worker: the walk's state would keep registers during the main loop.
__device__ __forceinline__ bool tile_segment(const RingParams& p, int worker, int index,
                                             Segment& s) {
  TileWalk walk(p, worker);
  for (int i = 0; i < index; ++i)
    if (!walk.next(p, s)) return false;
  return walk.next(p, s);
}

}  // namespace sub8::kernels::linear
