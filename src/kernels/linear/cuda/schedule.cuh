// Who works on what. The work is a line of row_tiles * token_tiles * k_stages stages, k innermost,
// cut into `workers` ranges whose lengths differ by one at most (the longer ones first). The split
// points depend on the shape, the tile and the number of workers alone. A tile cut by split points
// has several contributors, in order of k.
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

}  // namespace sub8::kernels::linear
