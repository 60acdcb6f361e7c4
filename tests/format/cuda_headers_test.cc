// encode_element and decode_element against the host code of the CUDA toolkit's cuda_fp4.h,
// cuda_fp6.h and cuda_fp8.h. Built with the C++ compiler; no GPU and no nvcc. Without a toolkit the
// tests are skipped.
//
// The one difference is the sign of a NaN: the toolkit makes 0x7f of every NaN (e4m3 and e5m2) and
// +max in the formats without NaN; sub8 keeps the sign where the format has a NaN.
#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "format/dtype.h"
#include "format/element.h"

#if __has_include(<cuda_fp4.h>) && __has_include(<cuda_fp6.h>) && __has_include(<cuda_fp8.h>)
#define SUB8_HAS_CUDA_HEADERS 1
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#endif

namespace sub8::format {
namespace {

#ifdef SUB8_HAS_CUDA_HEADERS

struct Oracle {
  ElementFormat format;
  uint32_t (*encode)(float);
  float (*decode)(uint32_t);
};

float half_value(__half_raw raw) { return f16_to_float(raw.x); }

const Oracle kOracles[] = {
    {kE2M1,
     [](float x) -> uint32_t { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest); },
     [](uint32_t c) {
       return half_value(__nv_cvt_fp4_to_halfraw(static_cast<uint8_t>(c), __NV_E2M1));
     }},
    {kE2M3,
     [](float x) -> uint32_t { return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest); },
     [](uint32_t c) {
       return half_value(__nv_cvt_fp6_to_halfraw(static_cast<uint8_t>(c), __NV_E2M3));
     }},
    {kE3M2,
     [](float x) -> uint32_t { return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest); },
     [](uint32_t c) {
       return half_value(__nv_cvt_fp6_to_halfraw(static_cast<uint8_t>(c), __NV_E3M2));
     }},
    {kE4M3, [](float x) -> uint32_t { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); },
     [](uint32_t c) {
       return half_value(__nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(c), __NV_E4M3));
     }},
    {kE5M2, [](float x) -> uint32_t { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); },
     [](uint32_t c) {
       return half_value(__nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(c), __NV_E5M2));
     }},
};

TEST(CudaHeaders, Decode) {
  for (const Oracle& o : kOracles) {
    for (uint32_t code = 0; code < o.format.code_count(); ++code) {
      const float want = o.decode(code);
      const float got = decode_element(o.format, code);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << o.format.bits() << " bits, code " << code;
      } else {
        EXPECT_EQ(float_bits(got), float_bits(want)) << o.format.bits() << " bits, code " << code;
      }
    }
  }
}

TEST(CudaHeaders, EncodeEvery16BitInputAndMidpoints) {
  for (const Oracle& o : kOracles) {
    const auto compare = [&](float x) {
      if (std::isnan(x)) return;
      ASSERT_EQ(encode_element(o.format, x), o.encode(x)) << o.format.bits() << " bits, x=" << x;
    };
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      compare(bf16_to_float(static_cast<uint16_t>(bits)));
      compare(f16_to_float(static_cast<uint16_t>(bits)));
    }
    for (uint32_t code = 0; code < o.format.max_code(); ++code) {
      const float middle =
          decode_element(o.format, code) / 2 + decode_element(o.format, code + 1) / 2;
      for (const float sign : {1.0f, -1.0f}) {
        compare(sign * middle);
        compare(sign * std::nextafter(middle, INFINITY));
        compare(sign * std::nextafter(middle, 0.0f));
      }
    }
  }
}

TEST(CudaHeaders, NanPolicy) {
  for (const Oracle& o : kOracles) {
    EXPECT_EQ(encode_element(o.format, NAN), o.encode(NAN)) << o.format.bits() << " bits";
    const uint32_t negative = encode_element(o.format, -NAN);
    EXPECT_EQ(o.encode(-NAN), o.format.has_nan() ? 0x7fu : o.format.max_code());
    EXPECT_EQ(negative, o.format.has_nan() ? 0xffu : o.format.max_code());
  }
}

TEST(CudaHeaders, E8M0) {
  for (uint32_t byte = 0; byte < 255; ++byte) {
    const __nv_bfloat16_raw raw = __nv_cvt_e8m0_to_bf16raw(static_cast<uint8_t>(byte));
    EXPECT_EQ(decode_e8m0(static_cast<uint8_t>(byte)), bf16_to_float(raw.x)) << byte;
  }
}

#else

TEST(CudaHeaders, NotFound) {
  GTEST_SKIP() << "no CUDA toolkit headers: encode and decode were not compared with them";
}

#endif

}  // namespace
}  // namespace sub8::format
