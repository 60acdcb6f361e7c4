// Layout of the paged KV cache of one layer.
//
// Pages lie one after the other: page p starts at data + p * page_bytes(). Inside a page
// [K data | K scales | V data | V scales]; data [kv_heads][32 tokens][head_dim], scales (nvfp4
// only) [kv_heads][32 tokens][ceil(head_dim / 16)], heads outermost, nothing padded. A slot is
// page * 32 + offset, the place of one token. Bit diagrams: docs/formats/kv_pages.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "kvcache/page_tokens.h"

namespace sub8::kernels {

using kvcache::kPageTokens;
inline constexpr int kKvBlock = 16;  // elements of nvfp4 that share a scale

// What a cached element is; format/kv.h has the arithmetic of fp8 and nvfp4.
enum class KvType : uint8_t { kF32, kBF16, kFp8, kNvfp4 };

std::string_view kv_type_name(KvType type);           // "f32", "bf16", "fp8", "nvfp4"
Result<KvType> parse_kv_type(std::string_view name);  // an error lists what exists

struct KvLayout {
  KvType type = KvType::kBF16;
  int kv_heads = 0;
  int head_dim = 0;  // 16..256, a multiple of 8

  constexpr int element_bits() const {
    return type == KvType::kF32 ? 32 : type == KvType::kBF16 ? 16 : type == KvType::kFp8 ? 8 : 4;
  }
  // Data and scales of one token of one head.
  constexpr int64_t token_bytes() const { return int64_t{head_dim} * element_bits() / 8; }
  constexpr int64_t token_scales() const {
    return type == KvType::kNvfp4 ? (head_dim + kKvBlock - 1) / kKvBlock : 0;
  }
  // From one head's tokens to the next head's.
  constexpr int64_t head_bytes() const { return kPageTokens * token_bytes(); }
  constexpr int64_t head_scales() const { return kPageTokens * token_scales(); }
  // Where parts begin within a page.
  constexpr int64_t k_scales_offset() const { return kv_heads * head_bytes(); }
  constexpr int64_t v_offset() const { return kv_heads * (head_bytes() + head_scales()); }
  constexpr int64_t v_scales_offset() const { return v_offset() + k_scales_offset(); }
  constexpr int64_t page_bytes() const { return 2 * v_offset(); }
  constexpr bool operator==(const KvLayout&) const = default;
};

// Whether the kernels take this layout; the error names the field and what is possible.
Status check_kv_layout(const KvLayout& layout);

// alpha of a layer's K and V; 1 and unused for f32 and bf16.
struct KvScales {
  float k = 1.0f;
  float v = 1.0f;
};

// Refuses scales with which values would not be finite or divisors not normal.
Status check_kv_scales(const KvScales& scales);

// One layer's pages. The memory is the cache's; kernels see pages only through page tables.
struct KvPages {
  KvLayout layout;
  uint8_t* data = nullptr;  // 64-byte aligned, pages * layout.page_bytes() bytes
  KvScales scales;
  bool round = true;  // fp8, nvfp4: round to bf16 first (every activation mode but f32)
};

}  // namespace sub8::kernels
