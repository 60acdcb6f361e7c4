// Packed layout of a Linear weight for the CUDA kernels, and the packer.
//
// A packed weight is one block of bytes:
//   pieces      [ceil(N/256)][2*ceil(K/128)][4] pieces of 64 rows x 64 k, in the order in which the
//               kernels stream them, so that 256 rows x 64 or more k are contiguous
//   multipliers [256*ceil(N/256)] FP32 per row, at multiplier_offset
// A piece is a unit of codes, then the block scales of its rows.
// A unit holds bits() words for each of 128 threads: first 16-byte vectors (thread t at 16*t of
// each 2048 bytes), then 8-byte and 4-byte ones, so that loads are conflict-free. The words of a
// thread become its 16 A registers by format/placement.h; register 4*i + a, half h is (row, k) =
// a_coordinate(t, a, h) + (0, 16*i) of arch/cuda/sm90a/map.h; mma.sync has the same map. Block
// scales: thread rows g and g+8 of warp w form row pair 8*w + g. A scale is an 8-bit code, shifted
// to its place in the MMA's type (scale_shift) in the low half of a 32-bit word for row g and in
// the high half for row g+8. A word holds two scales per half: the first in place, the second such
// that a rotation of the word to the left by 8 bits brings it in place.
//   16-element groups: 2 words per row pair, word i: groups 2i and 2i+1 of the piece
//   32:                1 word per row pair: groups 0 and 1
//   64, 128:           1 word per two row pairs: the group of pair 2j, then that of pair 2j+1
// Scale codes:
//   E5M3 (E4M3 scales, and E8M0 for f16): (e + 22) << 3 | mantissa for 2^e * (1 + mantissa/8);
//   stands for 2^(e+7) in the MMA's type. Code 0 where the scale or all its codes are zero.
//   exponent (E8M0 for bf16): the bf16 exponent field itself.
// The power of two that placement and scale codes leave over is in the row's multiplier, together
// with channel or tensor scale, and for E8M0 the row's largest exponent.
// Padding rows, columns and scales are zero. The activation type is part of the layout: f16 and
// bf16 place bits differently.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "format/placement.h"
#include "format/weight_format.h"
#include "tensor/stored_matrix.h"

namespace sub8::pack {

// Changing what a packed byte means takes a new number.
enum class CudaLayoutId : uint32_t {
  kSm90aF16 = 0x90a03,
  kSm90aBF16 = 0x90a04,
  kSm90aE4M3 = 0x90a10,  // for 8-bit activations: byte_layout.h
};

// What activations are multiplied as.
enum class Operand : uint8_t { kF16, kBF16, kE4M3 };

// How the kernel applies block scales.
enum class GroupKind : uint8_t { kNone, k16, k32 };  // k32: 32, 64 or 128, a run-time value

inline constexpr int kTileRows = 256;
inline constexpr int kPieceRows = 64;
inline constexpr int kPieceCols = 64;
inline constexpr int kPiecesPerTile = kTileRows / kPieceRows;

struct CudaLinearLayout {
  CudaLayoutId id = CudaLayoutId::kSm90aBF16;
  format::WeightFormat format;
  int64_t rows = 0;  // N
  int64_t cols = 0;  // K

  bool bytes() const { return id == CudaLayoutId::kSm90aE4M3; }
  Operand operand() const {
    return bytes()                         ? Operand::kE4M3
           : id == CudaLayoutId::kSm90aF16 ? Operand::kF16
                                           : Operand::kBF16;
  }
  // Of 16-bit activations.
  format::Half activation() const {
    return id == CudaLayoutId::kSm90aF16 ? format::Half::kF16 : format::Half::kBF16;
  }
  GroupKind group_kind() const {
    return format.group == 0    ? GroupKind::kNone
           : format.group == 16 ? GroupKind::k16
                                : GroupKind::k32;
  }
  // k of a piece.
  int piece_cols() const { return bytes() ? 2 * kPieceCols : kPieceCols; }
  // Words per thread and unit.
  int words() const {
    return format.dense ? 16 : format.element.bits() * (piece_cols() / kPieceCols);
  }
  int64_t row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int64_t k_pieces() const { return (cols + 2 * piece_cols() - 1) / (2 * piece_cols()) * 2; }
  int64_t unit_bytes() const { return int64_t{words()} * 128 * 4; }
  int64_t scale_bytes() const {  // per piece
    if (format.group == 0) return 0;
    return bytes() ? 4 * kPieceRows : kPieceRows * std::max<int64_t>(1, kPieceCols / format.group);
  }
  int64_t piece_bytes() const { return unit_bytes() + scale_bytes(); }
  // Left shift of a scale code to its place in a half.
  int scale_shift() const {
    const bool e5m3 = format.block_scale == format::BlockScale::kE4M3;
    return activation() == format::Half::kBF16 && e5m3 ? 4 : 7;
  }
  int64_t multiplier_offset() const {
    return row_tiles() * k_pieces() * kPiecesPerTile * piece_bytes();
  }
  // Of 8-bit layouts with block scales: how those of each row tile are applied (ScaleMode).
  int64_t mode_offset() const { return multiplier_offset() + row_tiles() * kTileRows * 4; }
  int64_t total_bytes() const {
    return mode_offset() + (bytes() && format.group != 0 ? row_tiles() * 4 : 0);
  }
};

// Byte offset of word j of thread t inside a unit of `words` words per thread.
constexpr int64_t unit_word_offset(int words, int t, int j) {
  const int quads = words / 4;
  if (j < 4 * quads) return int64_t{j / 4} * 2048 + t * 16 + (j % 4) * 4;
  const int rest = j - 4 * quads;
  const int64_t base = int64_t{quads} * 2048;
  if ((words & 2) != 0 && rest < 2) return base + t * 8 + rest * 4;
  return base + ((words & 2) != 0 ? 1024 : 0) + t * 4;
}

// Refuses by name what the kernel does not do: formats without a placement, block scales other than
// 16, 32, 64 or 128 wide, formats that leave f16's range, f32 weights. rows and cols are positive.
Result<CudaLinearLayout> make_cuda_linear_layout(const format::WeightFormat& format, int64_t rows,
                                                 int64_t cols, format::Half activation);
Status check_matrix_size(int64_t rows, int64_t cols);

// For layouts of either kind: writes layout.total_bytes() bytes to `out`. Errors: corrupt_data for
// NaN or negative scales and NaN codes (row and group named); unsupported where a row's E8M0
// exponents spread too far to be exact, or a multiplier leaves FP32.
Status pack_cuda_linear(const StoredMatrix& weight, const CudaLinearLayout& layout,
                        std::span<uint8_t> out, ThreadPool& pool);

}  // namespace sub8::pack
