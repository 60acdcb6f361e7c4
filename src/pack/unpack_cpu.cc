#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "pack/linear_cpu.h"
#include "pack/placement_table.h"

namespace sub8 {
namespace {

struct Storage {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> block_scales;
};

void unpack_dense_row(const PackedMatrix& m, int64_t row, uint8_t* out) {
  const int64_t item = static_cast<int64_t>(format::dtype_bytes(m.format.dtype));
  const int pair = layout_codec(m.layout) == CpuCodec::kDenseBF16 ? 2 : 1;
  const uint8_t* base = m.data.data() + row / kPanelRows * m.panel_bytes;
  for (int64_t k = 0; k < m.cols; ++k) {
    const int64_t at = (k / pair * kPanelRows + row % kPanelRows) * pair + k % pair;
    std::memcpy(out + k * item, base + at * item, static_cast<size_t>(item));
  }
}

void unpack_coded_row(const PackedMatrix& m, const pack::PlacementTable& table, int64_t row,
                      uint8_t* codes) {
  const UnitShape unit = unit_shape(m.layout);
  const int word_bytes = layout_word_bytes(m.layout);
  const int item = table.lane_bits / 8;
  const int channel = static_cast<int>(row % kPanelRows);
  const uint8_t* base = m.data.data() + row / kPanelRows * m.panel_bytes;
  for (int64_t k = 0; k < m.cols; ++k) {
    const CodeSlot slot = code_slot(m.layout, {channel, static_cast<int>(k % unit.depth)});
    const uint8_t* words = base + k / unit.depth * unit.bytes + slot.lane * item;
    uint32_t code = 0;
    for (int bit = 0; bit < table.bits; ++bit) {
      const int word_bit = slot.value * table.bits + bit;
      const int source = table.sources[static_cast<size_t>(word_bit)];
      uint16_t word = 0;
      std::memcpy(&word, words + source / table.lane_bits * word_bytes, static_cast<size_t>(item));
      code |= static_cast<uint32_t>((word >> (source % table.lane_bits)) & 1) << bit;
    }
    codes[k] = static_cast<uint8_t>(code);
  }
}

}  // namespace

Result<StoredMatrix> unpack_linear(const PackedMatrix& m) {
  auto storage = std::make_shared<Storage>();
  const int64_t row_bytes = m.format.row_bytes(m.cols);
  storage->codes.resize(static_cast<size_t>(m.rows * row_bytes));
  storage->block_scales.resize(static_cast<size_t>(m.rows * m.groups));
  pack::PlacementTable table;
  if (!m.format.dense) table = pack::placement_table(layout_codec(m.layout));
  std::vector<uint8_t> codes(static_cast<size_t>(m.cols));
  for (int64_t row = 0; row < m.rows; ++row) {
    uint8_t* out = storage->codes.data() + row * row_bytes;
    if (m.format.dense) {
      unpack_dense_row(m, row, out);
    } else {
      unpack_coded_row(m, table, row, codes.data());
      format::pack_codes(codes.data(), m.cols, table.bits, out);
    }
    for (int64_t g = 0; g < m.groups; ++g) {
      const int64_t at = (row / kPanelRows * m.groups + g) * kPanelRows + row % kPanelRows;
      storage->block_scales[static_cast<size_t>(row * m.groups + g)] =
          m.block_scales[static_cast<size_t>(at)];
    }
  }
  StoredMatrix out;
  out.format = m.format;
  out.rows = m.rows;
  out.cols = m.cols;
  out.codes = storage->codes;
  out.block_scales = storage->block_scales;
  const int64_t outer = m.format.outer_scale == format::OuterScale::kTensor
                            ? std::min<int64_t>(1, m.rows)
                        : m.format.outer_scale == format::OuterScale::kChannel ? m.rows
                                                                               : 0;
  for (int64_t i = 0; i < outer; ++i)
    out.outer_scales.push_back(m.outer_scales[static_cast<size_t>(i)]);
  out.owner = std::move(storage);
  return out;
}

}  // namespace sub8
