#include "model/builder.h"

#include "base/check.h"

namespace sub8::model {

kernels::Activation kernel_activation(checkpoint::Activation activation) {
  switch (activation) {
    case checkpoint::Activation::kSilu:
      return kernels::Activation::kSilu;
    case checkpoint::Activation::kGelu:
      return kernels::Activation::kGelu;
    case checkpoint::Activation::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case checkpoint::Activation::kRelu:
      return kernels::Activation::kRelu;
  }
  return kernels::Activation::kSilu;
}

Status add_linear(std::vector<Op>& ops, Weights& weights, const std::string& prefix,
                  const std::vector<std::string>& names, bool bias, View in, View out,
                  bool accumulate) {
  SUB8_ASSIGN_OR_RETURN(const auto linears, weights.linear(prefix, names, bias));
  int64_t column = out.column;
  for (const Weights::Linear& linear : linears) {
    SUB8_CHECK_EQ(linear.matrix->cols, in.cols);
    const View part{out.buffer, column, linear.matrix->rows};
    ops.push_back(LinearOp{linear.name, linear.modules, linear.matrix, linear.bias, accumulate, in,
                           part, linear.nvfp4_alpha, linear.fp8_alpha, linear.prompt});
    column += linear.matrix->rows;
  }
  SUB8_CHECK_EQ(column, out.column + out.cols);
  return {};
}

}  // namespace sub8::model
