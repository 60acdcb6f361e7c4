// Fragment maps of wgmma (sm_90a), in plain C++ so that packers and tests need no CUDA.
//
// A warpgroup is 128 threads: warp w = t / 32, quad row g = (t % 32) / 4, quad lane l = t % 4.
// Source: PTX ISA, "Register fragments for wgmma.mma_async".
#pragma once

#include <cstdint>

#include "format/platform.h"

namespace sub8::arch::sm90a {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kMmaRows = 64;    // rows of A and D
inline constexpr int kMmaDepth = 16;   // k of one instruction with 16-bit operands
inline constexpr int kByteDepth = 32;  // with 8-bit operands

struct Coordinate {
  int row;
  int col;
  constexpr bool operator==(const Coordinate&) const = default;
};

// A operand in registers, 16-bit: register 0..3 of thread t, half 0 or 1. col is k.
SUB8_HD constexpr Coordinate a_coordinate(int t, int reg, int half) {
  const int g = (t % 32) / 4;
  const int l = t % 4;
  return {16 * (t / 32) + g + 8 * (reg & 1), 2 * l + half + 8 * (reg >> 1)};
}

// The same for 8-bit operands: byte 0..3 of register 0..3.
SUB8_HD constexpr Coordinate a_byte_coordinate(int t, int reg, int byte) {
  const int g = (t % 32) / 4;
  const int l = t % 4;
  return {16 * (t / 32) + g + 8 * (reg & 1), 4 * l + byte + 16 * (reg >> 1)};
}

// Accumulator value v (0..N/2-1) of thread t. col counts the instruction's N.
SUB8_HD constexpr Coordinate d_coordinate(int t, int v) {
  const int g = (t % 32) / 4;
  const int l = t % 4;
  return {16 * (t / 32) + g + 8 * ((v >> 1) & 1), 8 * (v >> 2) + 2 * l + (v & 1)};
}

// Byte offset of (row, byte) in a B tile of 128-byte rows with 128-byte swizzle; the tile starts at
// a multiple of 1024. It is what a tensor copy with that swizzle writes.
SUB8_HD constexpr uint32_t b_swizzle(uint32_t row, uint32_t byte) {
  return row * 128 + ((((byte >> 4) ^ row) & 7) << 4) + (byte & 15);
}

}  // namespace sub8::arch::sm90a
