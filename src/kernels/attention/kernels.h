// Kernels of paged attention: one tile of query rows against one split of the keys of one KV head.
// No STL here.
#pragma once

#include <cstdint>

#include "kernels/simd/table.h"

namespace sub8::kernels {

// The running softmax of tile rows: maximum, sum of exponentials, weighted sum of V.
// sum[i] == 0 exactly where row i has seen no key.
struct SoftmaxState {
  float* max = nullptr;  // [rows]
  float* sum = nullptr;  // [rows]
  float* out = nullptr;  // [rows, head_dim]
};

// How a tile's queries are held: f32 [rows, terms, head_dim], or bf16 with one term.
enum class QueryForm : uint8_t { kF32, kBF16 };

// Elements of the pages.
enum class PageElement : uint8_t { kF32, kBF16, kE4M3, kE2M1 };

// What probabilities are rounded to before they meet V: nothing, or p * 2^8 to E4M3, or bf16.
enum class ProbabilityForm : uint8_t { kF32, kE4M3, kBF16 };

// K or V of the tile's head: page table entry t has [32][head_dim] elements at
// pages + t * page_bytes + offset and, for kE2M1, scales [32][ceil(head_dim / 16)] at
// ... + scales_offset. Coded elements are read as code * fl(alpha * scale); alpha 1 leaves it out.
struct PagePart {
  int64_t offset = 0;
  int64_t scales_offset = 0;
  float alpha = 1.0f;
  bool round_e4m3 = false;  // then to E4M3, saturating
};

struct SplitTask {
  const void* q = nullptr;
  QueryForm q_form = QueryForm::kF32;  // kBF16 only with bf16 pages
  int rows = 0;
  int head_dim = 0;
  int terms = 1;  // of a query: a score is the sum of its terms' products with the key
  PageElement element = PageElement::kF32;
  const uint8_t* pages = nullptr;
  int64_t page_bytes = 0;
  PagePart k, v;
  const int32_t* page_table = nullptr;
  // Row i sees the keys [first[i], last[i]), already cut to the split; maybe none. Neither bound
  // falls from one row to the next.
  const int32_t* first = nullptr;
  const int32_t* last = nullptr;
  int32_t split_begin = 0;
  const float* scale = nullptr;  // [rows] factor of the scores
  float soft_cap = 0;            // 0: none
  ProbabilityForm probability = ProbabilityForm::kF32;
  float out_scale = 1.0f;    // factor of the split's weighted sums
  float* scores = nullptr;   // scratch [rows, 512]
  float* tile = nullptr;     // scratch [32, head_dim]
  float* decoded = nullptr;  // scratch [32, head_dim], for coded pages
  SoftmaxState state;        // written
};

struct AttentionKernels {
  // The form that rounded queries take against bf16 pages.
  QueryForm rounded_form;
  // out = x, rounded to bf16 values if asked, as the form says; n values.
  void (*pack_q)(const float* x, int64_t n, bool round, QueryForm form, void* out);
  void (*split)(const SplitTask& task);
  // into += part, row by row; rows that have seen nothing are skipped.
  void (*merge)(const SoftmaxState& into, const SoftmaxState& part, int rows, int head_dim);
  // out [n] = value / sum. `sink`, if any, is one more logit in the denominator.
  void (*finish)(const float* value, float max, float sum, const float* sink, int64_t n, void* out,
                 bool bf16);
};
SUB8_KERNEL_TABLE(AttentionKernels, kAttention)

}  // namespace sub8::kernels
