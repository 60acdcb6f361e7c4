#include "kernels/kv_write/kv_pages.h"

#include <string>

#include "format/kv.h"

namespace sub8::kernels {

std::string_view kv_type_name(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kBF16:
      return "bf16";
    case KvType::kFp8:
      return "fp8";
    case KvType::kNvfp4:
      return "nvfp4";
  }
  return "?";
}

Result<KvType> parse_kv_type(std::string_view name) {
  for (KvType type : {KvType::kF32, KvType::kBF16, KvType::kFp8, KvType::kNvfp4}) {
    if (name == kv_type_name(type)) return type;
  }
  return invalid_argument("'" + std::string(name) +
                          "' is not a KV cache type; use f32, bf16, fp8 or nvfp4");
}

Status check_kv_layout(const KvLayout& layout) {
  if (layout.kv_heads < 1) {
    return invalid_argument("KV layout: kv_heads is " + std::to_string(layout.kv_heads) +
                            "; at least 1 is needed");
  }
  if (layout.head_dim < 16 || layout.head_dim > 256 || layout.head_dim % 8 != 0) {
    return unsupported("KV layout: head_dim is " + std::to_string(layout.head_dim) +
                       "; the attention kernels take multiples of 8 from 16 to 256");
  }
  return {};
}

Status check_kv_scales(const KvScales& scales) {
  for (const float alpha : {scales.k, scales.v}) {
    if (alpha >= format::kSmallestKvAlpha && alpha <= format::kLargestKvAlpha) continue;
    return corrupt_data("a KV cache scale of " + std::to_string(alpha) +
                        " is not between 2^-117 and 2^115");
  }
  return {};
}

}  // namespace sub8::kernels
