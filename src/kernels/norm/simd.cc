#include "kernels/norm/kernels.h"
#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {
namespace {

// Four running sums hide the latency of the addition; the order depends on n alone.
template <class F>
SUB8_SIMD_INLINE float sum_pieces(int64_t n, F&& term) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) sums[j] = add(sums[j], term(i + j * kLanes, kLanes));
  }
  for (; i < n; i += kLanes) {
    const int64_t left = n - i;
    const int lanes = left < kLanes ? static_cast<int>(left) : kLanes;
    sums[0] = add(sums[0], keep_lanes(term(i, lanes), 0, lanes, 0.0f));
  }
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

template <class Element>
void rms_norm_row(const float* x, const float* weight, float eps, bool plus_one, int64_t n,
                  typename Element::Type* out) {
  const float sum = sum_pieces(n, [&](int64_t i, int lanes) {
    const Vec v = load_piece<F32Element>(x + i, lanes);
    return mul(v, v);
  });
  const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  const Vec factor = set1(scale);
  const Vec shift = set1(plus_one ? 1.0f : 0.0f);
  for_vectors(n, [&](int64_t i, int lanes) {
    const Vec v = mul(load_piece<F32Element>(x + i, lanes), factor);
    const Vec w = load_piece<F32Element>(weight + i, lanes);
    store_piece<Element>(out + i, mul(v, plus_one ? add(w, shift) : w), lanes);
  });
}

template <class Element>
void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                    typename Element::Type* out) {
  const float mean =
      sum_pieces(n, [&](int64_t i, int lanes) { return load_piece<F32Element>(x + i, lanes); }) /
      static_cast<float>(n);
  const Vec centre = set1(mean);
  const float squares = sum_pieces(n, [&](int64_t i, int lanes) {
    const Vec d = sub(load_piece<F32Element>(x + i, lanes), centre);
    return mul(d, d);
  });
  const Vec factor = set1(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  for_vectors(n, [&](int64_t i, int lanes) {
    const Vec v = mul(sub(load_piece<F32Element>(x + i, lanes), centre), factor);
    Vec y = mul(v, load_piece<F32Element>(weight + i, lanes));
    if (bias != nullptr) y = add(y, load_piece<F32Element>(bias + i, lanes));
    store_piece<Element>(out + i, y, lanes);
  });
}

void rms_norm(const float* x, const float* weight, float eps, bool plus_one, int64_t n, void* out,
              bool bf16) {
  if (bf16) {
    rms_norm_row<Bf16Element>(x, weight, eps, plus_one, n, static_cast<uint16_t*>(out));
  } else {
    rms_norm_row<F32Element>(x, weight, eps, plus_one, n, static_cast<float*>(out));
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                void* out, bool bf16) {
  if (bf16) {
    layer_norm_row<Bf16Element>(x, weight, bias, eps, n, static_cast<uint16_t*>(out));
  } else {
    layer_norm_row<F32Element>(x, weight, bias, eps, n, static_cast<float*>(out));
  }
}

}  // namespace

const NormKernels kNorm = {rms_norm, layer_norm};

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
