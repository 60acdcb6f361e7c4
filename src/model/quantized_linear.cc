#include "model/quantized_linear.h"

#include <algorithm>

#include "base/checked_math.h"
#include "kernels/quantize_act/quantize_act.h"

namespace sub8::model {
namespace {

// Where a product's rows go, and where the buffers are free behind them.
struct Destination {
  kernels::QuantizedRows rows;
  int64_t end_values = 0;  // first free element of `values`
  int64_t end_codes = 0;   // first free byte of `codes`
};

Destination place_rows(QuantizedLinearBuffers& buffers, ActivationType type, int64_t cols,
                       int64_t groups, int64_t count, const Destination& after = {}) {
  Destination out = after;
  out.rows = {};
  if (type == ActivationType::kBF16) {
    out.rows.values = buffers.values.data() + after.end_values;
    out.rows.value_stride = cols;
    out.end_values += count * cols;
    return out;
  }
  out.rows.code_stride = ceil_div<int64_t>(cols, 2);
  out.rows.scale_stride = groups;
  out.rows.codes = buffers.codes.data() + after.end_codes;
  out.rows.scales = out.rows.codes + count * out.rows.code_stride;
  out.end_codes += count * (out.rows.code_stride + groups);
  return out;
}

void raw_product(const PackedMatrix& w, const kernels::QuantizedRows& x, int64_t count,
                 bool accumulate, RowClass row_class, float* sums, int64_t stride, ThreadPool& pool,
                 std::span<std::byte> workspace) {
  LinearArgs args;
  if (x.values != nullptr) {
    args.x = x.values;
    args.x_stride = x.value_stride;
  } else {
    args.x_type = ActivationType::kE2M1;
    args.x = x.codes;
    args.x_stride = x.code_stride;
    args.x_scales = x.scales;
    args.x_scale_stride = x.scale_stride;
  }
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
  q.path = w.path;
  q.rule.format = a.how.format;
  q.rule.mx_rule = a.mx_rule;
  if (format::has_alpha(a.how.format)) {
    q.rule.alpha_source = a.alpha.source;
    q.rule.static_alpha = a.alpha.value;
  }
  q.x = a.x + first * a.x_stride;
  q.x_stride = a.x_stride;
  q.m = count;
  q.k = w.cols;
  q.layout = layout;
  q.residue = a.how.ratio > 0;
  const ActivationType type =
      a.row_type.value_or(quantized_row_type(w, a.prompt.extension, a.how, a.row_class));
  const int64_t rows = kernels::quantized_rows(layout, count);
  const Destination base = place_rows(buffers, type, w.cols, w.groups, rows);
  q.out = base.rows;
  if (selective) {
    const PackedMatrix& extension = *a.prompt.extension;
    q.selected = a.prompt.masks;
    q.second = place_rows(buffers, type, extension.cols, extension.groups, count, base).rows;
  }
  q.alpha = buffers.alphas.data();
  kernels::quantize_act(q, pool, buffers.quantize_workspace.span());
  float* sums = buffers.raw_sums.data();
  raw_product(w, q.out, rows, false, a.row_class, sums, w.rows, pool, workspace);
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

ActivationType quantized_row_type(const PackedMatrix& weight, const PackedMatrix* extension,
                                  const RowExecution& how, RowClass row_class) {
  const bool selective = how.ratio > 0 && how.ratio < 1;
  const bool codes = fp4_activations(weight.format) == how.format &&
                     linear_takes_e2m1(weight, row_class) &&
                     (!selective || linear_takes_e2m1(*extension, row_class));
  return codes ? ActivationType::kE2M1 : ActivationType::kBF16;
}

Result<QuantizedLinearBuffers> QuantizedLinearBuffers::allocate(int64_t rows, int64_t k, int64_t n,
                                                                int threads) {
  const auto sums = checked_mul<int64_t>(2 * rows, n);
  // Beside the base either its full residue, or the selected channels: at most half of them,
  // rounded up to whole groups.
  const auto values = checked_mul<int64_t>(2 * rows, k + 2 * format::kSelectGroup);
  if (!sums || !values)
    return resource_exhausted("the buffers of quantised activations are too large");
  QuantizedLinearBuffers out;
  // A code is half a byte, a scale a sixteenth: less than a byte for each value, but for the ends
  // of rows.
  SUB8_ASSIGN_OR_RETURN(out.codes,
                        AlignedBuffer<uint8_t>::uninitialized(static_cast<size_t>(*values)));
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
