#include "kernels/quantize_act/quantize_act.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "format/bits.h"
#include "format/dtype.h"
#include "kernels/quantize_act/kernels.h"

namespace sub8::kernels {
namespace {

using format::ActivationFormat;

// Scratch of one thread, for one row.
struct RowScratch {
  float* x;         // the row, then its residues, in f32
  float* selected;  // the residues that are kept
  uint8_t* codes;
  uint8_t* scales;
};

constexpr int64_t kPad = 64;
int64_t padded(int64_t k) { return round_up<int64_t>(k, kPad) + kPad; }

size_t scratch_bytes(int64_t k) { return static_cast<size_t>(padded(k)) * (2 * sizeof(float) + 2); }

RowScratch scratch_of(std::span<std::byte> workspace, int64_t k, int part) {
  std::byte* at = workspace.data() + static_cast<size_t>(part) * scratch_bytes(k);
  auto* x = reinterpret_cast<float*>(at);
  auto* codes = reinterpret_cast<uint8_t*>(x + 2 * padded(k));
  return {x, x + padded(k), codes, codes + padded(k)};
}

struct RowPlace {
  int64_t base;
  int64_t residue;
};
RowPlace place(QuantizedLayout layout, int64_t i) {
  switch (layout) {
    case QuantizedLayout::kRowPair:
      return {2 * i, 2 * i + 1};
    case QuantizedLayout::kTile8:
      return {i / 8 * 16 + i % 8, i / 8 * 16 + i % 8 + 8};
    default:
      return {i, i};
  }
}

int64_t block_of(ActivationFormat f, int64_t count) {
  const int block = format::activation_block(f);
  return block == 0 ? count : block;
}

float row_amax(const uint16_t* x, int64_t k) {
  uint32_t best = 0;
  for (int64_t i = 0; i < k; ++i) best = std::max<uint32_t>(best, x[i] & 0x7fffu);
  return format::bf16_to_float(static_cast<uint16_t>(best));
}

bool is_fp4(ActivationFormat f) { return format::activation_element(f) == format::kE2M1; }

// FP4: codes and scale bytes of x[0..count), which has room for whole blocks; `residue`: x becomes
// its residue.
void quantize_fp4(const Fp4Kernels& kernels, const ActivationRule& rule, float* x, int64_t count,
                  float alpha, bool residue, uint8_t* codes, uint8_t* scales) {
  const int64_t block = block_of(rule.format, 1);
  const int64_t blocks = ceil_div<int64_t>(count, block);
  std::fill(x + count, x + blocks * block, 0.0f);
  float* out = residue ? x : nullptr;
  if (rule.format == ActivationFormat::kNvfp4) {
    kernels.nvfp4(x, blocks, alpha, codes, scales, out);
    return;
  }
  const uint32_t round_bits =
      rule.mx_rule == format::MxRule::kEven ? 1u << (22 - format::kE2M1.mantissa_bits) : 0u;
  kernels.mxfp4(x, blocks, round_bits, rule.mx_rule == format::MxRule::kCeil, codes, scales, out);
}

// Codes and scale bytes of x[0..count).
void quantize(const ActivationRule& rule, const float* x, int64_t count, float alpha,
              uint8_t* codes, uint8_t* scales) {
  const int64_t block = block_of(rule.format, count);
  for (int64_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    scales[b] = format::quantize_activation_block(
        rule.format, rule.mx_rule, x + begin, std::min(block, count - begin), alpha, codes + begin);
  }
}

// Replaces x by its residue.
void to_residue(ActivationFormat f, float* x, int64_t count, float alpha, const uint8_t* codes,
                const uint8_t* scales) {
  const int64_t block = block_of(f, count);
  for (int64_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    format::residue_block(f, x + begin, codes + begin, std::min(block, count - begin), scales[b],
                          alpha, x + begin);
  }
}

// The selected values in order; returns how many.
int64_t select(const float* x, int64_t k, std::span<const uint8_t> masks, float* out) {
  int64_t count = 0;
  for (size_t g = 0; g < masks.size(); ++g) {
    for (int bit = 0; bit < format::kSelectGroup; ++bit) {
      if ((masks[g] >> bit & 1) == 0) continue;
      const int64_t channel = static_cast<int64_t>(g) * format::kSelectGroup + bit;
      out[count++] = channel < k ? x[channel] : 0.0f;
    }
  }
  return count;
}

// Writes `count` elements at column `column` of row `row`.
void emit(const Fp4Kernels& kernels, const QuantizedRows& out, ActivationFormat f, int64_t row,
          int64_t column, int64_t count, const uint8_t* codes, const uint8_t* scales) {
  const format::ElementFormat e = format::activation_element(f);
  const int64_t block = block_of(f, count);
  if (out.values != nullptr) {
    uint16_t* to = out.values + row * out.value_stride + column;
    for (int64_t begin = 0, b = 0; begin < count; begin += block, ++b) {
      const float scale = format::activation_scale(f, scales[b]);
      const int64_t end = std::min(begin + block, count);
      for (int64_t i = begin; i < end; ++i)
        to[i] = format::float_to_bf16(format::decode_element(e, codes[i]) * scale);
    }
    return;
  }
  // Extensions begin at whole blocks, so at whole bytes.
  uint8_t* packed = out.codes + row * out.code_stride + column * e.bits() / 8;
  const int64_t even = is_fp4(f) ? count / 2 * 2 : 0;
  if (even > 0) kernels.pack(codes, even, packed);
  format::pack_codes(codes + even, count - even, e.bits(), packed + even / 2);
  if (format::activation_block(f) == 0) return;
  std::memcpy(out.scales + row * out.scale_stride + column / block, scales,
              static_cast<size_t>(ceil_div<int64_t>(count, block)));
}

void emit_zeros(const Fp4Kernels& kernels, const QuantizedRows& out, ActivationFormat f,
                int64_t row, int64_t column, int64_t count, const RowScratch& scratch) {
  if (count <= 0) return;
  std::memset(scratch.codes, 0, static_cast<size_t>(count));
  std::memset(scratch.scales, 0, static_cast<size_t>(count));
  emit(kernels, out, f, row, column, count, scratch.codes, scratch.scales);
}

void quantize_one(const QuantizeActArgs& a, const Fp4Kernels& kernels, int64_t i, float alpha,
                  const RowScratch& s) {
  const ActivationFormat f = a.rule.format;
  const bool fp4 = is_fp4(f);
  const uint16_t* in = a.x + i * a.x_stride;
  kernels.widen(in, a.k, s.x);
  if (fp4) {
    quantize_fp4(kernels, a.rule, s.x, a.k, alpha, a.residue, s.codes, s.scales);
  } else {
    quantize(a.rule, s.x, a.k, alpha, s.codes, s.scales);
  }
  const RowPlace at = place(a.layout, i);
  a.alpha[i] = alpha;
  if (!a.residue) {
    emit(kernels, a.out, f, at.base, 0, a.k, s.codes, s.scales);
    return;
  }
  if (!fp4) to_residue(f, s.x, a.k, alpha, s.codes, s.scales);
  // The base row is padded to whole blocks where something follows it.
  int64_t base = a.k;
  if (a.layout == QuantizedLayout::kKExtended) {
    base = round_up<int64_t>(a.k, block_of(f, 1));
    std::memset(s.codes + a.k, 0, static_cast<size_t>(base - a.k));
  }
  emit(kernels, a.out, f, at.base, 0, base, s.codes, s.scales);
  float* residue = s.x;
  int64_t count = a.k;
  if (!a.selected.empty()) {
    count = select(s.x, a.k, a.selected, s.selected);
    residue = s.selected;
  }
  if (fp4) {
    quantize_fp4(kernels, a.rule, residue, count, alpha, false, s.codes, s.scales);
  } else {
    quantize(a.rule, residue, count, alpha, s.codes, s.scales);
  }
  if (a.layout == QuantizedLayout::kRows) {
    emit(kernels, a.second, f, i, 0, count, s.codes, s.scales);
  } else if (a.layout == QuantizedLayout::kKExtended) {
    emit(kernels, a.out, f, i, base, count, s.codes, s.scales);
  } else {
    emit(kernels, a.out, f, at.residue, 0, count, s.codes, s.scales);
  }
}

}  // namespace

int64_t quantized_rows(QuantizedLayout layout, int64_t m) {
  switch (layout) {
    case QuantizedLayout::kRowPair:
      return 2 * m;
    case QuantizedLayout::kTile8:
      return round_up<int64_t>(m, 8) * 2;
    default:
      return m;
  }
}

int64_t selected_cols(int64_t k, std::span<const uint8_t> selected) {
  if (selected.empty()) return k;
  return static_cast<int64_t>(selected.size()) * std::popcount(selected[0]);
}

int64_t quantized_cols(QuantizedLayout layout, format::ActivationFormat format, int64_t k,
                       std::span<const uint8_t> selected) {
  if (layout != QuantizedLayout::kKExtended) return k;
  return round_up<int64_t>(k, block_of(format, 1)) + selected_cols(k, selected);
}

size_t quantize_act_workspace_bytes(int64_t k, int threads) {
  return scratch_bytes(k) * static_cast<size_t>(threads);
}

void quantize_act(const QuantizeActArgs& a, ThreadPool& pool, std::span<std::byte> workspace) {
  if (a.m == 0) return;
  SUB8_CHECK(a.x != nullptr && a.alpha != nullptr && a.x_stride >= a.k);
  SUB8_CHECK(a.residue || a.layout == QuantizedLayout::kRows);
  SUB8_CHECK(a.selected.empty() || a.layout == QuantizedLayout::kRows ||
             a.layout == QuantizedLayout::kKExtended);
  SUB8_CHECK(a.selected.empty() || static_cast<int64_t>(a.selected.size()) ==
                                       ceil_div<int64_t>(a.k, format::kSelectGroup));
  for (const uint8_t mask : a.selected)
    SUB8_CHECK_EQ(std::popcount(mask), std::popcount(a.selected[0]));
  SUB8_CHECK_GE(workspace.size(), quantize_act_workspace_bytes(a.k, pool.size()));
  SUB8_CHECK(cpu_path_available(a.path));
  const Fp4Kernels& kernels = SUB8_PICK_KERNELS(a.path, kFp4);
  float shared = a.rule.static_alpha;
  if (a.rule.alpha_source == AlphaSource::kTensor) {
    float amax = 0;
    for (int64_t i = 0; i < a.m; ++i) amax = std::max(amax, row_amax(a.x + i * a.x_stride, a.k));
    shared = format::activation_alpha(a.rule.format, amax);
  }
  pool.for_ranges(a.m, 1, [&](int64_t begin, int64_t end, int part) {
    const RowScratch scratch = scratch_of(workspace, a.k, part);
    for (int64_t i = begin; i < end; ++i) {
      float alpha = shared;
      if (!format::has_alpha(a.rule.format)) {
        alpha = 1.0f;
      } else if (a.rule.alpha_source == AlphaSource::kRow) {
        alpha = format::activation_alpha(a.rule.format, row_amax(a.x + i * a.x_stride, a.k));
      }
      quantize_one(a, kernels, i, alpha, scratch);
    }
  });
  if (a.layout == QuantizedLayout::kTile8) {
    const RowScratch scratch = scratch_of(workspace, a.k, 0);
    for (int64_t i = a.m; i < round_up<int64_t>(a.m, 8); ++i) {
      const RowPlace at = place(a.layout, i);
      emit_zeros(kernels, a.out, a.rule.format, at.base, 0, a.k, scratch);
      emit_zeros(kernels, a.out, a.rule.format, at.residue, 0, a.k, scratch);
    }
  }
}

void fold(const FoldArgs& a, ThreadPool& pool) {
  pool.for_ranges(a.m, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const RowPlace at = place(a.layout, i);
      const float* base = a.raw + at.base * a.raw_stride;
      const float* residue = at.residue == at.base ? nullptr : a.raw + at.residue * a.raw_stride;
      float* y = a.y + i * a.y_stride;
      for (int64_t n = 0; n < a.n; ++n) {
        float value = residue == nullptr ? base[n] : base[n] + residue[n];
        value *= a.outer == nullptr ? a.alpha[i] : a.alpha[i] * a.outer[n];
        if (a.bias != nullptr) value += a.bias[n];
        y[n] = a.accumulate ? y[n] + value : value;
      }
    }
  });
}

}  // namespace sub8::kernels
