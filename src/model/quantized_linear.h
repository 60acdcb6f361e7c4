// A linear layer whose activations are quantised (W4A4, W4A8), a chunk of rows at a time.
//
// Rows become FP4 codes and block scales, or values q*s (exact in bf16), whichever the kernels of
// the weight multiply (quantized_row_type); base and residue rows side by side, so that weights are
// read once; the fold applies alpha and the weight's outer scale. K-Ext: the selected residues are
// rows of the extension's own product, whose raw sums B + R are one rounded addition, as in M-Ext's
// fold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/aligned_buffer.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "format/block.h"
#include "kernels/linear/op.h"
#include "model/execution_mode.h"
#include "model/program.h"

namespace sub8::model {

// Rows that are quantised at a time; bounds the buffer of raw sums.
inline constexpr int64_t kQuantizedRows = 256;

// Reused from layer to layer; empty where no layer needs it.
struct QuantizedLinearBuffers {
  AlignedBuffer<uint16_t> values;
  AlignedBuffer<uint8_t> codes;  // packed codes, then block scales
  AlignedBuffer<float> raw_sums;
  AlignedBuffer<float> alphas;
  AlignedBuffer<std::byte> quantize_workspace;

  // For layers of at most k x n and chunks of at most `rows` <= kQuantizedRows.
  static Result<QuantizedLinearBuffers> allocate(int64_t rows, int64_t k, int64_t n, int threads);
};

struct QuantizedLinearArgs {
  const uint16_t* x = nullptr;  // bf16 [m][x_stride]
  int64_t x_stride = 0;
  int64_t m = 0;
  const PackedMatrix* weight = nullptr;
  RowExecution how;  // not weight-only
  format::MxRule mx_rule = format::MxRule::kEven;
  InputAlpha alpha;     // kTensor: of the rows that are quantised at a time
  Compensation prompt;  // what a ratio between 0 and 1 needs
  const float* bias = nullptr;
  bool accumulate = false;
  float* y = nullptr;  // [m][y_stride]
  int64_t y_stride = 0;
  RowClass row_class = RowClass::kPrompt;
  // Nothing: quantized_row_type. kBF16 is always possible.
  std::optional<ActivationType> row_type;
};

// What the rows of a class become: kE2M1 where all kernels take codes, else kBF16. The extension
// matters between ratios 0 and 1 only.
ActivationType quantized_row_type(const PackedMatrix& weight, const PackedMatrix* extension,
                                  const RowExecution& how, RowClass row_class);

// `linear_workspace` serves min(m, kQuantizedRows) * 2 rows of the weight and of its extension.
void quantized_linear(const QuantizedLinearArgs& args, QuantizedLinearBuffers& buffers,
                      ThreadPool& pool, std::span<std::byte> linear_workspace);

}  // namespace sub8::model
