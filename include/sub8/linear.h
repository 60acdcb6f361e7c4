// Linear layers with weights of 3 to 16 bits on an NVIDIA GPU: Y[M,N] = X[M,K] W[N,K]^T.
//
// The weight is packed once on the CPU (plan_linear, pack_linear), copied to the device by the
// caller and then used by any number of run_linear calls. run_linear allocates nothing,
// synchronises nothing and may be captured into a CUDA graph.
//
// Numerics: products of weights and activations are exact; sums are FP32 in an order that is set by
// N, K, the card and, unless batch_invariant is set, M. It never depends on timing: equal calls
// give equal bits.
//
// 8-bit activations: with LinearType::kE4M3 the rows of X are e4m3 bytes (no NaN) whose scales are
// the call's token_scales. FP8 matrix units multiply them with weights converted to e5m2 or e4m3,
// at twice the 16-bit rate. Products are exact too, but these units sum in 13 bits: sums of at most
// 128 products are added to FP32 (relative error of a sum about 1e-4 on normal data, 6e-4 where all
// terms have one sign). Formats: e2m1, e2m2, e3m1, e3m2, e2m3 with channel scales; mxfp4; at a
// lower rate mxfp6_e3m2, mxfp6_e2m3 and :g32, :g64, :g128 of e2m1, e3m2 and e2m3. Rows of mxfp4
// whose block exponents spread over more than 2^26 take that lower rate too; nothing is rounded.
// nvfp4 and dense weights are refused.
//
// Example:
//   LinearWeight w;  // format "e3m2", rows, cols, codes, outer_scales
//   LinearPlan plan;
//   LinearStatus s = plan_linear(w, LinearType::kBF16, &plan);
//   std::vector<uint8_t> packed(plan.packed_bytes);
//   s = pack_linear(w, plan, packed.data(), packed.size(), 0);
//   // Copy `packed` to the device; allocate linear_workspace_bytes(plan, m) there, zeroed once.
//   LinearCall call;  // x, m, y
//   s = run_linear(plan, packed_on_device, call, workspace, workspace_bytes, stream);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sub8 {

using sub8_stream = void*;  // a cudaStream_t; null is the default stream

enum class LinearType : uint32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kE4M3 = 3 };

// code 0 is success; otherwise 1 internal, 2 invalid argument, 4 corrupt data, 5 unsupported,
// 6 resource exhausted, 7 device lost. The message says what, where, expected and got.
struct LinearStatus {
  int code = 0;
  std::string message;
  explicit operator bool() const { return code == 0; }
};

// A weight in storage form, in host memory. Codes are packed along K, least significant bit first,
// rows padded to whole bytes; scales lie in row order.
struct LinearWeight {
  std::string format;  // "e3m2", "e2m1:g32", "nvfp4", "mxfp4", "bf16", ...
  int64_t rows = 0;    // N
  int64_t cols = 0;    // K
  const uint8_t* codes = nullptr;
  size_t code_bytes = 0;
  const uint8_t* block_scales = nullptr;  // E4M3 or E8M0 bytes, [N, ceil(K / group)], or null
  size_t block_scale_bytes = 0;
  const float* outer_scales = nullptr;  // [N] or [1] as the format says, or null
  size_t outer_scale_count = 0;
};

// What is known about a packed weight; plain data that may be stored beside the packed bytes.
struct LinearPlan {
  uint32_t layout_id = 0;  // pack/cuda/linear_layout.h
  std::string format;
  LinearType activation = LinearType::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;
  size_t packed_bytes = 0;
};

struct LinearCall {
  const void* x = nullptr;  // [M, K] of the plan's activation type, row stride ldx elements
  int64_t ldx = 0;          // 0: K. Fastest where x and rows are 16-byte aligned
  int64_t m = 0;            // 0 is allowed and does nothing
  void* y = nullptr;        // [M, N] (fold: [M/2, N]), row stride ldy elements
  int64_t ldy = 0;          // 0: N
  LinearType y_type = LinearType::kBF16;  // not kE4M3
  const float* token_scales = nullptr;    // per row of Y, multiplied with the weight's scale first
  const float* bias = nullptr;            // [N], added after scaling
  const void* residual = nullptr;         // like Y, added last; may be Y itself
  int64_t ld_residual = 0;                // 0: N
  bool fold = false;  // M-Ext: rows 2i (base) and 2i+1 (residue) of X are added in FP32; M is even
  // The kernel may start reading the weight before the work ahead of it in the stream has finished.
  // Allowed where that work does not write the packed weight. X, Y and the rest are always awaited.
  bool weights_are_constant = false;
  // A row's bits do not depend on M or on its neighbours: one kernel family, in launches of 64
  // rows.
  bool batch_invariant = false;
};

// Overrides for tests and benchmarks; empty and zero choose by table.
struct LinearTuning {
  std::string kernel;   // only kernels whose id ends with this
  int ctas_per_sm = 0;  // of one launch
  int residents = 0;    // CTAs that an SM's shared memory is divided among
};

LinearStatus plan_linear(const LinearWeight& weight, LinearType activation, LinearPlan* plan);

// Writes plan.packed_bytes to `out`, with `threads` CPU threads (0: as many as the process may
// use).
LinearStatus pack_linear(const LinearWeight& weight, const LinearPlan& plan, uint8_t* out,
                         size_t out_bytes, int threads);

// Device bytes that a call with at most m rows needs. The first 64 KB must be zero before the first
// call and are zero again after each. One workspace serves one stream at a time.
size_t linear_workspace_bytes(const LinearPlan& plan, int64_t m);

LinearStatus run_linear(const LinearPlan& plan, const void* packed, const LinearCall& call,
                        void* workspace, size_t workspace_bytes, sub8_stream stream,
                        const LinearTuning& tuning = {});

// Ids of all kernels that can run the plan, e.g. "linear_e3m2_bf16_wgmma_256x64x128_w4"; empty
// where the plan is not valid. Tile: rows of W x rows of X x K.
std::vector<std::string> linear_kernels(const LinearPlan& plan);

struct LinearCandidate {
  std::string kernel;  // id
  int ctas_per_sm = 0;
  int residents = 0;
  double estimate_us = 0;
};

struct LinearChoice {
  std::vector<LinearCandidate> candidates;  // the first is chosen
  std::string refused;                      // the other kernels of the plan, with reasons
};

// What run_linear would choose, and why. Works without a GPU, then for a card of 132 SMs.
LinearStatus explain_linear(const LinearPlan& plan, int64_t m, bool batch_invariant,
                            const LinearTuning& tuning, LinearChoice* choice);

}  // namespace sub8
