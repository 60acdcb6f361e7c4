// Causal attention of query rows over a paged KV cache (grouped heads, sliding window, soft-cap,
// sinks). K and V are read as stored, those of the step's own rows included, so kv_write comes
// first.
//
// fp8 and nvfp4 pages are decoded, or, in the kinds that quantise queries, multiplied as stored
// (attention_kind.h).
//
// Row r with position p sees the keys j with p - window < j <= p (window 0: all j <= p). score =
// softcap(q.k * scale), softcap(s) = c * tanh(s / c). Softmax and sums are FP32.
//
// Order of the arithmetic: keys are split at multiples of 512; each split has its own maximum and
// its own sums over ascending keys; splits merge ascending in FP32. So a row's bits depend on its
// query and its keys alone: not on other rows, on chunking, or on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/attention/attention_kind.h"
#include "kernels/kv_write/kv_pages.h"
#include "kernels/rows.h"

namespace sub8::kernels {

inline constexpr int kAttentionSplitTokens = 512;

// What is the same for all rows of a layer.
struct AttentionShape {
  int heads =
      0;  // query heads, a multiple of kv.kv_heads; head h reads kv head h / (heads / kv_heads)
  KvLayout kv;
  KvScales kv_scales;  // of fp8 and nvfp4 pages
  AttentionKind kind = AttentionKind::k16Bit;
  float scale = 0;      // usually 1 / sqrt(head_dim)
  float soft_cap = 0;   // 0: none
  int window = 0;       // 0: none; keys with position - key < window are seen
  bool round_q = true;  // round q to bf16 first (every activation mode but f32)
  const float* sinks =
      nullptr;  // [heads] or null: one more logit per head, in the denominator only
};

// One token row: where its sequence's pages are, and its own position. Rows of one sequence with
// ascending positions should be neighbours: they then share the reading of K and V.
struct AttentionRow {
  const int32_t* page_table = nullptr;  // page of key j is page_table[j / 32]
  int32_t position = 0;
};

// Refuses what the kernels do not do (head_dim, heads not a multiple of kv_heads, ...) by name.
Status check_attention(const AttentionShape& shape);

// Scratch that attention() needs for steps on `threads` threads whose rows see up to max_context
// keys. More memory than this is never used, less than this is an error of the caller.
size_t attention_workspace_bytes(const AttentionShape& shape, int threads, int64_t max_context);

// q f32 [rows, heads * head_dim] (after rope) -> out [rows, heads * head_dim].
// `workspace` is 64-byte aligned. An error only for a shape that check_attention refuses.
Status attention(CpuPath path, ThreadPool& pool, const AttentionShape& shape, const uint8_t* pages,
                 InputRows q, std::span<const AttentionRow> rows, OutputRows out,
                 std::span<std::byte> workspace);

}  // namespace sub8::kernels
