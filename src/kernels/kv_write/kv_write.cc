#include "kernels/kv_write/kv_write.h"

#include <algorithm>

#include "base/check.h"
#include "format/bits.h"
#include "format/kv.h"
#include "kernels/elementwise/kernels.h"

namespace sub8::kernels {
namespace {

constexpr int kMaxHeadDim = 256;

// One head of one token as codes, and scale bytes for nvfp4.
void write_codes(const KvPages& pages, const float* x, bool value_side, uint8_t* data,
                 uint8_t* scales) {
  const int d = pages.layout.head_dim;
  const float alpha = value_side ? pages.scales.v : pages.scales.k;
  float rounded[kMaxHeadDim];
  for (int i = 0; i < d; ++i) rounded[i] = pages.round ? format::round_to_bf16(x[i]) : x[i];
  if (pages.layout.type == KvType::kFp8) {
    format::fp8_quantize_row(rounded, d, alpha, data);
    return;
  }
  uint8_t codes[kMaxHeadDim];
  for (int i = 0; i < d; i += kKvBlock) {
    scales[i / kKvBlock] = format::nvfp4_quantize_kv_block(rounded + i, std::min(kKvBlock, d - i),
                                                           alpha, value_side, codes + i);
  }
  format::pack_codes(codes, d, 4, data);
}

}  // namespace

void kv_write(CpuPath path, ThreadPool& pool, InputRows k, InputRows v, int64_t rows,
              const int64_t* slots, const KvPages& pages) {
  if (rows == 0) return;
  const KvLayout layout = pages.layout;
  SUB8_CHECK_LE(layout.head_dim, kMaxHeadDim);
  SUB8_CHECK_GE(k.stride, int64_t{layout.kv_heads} * layout.head_dim);
  SUB8_CHECK_GE(v.stride, int64_t{layout.kv_heads} * layout.head_dim);
  const ElementwiseKernels& kernels = SUB8_PICK_KERNELS(path, kElementwise);
  const bool coded = layout.type == KvType::kFp8 || layout.type == KvType::kNvfp4;
  const auto write = [&](const InputRows& in, int64_t row, bool value_side) {
    const int64_t slot = slots[row];
    const int64_t token = slot % kPageTokens;
    uint8_t* part = pages.data + slot / kPageTokens * layout.page_bytes() +
                    (value_side ? layout.v_offset() : 0);
    for (int h = 0; h < layout.kv_heads; ++h) {
      const float* x = in.data + row * in.stride + int64_t{h} * layout.head_dim;
      uint8_t* data = part + h * layout.head_bytes() + token * layout.token_bytes();
      uint8_t* scales = part + layout.k_scales_offset() + h * layout.head_scales() +
                        token * layout.token_scales();
      if (coded) {
        write_codes(pages, x, value_side, data, scales);
      } else {
        kernels.convert(x, layout.head_dim, data, layout.type == KvType::kBF16);
      }
    }
  };
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      SUB8_CHECK_GE(slots[r], 0);
      write(k, r, false);
      write(v, r, true);
    }
  });
}

}  // namespace sub8::kernels
