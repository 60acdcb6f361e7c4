// Packs Linear weights from storage form into the layout that a CPU kernel path reads.
//
// Example:
//   SUB8_ASSIGN_OR_RETURN(CpuPath path, selected_cpu_path());
//   const StoredMatrix* qkv[] = {&q, &k, &v};
//   SUB8_ASSIGN_OR_RETURN(PackedMatrix w, pack_linear(qkv, path, pool));
#pragma once

#include <cstdint>
#include <span>

#include "base/aligned_buffer.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "format/weight_format.h"
#include "pack/layout.h"
#include "tensor/stored_matrix.h"

namespace sub8 {

// Weights in kernel order (layout.h). Rows are padded to whole panels of 32 and columns to whole
// units with zero codes; the kernels read no other padding.
struct PackedMatrix {
  LayoutId layout{};
  CpuPath path = CpuPath::kScalar;
  format::WeightFormat format;  // of the parts; kChannel where parts with tensor scales were joined
  int64_t rows = 0;             // N
  int64_t cols = 0;             // K
  int64_t panels = 0;           // ceil(N / 32)
  int64_t padded_cols = 0;      // K rounded up to whole units
  int64_t panel_bytes = 0;
  int64_t groups = 0;  // block scales per row; 0 without
  // Path kAmx only: every element times its block scale is a normal bf16 number, so prompt rows may
  // run on AMX tiles. Otherwise all rows run on the AVX-512 kernel.
  bool bf16_exact = false;

  AlignedBuffer<uint8_t> data;          // [panels][panel_bytes]
  AlignedBuffer<uint8_t> block_scales;  // [panels][groups][32], E4M3 or E8M0 bytes
  AlignedBuffer<float> outer_scales;    // [panels * 32] per channel; empty where all are 1

  int64_t bytes() const;  // of the three buffers
};

// Joins `parts` along the rows (q|k|v, gate|up) and packs them, in parallel. The parts have equal
// cols and equal formats, but for the outer scale, which becomes one factor per channel. Errors:
// no parts or parts that do not fit each other, spans of the wrong size, NaN or Inf codes and
// scales (part, row and column are named), a format without a kernel, memory.
// The bytes do not depend on the number of threads. With an arena the buffers come from it.
Result<PackedMatrix> pack_linear(std::span<const StoredMatrix* const> parts, CpuPath path,
                                 ThreadPool& pool, Arena* arena = nullptr);

// The logical codes and scales again, in storage form (owning its buffers).
// unpack_linear(pack_linear(x)) has the bytes of x, but for padding bits at the ends of rows, which
// are zero.
Result<StoredMatrix> unpack_linear(const PackedMatrix& packed);

// What pack_linear would allocate for the packed form of an [rows, cols] matrix.
Result<int64_t> packed_bytes(const format::WeightFormat& format, int64_t rows, int64_t cols,
                             CpuPath path);

}  // namespace sub8
