// Layout of the paged KV cache of one layer.
//
// Pages lie one after the other: page p starts at data + p * page_bytes(). Inside a page
// [K data | V data], each [kv_heads][32 tokens][head_dim], heads outermost. A slot is
// page * 32 + offset, the place of one token. Formats with scales (fp8, nvfp4) put them behind each
// data part: [K data | K scales | V data | V scales].
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "kvcache/page_tokens.h"

namespace sub8::kernels {

using kvcache::kPageTokens;

// What a cached element is. The numbering is open: fp8 and nvfp4 pages follow.
enum class KvType : uint8_t { kF32, kBF16 };

std::string_view kv_type_name(KvType type);           // "f32", "bf16"
Result<KvType> parse_kv_type(std::string_view name);  // an error lists what exists

struct KvLayout {
  KvType type = KvType::kBF16;
  int kv_heads = 0;
  int head_dim = 0;  // 16..256, a multiple of 8

  constexpr int64_t element_bytes() const { return type == KvType::kF32 ? 4 : 2; }
  // Bytes from one head's tokens to the next head's, within K or V data.
  constexpr int64_t head_bytes() const { return int64_t{kPageTokens} * head_dim * element_bytes(); }
  constexpr int64_t v_offset() const { return kv_heads * head_bytes(); }
  constexpr int64_t page_bytes() const { return 2 * v_offset(); }
  constexpr bool operator==(const KvLayout&) const = default;
};

// Whether the kernels take this layout; the error names the field and what is possible.
Status check_kv_layout(const KvLayout& layout);

// One layer's pages. The memory is the cache's; kernels see pages only through page tables.
struct KvPages {
  KvLayout layout;
  uint8_t* data = nullptr;  // 64-byte aligned, pages * layout.page_bytes() bytes
};

}  // namespace sub8::kernels
