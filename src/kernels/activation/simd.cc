#include "kernels/activation/kernels.h"
#include "kernels/simd/math.h"
#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {
namespace {

struct Silu {
  SUB8_SIMD_INLINE Vec apply(Vec x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }
};
struct QuickGelu {
  SUB8_SIMD_INLINE Vec apply(Vec x) { return div(x, add(set1(1.0f), exp(mul(set1(-1.702f), x)))); }
};
// (1 + tanh u) / 2 = sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  SUB8_SIMD_INLINE Vec apply(Vec x) {
    const Vec inner = mul(x, fma(mul(x, x), set1(-0.0713548162726f), set1(-1.59576912161f)));
    return div(x, add(set1(1.0f), exp(inner)));
  }
};
// Lane by lane: no served model needs it fast.
struct Gelu {
  SUB8_SIMD_INLINE Vec apply(Vec x) {
    float lanes[kLanes];
    store_f32(lanes, x);
    for (float& value : lanes) {
      const double v = value;
      value = static_cast<float>(0.5 * v * __builtin_erfc(v * -0.70710678118654752440));
    }
    return load_f32(lanes);
  }
};
struct Relu {
  SUB8_SIMD_INLINE Vec apply(Vec x) { return max(zero(), x); }
};

template <class F, class Element>
SUB8_SIMD_INLINE void activate_row(const float* x, const float* up, int64_t n,
                                   typename Element::Type* out) {
  for_vectors(n, [&](int64_t i, int lanes) {
    Vec y = F::apply(load_piece<F32Element>(x + i, lanes));
    if (up != nullptr) y = mul(y, load_piece<F32Element>(up + i, lanes));
    store_piece<Element>(out + i, y, lanes);
  });
}

template <class F>
void activate_as(const float* x, const float* up, int64_t n, void* out, bool bf16) {
  if (bf16) {
    activate_row<F, Bf16Element>(x, up, n, static_cast<uint16_t*>(out));
  } else {
    activate_row<F, F32Element>(x, up, n, static_cast<float*>(out));
  }
}

void activate(Activation f, const float* x, const float* up, int64_t n, void* out, bool bf16) {
  switch (f) {
    case Activation::kSilu:
      return activate_as<Silu>(x, up, n, out, bf16);
    case Activation::kGelu:
      return activate_as<Gelu>(x, up, n, out, bf16);
    case Activation::kGeluTanh:
      return activate_as<GeluTanh>(x, up, n, out, bf16);
    case Activation::kRelu:
      return activate_as<Relu>(x, up, n, out, bf16);
    case Activation::kQuickGelu:
      return activate_as<QuickGelu>(x, up, n, out, bf16);
  }
}

void exp_array(const float* x, int64_t n, float* out) {
  for_vectors(n, [&](int64_t i, int lanes) {
    store_piece<F32Element>(out + i, exp(load_piece<F32Element>(x + i, lanes)), lanes);
  });
}

void tanh_array(const float* x, int64_t n, float* out) {
  for_vectors(n, [&](int64_t i, int lanes) {
    store_piece<F32Element>(out + i, tanh(load_piece<F32Element>(x + i, lanes)), lanes);
  });
}

}  // namespace

const ActivationKernels kActivation = {activate};
const MathKernels kMath = {exp_array, tanh_array};

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
