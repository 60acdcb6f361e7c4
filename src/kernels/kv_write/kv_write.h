// Appends the K and V rows of a step to the pages of one layer.
#pragma once

#include <cstdint>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "kernels/kv_write/kv_pages.h"
#include "kernels/rows.h"

namespace sub8::kernels {

// k and v: f32 [rows, kv_heads * head_dim]; slots[r] = page * 32 + offset, distinct. f32 pages keep
// the values as they are; bf16 pages round to nearest even; fp8 and nvfp4 pages take codes
// (format/kv.h) of the values, rounded to bf16 first where `pages.round` says so. Values beyond
// what alpha allows saturate; NaN stays NaN, in nvfp4 for its whole block.
//
// Bytes do not depend on path, threads or neighbours.
void kv_write(CpuPath path, ThreadPool& pool, InputRows k, InputRows v, int64_t rows,
              const int64_t* slots, const KvPages& pages);

}  // namespace sub8::kernels
