// How queries meet a coded KV cache.
//
// | kind         | query (a row: one head of one token)   | K        | P, V     | pages      |
// | 16-bit       | 16-bit values                          | decoded  | f32      | all        |
// | fp8-query    | E4M3, alpha = amax / 448               | to E4M3  | E4M3     | fp8, nvfp4 |
// | fp4-query    | NVFP4, alpha = amax / 2688             | as stored| E4M3     | nvfp4      |
// | resattn      | the same and its NVFP4 residue         | as stored| E4M3     | nvfp4      |
// | resattn-v8   | likewise                               | as stored| P bf16   | nvfp4      |
// | resattn-pv16 | likewise                               | as stored| P bf16, V as stored | nvfp4
// |
//
// "As stored" is code * s without alpha, exact in bf16. Scores of the quantised kinds are
// (B + R) * fl(fl(alpha_q * alpha_k) * scale), B and R FP32 sums of exact products. P in E4M3 is
// rn(exp(s - m) * 2^8) with m the split's maximum; the denominator sums FP32 exp(s - m).
//
// Source: ResServe sections 4.4 and 5.2; fp8-query is what the paper compares with.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace sub8::kernels {

enum class AttentionKind : uint8_t {
  k16Bit,
  kFp8Query,
  kFp4Query,
  kResAttn,
  kResAttnV8,
  kResAttnPv16,
};

std::string_view attention_kind_name(AttentionKind kind);
Result<AttentionKind> parse_attention_kind(std::string_view name);  // an error lists the names

constexpr bool quantises_queries(AttentionKind kind) { return kind != AttentionKind::k16Bit; }
// Whether it needs K in FP4.
constexpr bool needs_nvfp4_pages(AttentionKind kind) { return kind >= AttentionKind::kFp4Query; }
constexpr bool has_query_residue(AttentionKind kind) { return kind >= AttentionKind::kResAttn; }

}  // namespace sub8::kernels
