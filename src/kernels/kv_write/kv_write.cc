#include "kernels/kv_write/kv_write.h"

#include "base/check.h"
#include "kernels/elementwise/kernels.h"

namespace sub8::kernels {

void kv_write(CpuPath path, ThreadPool& pool, InputRows k, InputRows v, int64_t rows,
              const int64_t* slots, const KvPages& pages) {
  if (rows == 0) return;
  const KvLayout layout = pages.layout;
  SUB8_CHECK_GE(k.stride, int64_t{layout.kv_heads} * layout.head_dim);
  SUB8_CHECK_GE(v.stride, int64_t{layout.kv_heads} * layout.head_dim);
  const ElementwiseKernels& kernels = SUB8_PICK_KERNELS(path, kElementwise);
  const bool bf16 = layout.type == KvType::kBF16;
  const int64_t token_bytes = layout.head_dim * layout.element_bytes();
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t slot = slots[r];
      SUB8_CHECK_GE(slot, 0);
      uint8_t* token =
          pages.data + slot / kPageTokens * layout.page_bytes() + slot % kPageTokens * token_bytes;
      for (int h = 0; h < layout.kv_heads; ++h) {
        const int64_t column = int64_t{h} * layout.head_dim;
        uint8_t* head = token + h * layout.head_bytes();
        kernels.convert(k.data + r * k.stride + column, layout.head_dim, head, bf16);
        kernels.convert(v.data + r * v.stride + column, layout.head_dim, head + layout.v_offset(),
                        bf16);
      }
    }
  });
}

}  // namespace sub8::kernels
