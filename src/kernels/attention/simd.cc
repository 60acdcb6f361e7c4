// Every (row, key) score is one dot product with lanes along head_dim, reduced in one order; every
// (row, column) output is one chain of additions over ascending keys. How many rows or columns a
// loop handles at a time therefore never changes a bit.
#include "kernels/attention/kernels.h"
#include "kernels/simd/math.h"
#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {
namespace {

constexpr int kPage = 32;    // tokens
constexpr int kSplit = 512;  // tokens; also the row distance of the scores
// From this number of rows on, bf16 pages are converted to f32 once instead of once per row.
constexpr int kConvertRows = 4;
static_assert(kPage % kLanes == 0);

// Scores of kLanes neighbouring keys for one query row.
template <class Element>
SUB8_SIMD_INLINE Vec dot_keys(const float* q, const typename Element::Type* k, int head_dim) {
  Vec sums[kLanes];
  for (int j = 0; j < kLanes; ++j) sums[j] = zero();
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    const Vec a = load_f32(q + i);
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) sums[j] = fma(a, Element::load(k + j * head_dim + i), sums[j]);
  }
  if (i < head_dim) {
    const int left = head_dim - i;
    const Vec a = load_f32_n(q + i, left);
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j)
      sums[j] = fma(a, Element::load_n(k + j * head_dim + i, left), sums[j]);
  }
  return reduce_add_each(sums);
}

// One page of keys for all rows. `base` is the page's first key within the split.
template <class Element>
void score_page(const SplitTask& t, const typename Element::Type* k, int base) {
  const Vec scale = set1(t.scale);
  const Vec cap = set1(t.soft_cap);
  for (int i = 0; i < t.rows; ++i) {
    const int first = t.first[i] - t.split_begin - base;
    const int last = t.last[i] - t.split_begin - base;
    const int begin = first < 0 ? 0 : first / kLanes * kLanes;
    const int end = last > kPage ? kPage : last;
    for (int j = begin; j < end; j += kLanes) {
      Vec s = mul(dot_keys<Element>(t.q + i * t.head_dim, k + j * t.head_dim, t.head_dim), scale);
      if (t.soft_cap != 0.0f) s = mul(cap, tanh(div(s, cap)));
      if (j < first || j + kLanes > last) {
        const int low = first - j < 0 ? 0 : first - j;
        const int high = last - j > kLanes ? kLanes : last - j;
        s = keep_lanes(s, low, high, -__builtin_inff());
      }
      store_f32(t.scores + i * kSplit + base + j, s);
    }
  }
}

// Turns the scores of row i into exp(score - max); lanes outside its range hold -inf, hence 0.
void exponentiate_row(const SplitTask& t, int i) {
  const int begin = (t.first[i] - t.split_begin) / kLanes * kLanes;
  const int end = t.last[i] - t.split_begin;
  float* scores = t.scores + i * kSplit;
  Vec best = set1(-__builtin_inff());
  for (int j = begin; j < end; j += kLanes) best = max(load_f32(scores + j), best);
  const float top = reduce_max(best);
  const Vec shift = set1(top);
  Vec sum = zero();
  for (int j = begin; j < end; j += kLanes) {
    const Vec e = exp(sub(load_f32(scores + j), shift));
    store_f32(scores + j, e);
    sum = add(sum, e);
  }
  t.state.max[i] = top;
  t.state.sum[i] = reduce_add(sum);
}

// out[r][columns] += p[r][j] * v[j][columns] for keys j in [begin, end): R rows, C vectors of
// columns, `lanes` of the last vector.
template <class Element, int R, int C, bool kTail>
SUB8_SIMD_INLINE void weigh_block(const float* p, const typename Element::Type* v, int begin,
                                  int end, int head_dim, int lanes, float* out) {
  Vec sums[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      const float* at = out + r * head_dim + c * kLanes;
      sums[r][c] = kTail ? load_f32_n(at, lanes) : load_f32(at);
    }
  }
  for (int j = begin; j < end; ++j) {
    Vec values[C];
    for (int c = 0; c < C; ++c) {
      const typename Element::Type* at = v + j * head_dim + c * kLanes;
      values[c] = kTail ? Element::load_n(at, lanes) : Element::load(at);
    }
    for (int r = 0; r < R; ++r) {
      const Vec weight = set1(p[r * kSplit + j]);
      for (int c = 0; c < C; ++c) sums[r][c] = fma(weight, values[c], sums[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      float* at = out + r * head_dim + c * kLanes;
      if (kTail) {
        store_f32_n(at, sums[r][c], lanes);
      } else {
        store_f32(at, sums[r][c]);
      }
    }
  }
}

// C vectors at a time while they fit, then single ones.
template <class Element, int R, int C>
void weigh_rows(const float* p, const typename Element::Type* v, int begin, int end, int head_dim,
                float* out) {
  int i = 0;
  for (; i + C * kLanes <= head_dim; i += C * kLanes)
    weigh_block<Element, R, C, false>(p, v + i, begin, end, head_dim, kLanes, out + i);
  for (; i + kLanes <= head_dim; i += kLanes)
    weigh_block<Element, R, 1, false>(p, v + i, begin, end, head_dim, kLanes, out + i);
  if (i < head_dim)
    weigh_block<Element, R, 1, true>(p, v + i, begin, end, head_dim, head_dim - i, out + i);
}

// R neighbouring rows over one page: what all of them see at once, the ragged ends row by row.
template <class Element, int R, int C>
void weigh_page_rows(const SplitTask& t, const typename Element::Type* v, int base, int row) {
  int first[R];
  int last[R];
  int common_first = 0;
  int common_last = kPage;
  for (int r = 0; r < R; ++r) {
    const int f = t.first[row + r] - t.split_begin - base;
    const int l = t.last[row + r] - t.split_begin - base;
    first[r] = f < 0 ? 0 : f;
    last[r] = l > kPage ? kPage : l;
    if (first[r] > common_first) common_first = first[r];
    if (last[r] < common_last) common_last = last[r];
  }
  const float* p = t.scores + row * kSplit + base;
  float* out = t.state.out + row * t.head_dim;
  const bool together = common_first < common_last;
  for (int r = 0; r < R; ++r) {
    const int end = together ? common_first : last[r];
    if (first[r] < end)
      weigh_rows<Element, 1, 8>(p + r * kSplit, v, first[r], end, t.head_dim, out + r * t.head_dim);
  }
  if (!together) return;
  weigh_rows<Element, R, C>(p, v, common_first, common_last, t.head_dim, out);
  for (int r = 0; r < R; ++r) {
    if (common_last < last[r])
      weigh_rows<Element, 1, 8>(p + r * kSplit, v, common_last, last[r], t.head_dim,
                                out + r * t.head_dim);
  }
}

// Rows times vectors of columns are chosen to fill, not overflow, sixteen registers.
template <class Element>
void weigh_page(const SplitTask& t, const typename Element::Type* v, int base) {
  int i = 0;
  for (; i + 6 <= t.rows; i += 6) weigh_page_rows<Element, 6, 2>(t, v, base, i);
  for (; i + 3 <= t.rows; i += 3) weigh_page_rows<Element, 3, 4>(t, v, base, i);
  for (; i + 2 <= t.rows; i += 2) weigh_page_rows<Element, 2, 6>(t, v, base, i);
  for (; i < t.rows; ++i) weigh_page_rows<Element, 1, 8>(t, v, base, i);
}

void convert_page(const uint16_t* from, int count, float* to) {
  for_vectors(count, [&](int64_t i, int lanes) {
    store_piece<F32Element>(to + i, load_piece<Bf16Element>(from + i, lanes), lanes);
  });
}

// Calls f32(page, base) or bf16(page, base) for every page of the keys [first, last).
template <class OnF32, class OnBf16>
SUB8_SIMD_INLINE void for_pages(const SplitTask& t, int32_t first, int32_t last, int64_t offset,
                                OnF32&& on_f32, OnBf16&& on_bf16) {
  for (int32_t key = first / kPage * kPage; key < last; key += kPage) {
    const uint8_t* page = t.pages + t.page_table[key / kPage] * t.page_bytes + offset;
    const int base = key - t.split_begin;
    if (!t.bf16) {
      on_f32(reinterpret_cast<const float*>(page), base);
    } else if (t.rows >= kConvertRows) {
      convert_page(reinterpret_cast<const uint16_t*>(page), kPage * t.head_dim, t.tile);
      on_f32(t.tile, base);
    } else {
      on_bf16(reinterpret_cast<const uint16_t*>(page), base);
    }
  }
}

void split(const SplitTask& t) {
  int32_t first = 0;
  int32_t last = 0;
  for (int i = 0; i < t.rows; ++i) {
    t.state.max[i] = -__builtin_inff();
    t.state.sum[i] = 0.0f;
    if (t.first[i] >= t.last[i]) continue;
    if (first == last || t.first[i] < first) first = t.first[i];
    if (t.last[i] > last) last = t.last[i];
  }
  for (int i = 0; i < t.rows * t.head_dim; ++i) t.state.out[i] = 0.0f;
  for_pages(
      t, first, last, t.k_offset,
      [&](const float* k, int base) { score_page<F32Element>(t, k, base); },
      [&](const uint16_t* k, int base) { score_page<Bf16Element>(t, k, base); });
  for (int i = 0; i < t.rows; ++i) {
    if (t.first[i] < t.last[i]) exponentiate_row(t, i);
  }
  for_pages(
      t, first, last, t.v_offset,
      [&](const float* v, int base) { weigh_page<F32Element>(t, v, base); },
      [&](const uint16_t* v, int base) { weigh_page<Bf16Element>(t, v, base); });
}

SUB8_SIMD_INLINE float exp_one(float x) {
  float lanes[kLanes];
  store_f32(lanes, exp(set1(x)));
  return lanes[0];
}

void merge(const SoftmaxState& into, const SoftmaxState& part, int rows, int head_dim) {
  for (int i = 0; i < rows; ++i) {
    if (part.sum[i] == 0.0f) continue;
    float* out = into.out + i * head_dim;
    const float* value = part.out + i * head_dim;
    if (into.sum[i] == 0.0f) {
      into.max[i] = part.max[i];
      into.sum[i] = part.sum[i];
      for (int c = 0; c < head_dim; ++c) out[c] = value[c];
      continue;
    }
    const float top = into.max[i] > part.max[i] ? into.max[i] : part.max[i];
    const float a = exp_one(into.max[i] - top);
    const float b = exp_one(part.max[i] - top);
    into.max[i] = top;
    into.sum[i] = into.sum[i] * a + part.sum[i] * b;
    for_vectors(head_dim, [&](int64_t c, int lanes) {
      const Vec scaled = mul(load_piece<F32Element>(value + c, lanes), set1(b));
      const Vec sum = fma(load_piece<F32Element>(out + c, lanes), set1(a), scaled);
      store_piece<F32Element>(out + c, sum, lanes);
    });
  }
}

void finish(const float* value, float max, float sum, const float* sink, int64_t n, void* out,
            bool bf16) {
  float factor = 1.0f;
  if (sink != nullptr) {
    const float top = max > *sink ? max : *sink;
    factor = exp_one(max - top);
    sum = sum * factor + exp_one(*sink - top);
  }
  for_vectors(n, [&](int64_t c, int lanes) {
    const Vec y = div(mul(load_piece<F32Element>(value + c, lanes), set1(factor)), set1(sum));
    if (bf16) {
      store_piece<Bf16Element>(static_cast<uint16_t*>(out) + c, y, lanes);
    } else {
      store_piece<F32Element>(static_cast<float*>(out) + c, y, lanes);
    }
  });
}

void pack_q(const float* x, int64_t n, bool round, float* out) {
  for_vectors(n, [&](int64_t i, int lanes) {
    const Vec v = load_piece<F32Element>(x + i, lanes);
    store_piece<F32Element>(out + i, round ? round_bf16(v) : v, lanes);
  });
}

}  // namespace

const AttentionKernels kAttention = {pack_q, split, merge, finish};

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
