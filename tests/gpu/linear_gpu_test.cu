// Every linear kernel instance on a GPU, against a reference that reads the storage form. Needs
// CUDA and the standard library only (tools/gpu/run.sh). Prints one line per failure with its
// replay arguments, then counts; exit status 1 if anything failed.
//
// Grid inputs make every partial sum exact, so outputs must match to the bit in any order of
// summation; full-range inputs must stay within (K/16 + 8) * 2^-23 * sum|x*w|: the
// atom keeps 23 bits, one rounding per k16 step. Outputs
// are poisoned and guarded; every case runs three times and must repeat itself.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "device.h"
#include "format/dtype.h"
#include "format/weight_format.h"
#include "sub8/linear.h"

namespace {

using namespace sub8;

struct Case {
  std::string format;
  LinearType act;
  int64_t n, k, m;
  int tokens;
  std::string kernel;
  bool grid;
  LinearType out;
  bool bias, residual, fold, token_scales, early;
  int ldx_extra;
  int ctas_per_sm = 0, residents = 0;
};

struct Weight {
  format::WeightFormat f;
  std::vector<uint8_t> codes, scales;
  std::vector<float> outer, decoded;
};

// Values of a window of 3 binades at the top where `grid`, else every finite code.
uint32_t random_code(const format::ElementFormat& e, bool grid, uint32_t h) {
  uint32_t magnitude = h % (e.max_code() + 1);
  if (grid && e.exponent_bits > 3) {
    const uint32_t top = e.max_code() >> e.mantissa_bits;
    magnitude = ((top - 1 - h % 3) << e.mantissa_bits) | ((h >> 8) & ((1u << e.mantissa_bits) - 1));
  }
  return magnitude | ((h >> 31) != 0 ? e.sign_bit() : 0u);
}

Weight make_weight(const Case& c, uint32_t seed) {
  Weight w;
  w.f = format::parse_weight_format(c.format).value();
  const int64_t row_bytes = w.f.row_bytes(c.k);
  const int64_t groups = w.f.groups(c.k);
  w.codes.assign(static_cast<size_t>(c.n * row_bytes), 0);
  w.decoded.assign(static_cast<size_t>(c.n * c.k), 0);
  w.scales.resize(static_cast<size_t>(c.n * groups));
  const bool e8m0 = w.f.block_scale == format::BlockScale::kE8M0;
  static const uint8_t grid_e4m3[] = {0x30, 0x34, 0x38, 0x3c};  // 0.5, 0.75, 1, 1.5
  for (size_t i = 0; i < w.scales.size(); ++i) {
    const uint32_t h = hash32(static_cast<uint32_t>(i) + seed * 7919u);
    w.scales[i] = e8m0     ? static_cast<uint8_t>(c.grid ? 126 + h % 3 : 107 + h % 20)
                  : c.grid ? grid_e4m3[h % 4]
                           : static_cast<uint8_t>(h % 0x7f);
  }
  std::vector<uint8_t> row(static_cast<size_t>(c.k));
  for (int64_t n = 0; n < c.n; ++n) {
    for (int64_t k = 0; k < c.k; ++k) {
      const uint32_t h = hash32(static_cast<uint32_t>(n * c.k + k) ^ (seed * 0x9e3779b9u));
      float* value = &w.decoded[static_cast<size_t>(n * c.k + k)];
      if (w.f.dense) {
        *value = static_cast<float>(static_cast<int>(h % 15) - 7);
        const uint16_t bits = w.f.dtype == format::DType::kF16 ? format::float_to_f16(*value)
                                                               : format::float_to_bf16(*value);
        std::memcpy(&w.codes[static_cast<size_t>(n * row_bytes + 2 * k)], &bits, 2);
        continue;
      }
      const uint32_t code = random_code(w.f.element, c.grid, h);
      row[static_cast<size_t>(k)] = static_cast<uint8_t>(code);
      *value = format::decode_element(w.f.element, code);
      if (groups == 0) continue;
      const uint8_t s = w.scales[static_cast<size_t>(n * groups + k / w.f.group)];
      *value *= e8m0 ? format::decode_e8m0(s) : format::decode_element(format::kE4M3, s);
    }
    if (!w.f.dense)
      format::pack_codes(row.data(), c.k, w.f.element.bits(),
                         &w.codes[static_cast<size_t>(n * row_bytes)]);
  }
  const size_t outer = w.f.outer_scale == format::OuterScale::kChannel  ? static_cast<size_t>(c.n)
                       : w.f.outer_scale == format::OuterScale::kTensor ? 1
                                                                        : 0;
  if (!w.f.dense)
    for (size_t i = 0; i < outer; ++i)
      w.outer.push_back(
          (0.001f + static_cast<float>(hash32(static_cast<uint32_t>(i) + seed) % 1000) * 1e-4f) *
          (c.grid ? 1.0f : 0x1p-10f));
  return w;
}

constexpr int kReferenceRows = 520;  // most rows of X that a case may have

__device__ float random_x(bool grid, uint32_t h) {
  if (grid) return h % 4 != 0 ? 0.0f : static_cast<float>(static_cast<int>((h >> 8) % 5) - 2);
  const float u = (static_cast<float>(h >> 8) + 0.5f) / 16777216.0f;
  const float v = (static_cast<float>(hash32(h) >> 8) + 0.5f) / 16777216.0f;
  return sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
}
__device__ uint16_t to_half(LinearType t, float x) {
  return t == LinearType::kF16 ? format::float_to_f16(x) : format::float_to_bf16(x);
}
__device__ float from_half(LinearType t, uint16_t b) {
  return t == LinearType::kF16 ? format::f16_to_float(b) : format::bf16_to_float(b);
}

__global__ void fill_x(uint16_t* x, size_t n, LinearType type, bool grid, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    x[i] = to_half(type, random_x(grid, hash32(static_cast<uint32_t>(i) * 3u + seed)));
}
// sum and sum of magnitudes of eight rows m and channel n, per warp.
__global__ void reference_kernel(const uint16_t* x, LinearType type, const float* w, int m, int n,
                                 int k, double* sum, double* magnitude) {
  const int col = blockIdx.x;
  const int row0 = 8 * blockIdx.y;
  double s[8] = {}, a[8] = {};
  for (int i = threadIdx.x; i < k; i += 32) {
    const double weight = static_cast<double>(w[static_cast<int64_t>(col) * k + i]);
    for (int r = 0; r < 8 && row0 + r < m; ++r) {
      const double t =
          static_cast<double>(from_half(type, x[static_cast<int64_t>(row0 + r) * k + i])) * weight;
      s[r] += t, a[r] += fabs(t);
    }
  }
  for (int r = 0; r < 8 && row0 + r < m; ++r) {
    for (int d = 16; d > 0; d /= 2) {
      s[r] += __shfl_xor_sync(~0u, s[r], d);
      a[r] += __shfl_xor_sync(~0u, a[r], d);
    }
    if (threadIdx.x == 0) {
      sum[static_cast<int64_t>(row0 + r) * n + col] = s[r];
      magnitude[static_cast<int64_t>(row0 + r) * n + col] = a[r];
    }
  }
}

// What a case's output is compared with.
struct Expected {
  const double* sum;
  const double* magnitude;
  const float* outer;  // per channel
  const float* bias;   // null: none
  bool residual, fold, token_scales, grid;
  int period;  // channels repeat after so many
  int n, k, rows, ldy;
  LinearType out;
};
struct Wrong {
  unsigned long long count;
  int taken, row, col;
  double got, want;
};

__host__ __device__ float token_scale(int row) { return 0.25f + static_cast<float>(row % 7); }
__device__ float residual_value(int64_t index) { return static_cast<float>(index % 5); }
__global__ void fill_residual(uint16_t* r, int64_t n, LinearType out) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    r[i] = to_half(out, residual_value(i));
}

__device__ bool is_right(const Expected& e, int i, int j, const void* y, double* got_out,
                         double* want_out) {
  const int64_t index = static_cast<int64_t>(i) * e.ldy + j;
  const bool wide = e.out == LinearType::kF32;
  const uint32_t bits =
      wide ? static_cast<const uint32_t*>(y)[index] : static_cast<const uint16_t*>(y)[index];
  if (j >= e.n) {
    *got_out = 1, *want_out = -1;
    return bits == (wide ? 0xffffffffu : 0xffffu);
  }
  const int c = j % e.period;
  const int64_t at = static_cast<int64_t>(e.fold ? 2 * i : i) * e.period + c;
  const double total = e.fold ? e.sum[at] + e.sum[at + e.period] : e.sum[at];
  const double size = e.fold ? e.magnitude[at] + e.magnitude[at + e.period] : e.magnitude[at];
  const float scale = e.token_scales ? __fmul_rn(token_scale(i), e.outer[c]) : e.outer[c];
  float want = __fmul_rn(static_cast<float>(total), scale);
  if (e.bias != nullptr) want = __fadd_rn(want, e.bias[j]);
  if (e.residual) want = __fadd_rn(want, residual_value(index));
  const float got = wide ? format::bits_float(bits) : from_half(e.out, static_cast<uint16_t>(bits));
  *got_out = got, *want_out = want;
  if (e.grid) return got == (wide ? want : from_half(e.out, to_half(e.out, want)));
  // The sum's bound, the roundings of scale, bias and residual, and the output's half ulp (f16 has
  // a smallest step).
  const double added =
      (e.bias != nullptr ? fabs(static_cast<double>(e.bias[j])) : 0.0) + (e.residual ? 4.0 : 0.0);
  const double magnitude = fabs(static_cast<double>(want));
  const double tolerance =
      size * fabs(static_cast<double>(scale)) * (static_cast<double>(e.k) / 16 + 8) * 0x1p-23 +
      1e-37 + (magnitude + 2 * added) * (added != 0.0 ? 0x1p-22 : 0.0) +
      (wide ? 0.0 : magnitude * 0x1p-8) + (e.out == LinearType::kF16 ? 0x1p-25 * 1.01 : 0.0);
  return fabs(static_cast<double>(got) - static_cast<double>(want)) <= tolerance;
}
__global__ void check_kernel(Expected e, const void* y, Wrong* wrong) {
  const int64_t count = static_cast<int64_t>(e.rows) * e.ldy;
  for (int64_t index = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; index < count;
       index += int64_t{gridDim.x} * blockDim.x) {
    const int i = static_cast<int>(index / e.ldy);
    const int j = static_cast<int>(index % e.ldy);
    double got, want;
    if (is_right(e, i, j, y, &got, &want)) continue;
    atomicAdd(&wrong->count, 1ull);
    if (atomicExch(&wrong->taken, 1) == 0)
      wrong->row = i, wrong->col = j, wrong->got = got, wrong->want = want;
  }
}
__global__ void compare_kernel(const uint32_t* a, const uint32_t* b, size_t n, Wrong* wrong) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    if (a[i] != b[i]) atomicAdd(&wrong->count, 1ull);
}

int g_passed = 0;
int g_failed = 0;

std::string describe(const Case& c) {
  char s[256];
  std::snprintf(s, sizeof s,
                "%s act=%d N=%lld K=%lld M=%lld kernel=%s ctas=%d residents=%d grid=%d out=%d "
                "%s%s%s%s%s ldx+%d",
                c.format.c_str(), static_cast<int>(c.act), static_cast<long long>(c.n),
                static_cast<long long>(c.k), static_cast<long long>(c.m), c.kernel.c_str(),
                c.ctas_per_sm, c.residents, c.grid, static_cast<int>(c.out), c.bias ? "bias " : "",
                c.residual ? "residual " : "", c.fold ? "fold " : "",
                c.token_scales ? "token_scales " : "", c.early ? "early" : "", c.ldx_extra);
  return s;
}

void fail(const Case& c, const std::string& what) {
  ++g_failed;
  if (g_failed < 60) std::printf("FAIL %s: %s\n", describe(c).c_str(), what.c_str());
}

// A weight, its packed form, activations and their reference, all on the device and shared by the
// cases of one shape. The weight's rows repeat after `period` (a multiple of a packed tile's 256)
// where that is less than N: then the packed tiles repeat too.
struct Source {
  LinearPlan plan;
  int period;
  DeviceArray<uint8_t> packed;
  DeviceArray<uint16_t> x;
  DeviceArray<float> outer, bias;
  DeviceArray<double> sum, magnitude;
  DeviceArray<Wrong> wrong;
};

LinearWeight view(const Case& c, const Weight& w, int64_t rows) {
  LinearWeight out;
  out.format = c.format, out.rows = rows, out.cols = c.k;
  out.codes = w.codes.data(), out.code_bytes = w.codes.size();
  out.block_scales = w.scales.data(), out.block_scale_bytes = w.scales.size();
  out.outer_scales = w.outer.data(), out.outer_scale_count = w.outer.size();
  return out;
}

// The packed form of a weight whose rows repeat: tiles of the period, then multipliers.
void repeat_tiles(const std::vector<uint8_t>& period, int64_t period_tiles, int64_t tiles,
                  std::vector<uint8_t>* out) {
  const size_t codes = (period.size() - static_cast<size_t>(period_tiles) * 1024) /
                       static_cast<size_t>(period_tiles);
  for (int64_t t = 0; t < tiles; ++t) {
    const size_t from = static_cast<size_t>(t % period_tiles);
    std::memcpy(&(*out)[static_cast<size_t>(t) * codes], &period[from * codes], codes);
    std::memcpy(&(*out)[static_cast<size_t>(tiles) * codes + static_cast<size_t>(t) * 1024],
                &period[static_cast<size_t>(period_tiles) * codes + from * 1024], 1024);
  }
}

std::unique_ptr<Source> make_source(const Case& c, int64_t period, uint32_t seed) {
  Case part = c;
  part.n = std::min(c.n, period);
  const Weight w = make_weight(part, seed);
  const LinearWeight lw = view(part, w, part.n);
  LinearPlan plan;
  LinearStatus r = plan_linear(lw, c.act, &plan);
  std::vector<uint8_t> packed;
  if (r) {
    packed.resize(plan.packed_bytes);
    r = pack_linear(lw, plan, packed.data(), packed.size(), 0);
  }
  if (r && part.n < c.n) {
    const std::vector<uint8_t> few = packed;
    r = plan_linear(view(part, w, c.n), c.act, &plan);
    packed.resize(plan.packed_bytes);
    repeat_tiles(few, period / 256, (c.n + 255) / 256, &packed);
  }
  if (!r) {
    fail(c, r.message);
    return nullptr;
  }
  const size_t k = static_cast<size_t>(c.k);
  const size_t n = static_cast<size_t>(part.n);
  std::unique_ptr<Source> s(new Source{
      plan, static_cast<int>(part.n), DeviceArray<uint8_t>(packed.size()),
      DeviceArray<uint16_t>(kReferenceRows * k), DeviceArray<float>(n),
      DeviceArray<float>(static_cast<size_t>(c.n)), DeviceArray<double>(kReferenceRows * n),
      DeviceArray<double>(kReferenceRows * n), DeviceArray<Wrong>(1)});
  s->packed.put(packed);
  std::vector<float> outer(n, 1.0f), bias(static_cast<size_t>(c.n));
  for (size_t i = 0; i < n && !w.outer.empty(); ++i)
    outer[i] = w.outer[w.outer.size() == 1 ? 0 : i];
  for (size_t i = 0; i < bias.size(); ++i)
    bias[i] = static_cast<float>(static_cast<int>(hash32(static_cast<uint32_t>(i)) % 17) - 8);
  s->outer.put(outer), s->bias.put(bias);
  DeviceArray<float> dw(w.decoded.size());
  dw.put(w.decoded);
  fill_x<<<512, 256>>>(s->x.p, s->x.n, c.act, c.grid, seed * 77u);
  reference_kernel<<<dim3(static_cast<unsigned>(n), kReferenceRows / 8), 32>>>(
      s->x.p, c.act, dw.p, kReferenceRows, static_cast<int>(n), static_cast<int>(k), s->sum.p,
      s->magnitude.p);
  CHECK_CUDA(cudaDeviceSynchronize());
  return s;
}

Wrong take(const DeviceArray<Wrong>& wrong) {
  const Wrong w = wrong.get()[0];
  CHECK_CUDA(cudaMemset(wrong.p, 0, sizeof(Wrong)));
  return w;
}

void run_case(const Case& c, const Source& s) {
  const size_t m = static_cast<size_t>(c.m), n = static_cast<size_t>(c.n),
               k = static_cast<size_t>(c.k);
  const size_t ldx = k + static_cast<size_t>(c.ldx_extra);
  const size_t rows = c.fold ? m / 2 : m;
  const size_t ldy = n + 2 * (n % 2) + 6;  // guard columns
  DeviceArray<uint16_t> dx(m * ldx);
  spread_rows<uint16_t><<<256, 256>>>(s.x.p, m, k, dx.p, ldx, 0x7fff);
  const size_t es = c.out == LinearType::kF32 ? 4 : 2;
  const size_t words = (rows * ldy * es + 3) / 4;
  DeviceArray<uint32_t> first(words), again(words), residual(words);
  if (c.residual)
    fill_residual<<<256, 256>>>(reinterpret_cast<uint16_t*>(residual.p),
                                static_cast<int64_t>(rows * ldy), c.out);
  std::vector<float> tokens(rows + 1);
  for (size_t i = 0; i < rows; ++i) tokens[i] = token_scale(static_cast<int>(i));
  DeviceArray<float> dt(rows + 1);
  dt.put(tokens);
  const size_t work_bytes = linear_workspace_bytes(s.plan, c.m < 128 ? 128 : c.m);
  DeviceArray<uint8_t> work(work_bytes);
  CHECK_CUDA(cudaMemset(work.p, 0xff, work_bytes));
  CHECK_CUDA(cudaMemset(work.p, 0, 65536));
  CHECK_CUDA(cudaMemset(s.wrong.p, 0, sizeof(Wrong)));
  LinearCall call;
  call.x = dx.p, call.ldx = static_cast<int64_t>(ldx), call.m = c.m;
  call.ldy = static_cast<int64_t>(ldy), call.y_type = c.out;
  call.bias = c.bias ? s.bias.p : nullptr;
  call.residual = c.residual ? residual.p : nullptr, call.ld_residual = static_cast<int64_t>(ldy);
  call.token_scales = c.token_scales ? dt.p : nullptr;
  call.fold = c.fold, call.weights_are_constant = c.early;
  // Launches follow each other without a pause: they overlap where the call allows it.
  for (int run = 0; run < 3; ++run) {
    uint32_t* const y = run == 0 ? first.p : again.p;
    CHECK_CUDA(cudaMemsetAsync(y, 0xff, words * 4));
    call.y = y;
    LinearTuning tuning;
    tuning.kernel = c.kernel, tuning.ctas_per_sm = c.ctas_per_sm, tuning.residents = c.residents;
    LinearStatus r = run_linear(s.plan, s.packed.p, call, work.p, work_bytes, nullptr, tuning);
    if (r && run == 2)
      r = run_linear(s.plan, s.packed.p, call, work.p, work_bytes, nullptr, tuning);
    if (!r) return fail(c, r.message);
    if (run > 0) compare_kernel<<<256, 256>>>(first.p, again.p, words, s.wrong.p);
  }
  const cudaError_t e = cudaDeviceSynchronize();
  if (e != cudaSuccess) {
    fail(c, cudaGetErrorString(e));
    std::printf("device error: stopping\n");
    std::exit(1);
  }
  if (take(s.wrong).count != 0) return fail(c, "runs differ");
  const Expected expected{s.sum.p,
                          s.magnitude.p,
                          s.outer.p,
                          call.bias,
                          c.residual,
                          c.fold,
                          c.token_scales,
                          c.grid,
                          s.period,
                          static_cast<int>(n),
                          static_cast<int>(k),
                          static_cast<int>(rows),
                          static_cast<int>(ldy),
                          c.out};
  check_kernel<<<256, 256>>>(expected, first.p, s.wrong.p);
  const Wrong w = take(s.wrong);
  if (w.count != 0) {
    char t[200];
    std::snprintf(t, sizeof t, "%llu of %zu wrong, e.g. [%d][%d] = %.9g, expected %.9g", w.count,
                  rows * n, w.row, w.col, w.got, w.want);
    return fail(c, t);
  }
  ++g_passed;
}

// With batch_invariant set a row's bits must be the same at every M.
void check_batch_invariance(const Case& c, const Source& s) {
  constexpr int64_t kMost = 130;
  const size_t n = static_cast<size_t>(c.n);
  DeviceArray<float> want(kMost * n), y(kMost * n);
  const size_t work_bytes = linear_workspace_bytes(s.plan, kMost);
  DeviceArray<uint8_t> work(work_bytes);
  CHECK_CUDA(cudaMemset(work.p, 0xff, work_bytes));
  CHECK_CUDA(cudaMemset(work.p, 0, 65536));
  CHECK_CUDA(cudaMemset(s.wrong.p, 0, sizeof(Wrong)));
  for (const int64_t m : {kMost, int64_t{1}, int64_t{5}, int64_t{17}, int64_t{33}, int64_t{64},
                          int64_t{65}, int64_t{100}}) {
    CHECK_CUDA(cudaMemset(y.p, 0xff, y.n * 4));
    LinearCall call;
    call.x = s.x.p, call.m = m, call.y = m == kMost ? want.p : y.p;
    call.y_type = LinearType::kF32, call.batch_invariant = true;
    const LinearStatus r = run_linear(s.plan, s.packed.p, call, work.p, work_bytes, nullptr);
    if (!r) return fail(c, r.message);
    if (m == kMost) continue;
    compare_kernel<<<256, 256>>>(reinterpret_cast<const uint32_t*>(want.p),
                                 reinterpret_cast<const uint32_t*>(y.p), static_cast<size_t>(m) * n,
                                 s.wrong.p);
    CHECK_CUDA(cudaDeviceSynchronize());
    if (take(s.wrong).count != 0)
      return fail(c, "batch_invariant: rows differ between M = " + std::to_string(m) + " and 130");
  }
  ++g_passed;
}

// With every number of CTAs and every division of shared memory that the kernel may be given.
void run_all(Case c, const Source& s) {
  LinearTuning tuning;
  tuning.kernel = c.kernel;
  LinearChoice choice;
  const LinearStatus r = explain_linear(s.plan, c.m, false, tuning, &choice);
  if (!r && c.m > c.tokens) return;  // tiles that take no more rows say so
  if (!r && r.message.find("no two ring slots") != std::string::npos) return;
  if (!r) return fail(c, r.message);
  for (const LinearCandidate& candidate : choice.candidates) {
    c.ctas_per_sm = candidate.ctas_per_sm, c.residents = candidate.residents;
    run_case(c, s);
  }
}

// All shapes and kernels with one kind of inputs.
void test_inputs(const std::string& format, LinearType act, bool grid, const std::string& size) {
  struct Shape {
    int64_t n, k;
  };
  // The large ones: exact inputs with every format, others with the two that matter most.
  const Shape shapes[] = {{301, 1104}, {256, 128},   {1000, 3424}, {8, 100},
                          {301, 72},   {4096, 4096}, {28672, 8192}};
  static uint32_t seed = 1;
  for (const Shape& sh : shapes) {
    const bool large = sh.n > 1000;
    if (size == "tiny" && (sh.k != 1104 || !grid)) continue;
    if (size == "quick" && large) continue;
    if (large && !grid && format != "e3m2" && format != "nvfp4") continue;
    Case c{format,           act,   sh.n,  sh.k,  1,     0,     "", grid,
           LinearType::kF32, false, false, false, false, false, 0};
    // Rows of large weights repeat: a CPU packs and a reference multiplies the first ones.
    const std::unique_ptr<Source> s = make_source(c, sh.n > 4096 ? 768 : sh.n, ++seed);
    if (s == nullptr) continue;
    if (sh.n == 1000) check_batch_invariance(c, *s);
    for (const std::string& kernel : linear_kernels(s->plan)) {
      c.kernel = kernel;
      c.tokens = tokens_of(kernel);
      std::vector<int64_t> counts = {1, c.tokens + 1};
      if (size != "tiny") counts.push_back(c.tokens);
      if (size == "full") counts.insert(counts.end(), {c.tokens - 1, 2 * c.tokens});
      for (const int64_t m : counts) {
        c.m = m;
        c.out = m % 2 != 0 ? LinearType::kF32 : c.act;
        c.early = m == c.tokens;
        run_all(c, *s);
      }
      if (sh.n == 1000) {  // epilogue switches
        Case e = c;
        e.m = c.tokens, e.bias = true, e.token_scales = true, e.ldx_extra = 8;
        for (const LinearType out : {LinearType::kF32, LinearType::kF16, LinearType::kBF16}) {
          e.out = out, e.residual = out != LinearType::kF32;
          for (const bool fold : {false, true}) e.fold = fold, run_all(e, *s);
        }
        e.ldx_extra = 3, e.fold = false;  // rows that the tensor copy cannot address
        run_all(e, *s);
      }
    }
  }
}

}  // namespace

// Arguments: a format, "all" or "list"; "full" (the default), "quick" (small shapes) or "tiny" (one
// shape and bf16 rows, for slow tools); "bf16" or "f16" rows, or both.
int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "all";
  const std::string size = argc > 2 ? argv[2] : "full";
  const std::string rows = argc > 3 ? argv[3] : "";
  const char* formats[] = {"e3m2",     "nvfp4",      "e2m1",       "mxfp4",    "bf16",
                           "e2m0",     "e1m1",       "e2m2",       "e3m1",     "e2m3",
                           "e3m3",     "e4m3",       "e2m1:g32",   "e2m1:g64", "e2m1:g128",
                           "e3m2:g64", "mxfp6_e3m2", "mxfp6_e2m3", "f16"};
  if (size != "full" && size != "quick" && size != "tiny") {
    std::printf("unknown size %s: full, quick or tiny\n", size.c_str());
    return 2;
  }
  if (only == "list") {  // one line of arguments for each process
    for (const char* f : formats) {
      if (std::string(f) != "f16") std::printf("%s %s bf16\n", f, size.c_str());
      if (std::string(f) != "bf16") std::printf("%s %s f16\n", f, size.c_str());
    }
    return 0;
  }
  for (const char* f : formats) {
    if (only != "all" && only != f) continue;
    const int failed_before = g_failed;
    const int passed_before = g_passed;
    for (const LinearType act : {LinearType::kBF16, LinearType::kF16}) {
      const bool bf16 = act == LinearType::kBF16;
      if ((std::string(f) == "bf16" && !bf16) || (std::string(f) == "f16" && bf16)) continue;
      if (!rows.empty() && rows != (bf16 ? "bf16" : "f16")) continue;
      if (size == "tiny" && !bf16 && std::string(f) != "f16") continue;
#ifdef SUB8_LINEAR_BF16_ONLY
      if (!bf16) continue;
#endif
      for (const bool grid : {true, false}) test_inputs(f, act, grid, size);
    }
    std::printf("%-12s %-4s %s, %d cases\n", f, rows.c_str(),
                g_failed == failed_before ? "ok" : "FAILED", g_passed - passed_before);
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  if (g_passed == 0) std::printf("no case ran: check the arguments\n");
  return g_failed == 0 && g_passed > 0 ? 0 : 1;
}
