// Packed layout of a Linear weight for CUDA kernels with e4m3 activations (wgmma k32), and its
// packer. Pieces, their order and multipliers are those of linear_layout.h, with these differences:
//
// - A piece is 64 rows x 128 k, and K is padded to 256. A unit holds 2 * bits() words for each of
// 128
//   threads, in the same order (unit_word_offset). They become 16 registers of four bytes: register
//   4*i + r, byte b is (row, k) = a_byte_coordinate(t, r, b) + (0, 32*i) of arch/cuda/sm90a/map.h.
//   Without block scales and for e3m2 and e2m3: format/byte_placement.h, in order of registers.
//   e2m1 with block scales: table words; word 2*i + h holds registers 4*i + h and 4*i + h + 2,
//   which belong to the thread's row g (h = 0) or g + 8 (h = 1).
// - Block scales: four bytes per row and piece, one for each 32 k (groups of 64 and 128 repeat
// them).
//   Row pair 8*w + g (rows 16*w + g and 16*w + g + 8) has 8 bytes at 8 * (8*w + g), row g first.
//   What a byte means, the row tile's ScaleMode says (32-bit words at mode_offset):
//     kFolded  d of byte_table, counted from the row's largest exponent, which has kTableSpread:
//     the
//              multiplication is part of the conversion
//     kScaled  a factor of the sum over 32 k. E8M0: its FP32 exponent field, relative to the row's
//              largest exponent and with the power of two of the conversion; E4M3: E5M3 code
//              (linear_layout.h) of the factor times 2^-9
//   e2m1 with E8M0 scales is kFolded in row tiles where no row's exponents spread over more than
//   kTableSpread; everything else is kScaled. So no weight is ever rounded.
#pragma once

#include <span>

#include "pack/cuda/linear_layout.h"

namespace sub8::pack {

enum class ScaleMode : uint32_t { kFolded = 0, kScaled = 1 };

// The largest distance of a row's E8M0 exponents in kScaled.
inline constexpr int kMaxScaledSpread = 120;

// Refuses by name what does not fit 8-bit operands.
Result<CudaLinearLayout> make_cuda_byte_layout(const format::WeightFormat& format, int64_t rows,
                                               int64_t cols);

// What pack_cuda_linear does for a byte layout; the sizes have been checked.
Status pack_cuda_bytes(const StoredMatrix& weight, const CudaLinearLayout& layout,
                       std::span<uint8_t> out, ThreadPool& pool);

// How a kScaled byte becomes a factor: its FP32 bits are (byte << shift) + base.
struct ScaleDecode {
  int shift;
  uint32_t base;
};
ScaleDecode scale_decode(const format::WeightFormat& format);

}  // namespace sub8::pack
