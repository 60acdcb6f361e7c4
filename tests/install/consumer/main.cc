// Plans a small weight through the installed library.
#include <cstdio>
#include <vector>

#include <sub8/linear.h>

int main() {
  const std::vector<unsigned char> codes(64 * 48);
  const std::vector<float> scales(64, 1.0F);
  sub8::LinearWeight weight;
  weight.format = "e3m2";
  weight.rows = 64;
  weight.cols = 64;
  weight.codes = codes.data();
  weight.code_bytes = codes.size();
  weight.outer_scales = scales.data();
  weight.outer_scale_count = scales.size();
  sub8::LinearPlan plan;
  const sub8::LinearStatus status = sub8::plan_linear(weight, sub8::LinearType::kBF16, &plan);
  std::printf("code %d, %zu bytes: %s\n", status.code, plan.packed_bytes, status.message.c_str());
  // Without CUDA: refused by name. With it: planned on the CPU.
  if (status.code == 5) return status.message.find("CUDA") == std::string::npos ? 1 : 0;
  return status && plan.packed_bytes > 0 ? 0 : 1;
}
