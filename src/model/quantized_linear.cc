#include "model/quantized_linear.h"

#include <algorithm>

#include "base/checked_math.h"
#include "kernels/quantize_act/quantize_act.h"

namespace sub8::model {
namespace {

void raw_product(const PackedMatrix& w, const kernels::QuantizedRows& x, int64_t count,
                 bool accumulate, RowClass row_class, float* sums, int64_t stride, ThreadPool& pool,
                 std::span<std::byte> workspace) {
  LinearArgs args;
  args.x = x.values;
  args.x_stride = x.value_stride;
  args.m = count;
  args.w = &w;
  args.y = sums;
  args.y_stride = stride;
  args.accumulate = accumulate;
  args.row_class = row_class;
  args.raw_sums = true;
  linear(args, pool, workspace);
}

void run_chunk(const QuantizedLinearArgs& a, QuantizedLinearBuffers& buffers, ThreadPool& pool,
               std::span<std::byte> workspace, int64_t first, int64_t count) {
  const PackedMatrix& w = *a.weight;
  const bool selective = a.how.ratio > 0 && a.how.ratio < 1;
  const auto layout =
      a.how.ratio == 1 ? kernels::QuantizedLayout::kRowPair : kernels::QuantizedLayout::kRows;
  kernels::QuantizeActArgs q;
  q.rule.format = a.how.format;
  q.rule.mx_rule = a.mx_rule;
  if (a.input_scale && a.how.format == format::ActivationFormat::kNvfp4) {
    q.rule.alpha_source = kernels::AlphaSource::kStatic;
    q.rule.static_alpha = *a.input_scale;
  }
  q.x = a.x + first * a.x_stride;
  q.x_stride = a.x_stride;
  q.m = count;
  q.k = w.cols;
  q.layout = layout;
  q.residue = a.how.ratio > 0;
  q.out.values = buffers.values.data();
  q.out.value_stride = w.cols;
  if (selective) {
    q.selected = a.prompt.masks;
    q.second.values = q.out.values + count * w.cols;
    q.second.value_stride = a.prompt.extension->cols;
  }
  q.alpha = buffers.alphas.data();
  kernels::quantize_act(q, pool, buffers.quantize_workspace.span());
  float* sums = buffers.raw_sums.data();
  raw_product(w, q.out, kernels::quantized_rows(layout, count), false, a.row_class, sums, w.rows,
              pool, workspace);
  if (selective)
    raw_product(*a.prompt.extension, q.second, count, true, a.row_class, sums, w.rows, pool,
                workspace);

  kernels::FoldArgs f;
  f.raw = sums;
  f.raw_stride = w.rows;
  f.layout = layout;
  f.m = count;
  f.n = w.rows;
  f.alpha = buffers.alphas.data();
  f.outer = w.outer_scales.empty() ? nullptr : w.outer_scales.data();
  f.bias = a.bias;
  f.accumulate = a.accumulate;
  f.y = a.y + first * a.y_stride;
  f.y_stride = a.y_stride;
  kernels::fold(f, pool);
}

}  // namespace

Result<QuantizedLinearBuffers> QuantizedLinearBuffers::allocate(int64_t rows, int64_t k, int64_t n,
                                                                int threads) {
  const auto sums = checked_mul<int64_t>(2 * rows, n);
  // Beside the base either its full residue, or the selected channels: at most half of them,
  // rounded up to whole groups.
  const auto values = checked_mul<int64_t>(2 * rows, k + 2 * format::kSelectGroup);
  if (!sums || !values)
    return resource_exhausted("the buffers of quantised activations are too large");
  QuantizedLinearBuffers out;
  SUB8_ASSIGN_OR_RETURN(out.raw_sums,
                        AlignedBuffer<float>::uninitialized(static_cast<size_t>(*sums)));
  SUB8_ASSIGN_OR_RETURN(out.values,
                        AlignedBuffer<uint16_t>::uninitialized(static_cast<size_t>(*values)));
  SUB8_ASSIGN_OR_RETURN(out.alphas, AlignedBuffer<float>::uninitialized(static_cast<size_t>(rows)));
  SUB8_ASSIGN_OR_RETURN(
      out.quantize_workspace,
      AlignedBuffer<std::byte>::uninitialized(kernels::quantize_act_workspace_bytes(k, threads)));
  return out;
}

void quantized_linear(const QuantizedLinearArgs& args, QuantizedLinearBuffers& buffers,
                      ThreadPool& pool, std::span<std::byte> linear_workspace) {
  for (int64_t done = 0; done < args.m; done += kQuantizedRows) {
    run_chunk(args, buffers, pool, linear_workspace, done, std::min(args.m - done, kQuantizedRows));
  }
}

}  // namespace sub8::model
