// Implementation of include/sub8/linear.h: checks, selection and launch. Plain C++ over the CUDA
// runtime.
#include "sub8/linear.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/linear/cuda/entry.h"
#include "kernels/linear/cuda/params.h"
#include "kernels/linear/cuda/stage_rows.h"
#include "pack/cuda/linear_layout.h"

namespace sub8 {
namespace {

namespace kl = kernels::linear;
using format::Half;

constexpr size_t kCounterBytes = 65536;  // 4 bytes * 4 blocks * up to 4096 CTAs
constexpr uint32_t kBarrierBytes = 1024;
constexpr uint32_t kMaxSlots = 32;

LinearStatus fail(const Error& error) { return {exit_status(error.code), error.message}; }

struct Device {
  int sms = 0;
  int shared_bytes = 0;         // a CTA may have
  int shared_bytes_per_sm = 0;  // of which each CTA takes 1 KB more than it asks for
};

// Per device, looked up once.
Result<Device> current_device() {
  static std::mutex mutex;
  static std::vector<Device> known;
  int id = 0;
  cudaError_t e = cudaGetDevice(&id);
  if (e != cudaSuccess) return unsupported(std::string("no CUDA device: ") + cudaGetErrorString(e));
  const std::lock_guard lock(mutex);
  if (static_cast<size_t>(id) >= known.size()) known.resize(static_cast<size_t>(id) + 1);
  Device& d = known[static_cast<size_t>(id)];
  if (d.sms == 0) {
    int major = 0;
    int minor = 0;
    Device found;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id);
    cudaDeviceGetAttribute(&found.sms, cudaDevAttrMultiProcessorCount, id);
    cudaDeviceGetAttribute(&found.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
    cudaDeviceGetAttribute(&found.shared_bytes_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                           id);
    if (major != 9 || minor != 0)
      return unsupported("CUDA device " + std::to_string(id) + " has compute capability " +
                         std::to_string(major) + "." + std::to_string(minor) +
                         "; linear kernels exist for 9.0 (sm_90a)");
    d = found;
  }
  return d;
}

Result<pack::CudaLinearLayout> layout_of(const LinearPlan& plan) {
  SUB8_ASSIGN_OR_RETURN(const format::WeightFormat f, format::parse_weight_format(plan.format));
  if (plan.activation == LinearType::kF32)
    return invalid_argument("activations are f16 or bf16, not f32");
  SUB8_ASSIGN_OR_RETURN(
      pack::CudaLinearLayout layout,
      pack::make_cuda_linear_layout(
          f, plan.rows, plan.cols, plan.activation == LinearType::kF16 ? Half::kF16 : Half::kBF16));
  if (plan.layout_id != 0 && plan.layout_id != static_cast<uint32_t>(layout.id))
    return unsupported("packed layout " + std::to_string(plan.layout_id) +
                       " is not known to this build, which writes " +
                       std::to_string(static_cast<uint32_t>(layout.id)) +
                       "; pack the weight again");
  return layout;
}

Result<StoredMatrix> stored_matrix(const LinearWeight& w) {
  StoredMatrix m;
  SUB8_ASSIGN_OR_RETURN(m.format, format::parse_weight_format(w.format));
  m.rows = w.rows;
  m.cols = w.cols;
  m.codes = {w.codes, w.code_bytes};
  m.block_scales = {w.block_scales, w.block_scale_bytes};
  m.outer_scales.assign(w.outer_scales, w.outer_scales + w.outer_scale_count);
  return m;
}

const std::vector<kl::KernelEntry>& all_entries() {
  static const std::vector<kl::KernelEntry> entries = [] {
    std::vector<kl::KernelEntry> out;
    const auto add = [&out](kl::KernelEntryList list) {
      out.insert(out.end(), list.entries, list.entries + list.count);
    };
#define X(name, element, groups) add(kl::kernel_entries_##name());
#include "kernels/linear/cuda/instances.inc"
#undef X
    return out;
  }();
  return entries;
}

std::string entry_id(const kl::KernelEntry& e) {
  std::string id = "linear_" + std::string(e.codec) + (e.type == Half::kF16 ? "_f16" : "_bf16") +
                   (e.loop == kl::MainLoop::kFragment ? "_mma_" : "_wgmma_") +
                   std::to_string(e.pieces * pack::kPieceRows) + "x" + std::to_string(e.tokens) +
                   "x" + std::to_string(e.units * pack::kPieceCols) + "_w" +
                   std::to_string(e.teams);
  if (e.residents > 1) id += "_r" + std::to_string(e.residents);
  if (e.cluster > 1) id += "_c" + std::to_string(e.cluster);
  return id;
}

bool runs(const kl::KernelEntry& e, const pack::CudaLinearLayout& layout) {
  const format::ElementFormat element = layout.format.dense ? kl::kDense : layout.format.element;
  return e.element == element && e.type == layout.activation() && e.groups == layout.group_kind();
}

Result<kl::KernelEntry> select(const pack::CudaLinearLayout& layout, int64_t m,
                               const LinearTuning& tuning) {
  const kl::KernelEntry* best = nullptr;
  const auto better = [&](const kl::KernelEntry& e) {
    if (best == nullptr) return true;
    // The smallest tile that holds all rows, else the largest tile; then the first in the list.
    const bool fits = e.tokens >= m;
    const bool best_fits = best->tokens >= m;
    if (fits != best_fits) return fits;
    return fits ? e.tokens < best->tokens : e.tokens > best->tokens;
  };
  for (const kl::KernelEntry& e : all_entries()) {
    if (!runs(e, layout) || tuning.ctas_per_sm > e.residents) continue;
    if (!entry_id(e).ends_with(tuning.kernel)) continue;
    if (better(e)) best = &e;
  }
  if (best == nullptr)
    return unsupported("no kernel for " + layout.format.name() +
                       (tuning.kernel.empty() ? "" : " whose id ends with " + tuning.kernel));
  return *best;
}

size_t partial_bytes(const kl::KernelEntry& e, const Device& device) {
  const int ctas = std::max(e.ctas_per_sm, e.residents);  // more than `residents` never run
  return static_cast<size_t>(device.sms * ctas * e.pieces) * pack::kPieceRows *
         static_cast<size_t>(e.tokens) * 4;
}
size_t staged_row_elements(int64_t k) { return static_cast<size_t>(round_up<int64_t>(k, 8)); }
size_t staged_bytes(int64_t m, int64_t k) {
  return round_up<size_t>(static_cast<size_t>(m) * staged_row_elements(k) * 2, 256);
}

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
      p = nullptr;
    return reinterpret_cast<EncodeTiled>(p);
  }();
  return function;
}

// X as [m, k] with rows of `stride` elements, in boxes of 64 x box_rows; outside it reads zero.
Status make_x_map(kl::TensorMap* out, const void* x, Half type, int64_t m, int64_t k,
                  int64_t stride, int box_rows) {
  static_assert(sizeof(CUtensorMap) == sizeof(kl::TensorMap));
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr) return unsupported("the CUDA driver lacks cuTensorMapEncodeTiled");
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(m)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult r = encode(
      &map, type == Half::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      2, const_cast<void*>(x), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    return internal_error("cuTensorMapEncodeTiled failed with code " + std::to_string(r));
  std::memcpy(out, &map, sizeof(map));
  return {};
}

Status check_call(const LinearPlan& plan, const LinearCall& call) {
  if (call.m < 0 || call.m > (int64_t{1} << 24))
    return invalid_argument("m = " + std::to_string(call.m) + " is out of range (0 to 2^24)");
  if (call.ldx != 0 && call.ldx < plan.cols)
    return invalid_argument("ldx = " + std::to_string(call.ldx) +
                            " is below K = " + std::to_string(plan.cols));
  if ((call.ldy != 0 && call.ldy < plan.rows) ||
      (call.ld_residual != 0 && call.ld_residual < plan.rows))
    return invalid_argument("ldy or ld_residual is below N = " + std::to_string(plan.rows));
  if (call.m > 0 && (call.x == nullptr || call.y == nullptr))
    return invalid_argument("x and y must not be null");
  if (call.fold && call.m % 2 != 0)
    return invalid_argument("fold needs an even number of rows, got m = " + std::to_string(call.m));
  return {};
}

void set_scale_decode(kl::RingParams& p, const pack::CudaLinearLayout& layout) {
  if (layout.group_kind() != pack::GroupKind::k32) return;
  p.scale_pairs = layout.format.group > 32 ? 2 : 1;
  const bool exponents =
      layout.format.block_scale == format::BlockScale::kE8M0 && layout.activation() == Half::kBF16;
  if (exponents || layout.activation() == Half::kF16) {  // byte << 7
    p.scale_mask = 0x7f807f80u;
  } else {  // E5M3 in bf16
    p.scale_mask = 0x0ff00ff0u;
    p.scale_base = 0x70007000u;
  }
}

Status launch(const kl::KernelEntry& e, kl::RingParams& p, const Device& device,
              const LinearTuning& tuning, bool early, cudaStream_t stream) {
  const uint32_t slot = round_up<uint32_t>(
      e.x_bytes + static_cast<uint32_t>(e.pieces * e.units) * p.piece_bytes, 1024);
  const int residents = tuning.residents != 0 ? tuning.residents : e.residents;
  const int share = std::min(device.shared_bytes, device.shared_bytes_per_sm / residents - 1024);
  const uint32_t room = static_cast<uint32_t>(share) - 1024 - kBarrierBytes;
  p.stages = std::min(room / slot, kMaxSlots);
  const uint32_t shared = 1024 + kBarrierBytes + p.stages * slot;
  cudaError_t r = cudaFuncSetAttribute(e.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(device.shared_bytes));
  if (r != cudaSuccess) {
    return Error{ErrorCode::kDeviceLost, entry_id(e) + ": " + cudaGetErrorString(r)};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(p.workers * e.cluster));
  config.blockDim = dim3(static_cast<unsigned>(e.threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (e.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim = {static_cast<unsigned>(e.cluster), 1, 1};
    ++count;
  }
  if (early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  config.attrs = attributes;
  config.numAttrs = count;
  void* arguments[] = {&p};
  r = cudaLaunchKernelExC(&config, e.kernel, arguments);
  if (r != cudaSuccess)
    return Error{ErrorCode::kDeviceLost,
                 "launch of " + entry_id(e) + " for N = " + std::to_string(p.n) +
                     ", M = " + std::to_string(p.m) + ": " + cudaGetErrorName(r) + " (" +
                     cudaGetErrorString(r) + ")"};
  return {};
}

Status run(const LinearPlan& plan, const void* packed, const LinearCall& call, void* workspace,
           size_t workspace_bytes, cudaStream_t stream, const LinearTuning& tuning) {
  SUB8_RETURN_IF_ERROR(check_call(plan, call));
  if (call.m == 0) return {};
  SUB8_ASSIGN_OR_RETURN(const pack::CudaLinearLayout layout, layout_of(plan));
  SUB8_ASSIGN_OR_RETURN(const Device device, current_device());
  SUB8_ASSIGN_OR_RETURN(const kl::KernelEntry e, select(layout, call.m, tuning));
  int64_t ldx = call.ldx != 0 ? call.ldx : plan.cols;
  const void* x = call.x;
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 && ldx % 8 == 0;
  const size_t need =
      kCounterBytes + partial_bytes(e, device) + (aligned ? 0 : staged_bytes(call.m, plan.cols));
  if (workspace == nullptr || workspace_bytes < need)
    return invalid_argument("workspace of " + std::to_string(need) + " bytes needed, " +
                            std::to_string(workspace == nullptr ? 0 : workspace_bytes) + " given");
  if (reinterpret_cast<uintptr_t>(packed) % 128 != 0 ||
      reinterpret_cast<uintptr_t>(workspace) % 128 != 0)
    return invalid_argument("packed weight and workspace must be 128-byte aligned");
  uint8_t* const work = static_cast<uint8_t*>(workspace);
  if (!aligned) {
    void* staged = work + kCounterBytes + partial_bytes(e, device);
    const cudaError_t r =
        kl::stage_rows(x, ldx, staged, staged_row_elements(plan.cols), call.m, plan.cols, stream);
    if (r != cudaSuccess)
      return Error{ErrorCode::kDeviceLost, std::string("stage_rows: ") + cudaGetErrorString(r)};
    x = staged;
    ldx = static_cast<int64_t>(staged_row_elements(plan.cols));
  }
  kl::RingParams p = {};
  SUB8_RETURN_IF_ERROR(
      make_x_map(&p.x, x, layout.activation(), call.m, plan.cols, ldx, e.tokens / e.cluster));
  p.weights = static_cast<const uint8_t*>(packed);
  p.multipliers = reinterpret_cast<const float*>(p.weights + layout.multiplier_offset());
  p.token_scales = call.token_scales;
  p.bias = call.bias;
  p.residual = call.residual;
  p.y = call.y;
  p.counters = reinterpret_cast<uint32_t*>(work);
  p.partials = reinterpret_cast<float*>(work + kCounterBytes);
  p.ldy = call.ldy != 0 ? call.ldy : plan.rows;
  p.ld_residual = call.ld_residual != 0 ? call.ld_residual : plan.rows;
  p.m = static_cast<int32_t>(call.m);
  p.n = static_cast<int32_t>(plan.rows);
  p.weight_tiles = static_cast<int32_t>(layout.row_tiles());
  p.row_tiles = ceil_div(ceil_div(p.n, pack::kPieceRows), e.pieces * e.cluster);
  p.token_tiles = static_cast<int32_t>(ceil_div<int64_t>(call.m, e.tokens));
  p.k_pieces = static_cast<int32_t>(layout.k_pieces());
  p.k_stages = p.k_pieces / e.units;
  const int64_t total = int64_t{p.row_tiles} * p.token_tiles * p.k_stages;
  if (total > (int64_t{1} << 30))
    return invalid_argument("N, K and M are too large together: " + std::to_string(total) +
                            " stages of work, at most 2^30");
  const int ctas = device.sms * (tuning.ctas_per_sm != 0 ? tuning.ctas_per_sm : e.ctas_per_sm);
  p.workers = static_cast<int32_t>(std::min<int64_t>(ctas / e.cluster, total));
  p.stages_per_worker = static_cast<int32_t>(total / p.workers);
  p.longer_workers = static_cast<int32_t>(total % p.workers);
  p.piece_bytes = static_cast<uint32_t>(layout.piece_bytes());
  p.output = static_cast<kl::OutputType>(call.y_type);
  p.fold = call.fold ? 1 : 0;
  set_scale_decode(p, layout);
  return launch(e, p, device, tuning, call.weights_are_constant && aligned, stream);
}

}  // namespace

LinearStatus plan_linear(const LinearWeight& weight, LinearType activation, LinearPlan* plan) {
  LinearPlan out;
  out.format = weight.format;
  out.activation = activation;
  out.rows = weight.rows;
  out.cols = weight.cols;
  const Result<pack::CudaLinearLayout> layout = layout_of(out);
  if (!layout.ok()) return fail(layout.error().within("plan_linear"));
  out.layout_id = static_cast<uint32_t>(layout->id);
  out.packed_bytes = static_cast<size_t>(layout->total_bytes());
  *plan = out;
  return {};
}

LinearStatus pack_linear(const LinearWeight& weight, const LinearPlan& plan, uint8_t* out,
                         size_t out_bytes, int threads) {
  const Result<pack::CudaLinearLayout> layout = layout_of(plan);
  if (!layout.ok()) return fail(layout.error().within("pack_linear"));
  if (out_bytes != plan.packed_bytes || out_bytes != static_cast<size_t>(layout->total_bytes()))
    return fail(invalid_argument("pack_linear: " + std::to_string(layout->total_bytes()) +
                                 " bytes of output needed, " + std::to_string(out_bytes) +
                                 " given"));
  const Result<StoredMatrix> stored = stored_matrix(weight);
  if (!stored.ok()) return fail(stored.error().within("pack_linear"));
  ThreadPool pool(threads > 0 ? threads : ThreadPool::default_threads());
  const Status s = pack::pack_cuda_linear(*stored, *layout, {out, out_bytes}, pool);
  return s.ok() ? LinearStatus{} : fail(s.error().within("pack_linear"));
}

size_t linear_workspace_bytes(const LinearPlan& plan, int64_t m) {
  Result<Device> device = current_device();
  if (!device.ok()) device = Device{256, 0, 0};
  size_t partials = 0;
  for (const kl::KernelEntry& e : all_entries())
    partials = std::max(partials, partial_bytes(e, *device));
  return kCounterBytes + partials + staged_bytes(m, plan.cols);
}

LinearStatus run_linear(const LinearPlan& plan, const void* packed, const LinearCall& call,
                        void* workspace, size_t workspace_bytes, sub8_stream stream,
                        const LinearTuning& tuning) {
  const Status s = run(plan, packed, call, workspace, workspace_bytes,
                       static_cast<cudaStream_t>(stream), tuning);
  return s.ok() ? LinearStatus{} : fail(s.error().within("run_linear"));
}

std::vector<std::string> linear_kernels(const LinearPlan& plan) {
  std::vector<std::string> ids;
  const Result<pack::CudaLinearLayout> layout = layout_of(plan);
  if (!layout.ok()) return ids;
  for (const kl::KernelEntry& e : all_entries())
    if (runs(e, *layout)) ids.push_back(entry_id(e));
  return ids;
}

LinearStatus explain_linear(const LinearPlan& plan, int64_t m, const LinearTuning& tuning,
                            std::string* kernel) {
  const Result<pack::CudaLinearLayout> layout = layout_of(plan);
  if (!layout.ok()) return fail(layout.error().within("explain_linear"));
  const Result<kl::KernelEntry> e = select(*layout, m, tuning);
  if (!e.ok()) return fail(e.error().within("explain_linear"));
  *kernel = entry_id(*e);
  return {};
}

}  // namespace sub8
