// Implementation of include/sub8/linear.h: checks, selection and launch. Plain C++ over the CUDA
// runtime.
#include "sub8/linear.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/linear/cuda/params.h"
#include "kernels/linear/cuda/select.h"
#include "kernels/linear/cuda/stage_rows.h"
#include "pack/cuda/byte_layout.h"
#include "pack/cuda/linear_layout.h"

namespace sub8 {
namespace {

namespace kl = kernels::linear;
using format::Half;

constexpr size_t kCounterBytes = 65536;

LinearStatus fail(const Error& error) { return {exit_status(error.code), error.message}; }

using Device = kl::Card;

// Per device, looked up once.
Result<Device> current_device() {
  static std::mutex mutex;
  static std::vector<std::optional<Device>> known;
  int id = 0;
  cudaError_t e = cudaGetDevice(&id);
  if (e != cudaSuccess) return unsupported(std::string("no CUDA device: ") + cudaGetErrorString(e));
  const std::lock_guard lock(mutex);
  if (static_cast<size_t>(id) >= known.size()) known.resize(static_cast<size_t>(id) + 1);
  std::optional<Device>& d = known[static_cast<size_t>(id)];
  if (!d) {
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
  return *d;
}

Result<pack::CudaLinearLayout> layout_of(const LinearPlan& plan) {
  SUB8_ASSIGN_OR_RETURN(const format::WeightFormat f, format::parse_weight_format(plan.format));
  if (plan.activation == LinearType::kF32)
    return invalid_argument("activations are f16, bf16 or e4m3, not f32");
  const Half half = plan.activation == LinearType::kF16 ? Half::kF16 : Half::kBF16;
  SUB8_ASSIGN_OR_RETURN(pack::CudaLinearLayout layout,
                        plan.activation == LinearType::kE4M3
                            ? pack::make_cuda_byte_layout(f, plan.rows, plan.cols)
                            : pack::make_cuda_linear_layout(f, plan.rows, plan.cols, half));
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

kl::Wanted wanted_of(const LinearTuning& tuning, bool batch_invariant) {
  return {tuning.kernel, tuning.ctas_per_sm, tuning.residents, batch_invariant};
}

Result<kl::Choice> select(const pack::CudaLinearLayout& layout, int64_t m, const Device& device,
                          const kl::Wanted& wanted) {
  std::string refused;
  const std::vector<kl::Choice> found = kl::candidates(layout, m, device, wanted, &refused);
  if (found.empty())
    return unsupported("no kernel for " + layout.format.name() + "; candidates:\n" + refused);
  return found.front();
}

// Counters and exchange buffer of split-K for any kernel of this layout: calls that share a
// workspace may choose different ones.
size_t exchange_bytes(const pack::CudaLinearLayout& layout, const Device& device) {
  size_t most = 0;
  for (const kl::KernelEntry& e : kl::all_kernels()) {
    if (!kl::runs(e, layout)) continue;
    const size_t rows = static_cast<size_t>(device.sms * e.residents * e.rows) *
                        (e.loop == kl::MainLoop::kSliced ? 2 : 1);  // two tiles' parts per CTA
    SUB8_CHECK(rows / 16 * 4 <= kCounterBytes);
    most = std::max(most, rows * static_cast<size_t>(e.tokens) * 4);
  }
  return kCounterBytes + most;
}
// Of activations. The tensor copy addresses rows in units of 16 bytes.
int64_t element_bytes(pack::Operand type) { return type == pack::Operand::kE4M3 ? 1 : 2; }
size_t staged_row_elements(const pack::CudaLinearLayout& layout) {
  return static_cast<size_t>(round_up<int64_t>(layout.cols, 16 / element_bytes(layout.operand())));
}
size_t staged_bytes(const pack::CudaLinearLayout& layout, int64_t m) {
  return round_up<size_t>(static_cast<size_t>(m) * staged_row_elements(layout) *
                              static_cast<size_t>(element_bytes(layout.operand())),
                          256);
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

// X as [m, k] with rows of `stride` elements, in boxes of 128 bytes x box_rows; outside it reads
// zero.
Status make_x_map(kl::TensorMap* out, const void* x, pack::Operand type, int64_t m, int64_t k,
                  int64_t stride, int box_rows) {
  static_assert(sizeof(CUtensorMap) == sizeof(kl::TensorMap));
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr) return unsupported("the CUDA driver lacks cuTensorMapEncodeTiled");
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(m)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride * element_bytes(type))};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes(type)),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUtensorMapDataType data_type =
      type == pack::Operand::kF16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
      : type == pack::Operand::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const CUresult r = encode(&map, data_type, 2, const_cast<void*>(x), dims, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    return internal_error("cuTensorMapEncodeTiled failed with code " + std::to_string(r));
  std::memcpy(out, &map, sizeof(map));
  return {};
}

// The parts of a packed weight as [tile of 256][k piece][block of 64][quad][8 bytes], in boxes of a
// CTA's rows and a stage's k.
Status make_weight_maps(kl::TensorMap (&maps)[4], const uint8_t* packed,
                        const pack::CudaLinearLayout& layout, const kl::KernelEntry& e) {
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr) return unsupported("the CUDA driver lacks cuTensorMapEncodeTiled");
  const int words = layout.words();
  const int64_t bytes[4] = {words >= 4 ? 2048 : 0, (words & 2) != 0 ? 1024 : 0,
                            (words & 1) != 0 ? 512 : 0, layout.scale_bytes()};
  const int parts_of_block = pack::kPieceRows / e.rows;
  int64_t offset = 0;
  for (int part = 0; part < 4; ++part) {
    const int64_t quads = part == 0 ? words / 4 : 1;
    if (bytes[part] == 0) continue;
    const auto piece = static_cast<cuuint64_t>(layout.piece_bytes());
    const cuuint64_t k_pieces = static_cast<cuuint64_t>(layout.k_pieces());
    const cuuint64_t dims[5] = {static_cast<cuuint64_t>(bytes[part] / 8),
                                static_cast<cuuint64_t>(quads), pack::kPiecesPerTile, k_pieces,
                                static_cast<cuuint64_t>(layout.row_tiles())};
    const cuuint64_t strides[4] = {static_cast<cuuint64_t>(bytes[part]), piece,
                                   pack::kPiecesPerTile * piece,
                                   pack::kPiecesPerTile * piece * k_pieces};
    const cuuint32_t box[5] = {static_cast<cuuint32_t>(bytes[part] / 8 / parts_of_block),
                               static_cast<cuuint32_t>(quads), 1, static_cast<cuuint32_t>(e.units),
                               1};
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    const CUresult r =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_INT64, 5, const_cast<uint8_t*>(packed) + offset, dims,
               strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS)
      return internal_error("cuTensorMapEncodeTiled for part " + std::to_string(part) +
                            " of a weight failed with code " + std::to_string(r));
    std::memcpy(&maps[part], &map, sizeof(map));
    offset += quads * bytes[part];
  }
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
  if (call.y_type == LinearType::kE4M3) return invalid_argument("y is f32, f16 or bf16, not e4m3");
  if (call.fold && call.m % 2 != 0)
    return invalid_argument("fold needs an even number of rows, got m = " + std::to_string(call.m));
  return {};
}

// What the tensor copy can address. Leading dimensions are set.
bool rows_are_aligned(const pack::CudaLinearLayout& layout, const LinearCall& call) {
  return reinterpret_cast<uintptr_t>(call.x) % 16 == 0 &&
         call.ldx * element_bytes(layout.operand()) % 16 == 0;
}

void set_scale_decode(kl::RingParams& p, const pack::CudaLinearLayout& layout) {
  if (layout.group_kind() != pack::GroupKind::k32) return;
  if (layout.bytes()) {
    const pack::ScaleDecode decode = pack::scale_decode(layout.format);
    p.scale_mask = 1u << decode.shift;
    p.scale_base = decode.base;
    p.scale_modes = reinterpret_cast<const uint32_t*>(p.weights + layout.mode_offset());
    return;
  }
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

// `argument`: the kernel's parameters, which hold `p`.
Status launch(const kl::KernelEntry& e, const kl::RingParams& p, int grid, void* argument,
              const Device& device, bool early, cudaStream_t stream) {
  const uint32_t shared = kl::kRingOverhead + round_up<uint32_t>(e.beside_bytes, 1024) +
                          p.stages * kl::ring_slot_size(e, p.piece_bytes, p.m);
  cudaError_t r = cudaFuncSetAttribute(e.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(device.shared_bytes));
  if (r != cudaSuccess) {
    return Error{ErrorCode::kDeviceLost, kl::kernel_id(e) + ": " + cudaGetErrorString(r)};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
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
  void* arguments[] = {argument};
  r = cudaLaunchKernelExC(&config, e.kernel, arguments);
  if (r != cudaSuccess)
    return Error{ErrorCode::kDeviceLost,
                 "launch of " + kl::kernel_id(e) + " for N = " + std::to_string(p.n) +
                     ", M = " + std::to_string(p.m) + ": " + cudaGetErrorName(r) + " (" +
                     cudaGetErrorString(r) + ")"};
  return {};
}

Status run_rows(const pack::CudaLinearLayout& layout, const void* packed, const LinearCall& call,
                uint8_t* workspace, const Device& device, cudaStream_t stream,
                const LinearTuning& tuning) {
  SUB8_ASSIGN_OR_RETURN(const kl::Choice choice,
                        select(layout, call.m, device, wanted_of(tuning, call.batch_invariant)));
  const kl::KernelEntry& e = choice.entry;
  const void* x = call.x;
  int64_t ldx = call.ldx;
  const bool aligned = rows_are_aligned(layout, call);
  if (!aligned) {
    void* staged = workspace + exchange_bytes(layout, device);
    const cudaError_t r =
        kl::stage_rows(x, ldx, staged, staged_row_elements(layout), call.m, layout.cols,
                       static_cast<int>(element_bytes(layout.operand())), stream);
    if (r != cudaSuccess)
      return Error{ErrorCode::kDeviceLost, std::string("stage_rows: ") + cudaGetErrorString(r)};
    x = staged;
    ldx = static_cast<int64_t>(staged_row_elements(layout));
  }
  // The sliced loop copies the rows that there are.
  const bool sliced = e.loop == kl::MainLoop::kSliced;
  const int box_rows = sliced ? static_cast<int>(call.m) : e.tokens / e.cluster;
  kl::SlicedParams whole = {};
  kl::RingParams& p = whole.ring;
  SUB8_RETURN_IF_ERROR(make_x_map(&p.x, x, layout.operand(), call.m, layout.cols, ldx, box_rows));
  p.weights = static_cast<const uint8_t*>(packed);
  p.multipliers = reinterpret_cast<const float*>(p.weights + layout.multiplier_offset());
  p.token_scales = call.token_scales;
  p.bias = call.bias;
  p.residual = call.residual;
  p.y = call.y;
  p.counters = reinterpret_cast<uint32_t*>(workspace);
  p.partials = reinterpret_cast<float*>(workspace + kCounterBytes);
  p.ldy = call.ldy;
  p.ld_residual = call.ld_residual;
  p.m = static_cast<int32_t>(call.m);
  p.n = static_cast<int32_t>(layout.rows);
  const kl::Division d = kl::divide(e, choice.ctas_per_sm, layout, call.m, device.sms);
  if (d.stages > (int64_t{1} << 30))
    return invalid_argument("N, K and M are too large together: " + std::to_string(d.stages) +
                            " stages of work, at most 2^30");
  p.weight_tiles = static_cast<int32_t>(layout.row_tiles());
  p.row_tiles = d.row_tiles;
  p.token_tiles = d.token_tiles;
  p.k_pieces = static_cast<int32_t>(layout.k_pieces());
  p.k_stages = d.k_stages;
  p.workers = d.workers;
  const int64_t line = int64_t{d.rest_tiles} * d.token_tiles * d.k_stages;
  p.stages_per_worker = static_cast<int32_t>(line / d.workers);
  p.longer_workers = static_cast<int32_t>(line % d.workers);
  p.piece_bytes = static_cast<uint32_t>(layout.piece_bytes());
  p.output = static_cast<kl::OutputType>(call.y_type);
  p.fold = call.fold ? 1 : 0;
  p.stages = kl::ring_slots(e, layout.piece_bytes(), call.m, choice.residents, device);
  set_scale_decode(p, layout);
  void* argument = &p;
  if (sliced) {
    SUB8_RETURN_IF_ERROR(make_weight_maps(whole.parts, p.weights, layout, e));
    whole.rest_tiles = d.rest_tiles;
    whole.x_pitch = static_cast<uint32_t>(kl::slot_rows(e, call.m)) * 128;
    argument = &whole;
  }
  return launch(e, p, p.workers * e.cluster, argument, device, call.weights_are_constant && aligned,
                stream);
}

Status run(const LinearPlan& plan, const void* packed, LinearCall call, void* workspace,
           size_t workspace_bytes, cudaStream_t stream, const LinearTuning& tuning) {
  SUB8_RETURN_IF_ERROR(check_call(plan, call));
  if (call.m == 0) return {};
  SUB8_ASSIGN_OR_RETURN(const pack::CudaLinearLayout layout, layout_of(plan));
  SUB8_ASSIGN_OR_RETURN(const Device device, current_device());
  if (call.ldx == 0) call.ldx = plan.cols;
  if (call.ldy == 0) call.ldy = plan.rows;
  if (call.ld_residual == 0) call.ld_residual = plan.rows;
  const size_t need = exchange_bytes(layout, device) +
                      (rows_are_aligned(layout, call) ? 0 : staged_bytes(layout, call.m));
  if (workspace == nullptr || workspace_bytes < need)
    return invalid_argument("workspace of " + std::to_string(need) + " bytes needed, " +
                            std::to_string(workspace == nullptr ? 0 : workspace_bytes) + " given");
  if (reinterpret_cast<uintptr_t>(packed) % 128 != 0 ||
      reinterpret_cast<uintptr_t>(workspace) % 128 != 0)
    return invalid_argument("packed weight and workspace must be 128-byte aligned");
  uint8_t* const work = static_cast<uint8_t*>(workspace);
  if (!call.batch_invariant) return run_rows(layout, packed, call, work, device, stream, tuning);
  // Split points depend on the number of row tiles of X, so each launch gets one.
  const int64_t x_row_bytes = call.ldx * element_bytes(layout.operand());
  const int64_t element = call.y_type == LinearType::kF32 ? 4 : 2;
  for (int64_t row = 0; row < call.m; row += kl::kInvariantRows) {
    LinearCall part = call;
    const int64_t y_row = call.fold ? row / 2 : row;
    part.m = std::min(call.m - row, kl::kInvariantRows);
    part.x = static_cast<const uint8_t*>(call.x) + row * x_row_bytes;
    part.y = static_cast<uint8_t*>(call.y) + y_row * call.ldy * element;
    if (call.residual != nullptr)
      part.residual =
          static_cast<const uint8_t*>(call.residual) + y_row * call.ld_residual * element;
    if (call.token_scales != nullptr) part.token_scales = call.token_scales + y_row;
    SUB8_RETURN_IF_ERROR(run_rows(layout, packed, part, work, device, stream, tuning));
  }
  return {};
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
  const Result<Device> device = current_device();
  const Result<pack::CudaLinearLayout> layout = layout_of(plan);
  if (!layout.ok()) return 0;
  return exchange_bytes(*layout, device.ok() ? *device : Device{}) + staged_bytes(*layout, m);
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
  for (const kl::KernelEntry& e : kl::all_kernels())
    if (kl::runs(e, *layout)) ids.push_back(kl::kernel_id(e));
  return ids;
}

LinearStatus explain_linear(const LinearPlan& plan, int64_t m, bool batch_invariant,
                            const LinearTuning& tuning, LinearChoice* choice) {
  const Result<pack::CudaLinearLayout> layout = layout_of(plan);
  if (!layout.ok()) return fail(layout.error().within("explain_linear"));
  const Result<Device> device = current_device();
  *choice = {};
  for (const kl::Choice& c : kl::candidates(
           *layout, batch_invariant ? std::min(m, kl::kInvariantRows) : m,
           device.ok() ? *device : Device{}, wanted_of(tuning, batch_invariant), &choice->refused))
    choice->candidates.push_back(
        {kl::kernel_id(c.entry), c.ctas_per_sm, c.residents, c.estimate_us});
  if (choice->candidates.empty())
    return fail(unsupported("explain_linear: no kernel for " + layout->format.name() +
                            "; candidates:\n" + choice->refused));
  return {};
}

}  // namespace sub8
