#include "kernels/attention/attention.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "format/activation.h"
#include "kernels/attention/kernels.h"

namespace sub8::kernels {
namespace {

// Query rows (tokens times heads of one KV head) that share one pass over K and V.
constexpr int kTileRows = 32;
// Below this many units per thread, the splits of a unit are spread over the threads as well.
constexpr int64_t kUnitsPerThread = 4;
// What attention_workspace_bytes adds, at most, for results of splits that are merged later.
constexpr int64_t kMaxPartialBytes = int64_t{16} << 20;

constexpr int64_t align16(int64_t floats) { return (floats + 15) / 16 * 16; }

constexpr int kMaxHeadDim = 256;

constexpr std::array<std::string_view, 6> kKindNames = {"16-bit",  "fp8-query",  "fp4-query",
                                                        "resattn", "resattn-v8", "resattn-pv16"};

// One head of one token, quantised: values without alpha, [head_dim] of the base and where wanted
// [head_dim] of the residue behind it. Returns alpha.
float quantize_query(AttentionKind kind, const float* x, int head_dim, bool round, float* out) {
  const bool fp8 = kind == AttentionKind::kFp8Query;
  const auto f = fp8 ? format::ActivationFormat::kFp8 : format::ActivationFormat::kNvfp4;
  const int block = fp8 ? head_dim : format::kNvfp4Block;
  float values[kMaxHeadDim];
  for (int i = 0; i < head_dim; ++i) values[i] = round ? format::round_to_bf16(x[i]) : x[i];
  const float alpha = format::activation_alpha(f, format::abs_max(values, head_dim));
  for (int term = 0; term < (has_query_residue(kind) ? 2 : 1); ++term, out += head_dim) {
    for (int begin = 0; begin < head_dim; begin += block) {
      const int count = std::min(block, head_dim - begin);
      uint8_t codes[kMaxHeadDim];
      const uint8_t scale = format::quantize_activation_block(f, format::MxRule::kEven,
                                                              values + begin, count, alpha, codes);
      const float factor = format::activation_scale(f, scale);
      for (int i = 0; i < count; ++i)
        out[begin + i] = format::decode_element(format::activation_element(f), codes[i]) * factor;
      format::residue_block(f, values + begin, codes, count, scale, alpha, values + begin);
    }
  }
  return alpha;
}

// Scratch of one thread, in floats.
struct ScratchPlan {
  int64_t q, scale, scores, tile, decoded, part, state, total;
  explicit ScratchPlan(int64_t head_dim) {
    q = 0;
    scale = q + 2 * kTileRows * head_dim;
    scores = scale + kTileRows;
    tile = scores + kTileRows * kAttentionSplitTokens;
    decoded = tile + kPageTokens * head_dim;
    part = decoded + kPageTokens * head_dim;
    state = part + kTileRows * (head_dim + 2);
    total = align16(state + kTileRows * (head_dim + 2));
  }
};

SoftmaxState state_at(float* memory, int rows, int head_dim) {
  return {memory + int64_t{rows} * head_dim, memory + int64_t{rows} * (head_dim + 1), memory};
}

int64_t splits_of(int64_t keys) {
  return (keys + kAttentionSplitTokens - 1) / kAttentionSplitTokens;
}

// Neighbouring rows of one sequence, times some query heads of one KV head.
struct Unit {
  int64_t row = 0;  // first token row
  int tokens = 0;
  int kv_head = 0;
  int head = 0;  // first query head
  int heads = 0;
  int rows() const { return tokens * heads; }
};

// Everything a step's threads share.
struct Step {
  const AttentionKernels& kernels;
  const AttentionShape& shape;
  const uint8_t* pages;
  InputRows q;
  std::span<const AttentionRow> rows;
  OutputRows out;
  float* workspace;
  int threads;
  ScratchPlan plan;

  int group() const { return shape.heads / shape.kv.kv_heads; }
  int32_t first_key(int64_t row) const {
    const int32_t position = rows[static_cast<size_t>(row)].position;
    return shape.window == 0 ? 0 : std::max(0, position - shape.window + 1);
  }
  int32_t end_key(int64_t row) const { return rows[static_cast<size_t>(row)].position + 1; }
  // Splits [begin, end) that some row of the unit sees.
  int64_t split_begin(const Unit& u) const { return first_key(u.row) / kAttentionSplitTokens; }
  int64_t split_end(const Unit& u) const { return splits_of(end_key(u.row + u.tokens - 1)); }
  int64_t cost(const Unit& u) const {
    return int64_t{u.rows()} * (end_key(u.row + u.tokens - 1) - first_key(u.row) + 32);
  }
  float* partials() const { return workspace + threads * plan.total; }

  // Calls f(unit) for all units, in an order in which neighbours read the same keys.
  template <class F>
  void for_units(F&& f) const {
    const int heads_per_unit = std::min(group(), kTileRows);
    const int tokens_per_unit = kTileRows / heads_per_unit;
    for (int kv_head = 0; kv_head < shape.kv.kv_heads; ++kv_head) {
      for (int h = 0; h < group(); h += heads_per_unit) {
        const auto count = static_cast<int64_t>(rows.size());
        for (int64_t r = 0; r < count;) {
          Unit unit{r, 1, kv_head, kv_head * group() + h, std::min(heads_per_unit, group() - h)};
          while (unit.tokens < tokens_per_unit && r + unit.tokens < count &&
                 follows(r + unit.tokens)) {
            ++unit.tokens;
          }
          f(unit);
          r += unit.tokens;
        }
      }
    }
  }
  // Whether a row is the next position of its predecessor's sequence.
  bool follows(int64_t row) const {
    const AttentionRow& a = rows[static_cast<size_t>(row - 1)];
    const AttentionRow& b = rows[static_cast<size_t>(row)];
    return a.page_table == b.page_table && a.position + 1 == b.position;
  }

  QueryForm query_form() const {
    return shape.round_q && shape.kv.type == KvType::kBF16 ? kernels.rounded_form : QueryForm::kF32;
  }
  int terms() const { return has_query_residue(shape.kind) ? 2 : 1; }
  // The unit's queries as the kernels read them, and the factors of their scores.
  void pack_queries(const Unit& u, float* scratch) const {
    float* packed = scratch + plan.q;
    float* factors = scratch + plan.scale;
    if (quantises_queries(shape.kind)) {
      const int d = shape.kv.head_dim;
      for (int i = 0; i < u.rows(); ++i) {
        const float* x =
            q.data + (u.row + i / u.heads) * q.stride + int64_t{u.head + i % u.heads} * d;
        const float alpha =
            quantize_query(shape.kind, x, d, shape.round_q, packed + int64_t{i} * terms() * d);
        factors[i] = alpha * shape.kv_scales.k * shape.scale;
      }
      return;
    }
    std::fill_n(factors, u.rows(), shape.scale);
    const int64_t values = int64_t{u.heads} * shape.kv.head_dim;
    const int64_t bytes = values * (query_form() == QueryForm::kBF16 ? 2 : 4);
    for (int t = 0; t < u.tokens; ++t) {
      const float* x = q.data + (u.row + t) * q.stride + int64_t{u.head} * shape.kv.head_dim;
      kernels.pack_q(x, values, shape.round_q, query_form(),
                     reinterpret_cast<char*>(packed) + t * bytes);
    }
  }

  // The kinds that quantise queries leave alpha out of K and V and put it into the factors.
  void set_multiplied_as_stored(SplitTask& task) const {
    const AttentionKind kind = shape.kind;
    const bool p_16_bit = kind == AttentionKind::kResAttnV8 || kind == AttentionKind::kResAttnPv16;
    task.k.round_e4m3 = kind == AttentionKind::kFp8Query;
    task.v.round_e4m3 = kind != AttentionKind::kResAttnPv16;
    task.probability = p_16_bit ? ProbabilityForm::kBF16 : ProbabilityForm::kE4M3;
    task.out_scale = p_16_bit ? shape.kv_scales.v : shape.kv_scales.v * 0x1p-8f;
  }

  void run_split(const Unit& u, int64_t split, float* scratch, const SoftmaxState& state) const {
    const int32_t begin = static_cast<int32_t>(split) * kAttentionSplitTokens;
    int32_t first[kTileRows];
    int32_t last[kTileRows];
    for (int i = 0; i < u.rows(); ++i) {
      const int64_t row = u.row + i / u.heads;
      first[i] = std::clamp(first_key(row), begin, begin + kAttentionSplitTokens);
      last[i] = std::clamp(end_key(row), begin, begin + kAttentionSplitTokens);
    }
    const KvLayout& kv = shape.kv;
    SplitTask task;
    task.q = scratch + plan.q;
    task.q_form = query_form();
    task.rows = u.rows();
    task.terms = terms();
    task.head_dim = kv.head_dim;
    task.element = static_cast<PageElement>(kv.type);
    task.pages = pages;
    task.page_bytes = kv.page_bytes();
    task.k.offset = u.kv_head * kv.head_bytes();
    task.k.scales_offset = kv.k_scales_offset() + u.kv_head * kv.head_scales();
    task.v.offset = kv.v_offset() + task.k.offset;
    task.v.scales_offset = kv.v_offset() + task.k.scales_offset;
    if (quantises_queries(shape.kind)) {
      set_multiplied_as_stored(task);
    } else {
      task.k.alpha = shape.kv_scales.k;
      task.v.alpha = shape.kv_scales.v;
    }
    task.page_table = rows[static_cast<size_t>(u.row)].page_table;
    task.first = first;
    task.last = last;
    task.split_begin = begin;
    task.scale = scratch + plan.scale;
    task.soft_cap = shape.soft_cap;
    task.scores = scratch + plan.scores;
    task.tile = scratch + plan.tile;
    task.decoded = scratch + plan.decoded;
    task.state = state;
    kernels.split(task);
  }

  void write_unit(const Unit& u, const SoftmaxState& state) const {
    const int d = shape.kv.head_dim;
    const auto bytes = static_cast<int64_t>(format::dtype_bytes(out.type));
    for (int i = 0; i < u.rows(); ++i) {
      const int head = u.head + i % u.heads;
      const float* sink = shape.sinks == nullptr ? nullptr : shape.sinks + head;
      char* to = static_cast<char*>(out.row(u.row + i / u.heads)) + int64_t{head} * d * bytes;
      kernels.finish(state.out + int64_t{i} * d, state.max[i], state.sum[i], sink, d, to,
                     out.is_bf16());
    }
  }

  // All splits of a unit, merged as they come.
  void run_unit(const Unit& u, float* scratch) const {
    const SoftmaxState state = state_at(scratch + plan.state, u.rows(), shape.kv.head_dim);
    const SoftmaxState part = state_at(scratch + plan.part, u.rows(), shape.kv.head_dim);
    pack_queries(u, scratch);
    run_split(u, split_begin(u), scratch, state);
    for (int64_t s = split_begin(u) + 1; s < split_end(u); ++s) {
      run_split(u, s, scratch, part);
      kernels.merge(state, part, u.rows(), shape.kv.head_dim);
    }
    write_unit(u, state);
  }
};

// The part of [0, parts) that a unit belongs to, when units of the given cost follow one another.
int part_of(int64_t cost_before, int64_t cost, int64_t total, int parts) {
  const double middle = static_cast<double>(cost_before) + 0.5 * static_cast<double>(cost);
  return std::min(parts - 1, static_cast<int>(middle / static_cast<double>(total) * parts));
}

void run_by_units(ThreadPool& pool, const Step& step, int64_t total_cost) {
  pool.run([&](int part, int parts) {
    float* scratch = step.workspace + part * step.plan.total;
    int64_t before = 0;
    step.for_units([&](const Unit& u) {
      const int64_t cost = step.cost(u);
      if (part_of(before, cost, total_cost, parts) == part) step.run_unit(u, scratch);
      before += cost;
    });
  });
}

// Every split of every unit on its own, then the merges, in the same order as run_unit.
void run_by_splits(ThreadPool& pool, const Step& step, int64_t total_splits, int64_t units) {
  const int d = step.shape.kv.head_dim;
  pool.run([&](int part, int parts) {
    float* scratch = step.workspace + part * step.plan.total;
    float* partial = step.partials();
    int64_t before = 0;
    step.for_units([&](const Unit& u) {
      bool packed = false;
      for (int64_t s = step.split_begin(u); s < step.split_end(u); ++s, ++before) {
        if (part_of(before, 1, total_splits, parts) == part) {
          if (!packed) step.pack_queries(u, scratch);
          packed = true;
          step.run_split(u, s, scratch, state_at(partial, u.rows(), d));
        }
        partial += align16(int64_t{u.rows()} * (d + 2));
      }
    });
  });
  pool.run([&](int part, int parts) {
    float* partial = step.partials();
    int64_t index = 0;
    step.for_units([&](const Unit& u) {
      const int64_t size = align16(int64_t{u.rows()} * (d + 2));
      const int64_t splits = step.split_end(u) - step.split_begin(u);
      if (part_of(index++, 1, units, parts) == part) {
        const SoftmaxState state = state_at(partial, u.rows(), d);
        for (int64_t s = 1; s < splits; ++s)
          step.kernels.merge(state, state_at(partial + s * size, u.rows(), d), u.rows(), d);
        step.write_unit(u, state);
      }
      partial += splits * size;
    });
  });
}

}  // namespace

std::string_view attention_kind_name(AttentionKind kind) {
  return kKindNames[static_cast<size_t>(kind)];
}

Result<AttentionKind> parse_attention_kind(std::string_view name) {
  std::string names;
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (name == kKindNames[i]) return static_cast<AttentionKind>(i);
    names += (i == 0 ? "" : ", ") + std::string(kKindNames[i]);
  }
  return invalid_argument("'" + std::string(name) + "' is no kind of attention; there are " +
                          names);
}

Status check_attention(const AttentionShape& shape) {
  SUB8_RETURN_IF_ERROR(check_kv_layout(shape.kv));
  SUB8_RETURN_IF_ERROR(check_kv_scales(shape.kv_scales));
  const bool coded = shape.kv.type == KvType::kNvfp4 || shape.kv.type == KvType::kFp8;
  if ((needs_nvfp4_pages(shape.kind) && shape.kv.type != KvType::kNvfp4) ||
      (quantises_queries(shape.kind) && !coded)) {
    return unsupported("attention: '" + std::string(attention_kind_name(shape.kind)) + "' needs " +
                       (needs_nvfp4_pages(shape.kind) ? "nvfp4" : "nvfp4 or fp8") +
                       " KV pages, and these are " + std::string(kv_type_name(shape.kv.type)));
  }
  if (shape.heads < 1 || shape.heads % shape.kv.kv_heads != 0) {
    return unsupported("attention: " + std::to_string(shape.heads) + " query heads do not share " +
                       std::to_string(shape.kv.kv_heads) + " KV heads evenly");
  }
  if (shape.window < 0) {
    return invalid_argument("attention: sliding window is " + std::to_string(shape.window) +
                            "; use 0 for none");
  }
  if (!(shape.soft_cap >= 0)) {
    return invalid_argument("attention: soft-cap is " + std::to_string(shape.soft_cap) +
                            "; use 0 for none");
  }
  return {};
}

size_t attention_workspace_bytes(const AttentionShape& shape, int threads, int64_t max_context) {
  const int64_t d = shape.kv.head_dim;
  const int64_t scratch = threads * ScratchPlan(d).total * 4;
  const int64_t group = shape.heads / shape.kv.kv_heads;
  const int64_t rows = std::max<int64_t>(group, kTileRows);
  const int64_t partials = threads == 1 ? 0
                                        : kUnitsPerThread * threads * splits_of(max_context) *
                                              align16(rows * (d + 2)) * 4;
  return static_cast<size_t>(scratch + std::min(partials, kMaxPartialBytes));
}

Status attention(CpuPath path, ThreadPool& pool, const AttentionShape& shape, const uint8_t* pages,
                 InputRows q, std::span<const AttentionRow> rows, OutputRows out,
                 std::span<std::byte> workspace) {
  SUB8_RETURN_IF_ERROR(check_attention(shape));
  if (rows.empty()) return {};
  const int d = shape.kv.head_dim;
  SUB8_CHECK_GE(q.stride, int64_t{shape.heads} * d);
  SUB8_CHECK_GE(out.stride, int64_t{shape.heads} * d);
  for (const AttentionRow& row : rows) SUB8_CHECK_GE(row.position, 0);
  const ScratchPlan plan(d);
  const auto floats = static_cast<int64_t>(workspace.size() / sizeof(float));
  SUB8_CHECK_GE(floats, plan.total * pool.size());
  const Step step{SUB8_PICK_KERNELS(path, kAttention),        shape,       pages, q, rows, out,
                  reinterpret_cast<float*>(workspace.data()), pool.size(), plan};

  int64_t units = 0;
  int64_t splits = 0;
  int64_t cost = 0;
  int64_t partial_floats = 0;
  step.for_units([&](const Unit& u) {
    const int64_t n = step.split_end(u) - step.split_begin(u);
    ++units;
    splits += n;
    cost += step.cost(u);
    partial_floats += n * align16(int64_t{u.rows()} * (d + 2));
  });
  const bool by_splits = pool.size() > 1 && units < kUnitsPerThread * pool.size() &&
                         splits > units && partial_floats <= floats - plan.total * pool.size();
  if (by_splits) {
    run_by_splits(pool, step, splits, units);
  } else {
    run_by_units(pool, step, cost);
  }
  return {};
}

}  // namespace sub8::kernels
