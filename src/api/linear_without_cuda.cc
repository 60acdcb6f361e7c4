// include/sub8/linear.h in a build without CUDA: every call says so.
#include "sub8/linear.h"

namespace sub8 {
namespace {

LinearStatus without_cuda() {
  return {5,
          "this build of sub8 has no CUDA kernels; configure it with SUB8_CUDA_ARCHS, such as "
          "`cmake --preset cuda-90a`"};
}

}  // namespace

LinearStatus plan_linear(const LinearWeight&, LinearType, LinearPlan*) { return without_cuda(); }

LinearStatus pack_linear(const LinearWeight&, const LinearPlan&, uint8_t*, size_t, int) {
  return without_cuda();
}

size_t linear_workspace_bytes(const LinearPlan&, int64_t) { return 0; }

LinearStatus run_linear(const LinearPlan&, const void*, const LinearCall&, void*, size_t,
                        sub8_stream, const LinearTuning&) {
  return without_cuda();
}

std::vector<std::string> linear_kernels(const LinearPlan&) { return {}; }

LinearStatus explain_linear(const LinearPlan&, int64_t, bool, const LinearTuning&, LinearChoice*) {
  return without_cuda();
}

}  // namespace sub8
