// Linear kernels with e4m3 activations on a GPU, against a reference that reads the storage form:
// every instance, all epilogue switches, tails. Needs CUDA and the standard library only
// (tools/gpu/run.sh). Prints one line per failure, then counts and the largest error seen.
//
// Inputs: "one-hot" rows of X pick single weights, of the format's whole range, which must come out
// to the bit (codes, scales, both scale modes); "grid" values have exact sums in 13 bits and must
// match to the bit in any order; "normal" ones must stay within
// (2^-9 + (K/128 + 8) * 2^-23) * sum|x*w|: each 128 k are four instructions, which cut every addend
// to 13 bits of the largest. All cuts of one sign would come to 2^-6; 2^-9 is twice the largest
// error seen (1.0e-3, where block exponents spread over 2^26 and few products make up a sum).
// Outputs are poisoned and guarded; every case runs three times and must repeat itself.
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

enum class Kind { kOneHot, kGrid, kNormal };
// Of E8M0 block exponents in a row: within the table's 26, further apart, or both by row tile.
enum class Spread { kNear, kWide, kMixed };

struct Inputs {
  std::string format;
  Kind kind;
  Spread spread;
  int64_t n, k;
  int rows;  // of X
  uint32_t seed;
};

std::string describe(const Inputs& in) {
  static const char* kinds[] = {"one-hot", "grid", "normal"};
  static const char* spreads[] = {"near", "wide", "mixed"};
  return in.format + " " + kinds[static_cast<int>(in.kind)] + " " +
         spreads[static_cast<int>(in.spread)] + " N=" + std::to_string(in.n) +
         " K=" + std::to_string(in.k);
}

int g_passed = 0;
int g_failed = 0;
float g_worst = 0;

bool fail(const std::string& where, const std::string& what) {
  if (++g_failed < 40) std::printf("FAIL %s: %s\n", where.c_str(), what.c_str());
  return false;
}

// A grid's values are small integers times a power of two: three binades, two bits of mantissa.
uint32_t random_code(const format::ElementFormat& e, bool grid, uint32_t h) {
  uint32_t magnitude = h % (e.max_code() + 1);
  if (grid) {
    const uint32_t top = e.max_code() >> e.mantissa_bits;
    const uint32_t low = e.mantissa_bits > 1 ? 1u << (e.mantissa_bits - 1) : 1u;
    magnitude = ((top - h % 2) << e.mantissa_bits) | ((h >> 8) % 2 * low);
  }
  return magnitude | ((h >> 31) != 0 ? e.sign_bit() : 0u);
}

uint8_t random_exponent(const Inputs& in, int64_t row, uint32_t h) {
  const bool wide = in.spread == Spread::kWide ||
                    (in.spread == Spread::kMixed && row / 256 % 2 == 1 && row % 256 == 200);
  if (in.kind == Kind::kGrid) return static_cast<uint8_t>(126 + h % 2);
  return static_cast<uint8_t>(wide ? 40 + h % 100 : 101 + h % 27);
}

// Everything that the cases of one set of inputs share, on the device.
struct Source {
  LinearPlan plan;
  std::unique_ptr<DeviceArray<uint8_t>> packed, x;
  std::unique_ptr<DeviceArray<float>> outer, bias, tokens;
  std::unique_ptr<DeviceArray<double>> sum, magnitude;
};

struct HostWeight {
  format::WeightFormat f;
  std::vector<uint8_t> codes, scales;
  std::vector<float> outer, decoded;
};

HostWeight make_weight(const Inputs& in) {
  HostWeight w;
  w.f = format::parse_weight_format(in.format).value();
  const int64_t row_bytes = w.f.row_bytes(in.k);
  const int64_t groups = w.f.groups(in.k);
  w.codes.resize(static_cast<size_t>(in.n * row_bytes));
  w.scales.resize(static_cast<size_t>(in.n * groups));
  w.decoded.resize(static_cast<size_t>(in.n * in.k));
  static const uint8_t grid_scales[] = {0x30, 0x38};  // 0.5 and 1
  const bool e8m0 = w.f.block_scale == format::BlockScale::kE8M0;
  for (size_t i = 0; i < w.scales.size(); ++i) {
    const uint32_t h = hash32(static_cast<uint32_t>(i) + in.seed * 7919u);
    w.scales[i] = e8m0 ? random_exponent(in, static_cast<int64_t>(i) / groups, h)
                  : in.kind == Kind::kGrid ? grid_scales[h % 2]
                                           : static_cast<uint8_t>(h % 0x7f);
  }
  float element[256], factor[256];
  for (uint32_t c = 0; c < 256; ++c) {
    element[c] = format::decode_element(w.f.element, c);
    factor[c] = e8m0 ? format::decode_e8m0(static_cast<uint8_t>(c))
                     : format::decode_element(format::kE4M3, c);
  }
  std::vector<uint8_t> row(static_cast<size_t>(in.k));
  for (int64_t n = 0; n < in.n; ++n) {
    for (int64_t k = 0; k < in.k; ++k) {
      const uint32_t h = hash32(static_cast<uint32_t>(n * in.k + k) ^ (in.seed * 0x9e3779b9u));
      const uint32_t code = random_code(w.f.element, in.kind == Kind::kGrid, h);
      row[static_cast<size_t>(k)] = static_cast<uint8_t>(code);
      float value = element[code];
      if (groups != 0) value *= factor[w.scales[static_cast<size_t>(n * groups + k / w.f.group)]];
      w.decoded[static_cast<size_t>(n * in.k + k)] = value;
    }
    format::pack_codes(row.data(), in.k, w.f.element.bits(),
                       &w.codes[static_cast<size_t>(n * row_bytes)]);
  }
  for (int64_t n = 0; n < in.n && w.f.outer_scale == format::OuterScale::kChannel; ++n)
    w.outer.push_back(0.001f + static_cast<float>(hash32(static_cast<uint32_t>(n)) % 997) * 1e-4f);
  return w;
}

uint8_t random_x(const Inputs& in, int row, int64_t k) {
  const uint32_t h = hash32(static_cast<uint32_t>(row * in.k + k) * 3u + in.seed);
  if (in.kind == Kind::kOneHot) {
    const uint32_t at = hash32(static_cast<uint32_t>(row) * 31u + in.seed);
    if (k != static_cast<int64_t>(at) % in.k) return 0;
    return static_cast<uint8_t>(at >> 24 & 0x7f) == 0x7f ? 0x38 : static_cast<uint8_t>(at >> 24);
  }
  if (in.kind == Kind::kGrid) return h % 4 != 0 ? 0 : h % 8 == 0 ? 0x38 : 0xb8;  // +-1
  const double u = (static_cast<double>(h >> 8) + 0.5) / 16777216.0;
  const double v = static_cast<double>(hash32(h) >> 8) / 16777216.0;
  return static_cast<uint8_t>(format::encode_element(
      format::kE4M3,
      static_cast<float>(100 * std::sqrt(-2 * std::log(u)) * std::cos(6.2831853 * v))));
}

// Sums and sums of magnitudes: a warp per channel and eight rows.
__global__ void reference_kernel(const float* x, const float* w, int m, int n, int k, double* sum,
                                 double* magnitude) {
  const int col = blockIdx.x;
  for (int row = 8 * blockIdx.y; row < m && row < 8 * blockIdx.y + 8; ++row) {
    double s = 0, a = 0;
    for (int i = threadIdx.x; i < k; i += 32) {
      const double t = static_cast<double>(x[static_cast<int64_t>(row) * k + i]) *
                       static_cast<double>(w[static_cast<int64_t>(col) * k + i]);
      s += t, a += fabs(t);
    }
    for (int d = 16; d > 0; d /= 2)
      s += __shfl_xor_sync(~0u, s, d), a += __shfl_xor_sync(~0u, a, d);
    if (threadIdx.x == 0) {
      sum[static_cast<int64_t>(row) * n + col] = s;
      magnitude[static_cast<int64_t>(row) * n + col] = a;
    }
  }
}

bool make_source(const Inputs& in, Source* s) {
  const HostWeight w = make_weight(in);
  LinearWeight lw;
  lw.format = in.format, lw.rows = in.n, lw.cols = in.k;
  lw.codes = w.codes.data(), lw.code_bytes = w.codes.size();
  lw.block_scales = w.scales.data(), lw.block_scale_bytes = w.scales.size();
  lw.outer_scales = w.outer.data(), lw.outer_scale_count = w.outer.size();
  LinearStatus r = plan_linear(lw, LinearType::kE4M3, &s->plan);
  std::vector<uint8_t> packed;
  if (r) {
    packed.resize(s->plan.packed_bytes);
    r = pack_linear(lw, s->plan, packed.data(), packed.size(), 0);
  }
  if (!r) return fail(describe(in), r.message);
  std::vector<uint8_t> x(static_cast<size_t>(in.rows * in.k));
  std::vector<float> xf(x.size());
  for (int i = 0; i < in.rows; ++i)
    for (int64_t k = 0; k < in.k; ++k) {
      const size_t at = static_cast<size_t>(i * in.k + k);
      x[at] = random_x(in, i, k), xf[at] = format::decode_element(format::kE4M3, x[at]);
    }
  std::vector<float> outer(static_cast<size_t>(in.n), 1.0f), bias(outer.size());
  for (size_t i = 0; i < outer.size(); ++i) {
    if (!w.outer.empty()) outer[i] = w.outer[i];
    bias[i] = static_cast<float>(static_cast<int>(hash32(static_cast<uint32_t>(i)) % 17) - 8);
  }
  std::vector<float> tokens(static_cast<size_t>(in.rows));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = 0.25f + static_cast<float>(i % 7);
  const DeviceArray<float> dw(w.decoded), dx(xf);
  const size_t cells = static_cast<size_t>(in.rows * in.n);
  s->packed.reset(new DeviceArray<uint8_t>(packed));
  s->x.reset(new DeviceArray<uint8_t>(x));
  s->outer.reset(new DeviceArray<float>(outer));
  s->bias.reset(new DeviceArray<float>(bias));
  s->tokens.reset(new DeviceArray<float>(tokens));
  s->sum.reset(new DeviceArray<double>(cells));
  s->magnitude.reset(new DeviceArray<double>(cells));
  reference_kernel<<<dim3(static_cast<unsigned>(in.n), static_cast<unsigned>((in.rows + 7) / 8)),
                     32>>>(dx.p, dw.p, in.rows, static_cast<int>(in.n), static_cast<int>(in.k),
                           s->sum->p, s->magnitude->p);
  CHECK_CUDA(cudaDeviceSynchronize());
  return true;
}

// ---- one call and its check ----

struct Case {
  std::string kernel;
  int m = 1;
  LinearType out = LinearType::kF32;
  bool bias = false, residual = false, fold = false, tokens = true, early = false;
  int ldx_extra = 0;
};

struct Expected {
  const double *sum, *magnitude;
  const float *outer, *bias, *tokens;
  bool residual, fold, exact;
  int n, k, rows, ldy;
  LinearType out;
};
struct Found {
  unsigned long long wrong;
  int taken, row, col;
  float got, want, worst;
};

__device__ float to_float(LinearType t, const void* y, int64_t i) {
  if (t == LinearType::kF32) return static_cast<const float*>(y)[i];
  const uint16_t b = static_cast<const uint16_t*>(y)[i];
  return t == LinearType::kF16 ? format::f16_to_float(b) : format::bf16_to_float(b);
}
__device__ float round_to(LinearType t, float x) {
  return t == LinearType::kF32   ? x
         : t == LinearType::kF16 ? format::f16_to_float(format::float_to_f16(x))
                                 : format::bf16_to_float(format::float_to_bf16(x));
}
__device__ float residual_value(int64_t index) { return static_cast<float>(index % 5); }

__global__ void fill_residual(uint16_t* r, int64_t n, LinearType t) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    r[i] = t == LinearType::kF16 ? format::float_to_f16(residual_value(i))
                                 : format::float_to_bf16(residual_value(i));
}

__global__ void check_kernel(Expected e, const void* y, Found* found) {
  const int64_t count = static_cast<int64_t>(e.rows) * e.ldy;
  for (int64_t index = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; index < count;
       index += int64_t{gridDim.x} * blockDim.x) {
    const int i = static_cast<int>(index / e.ldy);
    const int j = static_cast<int>(index % e.ldy);
    float got, want = 0;
    bool ok;
    if (j >= e.n) {  // the guard: still NaN
      got = to_float(e.out, y, index), ok = got != got;
    } else {
      const int64_t at = static_cast<int64_t>(e.fold ? 2 * i : i) * e.n + j;
      const double total = e.fold ? e.sum[at] + e.sum[at + e.n] : e.sum[at];
      const double size = e.fold ? e.magnitude[at] + e.magnitude[at + e.n] : e.magnitude[at];
      const float scale = __fmul_rn(e.tokens != nullptr ? e.tokens[i] : 1.0f, e.outer[j]);
      want = __fmul_rn(static_cast<float>(total), scale);
      if (e.bias != nullptr) want = __fadd_rn(want, e.bias[j]);
      if (e.residual) want = __fadd_rn(want, residual_value(index));
      got = to_float(e.out, y, index);
      const float rounded = round_to(e.out, want);
      const double error = fabs(static_cast<double>(got) - static_cast<double>(want));
      const double unit = size * fabs(static_cast<double>(scale)) + 1e-37;
      const double added = (e.bias != nullptr ? 8.0 : 0.0) + (e.residual ? 4.0 : 0.0);
      const double output =
          e.out == LinearType::kF32 ? 0.0 : fabs(static_cast<double>(want)) * 0x1p-8;
      const double size_of_want = fabs(static_cast<double>(want));
      const double tolerance = unit * (0x1p-9 + (e.k / 128 + 8) * 0x1p-23) + output +
                               (size_of_want + 2 * added) * (added != 0.0 ? 0x1p-22 : 0.0) +
                               (e.out == LinearType::kF16 ? 0x1p-24 : 0.0);
      ok = e.exact ? got == rounded : error <= tolerance;
      // f16 ends at 65504.
      if (e.out == LinearType::kF16 && size_of_want + tolerance > 65504.0)
        ok = ok || (isinf(got) && got * want > 0);
      if (!e.exact && e.out == LinearType::kF32 && added == 0.0)
        atomicMax(reinterpret_cast<int*>(&found->worst),
                  __float_as_int(static_cast<float>(error / unit)));
    }
    if (ok) continue;
    atomicAdd(&found->wrong, 1ull);
    if (atomicExch(&found->taken, 1) == 0)
      found->row = i, found->col = j, found->got = got, found->want = want;
  }
}
__global__ void compare_kernel(const uint32_t* a, const uint32_t* b, size_t n, Found* found) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    if (a[i] != b[i]) atomicAdd(&found->wrong, 1ull);
}
Found take(const DeviceArray<Found>& d) {
  Found f;
  CHECK_CUDA(cudaMemcpy(&f, d.p, sizeof f, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemset(d.p, 0, sizeof f));
  return f;
}

void run_case(const Inputs& in, const Source& s, const Case& c) {
  char where[300];
  std::snprintf(where, sizeof where, "%s M=%d %s out=%d%s%s%s%s%s ldx+%d", describe(in).c_str(),
                c.m, c.kernel.c_str(), static_cast<int>(c.out), c.bias ? " bias" : "",
                c.residual ? " residual" : "", c.fold ? " fold" : "", c.tokens ? " tokens" : "",
                c.early ? " early" : "", c.ldx_extra);
  const int64_t ldx = in.k + c.ldx_extra;
  const int rows = c.fold ? c.m / 2 : c.m;
  const int64_t ldy = in.n + 2 * (in.n % 2) + 6;  // guard columns
  const size_t words =
      (static_cast<size_t>(rows * ldy) * (c.out == LinearType::kF32 ? 4 : 2) + 3) / 4;
  DeviceArray<uint8_t> x(static_cast<size_t>(c.m * ldx));
  spread_rows<uint8_t><<<256, 256>>>(s.x->p, static_cast<size_t>(c.m), static_cast<size_t>(in.k),
                                     x.p, static_cast<size_t>(ldx), 0x7f);
  DeviceArray<uint32_t> first(words), again(words), residual(words);
  if (c.residual)
    fill_residual<<<256, 256>>>(reinterpret_cast<uint16_t*>(residual.p), rows * ldy, c.out);
  const size_t work_bytes = linear_workspace_bytes(s.plan, c.m);
  DeviceArray<uint8_t> work(work_bytes);
  DeviceArray<Found> found(1);
  CHECK_CUDA(cudaMemset(work.p, 0xff, work_bytes));
  CHECK_CUDA(cudaMemset(work.p, 0, 65536));
  CHECK_CUDA(cudaMemset(found.p, 0, sizeof(Found)));
  LinearCall call;
  call.x = x.p, call.ldx = ldx, call.m = c.m, call.ldy = ldy, call.y_type = c.out;
  call.bias = c.bias ? s.bias->p : nullptr;
  call.residual = c.residual ? residual.p : nullptr, call.ld_residual = ldy;
  call.token_scales = c.tokens ? s.tokens->p : nullptr;
  call.fold = c.fold, call.weights_are_constant = c.early;
  LinearTuning tuning;
  tuning.kernel = c.kernel;
  for (int run = 0; run < 3; ++run) {
    call.y = run == 0 ? first.p : again.p;
    CHECK_CUDA(cudaMemsetAsync(call.y, 0xff, words * 4));
    const LinearStatus r =
        run_linear(s.plan, s.packed->p, call, work.p, work_bytes, nullptr, tuning);
    if (!r) return (void)fail(where, r.message);
    if (run > 0) compare_kernel<<<256, 256>>>(first.p, again.p, words, found.p);
  }
  const cudaError_t e = cudaDeviceSynchronize();
  if (e != cudaSuccess) {
    fail(where, cudaGetErrorString(e));
    std::exit(1);
  }
  if (take(found).wrong != 0) return (void)fail(where, "runs differ");
  check_kernel<<<256, 256>>>(
      Expected{s.sum->p, s.magnitude->p, s.outer->p, call.bias, call.token_scales, c.residual,
               c.fold, in.kind != Kind::kNormal, static_cast<int>(in.n), static_cast<int>(in.k),
               rows, static_cast<int>(ldy), c.out},
      first.p, found.p);
  const Found f = take(found);
  g_worst = std::max(g_worst, f.worst);
  if (f.wrong != 0) {
    char t[160];
    std::snprintf(t, sizeof t, "%llu of %lld wrong, e.g. [%d][%d] = %.9g, expected %.9g", f.wrong,
                  static_cast<long long>(rows * in.n), f.row, f.col, f.got, f.want);
    return (void)fail(where, t);
  }
  ++g_passed;
}

// With batch_invariant set a row's bits must be the same at every M.
void check_batch_invariance(const Inputs& in, const Source& s) {
  constexpr int kMost = 130;
  DeviceArray<float> want(kMost * static_cast<size_t>(in.n)), y(kMost * static_cast<size_t>(in.n));
  const size_t work_bytes = linear_workspace_bytes(s.plan, kMost);
  DeviceArray<uint8_t> work(work_bytes);
  DeviceArray<Found> found(1);
  CHECK_CUDA(cudaMemset(work.p, 0, 65536));
  CHECK_CUDA(cudaMemset(found.p, 0, sizeof(Found)));
  for (const int m : {kMost, 1, 5, 17, 33, 64, 65, 100}) {
    LinearCall call;
    call.x = s.x->p, call.m = m, call.y = m == kMost ? want.p : y.p;
    call.y_type = LinearType::kF32, call.token_scales = s.tokens->p, call.batch_invariant = true;
    const LinearStatus r = run_linear(s.plan, s.packed->p, call, work.p, work_bytes, nullptr);
    if (!r) return (void)fail(describe(in), "batch_invariant: " + r.message);
    if (m == kMost) continue;
    compare_kernel<<<256, 256>>>(reinterpret_cast<const uint32_t*>(want.p),
                                 reinterpret_cast<const uint32_t*>(y.p),
                                 static_cast<size_t>(m * in.n), found.p);
    CHECK_CUDA(cudaDeviceSynchronize());
    if (take(found).wrong != 0)
      return (void)fail(describe(in), "batch_invariant: rows at M = " + std::to_string(m) +
                                          " differ from those at 130");
  }
  ++g_passed;
}

void run_kernels(const Inputs& in, const Source& s, bool switches, bool few) {
  for (const std::string& kernel : linear_kernels(s.plan)) {
    const int tokens = tokens_of(kernel);
    Case c;
    c.kernel = kernel;
    for (const int m : {1, tokens - 1, tokens, tokens + 1, 2 * tokens}) {
      if (m > in.rows || (few && m != 1 && m != tokens + 1)) continue;
      c.m = m, c.out = m % 2 != 0 ? LinearType::kF32 : LinearType::kBF16, c.early = m == tokens;
      run_case(in, s, c);
    }
    if (!switches) continue;
    c.m = tokens, c.bias = true, c.ldx_extra = 16;
    for (const LinearType out : {LinearType::kF32, LinearType::kF16, LinearType::kBF16}) {
      c.out = out;
      for (int i = 0; i < 8; ++i) {
        c.fold = (i & 1) != 0, c.tokens = (i & 2) != 0;
        c.residual = (i & 4) != 0 && out != LinearType::kF32;
        run_case(in, s, c);
      }
    }
    c.residual = c.fold = false;
    c.ldx_extra = 3;  // rows that the tensor copy cannot address
    run_case(in, s, c);
    c.m = tokens - 2, c.fold = true, c.bias = false, c.ldx_extra = 0;
    run_case(in, s, c);
  }
}

}  // namespace

// Arguments: a format, "all" or "list"; "full" (the default), "quick" (small shapes) or "tiny" (one
// shape and few numbers of rows, for slow tools).
int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "all";
  const std::string size = argc > 2 ? argv[2] : "full";
  const char* formats[] = {"mxfp4",    "e2m1",      "e3m2",     "e2m2",       "e3m1",      "e2m3",
                           "e2m1:g32", "e2m1:g128", "e3m2:g64", "mxfp6_e3m2", "mxfp6_e2m3"};
  if (only == "list") {
    for (const char* f : formats) std::printf("%s %s\n", f, size.c_str());
    return 0;
  }
  if (size != "full" && size != "quick" && size != "tiny") {
    std::printf("unknown size %s: full, quick or tiny\n", size.c_str());
    return 2;
  }
  uint32_t seed = 1;
  for (const char* f : formats) {
    if (only != "all" && only != f) continue;
    const int before = g_failed;
    g_worst = 0;
    struct Shape {
      int64_t n, k;
    };
    const Shape shapes[] = {{301, 1104},  {256, 128},   {8, 100},    {301, 72},
                            {1000, 3424}, {5120, 1024}, {4096, 4096}};
    const bool e8m0 = std::string(f).rfind("mxfp", 0) == 0;
    for (const Shape& shape : shapes) {
      if (size == "quick" && shape.n > 1000) continue;
      if (size == "tiny" && shape.k != 1104) continue;
      for (const Kind kind : {Kind::kOneHot, Kind::kGrid, Kind::kNormal}) {
        for (const Spread spread : {Spread::kNear, Spread::kWide, Spread::kMixed}) {
          if (spread != Spread::kNear && (!e8m0 || kind == Kind::kGrid || shape.k == 4096))
            continue;
          if (size == "tiny" && kind == Kind::kNormal) continue;
          const Inputs in{f, kind, spread, shape.n, shape.k, 520, ++seed};
          Source s;
          if (!make_source(in, &s)) continue;
          if (shape.n == 1000 && kind == Kind::kNormal) check_batch_invariance(in, s);
          run_kernels(in, s, shape.n == 1000 || shape.k == 72, size == "tiny");
        }
      }
    }
    std::printf("%-12s %s, largest error %.3g of sum|x*w|\n", f,
                g_failed == before ? "ok" : "FAILED", static_cast<double>(g_worst));
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  if (g_passed == 0) std::printf("no case ran: check the arguments\n");
  return g_failed == 0 && g_passed > 0 ? 0 : 1;
}
