#include "pack/cuda/linear_layout.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "arch/cuda/sm90a/map.h"
#include "base/check.h"
#include "pack/cuda/byte_layout.h"
#include "pack/cuda/weight_source.h"

namespace sub8::pack {
namespace {

namespace sm90a = arch::sm90a;
using format::BlockScale;
using format::Half;

// Largest exponent distance to the row's maximum at which code times scale is still exact.
int max_e8m0_spread(const CudaLinearLayout& layout) {
  // f16: the element's last bit, 2^(1 - bias - Y), times 2^bias, must be at least 2^-24.
  return layout.activation() == Half::kF16 ? 25 - layout.format.element.mantissa_bits : 120;
}

// What one row needs beside its codes.
struct RowScales {
  float multiplier = 0;
  int reference = 0;  // E8M0: the largest exponent among groups with a code that is not zero
};

class Packer {
 public:
  Packer(const StoredMatrix& weight, const CudaLinearLayout& layout)
      : weight_(weight), layout_(layout), source_(weight) {
    if (!layout.format.dense) build_spread_table();
  }

  // Validates a row and prepares its scales.
  Result<RowScales> scan_row(int64_t row) const;
  void pack_piece(int64_t tile, int64_t piece, int block, const RowScales* rows,
                  uint8_t* out) const;

 private:
  void build_spread_table();
  uint8_t scale_code(int64_t row, int64_t group, const RowScales& scales) const;
  void gather(int64_t row0, int64_t k0, uint16_t (*values)[kPieceCols]) const;
  void pack_unit(const uint16_t (*values)[kPieceCols], uint8_t* out) const;
  void pack_scales(int64_t row0, int64_t piece, const RowScales* rows, uint8_t* out) const;

  const StoredMatrix& weight_;
  const CudaLinearLayout& layout_;
  WeightSource source_;
  format::Placement plan_;
  std::vector<uint32_t> spread_;  // [register][code][word]: the bits a code contributes
};

void Packer::build_spread_table() {
  const format::ElementFormat element = layout_.format.element;
  plan_ = format::find_placement(element, layout_.activation());
  const uint32_t codes = element.code_count();
  spread_.assign(size_t{codes} * plan_.registers * plan_.words, 0);
  for (int r = 0; r < plan_.registers; ++r) {
    for (uint32_t c = 0; c < codes; ++c) {
      const uint32_t placed = format::placed_bits(element, layout_.activation(), c);
      format::unplace(plan_, r, 0, placed, &spread_[(size_t{codes} * r + c) * plan_.words]);
    }
  }
}

Result<RowScales> Packer::scan_row(int64_t row) const {
  const format::WeightFormat& f = layout_.format;
  RowScales out;
  int power = 0;  // the multiplier's power of two
  if (f.dense) {
    out.multiplier = 1;
    return out;
  }
  SUB8_RETURN_IF_ERROR(source_.check_codes(row));
  if (f.block_scale == BlockScale::kNone) {
    power = layout_.activation() == Half::kF16 ? 15 - f.element.bias() : 0;
  } else if (f.block_scale == BlockScale::kE4M3) {
    power = 8 - f.element.bias();
    SUB8_RETURN_IF_ERROR(source_.check_e4m3_scales(row));
  } else {
    SUB8_ASSIGN_OR_RETURN(const ExponentRange range, source_.exponent_range(row));
    if (range.spread() > max_e8m0_spread(layout_))
      return unsupported(
          "row " + std::to_string(row) + " has E8M0 scales from 2^" +
          std::to_string(range.lowest - 127) + " to 2^" + std::to_string(range.highest - 127) +
          "; at most 2^" + std::to_string(max_e8m0_spread(layout_)) +
          " apart can be multiplied exactly" +
          (layout_.activation() == Half::kF16 ? " with f16 activations; use bf16" : ""));
    out.reference = range.reference();
    power = out.reference - 127 - (layout_.activation() == Half::kF16 ? f.element.bias() : 0);
  }
  SUB8_ASSIGN_OR_RETURN(out.multiplier, source_.multiplier(row, power));
  return out;
}

uint8_t Packer::scale_code(int64_t row, int64_t group, const RowScales& scales) const {
  const uint8_t byte = source_.scale(row, group);
  if (layout_.format.block_scale == BlockScale::kE4M3) return e5m3_code(byte);
  if (source_.group_is_zero(row, group)) return 0;
  const int distance = static_cast<int>(byte) - scales.reference;  // <= 0
  if (layout_.activation() == Half::kF16) return static_cast<uint8_t>((30 + distance) << 3);
  return static_cast<uint8_t>(254 - layout_.format.element.bias() + distance);
}

// Codes (or 16-bit values) of a piece, zero outside the matrix and in groups with a zero scale.
void Packer::gather(int64_t row0, int64_t k0, uint16_t (*values)[kPieceCols]) const {
  const format::WeightFormat& f = layout_.format;
  for (int r = 0; r < kPieceRows; ++r) {
    const int64_t row = row0 + r;
    // The last pieces may lie wholly outside.
    const int64_t inside = std::clamp<int64_t>(layout_.cols - k0, 0, kPieceCols);
    const int64_t count = row < layout_.rows ? inside : 0;
    if (f.dense) {
      std::memcpy(values[r],
                  weight_.codes.data() + row * source_.row_bytes() * (count > 0) + k0 * 2,
                  static_cast<size_t>(count) * 2);
    } else {
      for (int64_t k = 0; k < count; ++k) {
        values[r][k] = static_cast<uint16_t>(source_.code(row, k0 + k));
      }
    }
    for (int64_t k = count; k < kPieceCols; ++k) values[r][k] = 0;
    if (f.block_scale != BlockScale::kE4M3) continue;
    for (int64_t k = 0; k < count; ++k) {
      if (source_.scale(row, (k0 + k) / f.group) == 0) values[r][k] = 0;
    }
  }
}

void Packer::pack_unit(const uint16_t (*values)[kPieceCols], uint8_t* out) const {
  const int words = layout_.words();
  const size_t codes = layout_.format.dense ? 0 : layout_.format.element.code_count();
  for (int t = 0; t < sm90a::kWarpgroupThreads; ++t) {
    uint32_t w[16] = {};
    for (int r = 0; r < 16; ++r) {
      for (int h = 0; h < 2; ++h) {
        const sm90a::Coordinate c = sm90a::a_coordinate(t, r % 4, h);
        const uint32_t value = values[c.row][16 * (r / 4) + c.col];
        if (layout_.format.dense) {
          w[r] |= value << (16 * h);
          continue;
        }
        const uint32_t* bits = &spread_[(codes * (r % plan_.registers) + value) * plan_.words];
        uint32_t* target = w + r / plan_.registers * plan_.words;
        for (int j = 0; j < plan_.words; ++j) target[j] |= format::rotate_left(bits[j], 16 * h);
      }
    }
    for (int j = 0; j < words; ++j) std::memcpy(out + unit_word_offset(words, t, j), &w[j], 4);
  }
}

void Packer::pack_scales(int64_t row0, int64_t piece, const RowScales* rows, uint8_t* out) const {
  const int group = layout_.format.group;
  const int per_row = std::max(1, kPieceCols / group);  // scales of a row in this piece
  uint32_t words[kPieceRows] = {};
  for (int r = 0; r < kPieceRows && row0 + r < layout_.rows; ++r) {
    const int pair = 8 * (r / 16) + r % 8;
    const int upper = r / 8 % 2;
    for (int i = 0; i < per_row; ++i) {
      const int64_t index = piece * kPieceCols / group + i;
      if (index >= source_.groups()) continue;
      const uint32_t code = scale_code(row0 + r, index, rows[r]);
      const uint32_t bits = code << (layout_.scale_shift() + 16 * upper);
      const int word = per_row == 1 ? pair / 2 : pair * per_row / 2 + i / 2;
      const int second = per_row == 1 ? pair % 2 : i % 2;
      words[word] |= format::rotate_left(bits, -8 * second);
    }
  }
  std::memcpy(out, words, static_cast<size_t>(layout_.scale_bytes()));
}

void Packer::pack_piece(int64_t tile, int64_t piece, int block, const RowScales* rows,
                        uint8_t* out) const {
  uint16_t values[kPieceRows][kPieceCols];
  const int64_t row0 = tile * kTileRows + block * kPieceRows;
  gather(row0, piece * kPieceCols, values);
  pack_unit(values, out);
  if (layout_.format.group != 0) pack_scales(row0, piece, rows, out + layout_.unit_bytes());
}

Status check_source(const StoredMatrix& weight, const CudaLinearLayout& layout) {
  const auto expect = [](const char* what, size_t got, int64_t want) -> Status {
    if (got == static_cast<size_t>(want)) return {};
    return invalid_argument(std::string(what) + ": " + std::to_string(want) + " expected, " +
                            std::to_string(got) + " given");
  };
  if (!(weight.format == layout.format) || weight.rows != layout.rows ||
      weight.cols != layout.cols) {
    return invalid_argument("the weight is " + weight.format.name() + " [" +
                            std::to_string(weight.rows) + ", " + std::to_string(weight.cols) +
                            "], its layout was made for " + layout.format.name() + " [" +
                            std::to_string(layout.rows) + ", " + std::to_string(layout.cols) + "]");
  }
  const format::WeightFormat& f = weight.format;
  SUB8_RETURN_IF_ERROR(
      expect("bytes of codes", weight.codes.size(), weight.rows * f.row_bytes(weight.cols)));
  SUB8_RETURN_IF_ERROR(expect("bytes of block scales", weight.block_scales.size(),
                              weight.rows * f.groups(weight.cols)));
  const int64_t outer = f.dense || f.outer_scale == format::OuterScale::kNone ? 0
                        : f.outer_scale == format::OuterScale::kTensor        ? 1
                                                                              : weight.rows;
  return expect("outer scales", weight.outer_scales.size(), outer);
}

}  // namespace

Status check_matrix_size(int64_t rows, int64_t cols) {
  if (rows > 0 && cols > 0 && rows <= (int64_t{1} << 24) && cols <= (int64_t{1} << 24)) return {};
  return invalid_argument("a weight of " + std::to_string(rows) + " x " + std::to_string(cols) +
                          " is out of range (1 to 2^24 each)");
}

Result<CudaLinearLayout> make_cuda_linear_layout(const format::WeightFormat& format, int64_t rows,
                                                 int64_t cols, format::Half activation) {
  SUB8_RETURN_IF_ERROR(check_matrix_size(rows, cols));
  const std::string name = format.name();
  const std::string act = activation == Half::kF16 ? "f16" : "bf16";
  if (format.dense) {
    const format::DType want =
        activation == Half::kF16 ? format::DType::kF16 : format::DType::kBF16;
    if (format.dtype != want)
      return unsupported(name + " weights with " + act + " activations on sm_90a: dense weights " +
                         "must have the activations' type");
  } else {
    if (activation == Half::kF16 && !format.element.fits_f16())
      return unsupported(name + " does not fit f16; use bf16 activations");
    if (format::find_placement(format.element, activation).words == 0)
      return unsupported(name +
                         " has no sm_90a kernel; elements with one: e2m0, e1m1, e2m1, e2m2, "
                         "e3m1, e3m2, e2m3, e3m3, e4m3");
    const int g = format.group;
    if (g != 0 && g != 16 && g != 32 && g != 64 && g != 128)
      return unsupported(name + ": block scales of 16, 32, 64 or 128 elements are supported, not " +
                         std::to_string(g));
    if (g != 0 && activation == Half::kF16 && format.element.exponent_bits > 3)
      return unsupported(name + " with f16 activations: code times scale leaves f16; use bf16");
    if (g == 16 && format.block_scale != BlockScale::kE4M3)
      return unsupported(name + ": 16-element groups need E4M3 scales");
  }
  return CudaLinearLayout{
      activation == Half::kF16 ? CudaLayoutId::kSm90aF16 : CudaLayoutId::kSm90aBF16, format, rows,
      cols};
}

Status pack_cuda_linear(const StoredMatrix& weight, const CudaLinearLayout& layout,
                        std::span<uint8_t> out, ThreadPool& pool) {
  SUB8_RETURN_IF_ERROR(check_source(weight, layout));
  SUB8_CHECK_EQ(out.size(), static_cast<size_t>(layout.total_bytes()));
  if (layout.bytes()) return pack_cuda_bytes(weight, layout, out, pool);
  const Packer packer(weight, layout);
  std::mutex mutex;
  std::optional<Error> error;
  std::atomic<bool> failed{false};
  const int64_t k_pieces = layout.k_pieces();
  const int64_t piece = layout.piece_bytes();
  pool.for_ranges(layout.row_tiles() * kPiecesPerTile, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end && !failed; ++i) {  // i: block of 64 rows
      RowScales rows[kPieceRows];
      float multipliers[kPieceRows] = {};
      for (int r = 0; r < kPieceRows; ++r) {
        const int64_t row = i * kPieceRows + r;
        if (row >= layout.rows) break;
        Result<RowScales> scales = packer.scan_row(row);
        if (!scales.ok()) {
          const std::lock_guard lock(mutex);
          if (!error) error = scales.error();
          failed = true;
          return;
        }
        rows[r] = *scales;
        multipliers[r] = rows[r].multiplier;
      }
      std::memcpy(out.data() + layout.multiplier_offset() + i * kPieceRows * 4, multipliers,
                  sizeof(multipliers));
      const int64_t tile = i / kPiecesPerTile;
      const int block = static_cast<int>(i % kPiecesPerTile);
      for (int64_t k = 0; k < k_pieces; ++k) {
        packer.pack_piece(tile, k, block, rows,
                          out.data() + ((tile * k_pieces + k) * kPiecesPerTile + block) * piece);
      }
    }
  });
  if (error) return *error;
  return {};
}

}  // namespace sub8::pack
