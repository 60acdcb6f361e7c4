// Every linear kernel instance on a GPU, against a reference that reads the storage form. Needs
// CUDA and the standard library only (tools/gpu/run.sh). Prints one line per failure with its
// replay arguments, then counts; exit status 1 if anything failed.
//
// Grid inputs make every partial sum exact, so outputs must match to the bit in any order of
// summation; full-range inputs must stay within (K/16 + 8) * 2^-23 * sum|x*w|: the
// atom keeps 23 bits, one rounding per k16 step. Outputs
// are poisoned and guarded; every case runs three times and must repeat itself.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

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

uint32_t hash32(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352dU, x ^= x >> 15, x *= 0x846ca68bU, x ^= x >> 16;
  return x;
}

template <class T>
struct DeviceArray {
  T* p = nullptr;
  size_t n;
  explicit DeviceArray(size_t count) : n(count) { CHECK_CUDA(cudaMalloc(&p, (n + 1) * sizeof(T))); }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(p); }
  void put(const std::vector<T>& h) {
    CHECK_CUDA(cudaMemcpy(p, h.data(), h.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get() const {
    std::vector<T> h(n);
    CHECK_CUDA(cudaMemcpy(h.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return h;
  }
};

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

// sum and sum of magnitudes of row m, channel n.
__global__ void reference_kernel(const float* x, const float* w, int m, int n, int k, double* sum,
                                 double* magnitude) {
  const int col = blockIdx.x;
  const int row = blockIdx.y;
  double s = 0, a = 0;
  for (int i = threadIdx.x; i < k; i += 32) {
    const double t = static_cast<double>(x[static_cast<int64_t>(row) * k + i]) *
                     static_cast<double>(w[static_cast<int64_t>(col) * k + i]);
    s += t, a += fabs(t);
  }
  for (int d = 16; d > 0; d /= 2) {
    s += __shfl_xor_sync(~0u, s, d);
    a += __shfl_xor_sync(~0u, a, d);
  }
  if (threadIdx.x == 0) {
    sum[static_cast<int64_t>(row) * n + col] = s;
    magnitude[static_cast<int64_t>(row) * n + col] = a;
  }
}

float random_x(bool grid, uint32_t h) {
  if (grid) return h % 4 != 0 ? 0.0f : static_cast<float>(static_cast<int>((h >> 8) % 5) - 2);
  const float u = (static_cast<float>(h >> 8) + 0.5f) / 16777216.0f;
  const float v = (static_cast<float>(hash32(h) >> 8) + 0.5f) / 16777216.0f;
  return std::sqrt(-2 * std::log(u)) * std::cos(6.2831853f * v);
}

uint16_t to_half(LinearType t, float x) {
  return t == LinearType::kF16 ? format::float_to_f16(x) : format::float_to_bf16(x);
}
float from_half(LinearType t, uint16_t b) {
  return t == LinearType::kF16 ? format::f16_to_float(b) : format::bf16_to_float(b);
}

int g_passed = 0;
int g_failed = 0;

struct Source {  // weight and its packed form, shared by cases
  Weight w;
  LinearPlan plan;
  std::vector<uint8_t> packed;
};

std::string describe(const Case& c) {
  char s[256];
  std::snprintf(s, sizeof s,
                "%s act=%d N=%lld K=%lld M=%lld kernel=%s grid=%d out=%d %s%s%s%s%s ldx+%d",
                c.format.c_str(), static_cast<int>(c.act), static_cast<long long>(c.n),
                static_cast<long long>(c.k), static_cast<long long>(c.m), c.kernel.c_str(), c.grid,
                static_cast<int>(c.out), c.bias ? "bias " : "", c.residual ? "residual " : "",
                c.fold ? "fold " : "", c.token_scales ? "token_scales " : "",
                c.early ? "early" : "", c.ldx_extra);
  return s;
}

void fail(const Case& c, const std::string& what) {
  ++g_failed;
  if (g_failed < 60) std::printf("FAIL %s: %s\n", describe(c).c_str(), what.c_str());
}

bool make_source(const Case& c, uint32_t seed, Source* s) {
  s->w = make_weight(c, seed);
  LinearWeight lw;
  lw.format = c.format, lw.rows = c.n, lw.cols = c.k;
  lw.codes = s->w.codes.data(), lw.code_bytes = s->w.codes.size();
  lw.block_scales = s->w.scales.data(), lw.block_scale_bytes = s->w.scales.size();
  lw.outer_scales = s->w.outer.data(), lw.outer_scale_count = s->w.outer.size();
  LinearStatus r = plan_linear(lw, c.act, &s->plan);
  if (r) {
    s->packed.resize(s->plan.packed_bytes);
    r = pack_linear(lw, s->plan, s->packed.data(), s->packed.size(), 0);
  }
  if (!r) fail(c, r.message);
  return static_cast<bool>(r);
}

void run_case(const Case& c, const Source& s, uint32_t seed) {
  const size_t m = static_cast<size_t>(c.m), n = static_cast<size_t>(c.n),
               k = static_cast<size_t>(c.k);
  const size_t ldx = k + static_cast<size_t>(c.ldx_extra);
  const size_t rows = c.fold ? m / 2 : m;
  const size_t ldy = n + 2 * (n % 2) + 6;    // guard columns
  std::vector<uint16_t> x(m * ldx, 0x7fff);  // NaN between rows: must not be read
  std::vector<float> xf(m * k);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < k; ++j) {
      const uint16_t bits =
          to_half(c.act, random_x(c.grid, hash32(static_cast<uint32_t>(i * k + j) * 3u + seed)));
      x[i * ldx + j] = bits, xf[i * k + j] = from_half(c.act, bits);
    }
  std::vector<float> bias(n), tokens(rows);
  for (size_t i = 0; i < n; ++i)
    bias[i] = static_cast<float>(static_cast<int>(hash32(static_cast<uint32_t>(i)) % 17) - 8);
  for (size_t i = 0; i < rows; ++i) tokens[i] = 0.25f + static_cast<float>(i % 7);
  DeviceArray<uint16_t> dx(x.size());
  dx.put(x);
  DeviceArray<float> dxf(xf.size()), dw(s.w.decoded.size()), db(n), dt(rows + 1);
  dxf.put(xf), dw.put(s.w.decoded), db.put(bias), dt.put(tokens);
  DeviceArray<uint8_t> dp(s.packed.size());
  dp.put(s.packed);
  DeviceArray<double> dsum(m * n), dmag(m * n);
  reference_kernel<<<dim3(static_cast<unsigned>(n), static_cast<unsigned>(m)), 32>>>(
      dxf.p, dw.p, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), dsum.p, dmag.p);
  CHECK_CUDA(cudaDeviceSynchronize());
  const std::vector<double> sum = dsum.get(), mag = dmag.get();
  const size_t es = c.out == LinearType::kF32 ? 4 : 2;
  DeviceArray<uint8_t> dy(rows * ldy * es), dr(rows * ldy * es);
  std::vector<uint8_t> residual(rows * ldy * es, 0);
  if (es == 2)
    for (size_t i = 0; i < rows * ldy; ++i) {
      const uint16_t b = to_half(c.out, static_cast<float>(i % 5));
      std::memcpy(&residual[2 * i], &b, 2);
    }
  dr.put(residual);
  const size_t work_bytes = linear_workspace_bytes(s.plan, c.m < 128 ? 128 : c.m);
  DeviceArray<uint8_t> work(work_bytes);
  CHECK_CUDA(cudaMemset(work.p, 0xff, work_bytes));
  CHECK_CUDA(cudaMemset(work.p, 0, 65536));
  LinearCall call;
  call.x = dx.p, call.ldx = static_cast<int64_t>(ldx), call.m = c.m;
  call.y = dy.p, call.ldy = static_cast<int64_t>(ldy), call.y_type = c.out;
  call.bias = c.bias ? db.p : nullptr;
  call.residual = c.residual ? dr.p : nullptr, call.ld_residual = static_cast<int64_t>(ldy);
  call.token_scales = c.token_scales ? dt.p : nullptr;
  call.fold = c.fold, call.weights_are_constant = c.early;
  std::vector<uint8_t> first;
  for (int run = 0; run < 3; ++run) {
    CHECK_CUDA(cudaMemset(dy.p, 0xff, dy.n));
    LinearTuning tuning;
    tuning.kernel = c.kernel;
    const LinearStatus r = run_linear(s.plan, dp.p, call, work.p, work_bytes, nullptr, tuning);
    if (!r) return fail(c, r.message);
    const cudaError_t e = cudaDeviceSynchronize();
    if (e != cudaSuccess) {
      fail(c, cudaGetErrorString(e));
      std::printf("device error: stopping\n");
      std::exit(1);
    }
    const std::vector<uint8_t> y = dy.get();
    if (run == 0)
      first = y;
    else if (y != first)
      return fail(c, "runs differ");
  }
  size_t bad = 0, bi = 0, bj = 0;
  double got_bad = 0, want_bad = 0;
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < ldy; ++j) {
      uint32_t bits = 0;
      std::memcpy(&bits, &first[(i * ldy + j) * es], es);
      if (j >= n) {
        if (bits != (es == 4 ? 0xffffffffu : 0xffffu))
          ++bad, bi = i, bj = j, got_bad = 1, want_bad = -1;
        continue;
      }
      const float outer = s.w.outer.empty()       ? 1.0f
                          : s.w.outer.size() == 1 ? s.w.outer[0]
                                                  : s.w.outer[j];
      const double total = c.fold ? sum[2 * i * n + j] + sum[(2 * i + 1) * n + j] : sum[i * n + j];
      const double size = c.fold ? mag[2 * i * n + j] + mag[(2 * i + 1) * n + j] : mag[i * n + j];
      volatile float scale = c.token_scales ? tokens[i] * outer : outer;
      volatile float want = static_cast<float>(total) * scale;
      if (c.bias) want = want + bias[j];
      if (c.residual) want = want + (es == 2 ? static_cast<float>((i * ldy + j) % 5) : 0.0f);
      const float got =
          es == 4 ? format::bits_float(bits) : from_half(c.out, static_cast<uint16_t>(bits));
      bool ok;
      if (c.grid) {
        const float rounded = es == 4 ? want : from_half(c.out, to_half(c.out, want));
        ok = got == rounded;
      } else {
        // The sum's bound, the roundings of scale, bias and residual, and the output's half ulp
        // (f16 has a smallest step).
        const double added =
            (c.bias ? std::fabs(static_cast<double>(bias[j])) : 0.0) + (c.residual ? 4.0 : 0.0);
        const double tolerance =
            size * std::fabs(static_cast<double>(scale)) * (static_cast<double>(c.k) / 16 + 8) *
                0x1p-23 +
            1e-37 +
            (std::fabs(static_cast<double>(want)) + 2 * added) * (added != 0.0 ? 0x1p-22 : 0.0) +
            (es == 2 ? std::fabs(static_cast<double>(want)) * 0x1p-8 : 0.0) +
            (c.out == LinearType::kF16 ? 0x1p-25 * 1.01 : 0.0);
        ok = std::fabs(static_cast<double>(got) - static_cast<double>(want)) <= tolerance;
      }
      if (!ok) {
        if (bad == 0) bi = i, bj = j, got_bad = got, want_bad = want;
        ++bad;
      }
    }
  if (bad != 0) {
    char t[200];
    std::snprintf(t, sizeof t, "%zu of %zu wrong, e.g. [%zu][%zu] = %.9g, expected %.9g", bad,
                  rows * n, bi, bj, got_bad, want_bad);
    return fail(c, t);
  }
  ++g_passed;
}

// With batch_invariant set a row's bits must be the same at every M.
void check_batch_invariance(const Case& c, const Source& s) {
  constexpr int64_t kMost = 130;
  const size_t n = static_cast<size_t>(c.n), k = static_cast<size_t>(c.k);
  std::vector<uint16_t> x(kMost * k);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = to_half(c.act, random_x(false, hash32(static_cast<uint32_t>(i) * 7u + 3u)));
  DeviceArray<uint16_t> dx(x.size());
  dx.put(x);
  DeviceArray<uint8_t> dp(s.packed.size());
  dp.put(s.packed);
  DeviceArray<float> dy(kMost * n);
  const size_t work_bytes = linear_workspace_bytes(s.plan, kMost);
  DeviceArray<uint8_t> work(work_bytes);
  CHECK_CUDA(cudaMemset(work.p, 0xff, work_bytes));
  CHECK_CUDA(cudaMemset(work.p, 0, 65536));
  std::vector<float> want;
  for (const int64_t m : {kMost, int64_t{1}, int64_t{5}, int64_t{17}, int64_t{33}, int64_t{64},
                          int64_t{65}, int64_t{100}}) {
    CHECK_CUDA(cudaMemset(dy.p, 0xff, dy.n * 4));
    LinearCall call;
    call.x = dx.p, call.m = m, call.y = dy.p, call.y_type = LinearType::kF32;
    call.batch_invariant = true;
    const LinearStatus r = run_linear(s.plan, dp.p, call, work.p, work_bytes, nullptr);
    if (!r) return fail(c, r.message);
    CHECK_CUDA(cudaDeviceSynchronize());
    const std::vector<float> y = dy.get();
    if (m == kMost) want = y;
    if (std::memcmp(y.data(), want.data(), static_cast<size_t>(m) * n * 4) != 0)
      return fail(c, "batch_invariant: rows differ between M = " + std::to_string(m) + " and 130");
  }
  ++g_passed;
}

// The middle number of "..._256x16x128...".
int tokens_of(const std::string& kernel) {
  return std::atoi(kernel.c_str() + kernel.find('x', kernel.find("mma_")) + 1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const bool quick = argc > 2 && std::string(argv[2]) == "quick";
  const char* formats[] = {"e3m2",     "nvfp4",      "e2m1",       "mxfp4",    "bf16",
                           "e2m0",     "e1m1",       "e2m2",       "e3m1",     "e2m3",
                           "e3m3",     "e4m3",       "e2m1:g32",   "e2m1:g64", "e2m1:g128",
                           "e3m2:g64", "mxfp6_e3m2", "mxfp6_e2m3", "f16"};
  if (only == "list") {
    for (const char* f : formats) std::printf("%s\n", f);
    return 0;
  }
  uint32_t seed = 1;
  for (const char* f : formats) {
    if (!only.empty() && only != "all" && only != f) continue;
    const int before = g_failed;
    for (const LinearType act : {LinearType::kBF16, LinearType::kF16}) {
      if ((std::string(f) == "bf16" && act == LinearType::kF16) ||
          (std::string(f) == "f16" && act == LinearType::kBF16))
        continue;
#ifdef SUB8_LINEAR_BF16_ONLY
      if (act == LinearType::kF16) continue;
#endif
      for (const bool grid : {true, false}) {
        struct Shape {
          int64_t n, k;
        };
        const Shape shapes[] = {{256, 128}, {1000, 3424}, {8, 100},
                                {301, 72},  {4096, 4096}, {5120, 1024}};
        for (const Shape& sh : shapes) {
          if (quick && sh.n > 1000) continue;
          Case c{f,     act,   sh.n,  sh.k,  1,     0, "", grid, LinearType::kF32,
                 false, false, false, false, false, 0};
          Source s;
          if (!make_source(c, ++seed, &s)) continue;
          if (sh.n == 1000) check_batch_invariance(c, s);
          for (const std::string& kernel : linear_kernels(s.plan)) {
            c.kernel = kernel;
            c.tokens = tokens_of(kernel);
            std::vector<int64_t> counts = {1, c.tokens, c.tokens + 1};
            if (!quick) counts.insert(counts.end(), {c.tokens - 1, 2 * c.tokens});
            for (const int64_t m : counts) {
              c.m = m;
              c.out = m % 2 != 0 ? LinearType::kF32 : c.act;
              c.early = m == c.tokens;
              run_case(c, s, ++seed);
            }
            if (sh.n == 1000) {  // epilogue switches
              Case e = c;
              e.m = c.tokens, e.bias = true, e.token_scales = true, e.ldx_extra = 8;
              for (const LinearType out : {LinearType::kF32, LinearType::kF16, LinearType::kBF16}) {
                e.out = out, e.residual = out != LinearType::kF32;
                for (const bool fold : {false, true}) e.fold = fold, run_case(e, s, ++seed);
              }
              e.ldx_extra = 3, e.fold = false;  // rows that the tensor copy cannot address
              run_case(e, s, ++seed);
            }
          }
        }
      }
    }
    std::printf("%-12s %s\n", f, g_failed == before ? "ok" : "FAILED");
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed == 0 ? 0 : 1;
}
