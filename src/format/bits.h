// Packing of codes along a row: least significant bit first for every width.
//
// Code j of a row occupies bits [j*bits, (j+1)*bits) of the row's bit stream; bit i of the stream
// is bit i%8 of byte i/8. For 4 bits that is the nibble order of ModelOpt and compressed-tensors
// (element 2j low, 2j+1 high). A row is padded with zero bits to whole bytes.
#pragma once

#include <cstdint>

#include "format/platform.h"

namespace sub8::format {

SUB8_HD constexpr int64_t packed_row_bytes(int64_t count, int bits) {
  return (count * bits + 7) / 8;
}

// Code j of a packed row that has `row_bytes` bytes.
SUB8_HD constexpr uint32_t unpack_code(const uint8_t* row, int64_t row_bytes, int64_t j, int bits) {
  const int64_t bit = j * bits;
  const int64_t byte = bit / 8;
  const uint32_t low = row[byte];
  const uint32_t high = byte + 1 < row_bytes ? row[byte + 1] : 0u;
  return ((low | (high << 8)) >> (bit % 8)) & ((1u << bits) - 1);
}

// Packs `count` codes; writes packed_row_bytes(count, bits) bytes. Bits of a code above the width
// are ignored.
SUB8_HD constexpr void pack_codes(const uint8_t* codes, int64_t count, int bits, uint8_t* row) {
  int64_t j = 0;
  int64_t out = 0;
  for (; j + 8 <= count; j += 8) {  // eight codes fill `bits` whole bytes
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) {
      word |= static_cast<uint64_t>(codes[j + i] & ((1u << bits) - 1)) << (i * bits);
    }
    for (int i = 0; i < bits; ++i) row[out++] = static_cast<uint8_t>(word >> (8 * i));
  }
  uint32_t pending = 0;
  int filled = 0;
  for (; j < count; ++j) {
    pending |= (codes[j] & ((1u << bits) - 1)) << filled;
    filled += bits;
    while (filled >= 8) {
      row[out++] = static_cast<uint8_t>(pending);
      pending >>= 8;
      filled -= 8;
    }
  }
  if (filled > 0) row[out] = static_cast<uint8_t>(pending);
}

SUB8_HD constexpr void unpack_codes(const uint8_t* row, int64_t count, int bits, uint8_t* codes) {
  int64_t j = 0;
  for (; j + 8 <= count; j += 8) {
    uint64_t word = 0;
    for (int i = 0; i < bits; ++i) {
      word |= static_cast<uint64_t>(row[j / 8 * bits + i]) << (8 * i);
    }
    for (int i = 0; i < 8; ++i) {
      codes[j + i] = static_cast<uint8_t>((word >> (i * bits)) & ((1u << bits) - 1));
    }
  }
  const int64_t row_bytes = packed_row_bytes(count, bits);
  for (; j < count; ++j) {
    codes[j] = static_cast<uint8_t>(unpack_code(row, row_bytes, j, bits));
  }
}

}  // namespace sub8::format
