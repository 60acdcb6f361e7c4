// Every (row, key) score is one chain of additions over head_dim, lanes along the keys of a page
// that was transposed; every (row, column) output is one chain over ascending keys, lanes along the
// columns. How many rows, keys or columns a loop handles at a time therefore never changes a bit.
#include "kernels/attention/kernels.h"
#include "kernels/simd/math.h"
#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {
namespace {

constexpr int kPage = 32;    // tokens
constexpr int kSplit = 512;  // tokens; also the row distance of the scores
// From this number of rows on, bf16 values are converted to f32 once instead of once per block.
constexpr int kConvertRows = 8;
static_assert(kPage % kLanes == 0);
constexpr bool kWide = kLanes == 16;  // 32 registers instead of 16

// 32-bit items of a key and of a query, and how they meet.
struct F32Items {
  using Type = float;
  static constexpr int kValues = 1;
  SUB8_SIMD_INLINE Vec load_n(const float* key, int item, int n) {
    return load_piece<F32Element>(key + item, n);
  }
  SUB8_SIMD_INLINE Vec multiply_add(Vec q, Vec k, Vec sum) { return fma(q, k, sum); }
};
struct WidenedItems : F32Items {
  using Type = uint16_t;
  SUB8_SIMD_INLINE Vec load_n(const uint16_t* key, int item, int n) {
    return load_piece<Bf16Element>(key + item, n);
  }
};
#if defined(SUB8_SIMD_AVX512)
constexpr QueryForm kRoundedForm = QueryForm::kBF16;
struct PairItems {  // head_dim is even
  using Type = uint16_t;
  static constexpr int kValues = 2;
  SUB8_SIMD_INLINE Vec load_n(const uint16_t* key, int item, int n) {
    return load_f32_n(reinterpret_cast<const float*>(key) + item, n);
  }
  SUB8_SIMD_INLINE Vec multiply_add(Vec q, Vec k, Vec sum) { return dot_bf16(sum, q, k); }
};
#else
constexpr QueryForm kRoundedForm = QueryForm::kF32;
using PairItems = WidenedItems;
#endif

// A page of keys [32][head_dim] as items [items of head_dim][32]. The next page is fetched
// meanwhile.
template <class Items>
SUB8_SIMD_INLINE void transpose_page(const typename Items::Type* keys,
                                     const typename Items::Type* next, int head_dim, float* tile) {
  const int items = head_dim / Items::kValues;
  for (int key = 0; key < kPage; key += kLanes) {
    for_vectors(items, [&](int64_t item, int count) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = Items::load_n(keys + (key + i) * head_dim, static_cast<int>(item), count);
        prefetch(next + (key + i) * head_dim + item * Items::kValues);
      }
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i < count) store_f32(tile + (item + i) * kPage + key, block[i]);
      }
    });
  }
}

// Scores of rows [row, row + R) against a transposed page whose first key is `base` of the split.
// Lanes of keys that a row does not see become -inf. Each of a query's terms has a sum of its own;
// the sums are added at the end (base plus residue).
template <class Items, int R, int kTerms>
SUB8_SIMD_INLINE void score_rows(const SplitTask& t, const float* tile, int base, int row) {
  constexpr int kVecs = kPage / kLanes;
  const int items = t.head_dim / Items::kValues;
  const float* q = static_cast<const float*>(t.q) + row * kTerms * items;
  Vec sums[R * kTerms][kVecs];
  for (int r = 0; r < R * kTerms; ++r)
    for (int c = 0; c < kVecs; ++c) sums[r][c] = zero();
  for (int i = 0; i < items; ++i) {
    Vec keys[kVecs];
    for (int c = 0; c < kVecs; ++c) keys[c] = load_f32(tile + i * kPage + c * kLanes);
    for (int r = 0; r < R * kTerms; ++r) {
      const Vec value = set1(q[r * items + i]);
      for (int c = 0; c < kVecs; ++c) sums[r][c] = Items::multiply_add(value, keys[c], sums[r][c]);
    }
  }
  const Vec cap = set1(t.soft_cap);
  for (int r = 0; r < R; ++r) {
    const Vec scale = set1(t.scale[row + r]);
    const int first = t.first[row + r] - t.split_begin - base;
    const int last = t.last[row + r] - t.split_begin - base;
    for (int c = 0; c < kVecs; ++c) {
      Vec s = sums[r * kTerms][c];
      if constexpr (kTerms == 2) s = add(s, sums[r * kTerms + 1][c]);
      s = mul(s, scale);
      if (t.soft_cap != 0.0f) s = mul(cap, tanh(div(s, cap)));
      const int j = c * kLanes;
      if (j < first || j + kLanes > last) {
        const int low = first < j ? 0 : first > j + kLanes ? kLanes : first - j;
        const int high = last < j ? 0 : last > j + kLanes ? kLanes : last - j;
        s = keep_lanes(s, low, high, -__builtin_inff());
      }
      store_f32(t.scores + (row + r) * kSplit + base + j, s);
    }
  }
}

template <class Items, int R, int kTerms>
SUB8_SIMD_INLINE void score_blocks(const SplitTask& t, const float* tile, int base, int& row) {
  for (; row + R <= t.rows; row += R) {
    // Bounds do not fall from row to row: these are the block's outer ones.
    const bool seen =
        t.last[row + R - 1] > t.split_begin + base && t.first[row] < t.split_begin + base + kPage;
    if (seen) score_rows<Items, R, kTerms>(t, tile, base, row);
  }
}

// One page of keys for all rows. `base` is the page's first key within the split.
template <class Items, int kTerms = 1>
void score_page(const SplitTask& t, const uint8_t* page, const uint8_t* next, int base) {
  using Type = typename Items::Type;
  transpose_page<Items>(reinterpret_cast<const Type*>(page), reinterpret_cast<const Type*>(next),
                        t.head_dim, t.tile);
  int row = 0;
  if constexpr (kTerms == 1) {
    if constexpr (kWide) score_blocks<Items, 12, 1>(t, t.tile, base, row);
    if constexpr (kWide) score_blocks<Items, 6, 1>(t, t.tile, base, row);
    if constexpr (kLanes > 4) score_blocks<Items, 3, 1>(t, t.tile, base, row);
  } else {
    if constexpr (kWide) score_blocks<Items, 6, kTerms>(t, t.tile, base, row);
    if constexpr (kWide) score_blocks<Items, 3, kTerms>(t, t.tile, base, row);
  }
  score_blocks<Items, 1, kTerms>(t, t.tile, base, row);
}

// The nearest E4M3 value, saturating; NaN stays NaN. Adding 1.5 * 2^20 powers of two has E4M3's
// unit as its own, so that the addition rounds.
SUB8_SIMD_INLINE Vec round_e4m3(Vec x) {
  const Vec magnitude = min(set1(448.0f), abs(x));
  const Vec magic = mul(max(exponent_power(magnitude), set1(0x1p-6f)), set1(0x1.8p20f));
  return copy_sign(sub(add(magnitude, magic), magic), x);
}

SUB8_SIMD_INLINE Vec round_probability(Vec p, ProbabilityForm form) {
  if (form == ProbabilityForm::kE4M3) return round_e4m3(mul(p, set1(256.0f)));
  return form == ProbabilityForm::kBF16 ? round_bf16(p) : p;
}

// Turns the scores of row i into exp(score - max), rounded as V's factor; lanes outside its range
// hold -inf, hence 0. The sum is that of the unrounded ones.
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
    store_f32(scores + j, round_probability(e, t.probability));
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

// Rows times vectors of columns are chosen to fill, not overflow, the registers.
template <class Element>
void weigh_page(const SplitTask& t, const typename Element::Type* v, int base) {
  int i = 0;
  for (; i + 6 <= t.rows; i += 6) weigh_page_rows<Element, 6, kWide ? 4 : 2>(t, v, base, i);
  for (; i + 3 <= t.rows; i += 3) weigh_page_rows<Element, 3, kWide ? 8 : 4>(t, v, base, i);
  for (; i + 2 <= t.rows; i += 2) weigh_page_rows<Element, 2, kWide ? 8 : 6>(t, v, base, i);
  for (; i < t.rows; ++i) weigh_page_rows<Element, 1, 8>(t, v, base, i);
}

void convert_page(const uint16_t* from, const uint16_t* next, int count, float* to) {
  for_vectors(count, [&](int64_t i, int lanes) {
    prefetch(next + i);
    store_piece<F32Element>(to + i, load_piece<Bf16Element>(from + i, lanes), lanes);
  });
}

// A coded page [32][head_dim] as values, in t.decoded.
void decode_page(const SplitTask& t, const PagePart& part, const uint8_t* page) {
  const int64_t bytes = t.element == PageElement::kE4M3 ? t.head_dim : t.head_dim / 2;
  const int64_t blocks = (t.head_dim + 15) / 16;
  const uint8_t* data = page + part.offset;
  const uint8_t* scales = page + part.scales_offset;
  const Vec alpha = set1(part.alpha);
  for (int token = 0; token < kPage; ++token, data += bytes, scales += blocks) {
    float* out = t.decoded + token * t.head_dim;
    if (t.element == PageElement::kE4M3) {
      for_vectors(t.head_dim, [&](int64_t i, int lanes) {
        const Vec value = mul(load_e4m3(data + i, lanes), alpha);
        store_piece<F32Element>(out + i, part.round_e4m3 ? round_e4m3(value) : value, lanes);
      });
      continue;
    }
    for (int64_t b = 0; b < blocks; b += kLanes) {
      const int count = static_cast<int>(blocks - b < kLanes ? blocks - b : kLanes);
      float divisors[kLanes];
      store_f32(divisors, mul(alpha, load_e4m3(scales + b, count)));
      for (int i = 0; i < count; ++i) {
        const int64_t at = (b + i) * 16;
        const Vec divisor = set1(divisors[i]);
        for_vectors(t.head_dim - at < 16 ? t.head_dim - at : 16, [&](int64_t j, int lanes) {
          const Vec value = mul(load_e2m1(data + (at + j) / 2, lanes), divisor);
          store_piece<F32Element>(out + at + j, part.round_e4m3 ? round_e4m3(value) : value, lanes);
        });
      }
    }
  }
}

// Calls f(page, next, base) for every page of the keys [first, last); `next` is the page after it,
// to be fetched, or the last one itself.
template <class F>
SUB8_SIMD_INLINE void for_pages(const SplitTask& t, int32_t first, int32_t last, F&& f) {
  for (int32_t key = first / kPage * kPage; key < last; key += kPage) {
    const int32_t* entry = t.page_table + key / kPage;
    const int32_t next = entry[key + kPage < last ? 1 : 0];
    f(t.pages + *entry * t.page_bytes, t.pages + next * t.page_bytes, key - t.split_begin);
  }
}

void score(const SplitTask& t, const uint8_t* page, const uint8_t* next, int base) {
  if (t.element == PageElement::kE4M3 || t.element == PageElement::kE2M1) {
    decode_page(t, t.k, page);
    const auto* keys = reinterpret_cast<const uint8_t*>(t.decoded);
    if (t.terms == 2) {
      score_page<F32Items, 2>(t, keys, keys, base);
    } else {
      score_page<F32Items>(t, keys, keys, base);
    }
    return;
  }
  page += t.k.offset;
  next += t.k.offset;
  if (t.element == PageElement::kF32) {
    score_page<F32Items>(t, page, next, base);
  } else if (t.q_form == QueryForm::kBF16) {
    score_page<PairItems>(t, page, next, base);
  } else {
    score_page<WidenedItems>(t, page, next, base);
  }
}

void fetch_page(const SplitTask& t, const uint8_t* page) {
  const int bytes = kPage * t.head_dim * 2;
  for (int line = 0; line < bytes; line += 64) prefetch(page + line);
}

void weigh(const SplitTask& t, const uint8_t* page, const uint8_t* next, int base) {
  if (t.element == PageElement::kE4M3 || t.element == PageElement::kE2M1) {
    decode_page(t, t.v, page);
    weigh_page<F32Element>(t, t.decoded, base);
    return;
  }
  page += t.v.offset;
  next += t.v.offset;
  const auto* halves = reinterpret_cast<const uint16_t*>(page);
  if (t.element == PageElement::kF32) {
    weigh_page<F32Element>(t, reinterpret_cast<const float*>(page), base);
  } else if (t.rows >= kConvertRows) {
    convert_page(halves, reinterpret_cast<const uint16_t*>(next), kPage * t.head_dim, t.tile);
    weigh_page<F32Element>(t, t.tile, base);
  } else {
    fetch_page(t, next);
    weigh_page<Bf16Element>(t, halves, base);
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
  for_pages(t, first, last, [&](const uint8_t* page, const uint8_t* next, int base) {
    score(t, page, next, base);
  });
  for (int i = 0; i < t.rows; ++i) {
    if (t.first[i] < t.last[i]) exponentiate_row(t, i);
  }
  for_pages(t, first, last, [&](const uint8_t* page, const uint8_t* next, int base) {
    weigh(t, page, next, base);
  });
  if (t.out_scale == 1.0f) return;
  for_vectors(int64_t{t.rows} * t.head_dim, [&](int64_t i, int lanes) {
    const Vec scaled = mul(load_piece<F32Element>(t.state.out + i, lanes), set1(t.out_scale));
    store_piece<F32Element>(t.state.out + i, scaled, lanes);
  });
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

void pack_q(const float* x, int64_t n, bool round, QueryForm form, void* out) {
  for_vectors(n, [&](int64_t i, int lanes) {
    const Vec v = load_piece<F32Element>(x + i, lanes);
    if (form == QueryForm::kBF16) {
      store_piece<Bf16Element>(static_cast<uint16_t*>(out) + i, v, lanes);
    } else {
      store_piece<F32Element>(static_cast<float*>(out) + i, round ? round_bf16(v) : v, lanes);
    }
  });
}

}  // namespace

const AttentionKernels kAttention = {kRoundedForm, pack_q, split, merge, finish};

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
