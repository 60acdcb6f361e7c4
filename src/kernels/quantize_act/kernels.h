// Blocks of FP4 codes, for every instruction set. No STL here.
#pragma once

#include <cstdint>

#include "kernels/simd/table.h"

namespace sub8::kernels {

// What format/block.h says of activation blocks, over whole blocks: bytes equal to it.
struct Fp4Kernels {
  // Codes (one a byte) and scale bytes of `blocks` blocks of 16 values. Where `residue` is not
  // null: r = x - q*d; it may be x itself.
  void (*nvfp4)(const float* x, int64_t blocks, float alpha, uint8_t* codes, uint8_t* scales,
                float* residue) = nullptr;
  // The same for blocks of 32; the rule as `round_bits`, what is added to the largest magnitude's
  // bits before its exponent is taken, and whether a magnitude above 6 * 2^(e - 2) takes the next
  // exponent.
  void (*mxfp4)(const float* x, int64_t blocks, uint32_t round_bits, bool ceil, uint8_t* codes,
                uint8_t* scales, float* residue) = nullptr;
  // bf16 to f32.
  void (*widen)(const uint16_t* x, int64_t count, float* out) = nullptr;
  // Two codes a byte, the first one low; count is even.
  void (*pack)(const uint8_t* codes, int64_t count, uint8_t* out) = nullptr;
};
SUB8_KERNEL_TABLE(Fp4Kernels, kFp4)

}  // namespace sub8::kernels
