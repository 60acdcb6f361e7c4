#include "pack/cuda/byte_layout.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "arch/cuda/sm90a/map.h"
#include "format/byte_placement.h"
#include "pack/cuda/weight_source.h"

namespace sub8::pack {
namespace {

namespace sm90a = arch::sm90a;
using format::BlockScale;
using format::ElementFormat;

constexpr int kCols = 2 * kPieceCols;
constexpr int kStep = sm90a::kByteDepth;  // k per scale byte
constexpr int kSteps = kCols / kStep;
constexpr int kE5M3Power = 9;  // kScaled factors of E4M3 scales are 2^9 too small

bool has_table(const format::WeightFormat& f) { return f.element == format::kE2M1 && f.group != 0; }

// What one row needs beside its codes.
struct RowScales {
  ExponentRange range;
  float multiplier = 0;
};

class Packer {
 public:
  Packer(const StoredMatrix& weight, const CudaLinearLayout& layout, std::span<uint8_t> out)
      : layout_(layout), source_(weight), out_(out) {
    const ElementFormat e = layout.format.element;
    plan_ = format::find_byte_placement(e);
    // The table's lowest row stands for value * 2^-kTableBias.
    power_ =
        has_table(layout.format) ? format::kTableBias : format::byte_target(e).bias() - e.bias();
  }

  Status pack_tile(int64_t tile) const;

 private:
  Status scan_rows(int64_t tile, RowScales* rows, ScaleMode* mode) const;
  Result<float> multiplier(int64_t row, const ExponentRange& range, ScaleMode mode) const;
  uint8_t scale_byte(int64_t row, int64_t group, const ExponentRange& range, ScaleMode mode) const;
  void gather(int64_t row0, int64_t k0, uint8_t (*codes)[kCols]) const;
  void pack_unit(const uint8_t (*codes)[kCols], uint8_t* out) const;
  void pack_scales(int64_t row0, int64_t piece, const RowScales* rows, ScaleMode mode,
                   uint8_t* out) const;

  const CudaLinearLayout& layout_;
  WeightSource source_;
  std::span<uint8_t> out_;
  format::BytePlacement plan_;
  int power_;  // of two that the conversion leaves over
};

// Validates the rows of a tile and decides how their scales are applied.
Status Packer::scan_rows(int64_t tile, RowScales* rows, ScaleMode* mode) const {
  const BlockScale scale = layout_.format.block_scale;
  const int64_t count = std::min<int64_t>(kTileRows, layout_.rows - tile * kTileRows);
  *mode = has_table(layout_.format) && scale == BlockScale::kE8M0 ? ScaleMode::kFolded
                                                                  : ScaleMode::kScaled;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t row = tile * kTileRows + r;
    SUB8_RETURN_IF_ERROR(source_.check_codes(row));
    if (scale == BlockScale::kE4M3) SUB8_RETURN_IF_ERROR(source_.check_e4m3_scales(row));
    if (scale != BlockScale::kE8M0) continue;
    SUB8_ASSIGN_OR_RETURN(rows[r].range, source_.exponent_range(row));
    const ExponentRange& range = rows[r].range;
    if (range.spread() > kMaxScaledSpread)
      return unsupported("row " + std::to_string(row) + " has E8M0 scales from 2^" +
                         std::to_string(range.lowest - 127) + " to 2^" +
                         std::to_string(range.highest - 127) + "; at most 2^" +
                         std::to_string(kMaxScaledSpread) + " apart can be multiplied exactly");
    if (range.spread() > format::kTableSpread) *mode = ScaleMode::kScaled;
  }
  for (int64_t r = 0; r < count; ++r) {
    SUB8_ASSIGN_OR_RETURN(rows[r].multiplier,
                          multiplier(tile * kTileRows + r, rows[r].range, *mode));
  }
  return {};
}

Result<float> Packer::multiplier(int64_t row, const ExponentRange& range, ScaleMode mode) const {
  int power = power_;
  if (layout_.format.block_scale == BlockScale::kE4M3) power += kE5M3Power;
  if (layout_.format.block_scale == BlockScale::kE8M0) {
    power = range.reference() - 127;  // kScaled: the factors hold the rest
    if (mode == ScaleMode::kFolded) power += power_ - format::kTableSpread;
  }
  return source_.multiplier(row, power);
}

uint8_t Packer::scale_byte(int64_t row, int64_t group, const ExponentRange& range,
                           ScaleMode mode) const {
  const uint8_t byte = source_.scale(row, group);
  if (layout_.format.block_scale == BlockScale::kE4M3) return e5m3_code(byte);
  if (source_.group_is_zero(row, group)) return 0;
  const int distance = static_cast<int>(byte) - range.reference();  // <= 0
  return static_cast<uint8_t>(distance +
                              (mode == ScaleMode::kFolded ? format::kTableSpread : 127 + power_));
}

// Codes of a piece, zero outside the matrix and in groups with a zero scale.
void Packer::gather(int64_t row0, int64_t k0, uint8_t (*codes)[kCols]) const {
  const format::WeightFormat& f = layout_.format;
  for (int r = 0; r < kPieceRows; ++r) {
    const int64_t row = row0 + r;
    const int64_t count = row < layout_.rows ? std::clamp<int64_t>(layout_.cols - k0, 0, kCols) : 0;
    for (int64_t k = 0; k < count; ++k) {
      const bool zero =
          f.block_scale == BlockScale::kE4M3 && source_.scale(row, (k0 + k) / f.group) == 0;
      codes[r][k] = zero ? uint8_t{0} : static_cast<uint8_t>(source_.code(row, k0 + k));
    }
    for (int64_t k = count; k < kCols; ++k) codes[r][k] = 0;
  }
}

void Packer::pack_unit(const uint8_t (*codes)[kCols], uint8_t* out) const {
  const int words = layout_.words();
  const bool table = has_table(layout_.format);
  for (int t = 0; t < sm90a::kWarpgroupThreads; ++t) {
    uint32_t w[16] = {};
    for (int r = 0; r < 16; ++r) {
      for (int b = 0; b < 4; ++b) {
        const sm90a::Coordinate c = sm90a::a_byte_coordinate(t, r % 4, b);
        const uint32_t code = codes[c.row][kStep * (r / 4) + c.col];
        if (table) {
          w[r / 4 * 2 + r % 2] |= format::table_word_bits(r % 4 / 2, b, code);
        } else {
          format::unplace_byte(plan_, r % plan_.registers, b,
                               format::placed_byte(layout_.format.element, code),
                               w + r / plan_.registers * plan_.words);
        }
      }
    }
    for (int j = 0; j < words; ++j) std::memcpy(out + unit_word_offset(words, t, j), &w[j], 4);
  }
}

void Packer::pack_scales(int64_t row0, int64_t piece, const RowScales* rows, ScaleMode mode,
                         uint8_t* out) const {
  std::memset(out, 0, static_cast<size_t>(layout_.scale_bytes()));
  for (int r = 0; r < kPieceRows && row0 + r < layout_.rows; ++r) {
    const int pair = 8 * (r / 16) + r % 8;
    for (int i = 0; i < kSteps; ++i) {
      const int64_t group = (piece * kCols + kStep * i) / layout_.format.group;
      if (group >= source_.groups()) continue;
      out[8 * pair + 4 * (r / 8 % 2) + i] = scale_byte(row0 + r, group, rows[r].range, mode);
    }
  }
}

Status Packer::pack_tile(int64_t tile) const {
  std::vector<RowScales> rows(kTileRows);
  ScaleMode mode;
  SUB8_RETURN_IF_ERROR(scan_rows(tile, rows.data(), &mode));
  float multipliers[kTileRows];
  for (int r = 0; r < kTileRows; ++r) multipliers[r] = rows[static_cast<size_t>(r)].multiplier;
  std::memcpy(out_.data() + layout_.multiplier_offset() + tile * kTileRows * 4, multipliers,
              sizeof(multipliers));
  if (layout_.format.group != 0)
    std::memcpy(out_.data() + layout_.mode_offset() + tile * 4, &mode, sizeof(mode));
  uint8_t codes[kPieceRows][kCols];
  uint8_t* out = out_.data() + tile * layout_.k_pieces() * kPiecesPerTile * layout_.piece_bytes();
  for (int64_t piece = 0; piece < layout_.k_pieces(); ++piece) {
    for (int block = 0; block < kPiecesPerTile; ++block, out += layout_.piece_bytes()) {
      const int64_t row0 = tile * kTileRows + block * kPieceRows;
      gather(row0, piece * kCols, codes);
      pack_unit(codes, out);
      if (layout_.format.group != 0)
        pack_scales(row0, piece, rows.data() + block * kPieceRows, mode,
                    out + layout_.unit_bytes());
    }
  }
  return {};
}

}  // namespace

Result<CudaLinearLayout> make_cuda_byte_layout(const format::WeightFormat& format, int64_t rows,
                                               int64_t cols) {
  SUB8_RETURN_IF_ERROR(check_matrix_size(rows, cols));
  const std::string what = format.name() + " weights with e4m3 activations on sm_90a: ";
  if (format.dense) return unsupported(what + "dense weights have 16-bit kernels only");
  if (format.group == 16)
    return unsupported(what +
                       "scales of 16 elements neither fit 8-bit operands nor the 32 k that " +
                       "one instruction sums; use bf16 activations");
  if (format.group != 0 && format.group != 32 && format.group != 64 && format.group != 128)
    return unsupported(what + "block scales of 32, 64 or 128 elements are supported, not " +
                       std::to_string(format.group));
  if (format::find_byte_placement(format.element).words == 0)
    return unsupported(what + "elements with a kernel: e2m1, e2m2, e3m1, e3m2, e2m3");
  const ElementFormat e = format.element;
  if (format.group != 0 && e != format::kE2M1 && e != format::kE3M2 && e != format::kE2M3)
    return unsupported(what + "elements with block scales and a kernel: e2m1, e3m2, e2m3");
  return CudaLinearLayout{CudaLayoutId::kSm90aE4M3, format, rows, cols};
}

Status pack_cuda_bytes(const StoredMatrix& weight, const CudaLinearLayout& layout,
                       std::span<uint8_t> out, ThreadPool& pool) {
  const Packer packer(weight, layout, out);
  std::mutex mutex;
  std::optional<Error> error;
  std::atomic<bool> failed{false};
  pool.for_ranges(layout.row_tiles(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end && !failed; ++tile) {
      const Status s = packer.pack_tile(tile);
      if (s.ok()) continue;
      const std::lock_guard lock(mutex);
      if (!error) error = s.error();
      failed = true;
    }
  });
  if (error) return *error;
  return {};
}

ScaleDecode scale_decode(const format::WeightFormat& format) {
  // E5M3 in FP32: exponent field 96 + (code >> 3), so that 2^e stands for 2^(e - 9).
  if (format.block_scale == BlockScale::kE4M3) return {20, 0x30000000u};
  return {23, 0};
}

}  // namespace sub8::pack
