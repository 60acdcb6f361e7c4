#include "kernels/activation/activation.h"

#include <string>

#include "base/check.h"
#include "kernels/activation/kernels.h"

namespace sub8::kernels {
namespace {

struct Name {
  std::string_view text;
  Activation value;
};
constexpr Name kNames[] = {
    {"silu", Activation::kSilu},          {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},          {"gelu_new", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"relu", Activation::kRelu},          {"quick_gelu", Activation::kQuickGelu},
};

}  // namespace

Result<Activation> parse_activation(std::string_view name) {
  std::string known;
  for (const Name& entry : kNames) {
    if (entry.text == name) return entry.value;
    known += (known.empty() ? "" : ", ") + std::string(entry.text);
  }
  return unsupported("activation '" + std::string(name) + "' has no kernel; there are " + known);
}

void gated_activation(CpuPath path, ThreadPool& pool, Activation f, InputRows gate, InputRows up,
                      int64_t rows, int64_t cols, OutputRows out) {
  if (rows == 0) return;
  SUB8_CHECK_GE(gate.stride, cols);
  SUB8_CHECK_GE(up.stride, cols);
  SUB8_CHECK_GE(out.stride, cols);
  const ActivationKernels& kernels = SUB8_PICK_KERNELS(path, kActivation);
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      kernels.activate(f, gate.data + r * gate.stride, up.data + r * up.stride, cols, out.row(r),
                       out.is_bf16());
    }
  });
}

void activation(CpuPath path, ThreadPool& pool, Activation f, InputRows x, int64_t rows,
                int64_t cols, OutputRows out) {
  if (rows == 0) return;
  SUB8_CHECK_GE(x.stride, cols);
  SUB8_CHECK_GE(out.stride, cols);
  const ActivationKernels& kernels = SUB8_PICK_KERNELS(path, kActivation);
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      kernels.activate(f, x.data + r * x.stride, nullptr, cols, out.row(r), out.is_bf16());
  });
}

}  // namespace sub8::kernels
