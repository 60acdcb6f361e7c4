// Linear layers on a GPU: microseconds per call, share of the memory floor, ratio to cuBLASLt BF16.
//
// --all 1 measures every candidate that could win, for tuning select.cc; the table shows the
// chosen.
//
//   linear_gpu [--shapes FILE | --shape NxK ...] [--formats a,b] [--m 1,8,16] [--json FILE]
//              [--act bf16|f16|e4m3] [--pdl 0|1] [--kernel END_OF_ID] [--batch-invariant 0|1]
//              [--all 0|1]
//              [--ctas PER_SM] [--residents PER_SM] [--bf16 0|1] [--min-mib 300]
//
// Method: a CUDA graph of back-to-back calls over rotating weight copies (at least --min-mib MiB,
// so that no copy survives in L2; normal weights, quantised), median of 21 replays divided by the
// calls. At each M cuBLASLt and the formats are measured one after the other. The floor is a plain
// read kernel over N*K*bits/8 bytes (scales included) in the same kind of graph. cuBLASLt: the best
// of its first 8 heuristics. --pdl 1 (default) sets weights_are_constant. With --act e4m3 calls
// have row scales, and cuBLASLt's FP8 (e4m3 weights and activations, bf16 out, its accumulation
// without the fast mode) is measured too.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "format/dtype.h"
#include "format/weight_format.h"
#include "sub8/linear.h"

namespace {

using namespace sub8;

#define CHECK_CUDA(x)                                                                    \
  do {                                                                                   \
    const cudaError_t e_ = (x);                                                          \
    if (e_ != cudaSuccess) {                                                             \
      std::printf("CUDA error %s at line %d: %s\n", cudaGetErrorName(e_), __LINE__, #x); \
      std::exit(2);                                                                      \
    }                                                                                    \
  } while (0)

__device__ uint32_t mix(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352dU, x ^= x >> 15, x *= 0x846ca68bU, x ^= x >> 16;
  return x;
}
__global__ void fill_normal(uint16_t* p, size_t n, uint32_t seed, int f16) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint32_t h = mix(static_cast<uint32_t>(i) ^ seed);
    const float u = (static_cast<float>(h >> 8) + 0.5f) / 16777216.0f;
    const float v = static_cast<float>(mix(h + 1) >> 8) / 16777216.0f;
    const float x = sqrtf(-2 * logf(u)) * cospif(2 * v);
    p[i] = f16 ? format::float_to_f16(x) : format::float_to_bf16(x);
  }
}
__global__ void fill_e4m3(uint8_t* p, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint32_t h = mix(static_cast<uint32_t>(i) ^ seed);
    const float u = (static_cast<float>(h >> 8) + 0.5f) / 16777216.0f;
    const float v = static_cast<float>(mix(h + 1) >> 8) / 16777216.0f;
    const float x = 100 * sqrtf(-2 * logf(u)) * cospif(2 * v);
    p[i] = static_cast<uint8_t>(format::encode_element(format::ElementFormat{4, 3}, x));
  }
}
__global__ void fill_words(uint32_t* p, size_t n, uint32_t value) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    p[i] = value;
}
__global__ void repeat(const uint4* from, size_t n, uint4* to, size_t total) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < total;
       i += size_t{gridDim.x} * blockDim.x)
    to[i] = from[i % n];
}

template <int Unroll>
__global__ void __launch_bounds__(1024, 2) read_kernel(const uint4* p, size_t n, uint32_t* out) {
  uint32_t s = 0;
  const size_t chunk = size_t{blockDim.x} * Unroll;
  for (size_t c = blockIdx.x; c * chunk < n; c += gridDim.x) {
    uint4 v[Unroll];
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const size_t i = c * chunk + u * size_t{blockDim.x} + threadIdx.x;
      v[u] = i < n ? __ldcs(p + i) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int u = 0; u < Unroll; ++u) s += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (s == 0x12345678u) out[0] = s;
}

cudaStream_t g_stream;

// Microseconds per call.
double graph_time(const std::function<void(int)>& call, int calls) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  for (int i = 0; i < std::min(calls, 2); ++i) call(i);
  CHECK_CUDA(cudaStreamSynchronize(g_stream));
  CHECK_CUDA(cudaStreamBeginCapture(g_stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) call(i);
  CHECK_CUDA(cudaStreamEndCapture(g_stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_CUDA(cudaGraphLaunch(exec, g_stream));
  cudaEvent_t a, b;
  CHECK_CUDA(cudaEventCreate(&a));
  CHECK_CUDA(cudaEventCreate(&b));
  std::vector<float> ms;
  for (int i = 0; i < 21; ++i) {
    CHECK_CUDA(cudaEventRecord(a, g_stream));
    CHECK_CUDA(cudaGraphLaunch(exec, g_stream));
    CHECK_CUDA(cudaEventRecord(b, g_stream));
    CHECK_CUDA(cudaStreamSynchronize(g_stream));
    float t = 0;
    CHECK_CUDA(cudaEventElapsedTime(&t, a, b));
    ms.push_back(t);
  }
  std::sort(ms.begin(), ms.end());
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  CHECK_CUDA(cudaGraphDestroy(graph));
  cudaEventDestroy(a), cudaEventDestroy(b);
  return ms[10] * 1e3 / calls;
}

uint8_t* g_pool8 = nullptr;  // the same as e4m3
uint8_t* g_pool = nullptr;   // one large random buffer that holds every kind of weight copies
size_t g_pool_bytes = 0;
uint32_t* g_sink = nullptr;

int copies_of(size_t bytes, size_t min_bytes) {
  const size_t n = (min_bytes + bytes - 1) / bytes;
  return static_cast<int>(std::max<size_t>(2, std::min(n, g_pool_bytes / bytes)));
}

// Calls in a graph: every copy once, and 24 unless they are long.
int calls_of(int copies, double us) {
  return std::max(copies, std::clamp(static_cast<int>(3000 / us), 3, 24));
}

double floor_time(size_t bytes, size_t min_bytes) {
  const int copies = copies_of(bytes, min_bytes);
  const int calls = std::max(copies, 24);
  double best = 1e30;
  const auto run = [&](auto kernel, int grid, int block) {
    best = std::min(
        best, graph_time(
                  [&](int i) {
                    kernel<<<grid, block, 0, g_stream>>>(
                        reinterpret_cast<const uint4*>(g_pool + (i % copies) * (bytes / 256 * 256)),
                        bytes / 16, g_sink);
                  },
                  calls));
  };
  run(read_kernel<16>, 264, 1024);
  run(read_kernel<8>, 264, 1024);
  run(read_kernel<4>, 264, 1024);
  run(read_kernel<4>, 528, 512);
  return best;
}

double cublas_time(int64_t n, int64_t k, int64_t m, bool fp8, const void* x, void* y,
                   size_t min_bytes) {
  static cublasLtHandle_t handle = nullptr;
  static void* workspace = nullptr;
  const size_t workspace_bytes = size_t{64} << 20;
  if (handle == nullptr) {
    cublasLtCreate(&handle);
    CHECK_CUDA(cudaMalloc(&workspace, workspace_bytes));
  }
  cublasLtMatmulDesc_t op;
  cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t t = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
  cublasLtMatrixLayout_t a, b, c;
  const cudaDataType_t type = fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  cublasLtMatrixLayoutCreate(&a, type, k, n, k);
  cublasLtMatrixLayoutCreate(&b, type, k, m, k);
  cublasLtMatrixLayoutCreate(&c, CUDA_R_16BF, n, m, n);
  cublasLtMatmulPreference_t pref;
  cublasLtMatmulPreferenceCreate(&pref);
  cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace_bytes, sizeof workspace_bytes);
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  cublasLtMatmulAlgoGetHeuristic(handle, op, a, b, c, c, pref, 8, found, &count);
  const size_t bytes = static_cast<size_t>(n * k * (fp8 ? 1 : 2));
  const int copies = copies_of(bytes, min_bytes);
  const uint8_t* pool = fp8 ? g_pool8 : g_pool;
  const float one = 1, zero = 0;
  double best = 1e30;
  for (int h = 0; h < count; ++h) {
    best = std::min(
        best, graph_time(
                  [&](int i) {
                    cublasLtMatmul(handle, op, &one, pool + static_cast<size_t>(i % copies) * bytes,
                                   a, x, b, &zero, y, c, y, c, &found[h].algo, workspace,
                                   workspace_bytes, g_stream);
                  },
                  calls_of(copies, static_cast<double>(n * k) *
                                       std::max(2.0 / 4e6, 2e-9 * static_cast<double>(m)))));
  }
  cublasLtMatmulPreferenceDestroy(pref);
  cublasLtMatrixLayoutDestroy(a), cublasLtMatrixLayoutDestroy(b), cublasLtMatrixLayoutDestroy(c);
  cublasLtMatmulDescDestroy(op);
  return best;
}

std::vector<std::string> split(const std::string& s) {
  std::vector<std::string> out;
  std::stringstream in(s);
  for (std::string part; std::getline(in, part, ',');) out.push_back(part);
  return out;
}

// 256 rows of normal weights, quantised and packed: random codes would cost more power than real
// weights do, and large products are limited by power.
std::vector<uint8_t> packed_rows(const format::WeightFormat& f, const std::string& name, int64_t k,
                                 LinearType activation, LinearPlan* plan) {
  constexpr int64_t kRows = 256;
  constexpr int64_t kDistinct = 16;
  std::vector<uint8_t> codes(static_cast<size_t>(kRows * f.row_bytes(k)));
  std::vector<uint8_t> scales(static_cast<size_t>(kRows * f.groups(k)));
  std::vector<uint8_t> row(static_cast<size_t>(k));
  std::vector<float> x(static_cast<size_t>(k));
  uint32_t state = 1;
  for (int64_t i = 0; i < kRows; ++i) {
    if (i >= kDistinct) {
      const int64_t from = i % kDistinct;
      std::memcpy(&codes[static_cast<size_t>(i * f.row_bytes(k))],
                  &codes[static_cast<size_t>(from * f.row_bytes(k))],
                  static_cast<size_t>(f.row_bytes(k)));
      std::memcpy(scales.data() + i * f.groups(k), scales.data() + from * f.groups(k),
                  static_cast<size_t>(f.groups(k)));
      continue;
    }
    for (float& v : x) {
      float sum = -6;  // of twelve uniform numbers: nearly normal
      for (int j = 0; j < 12; ++j)
        state = state * 1664525u + 1013904223u, sum += static_cast<float>(state >> 8) * 0x1p-24f;
      v = sum;
    }
    if (f.dense) {
      for (int64_t c = 0; c < k; ++c) {
        const uint16_t bits = activation == LinearType::kF16
                                  ? format::float_to_f16(x[static_cast<size_t>(c)])
                                  : format::float_to_bf16(x[static_cast<size_t>(c)]);
        std::memcpy(&codes[static_cast<size_t>(i * f.row_bytes(k) + 2 * c)], &bits, 2);
      }
      continue;
    }
    const float top = format::decode_element(f.element, f.element.max_code());
    const int64_t group = f.group != 0 ? f.group : k;
    for (int64_t begin = 0; begin < k; begin += group) {
      const int64_t end = std::min(k, begin + group);
      float amax = 0;
      for (int64_t c = begin; c < end; ++c)
        amax = std::max(amax, std::fabs(x[static_cast<size_t>(c)]));
      float d = amax / top;
      uint8_t* scale = scales.data() + (f.group != 0 ? i * f.groups(k) + begin / group : 0);
      if (f.block_scale == format::BlockScale::kE4M3) {
        *scale = static_cast<uint8_t>(format::encode_element(format::kE4M3, d * 64));
        d = format::decode_element(format::kE4M3, *scale) / 64;
      } else if (f.block_scale == format::BlockScale::kE8M0) {
        const int exponent = static_cast<int>(std::ceil(std::log2(d)));
        *scale = static_cast<uint8_t>(127 + exponent), d = std::ldexp(1.0f, exponent);
      }
      for (int64_t c = begin; c < end; ++c)
        row[static_cast<size_t>(c)] =
            static_cast<uint8_t>(format::encode_element(f.element, x[static_cast<size_t>(c)] / d));
    }
    format::pack_codes(row.data(), k, f.element.bits(),
                       &codes[static_cast<size_t>(i * f.row_bytes(k))]);
  }
  const std::vector<float> outer(f.dense                                         ? 0
                                 : f.outer_scale == format::OuterScale::kChannel ? kRows
                                 : f.outer_scale == format::OuterScale::kTensor  ? 1
                                                                                 : 0,
                                 0.01f);
  LinearWeight w;
  w.format = name, w.rows = kRows, w.cols = k;
  w.codes = codes.data(), w.code_bytes = codes.size();
  w.block_scales = scales.data(), w.block_scale_bytes = scales.size();
  w.outer_scales = outer.data(), w.outer_scale_count = outer.size();
  LinearStatus status = plan_linear(w, activation, plan);
  std::vector<uint8_t> packed;
  if (status) {
    packed.resize(plan->packed_bytes);
    status = pack_linear(w, *plan, packed.data(), packed.size(), 0);
  }
  if (!status) {
    std::printf("%s: %s\n", name.c_str(), status.message.c_str());
    std::exit(2);
  }
  return packed;
}

// Copies of a packed weight of a shape, and what belongs to them.
struct Packed {
  std::string format;
  LinearPlan plan;
  size_t stride = 0;
  int copies = 0;
  uint8_t* pool = nullptr;
  void* work = nullptr;
  size_t work_bytes = 0;
  double floor = 0;
  std::string row;  // of the table
};

struct Shape {
  int64_t n, k;
  bool operator<(const Shape& o) const { return n * k != o.n * o.k ? n * k < o.n * o.k : n < o.n; }
};

Packed make_packed(const std::string& format, const Shape& s, LinearType activation,
                   size_t min_bytes, int64_t max_m) {
  Packed w;
  w.format = format;
  const Result<format::WeightFormat> wf = format::parse_weight_format(format);
  LinearWeight lw;
  lw.format = format, lw.rows = s.n, lw.cols = s.k;
  const LinearStatus planned = plan_linear(lw, activation, &w.plan);
  if (!wf.ok() || !planned) {
    std::printf("%s: %s\n", format.c_str(), planned.message.c_str());
    std::exit(2);
  }
  w.floor =
      floor_time(static_cast<size_t>(s.n * (wf->row_bytes(s.k) + wf->groups(s.k))), min_bytes);
  w.stride = (w.plan.packed_bytes + 255) / 256 * 256;
  w.copies = static_cast<int>(std::max<size_t>(2, (min_bytes + w.stride - 1) / w.stride));
  CHECK_CUDA(cudaMalloc(&w.pool, static_cast<size_t>(w.copies) * w.stride));
  LinearPlan small;
  const std::vector<uint8_t> rows = packed_rows(*wf, format, s.k, activation, &small);
  uint8_t* one = nullptr;
  CHECK_CUDA(cudaMalloc(&one, rows.size()));
  CHECK_CUDA(cudaMemcpy(one, rows.data(), rows.size(), cudaMemcpyHostToDevice));
  const size_t tiles = static_cast<size_t>((s.n + 255) / 256);
  // 256 multipliers follow, and in 8-bit layouts with block scales a word of the scale mode.
  const size_t mode_bytes = activation == LinearType::kE4M3 && wf->group != 0 ? 4 : 0;
  const size_t codes = rows.size() - 1024 - mode_bytes;
  uint32_t mode = 0;
  std::memcpy(&mode, rows.data() + codes + 1024, mode_bytes);
  for (int i = 0; i < w.copies; ++i) {
    uint8_t* copy = w.pool + static_cast<size_t>(i) * w.stride;
    repeat<<<1024, 256, 0, g_stream>>>(reinterpret_cast<const uint4*>(one), codes / 16,
                                       reinterpret_cast<uint4*>(copy), tiles * codes / 16);
    repeat<<<64, 256, 0, g_stream>>>(reinterpret_cast<const uint4*>(one + codes), 64,
                                     reinterpret_cast<uint4*>(copy + tiles * codes), tiles * 64);
    if (mode_bytes != 0)
      fill_words<<<4, 256, 0, g_stream>>>(
          reinterpret_cast<uint32_t*>(copy + tiles * (codes + 1024)), tiles, mode);
  }
  CHECK_CUDA(cudaStreamSynchronize(g_stream));
  CHECK_CUDA(cudaFree(one));
  w.work_bytes = linear_workspace_bytes(w.plan, max_m);
  CHECK_CUDA(cudaMalloc(&w.work, w.work_bytes));
  CHECK_CUDA(cudaMemset(w.work, 0, 65536));
  return w;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Shape> shapes;
  std::vector<std::string> formats = {"e3m2", "nvfp4"};
  std::vector<int64_t> ms = {1, 8, 16, 32, 64, 128, 512};
  std::string json;
  LinearType act = LinearType::kBF16;
  bool pdl = true, bf16 = true, invariant = false, all = false;
  LinearTuning tuning;
  size_t min_bytes = size_t{300} << 20;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (i + 1 >= argc) {
      std::printf("linear_gpu: %s needs a value; see the head of bench/gpu/linear_gpu.cu\n",
                  a.c_str());
      return 2;
    }
    const std::string v = argv[++i];
    if (a == "--shapes") {
      std::ifstream in(v);
      for (std::string line; std::getline(in, line);) {
        const std::vector<std::string> f = split(line);
        if (line.empty() || line[0] == '#' || f.size() < 5) continue;
        shapes.push_back({std::atoll(f[3].c_str()), std::atoll(f[4].c_str())});
      }
    } else if (a == "--shape") {
      for (const std::string& s : split(v)) {
        Shape sh{};
        if (std::sscanf(s.c_str(), "%ldx%ld", &sh.n, &sh.k) == 2) shapes.push_back(sh);
      }
    } else if (a == "--formats") {
      formats = split(v);
    } else if (a == "--m") {
      ms.clear();
      for (const std::string& s : split(v)) ms.push_back(std::atoll(s.c_str()));
    } else if (a == "--json") {
      json = v;
    } else if (a == "--act") {
      act = v == "f16" ? LinearType::kF16 : v == "e4m3" ? LinearType::kE4M3 : LinearType::kBF16;
    } else if (a == "--pdl") {
      pdl = v != "0";
    } else if (a == "--bf16") {
      bf16 = v != "0";
    } else if (a == "--batch-invariant") {
      invariant = v != "0";
    } else if (a == "--all") {
      all = v != "0";
    } else if (a == "--kernel") {
      tuning.kernel = v;
    } else if (a == "--ctas") {
      tuning.ctas_per_sm = std::atoi(v.c_str());
    } else if (a == "--residents") {
      tuning.residents = std::atoi(v.c_str());
    } else if (a == "--min-mib") {
      min_bytes = static_cast<size_t>(std::atoll(v.c_str())) << 20;
    } else {
      std::printf("linear_gpu: unknown argument %s\n", a.c_str());
      return 2;
    }
  }
  std::sort(shapes.begin(), shapes.end());
  shapes.erase(std::unique(shapes.begin(), shapes.end(),
                           [](const Shape& a, const Shape& b) { return a.n == b.n && a.k == b.k; }),
               shapes.end());
  if (shapes.empty() || formats.empty() || ms.empty()) {
    std::printf("linear_gpu: nothing to do; give --shapes or --shape\n");
    return 2;
  }
  int64_t max_nk = 0, max_k = 0, max_n = 0;
  for (const Shape& s : shapes)
    max_nk = std::max(max_nk, s.n * s.k), max_k = std::max(max_k, s.k),
    max_n = std::max(max_n, s.n);
  const int64_t max_m = *std::max_element(ms.begin(), ms.end());
  CHECK_CUDA(cudaStreamCreate(&g_stream));
  g_pool_bytes = std::max<size_t>(static_cast<size_t>(max_nk) * 4 + (size_t{8} << 20),
                                  min_bytes + static_cast<size_t>(max_nk) * 2);
  CHECK_CUDA(cudaMalloc(&g_pool, g_pool_bytes));
  CHECK_CUDA(cudaMalloc(&g_sink, 256));
  uint16_t* x = nullptr;
  uint8_t* y = nullptr;
  CHECK_CUDA(cudaMalloc(&x, static_cast<size_t>(max_m * max_k) * 2));
  CHECK_CUDA(cudaMalloc(&y, static_cast<size_t>(max_m * max_n) * 4));
  fill_normal<<<512, 256, 0, g_stream>>>(x, static_cast<size_t>(max_m * max_k), 5,
                                         act == LinearType::kF16);
  const bool e4m3 = act == LinearType::kE4M3;
  uint8_t* x8 = nullptr;
  if (e4m3) {
    CHECK_CUDA(cudaMalloc(&x8, static_cast<size_t>(max_m * max_k)));
    CHECK_CUDA(cudaMalloc(&g_pool8, g_pool_bytes));
    fill_e4m3<<<512, 256, 0, g_stream>>>(x8, static_cast<size_t>(max_m * max_k), 5);
    fill_e4m3<<<1024, 256, 0, g_stream>>>(g_pool8, g_pool_bytes, 9);
  }
  float* token_scales = nullptr;
  CHECK_CUDA(cudaMalloc(&token_scales, static_cast<size_t>(max_m) * 4));
  fill_words<<<64, 256, 0, g_stream>>>(reinterpret_cast<uint32_t*>(token_scales),
                                       static_cast<size_t>(max_m), format::float_bits(0.01f));
  const char* act_name = e4m3 ? "e4m3" : act == LinearType::kF16 ? "f16" : "bf16";
  cudaDeviceProp prop;
  CHECK_CUDA(cudaGetDeviceProperties(&prop, 0));
  std::printf(
      "%s, activations %s, pdl %d; us per call, (share of floor, ratio to cuBLASLt BF16%s)\n",
      prop.name, act_name, pdl, e4m3 ? ", to cuBLASLt FP8" : "");
  FILE* out = json.empty() ? nullptr : std::fopen(json.c_str(), "w");
  if (!json.empty() && out == nullptr) {
    std::printf("linear_gpu: cannot write %s\n", json.c_str());
    return 2;
  }
  if (out != nullptr)
    std::fprintf(out, "{\"device\": \"%s\", \"activations\": \"%s\", \"pdl\": %d, \"results\": [",
                 prop.name, act_name, pdl);
  bool first = true;
  for (const Shape& s : shapes) {
    fill_normal<<<1024, 256, 0, g_stream>>>(reinterpret_cast<uint16_t*>(g_pool), g_pool_bytes / 2,
                                            9, 0);
    std::vector<Packed> packed;
    for (const std::string& f : formats) {
      packed.push_back(make_packed(f, s, act, min_bytes, std::max<int64_t>(max_m, 128)));
    }
    for (const int64_t m : ms) {
      // One after the other, so that ratios compare equal states of the card.
      const double base = bf16 ? cublas_time(s.n, s.k, m, false, x, y, min_bytes) : 0.0;
      const double base8 = bf16 && e4m3 ? cublas_time(s.n, s.k, m, true, x8, y, min_bytes) : 0.0;
      for (Packed& w : packed) {
        LinearCall call;
        call.x = e4m3 ? static_cast<const void*>(x8) : x;
        call.m = m, call.y = y, call.weights_are_constant = pdl;
        call.batch_invariant = invariant;
        call.token_scales = e4m3 ? token_scales : nullptr;
        LinearChoice choice;
        LinearStatus status = explain_linear(w.plan, m, invariant, tuning, &choice);
        double chosen = 0;
        for (size_t c = 0; c < (all ? choice.candidates.size() : 1) && status; ++c) {
          const LinearCandidate& candidate = choice.candidates[c];
          if (c > 0 && candidate.estimate_us > 1.7 * choice.candidates[0].estimate_us) continue;
          LinearTuning exact = tuning;
          exact.kernel = candidate.kernel, exact.ctas_per_sm = candidate.ctas_per_sm;
          exact.residents = candidate.residents;
          const double us = graph_time(
              [&](int i) {
                const LinearStatus r =
                    run_linear(w.plan, w.pool + static_cast<size_t>(i % w.copies) * w.stride, call,
                               w.work, w.work_bytes, g_stream, exact);
                if (!r) status = r;
              },
              calls_of(w.copies, candidate.estimate_us));
          if (c == 0) chosen = us;
          if (out != nullptr)
            std::fprintf(out,
                         "%s\n{\"n\": %ld, \"k\": %ld, \"m\": %ld, \"format\": \"%s\", \"kernel\": "
                         "\"%s\", \"ctas_per_sm\": %d, \"residents\": %d, \"chosen\": %s, \"us\": "
                         "%.3f, \"estimate_us\": %.3f, \"floor_us\": %.3f, \"bf16_us\": %.3f, "
                         "\"fp8_us\": %.3f}",
                         first ? "" : ",", s.n, s.k, m, w.format.c_str(), candidate.kernel.c_str(),
                         candidate.ctas_per_sm, candidate.residents, c == 0 ? "true" : "false", us,
                         candidate.estimate_us, w.floor, base, base8);
          first = false;
        }
        if (!status) {
          std::printf("%s: %s\n", w.format.c_str(), status.message.c_str());
          return 1;
        }
        char cell[80];
        std::snprintf(cell, sizeof cell, " M=%ld %.1f (%.2f, %.2fx", m, chosen, w.floor / chosen,
                      base / chosen);
        w.row += cell;
        if (e4m3) std::snprintf(cell, sizeof cell, ", %.2fx", base8 / chosen), w.row += cell;
        w.row += ")";
      }
    }
    for (const Packed& w : packed) {
      std::printf("%6ldx%-6ld %-10s floor %6.1f |%s\n", s.n, s.k, w.format.c_str(), w.floor,
                  w.row.c_str());
      CHECK_CUDA(cudaFree(w.work));
      CHECK_CUDA(cudaFree(w.pool));
    }
    std::fflush(stdout);
    if (out != nullptr) std::fflush(out);
  }
  if (out != nullptr) {
    std::fprintf(out, "\n]}\n");
    std::fclose(out);
  }
  return 0;
}
