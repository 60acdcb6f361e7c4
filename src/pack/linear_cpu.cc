#include "pack/linear_cpu.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/checked_math.h"
#include "pack/placement_table.h"

namespace sub8 {
namespace {

using format::BlockScale;
using format::OuterScale;

std::string shape_text(const StoredMatrix& m) {
  return m.format.name() + " [" + std::to_string(m.rows) + ", " + std::to_string(m.cols) + "]";
}

bool same_codes(const format::WeightFormat& a, const format::WeightFormat& b) {
  format::WeightFormat c = b;
  c.outer_scale = a.outer_scale;
  return a == c;
}

Status check_part(const StoredMatrix& first, const StoredMatrix& part, size_t index) {
  const std::string where = "part " + std::to_string(index) + ", " + shape_text(part) + ": ";
  if (part.cols != first.cols || !same_codes(part.format, first.format)) {
    return invalid_argument(where + "joined matrices need equal columns and formats, part 0 is " +
                            shape_text(first));
  }
  if (part.rows < 0 || part.cols < 0) return invalid_argument(where + "negative shape");
  const auto expect = [&](const char* what, size_t got, int64_t per_row) -> Status {
    int64_t want = 0;
    if (__builtin_mul_overflow(part.rows, per_row, &want) || got != static_cast<size_t>(want)) {
      return invalid_argument(where + what + " has " + std::to_string(got) +
                              " bytes, the shape needs rows * " + std::to_string(per_row));
    }
    return {};
  };
  SUB8_RETURN_IF_ERROR(expect("codes", part.codes.size(), part.format.row_bytes(part.cols)));
  SUB8_RETURN_IF_ERROR(
      expect("block_scales", part.block_scales.size(), part.format.groups(part.cols)));
  const size_t outer = part.format.outer_scale == OuterScale::kChannel
                           ? static_cast<size_t>(part.rows)
                       : part.format.outer_scale == OuterScale::kTensor ? 1
                                                                        : 0;
  if (part.outer_scales.size() != outer) {
    return invalid_argument(where + "outer_scales has " + std::to_string(part.outer_scales.size()) +
                            " values, expected " + std::to_string(outer));
  }
  return {};
}

// Where one row of the joined matrix comes from.
struct RowSource {
  const StoredMatrix* part = nullptr;
  size_t index = 0;  // of the part
  int64_t row = 0;   // within the part
};

RowSource find_row(std::span<const StoredMatrix* const> parts, int64_t row) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (row < parts[i]->rows) return {parts[i], i, row};
    row -= parts[i]->rows;
  }
  return {};
}

Error bad_value(const RowSource& source, const char* what, int64_t col, int code) {
  return corrupt_data("part " + std::to_string(source.index) + ", " + shape_text(*source.part) +
                      ": " + what + " [" + std::to_string(source.row) + ", " + std::to_string(col) +
                      "] is " + std::to_string(code) + ", which is no finite number");
}

// The exponents e for which an element times 2^e is a normal bf16 number or zero, for every code.
struct ExponentRange {
  int low = 0;
  int high = 0;
};
ExponentRange bf16_exponents(format::ElementFormat e) {
  const int smallest = e.min_exponent() - e.mantissa_bits;
  const int largest = static_cast<int>(format::float_bits(e.max_value()) >> 23) - 127;
  return {-126 - smallest, 127 - largest};
}

// Packs panels; one instance serves all threads.
class Packer {
 public:
  Packer(std::span<const StoredMatrix* const> parts, PackedMatrix& out)
      : parts_(parts),
        out_(out),
        codec_(layout_codec(out.layout)),
        unit_(unit_shape(out.layout)),
        word_bytes_(layout_word_bytes(out.layout)) {
    if (out.format.dense) return;
    table_ = pack::placement_table(codec_);
    for (int lane = 0; lane < 8 * word_bytes_ / table_.lane_bits; ++lane) {
      for (int v = 0; v < table_.values; ++v) {
        const CodePosition at = code_position(out.layout, lane, v);
        code_at_.push_back(at.channel * out.padded_cols + at.depth);
      }
    }
  }

  // Scratch bytes that one thread needs.
  int64_t scratch_bytes() const { return out_.format.dense ? 0 : kPanelRows * out_.padded_cols; }

  // Clears `bf16_exact` where a block scale leaves bf16's range.
  Status pack_panel(int64_t panel, uint8_t* scratch, bool& bf16_exact) const {
    SUB8_RETURN_IF_ERROR(pack_scales(panel));
    if (out_.format.dense) {
      pack_dense(panel);
      return {};
    }
    const int64_t stride = out_.padded_cols;
    std::memset(scratch, 0, static_cast<size_t>(kPanelRows * stride));
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int64_t row = panel * kPanelRows + lane;
      if (row >= out_.rows) break;
      const RowSource source = find_row(parts_, row);
      uint8_t* codes = scratch + lane * stride;
      format::unpack_codes(
          source.part->codes.data() + source.row * out_.format.row_bytes(out_.cols), out_.cols,
          table_.bits, codes);
      SUB8_RETURN_IF_ERROR(check_codes(source, codes));
      if (bf16_exact) bf16_exact = row_fits_bf16(source, codes);
    }
    scatter(scratch, out_.data.data() + panel * out_.panel_bytes);
    return {};
  }

 private:
  Status check_codes(const RowSource& source, const uint8_t* codes) const {
    const format::ElementFormat e = out_.format.element;
    if (!e.has_nan()) return {};
    for (int64_t k = 0; k < out_.cols; ++k) {
      if (e.is_nonfinite(codes[k])) return bad_value(source, "code", k, codes[k]);
    }
    return {};
  }

  bool row_fits_bf16(const RowSource& source, const uint8_t* codes) const {
    if (out_.format.block_scale != BlockScale::kE8M0) return true;
    const ExponentRange range = bf16_exponents(out_.format.element);
    const uint32_t magnitude = out_.format.element.sign_bit() - 1;
    const int group = out_.format.group;
    for (int64_t g = 0; g < out_.groups; ++g) {
      const int exponent = source.part->block_scales[source.row * out_.groups + g] - 127;
      if (exponent >= range.low && exponent <= range.high) continue;
      const int64_t end = std::min(out_.cols, (g + 1) * group);
      for (int64_t k = g * group; k < end; ++k) {
        if ((codes[k] & magnitude) != 0) return false;  // an all-zero block has no exponent
      }
    }
    return true;
  }

  Status pack_scales(int64_t panel) const {
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int64_t row = panel * kPanelRows + lane;
      const bool real = row < out_.rows;
      const RowSource source = real ? find_row(parts_, row) : RowSource{};
      if (!out_.outer_scales.empty()) {
        float outer = real ? 1.0f : 0.0f;
        if (real && !source.part->outer_scales.empty()) {
          const bool tensor = source.part->format.outer_scale == OuterScale::kTensor;
          outer = source.part->outer_scales[static_cast<size_t>(tensor ? 0 : source.row)];
        }
        if (!(outer - outer == 0)) {
          return corrupt_data("part " + std::to_string(source.index) + ", " +
                              shape_text(*source.part) + ": the scale of row " +
                              std::to_string(source.row) + " is not finite");
        }
        out_.outer_scales[static_cast<size_t>(row)] = outer;
      }
      for (int64_t g = 0; g < out_.groups; ++g) {
        const uint8_t byte =
            real ? source.part->block_scales[static_cast<size_t>(source.row * out_.groups + g)] : 0;
        const bool nan =
            out_.format.block_scale == BlockScale::kE8M0 ? byte == 255 : (byte & 0x7f) == 0x7f;
        if (nan) return bad_value(source, "block scale", g, byte);
        out_.block_scales[static_cast<size_t>((panel * out_.groups + g) * kPanelRows + lane)] =
            byte;
      }
    }
    return {};
  }

  void pack_dense(int64_t panel) const {
    const size_t item = format::dtype_bytes(out_.format.dtype);
    const int pair = codec_ == CpuCodec::kDenseBF16 ? 2 : 1;
    uint8_t* base = out_.data.data() + panel * out_.panel_bytes;
    std::memset(base, 0, static_cast<size_t>(out_.panel_bytes));
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int64_t row = panel * kPanelRows + lane;
      if (row >= out_.rows) break;
      const RowSource source = find_row(parts_, row);
      const uint8_t* in = source.part->codes.data() + source.row * out_.format.row_bytes(out_.cols);
      for (int64_t k = 0; k < out_.cols; ++k) {
        const int64_t at = (k / pair * kPanelRows + lane) * pair + k % pair;
        std::memcpy(base + at * static_cast<int64_t>(item), in + k * static_cast<int64_t>(item),
                    item);
      }
    }
  }

  void scatter(const uint8_t* codes, uint8_t* out) const {
    const int64_t units = out_.padded_cols / unit_.depth;
    const int item = table_.lane_bits / 8;
    const int lanes = word_bytes_ / item;
    std::memset(out + units * unit_.bytes, 0,
                static_cast<size_t>(out_.panel_bytes - units * unit_.bytes));
    for (int64_t u = 0; u < units; ++u) {
      for (int lane = 0; lane < lanes; ++lane) {
        pack::LaneWords words;
        for (int v = 0; v < table_.values; ++v) {
          const int place = lane * table_.values + v;
          const int64_t at = code_at_[static_cast<size_t>(place)];
          const uint8_t code = codes[at + u * unit_.depth];
          const pack::LaneWords& add = table_.add[(static_cast<size_t>(v) << table_.bits) + code];
          words.half[0] |= add.half[0];
          words.half[1] |= add.half[1];
        }
        for (int w = 0; w < table_.words; ++w) {
          const int bit = w * table_.lane_bits;
          const uint16_t word = static_cast<uint16_t>(words.half[bit / 64] >> (bit % 64));
          std::memcpy(out + u * unit_.bytes + w * word_bytes_ + lane * item, &word,
                      static_cast<size_t>(item));
        }
      }
    }
  }

  std::span<const StoredMatrix* const> parts_;
  PackedMatrix& out_;
  CpuCodec codec_;
  UnitShape unit_;
  int word_bytes_;
  pack::PlacementTable table_;
  std::vector<int64_t> code_at_;  // [lanes][values]: place in the scratch, less the unit's depth
};

// Everything of the packed form but its bytes.
Result<PackedMatrix> packed_shape(const format::WeightFormat& format, int64_t rows, int64_t cols,
                                  CpuPath path) {
  PackedMatrix out;
  SUB8_ASSIGN_OR_RETURN(out.layout, cpu_layout(format, path));
  constexpr int64_t kLimit = int64_t{1} << 40;  // keeps every product below in range
  if (rows < 0 || cols < 0 || rows > kLimit || cols > kLimit ||
      (cols != 0 && rows > kLimit / cols)) {
    return invalid_argument("a weight of shape [" + std::to_string(rows) + ", " +
                            std::to_string(cols) + "] is out of range");
  }
  const UnitShape unit = unit_shape(out.layout);
  const int64_t units = (cols + unit.depth - 1) / unit.depth;
  out.path = path;
  out.format = format;
  out.rows = rows;
  out.cols = cols;
  out.panels = (rows + kPanelRows - 1) / kPanelRows;
  out.padded_cols = units * unit.depth;
  // Panels start at multiples of 64 bytes, so that aligned loads work for every word size.
  out.panel_bytes = (units * unit.bytes + 63) / 64 * 64;
  out.groups = format.groups(cols);
  return out;
}

}  // namespace

int64_t PackedMatrix::bytes() const {
  return static_cast<int64_t>(data.size() + block_scales.size() +
                              outer_scales.size() * sizeof(float));
}

Result<int64_t> packed_bytes(const format::WeightFormat& format, int64_t rows, int64_t cols,
                             CpuPath path) {
  SUB8_ASSIGN_OR_RETURN(const PackedMatrix shape, packed_shape(format, rows, cols, path));
  const int64_t outer = format.outer_scale == OuterScale::kNone ? 0 : 4 * kPanelRows;
  return shape.panels * (shape.panel_bytes + shape.groups * kPanelRows + outer);
}

Result<PackedMatrix> pack_linear(std::span<const StoredMatrix* const> parts, CpuPath path,
                                 ThreadPool& pool, Arena* arena) {
  if (parts.empty()) return invalid_argument("pack_linear: no matrices given");
  int64_t rows = 0;
  format::WeightFormat format = parts[0]->format;
  for (size_t i = 0; i < parts.size(); ++i) {
    SUB8_RETURN_IF_ERROR(check_part(*parts[0], *parts[i], i));
    rows += parts[i]->rows;
    if (parts.size() > 1 && parts[i]->format.outer_scale != OuterScale::kNone)
      format.outer_scale = OuterScale::kChannel;
  }
  SUB8_ASSIGN_OR_RETURN(PackedMatrix out, packed_shape(format, rows, parts[0]->cols, path));
  SUB8_ASSIGN_OR_RETURN(out.data, AlignedBuffer<uint8_t>::uninitialized(
                                      static_cast<size_t>(out.panels * out.panel_bytes), arena));
  SUB8_ASSIGN_OR_RETURN(out.block_scales,
                        AlignedBuffer<uint8_t>::uninitialized(
                            static_cast<size_t>(out.panels * out.groups * kPanelRows), arena));
  if (format.outer_scale != OuterScale::kNone) {
    SUB8_ASSIGN_OR_RETURN(
        out.outer_scales,
        AlignedBuffer<float>::uninitialized(static_cast<size_t>(out.panels * kPanelRows), arena));
  }

  const Packer packer(parts, out);
  const int threads = pool.size();
  SUB8_ASSIGN_OR_RETURN(
      AlignedBuffer<uint8_t> scratch,
      AlignedBuffer<uint8_t>::uninitialized(static_cast<size_t>(threads * packer.scratch_bytes())));
  std::vector<Status> status(static_cast<size_t>(threads));
  const bool amx_codec =
      path == CpuPath::kAmx && (!format.dense || format.dtype == format::DType::kBF16);
  std::vector<uint8_t> exact(static_cast<size_t>(threads), amx_codec);
  pool.for_ranges(out.panels, 1, [&](int64_t begin, int64_t end, int part) {
    bool bf16_exact = amx_codec;
    for (int64_t panel = begin; panel < end; ++panel) {
      Status done =
          packer.pack_panel(panel, scratch.data() + part * packer.scratch_bytes(), bf16_exact);
      if (!done.ok()) {
        status[static_cast<size_t>(part)] = std::move(done);
        return;
      }
    }
    exact[static_cast<size_t>(part)] = bf16_exact;
  });
  for (Status& s : status) SUB8_RETURN_IF_ERROR(std::move(s));
  out.bf16_exact = std::all_of(exact.begin(), exact.end(), [](uint8_t e) { return e != 0; });
  return out;
}

}  // namespace sub8
