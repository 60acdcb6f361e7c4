#include "kernels/linear/op.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "format/block.h"
#include "format/dtype.h"
#include "kernels/linear/cpu/tables.h"
#include "kernels/linear/emulated.h"

namespace sub8 {
namespace {

using namespace linear_cpu;

// instances.inc lists the codecs in the order of CpuCodec.
constexpr CpuCodec kInstanceOrder[] = {
#define BOTH(codec, Decoder) CpuCodec::codec,
#define NARROW BOTH
#define WIDE BOTH
#include "kernels/linear/instances.inc"
#undef BOTH
#undef NARROW
#undef WIDE
};
constexpr bool instances_in_order() {
  if (std::size(kInstanceOrder) != kCpuCodecs) return false;
  for (int i = 0; i < kCpuCodecs; ++i) {
    if (static_cast<int>(kInstanceOrder[i]) != i) return false;
  }
  return true;
}
static_assert(instances_in_order());

constexpr int64_t kSmallActivations = 8192;  // elements: below, each thread converts its own copy

// The values of the elements that do not fit f16 (e5m0, e5m1, e6m0, e6m1, e7m0), by code.
struct ValueTables {
  std::array<float, 256> value[8];  // index 2 * (exponent_bits - 5) + mantissa_bits
  ValueTables() {
    for (int x = 5; x <= 7; ++x) {
      for (int y = 0; y <= 1; ++y) {
        const format::ElementFormat e{static_cast<uint8_t>(x), static_cast<uint8_t>(y)};
        for (uint32_t code = 0; e.valid() && code < e.code_count(); ++code)
          value[2 * (x - 5) + y][code] = format::decode_element(e, code);
      }
    }
  }
};

const float* value_table(format::ElementFormat e) {
  static const ValueTables tables;
  return tables.value[2 * (e.exponent_bits - 5) + e.mantissa_bits].data();
}

bool is_table(CpuCodec codec) {
  return codec >= CpuCodec::kTableStream6 && codec <= CpuCodec::kTableStream8;
}

bool is_bytes(CpuCodec codec) { return codec >= CpuCodec::kByte3 && codec <= CpuCodec::kByte8; }

// Every element's bf16 numbers by code, as CodeParams::bytes wants them. bf16 holds all elements:
// 8 exponent bits, 7 of mantissa.
struct ByteTables {
  struct alignas(64) Table {
    uint8_t low[128];
    uint8_t high[128];
  };
  Table table[8][7];  // [exponent_bits][mantissa_bits]
  ByteTables() {
    for (int x = 1; x <= 7; ++x) {
      for (int y = 0; y <= 6; ++y) {
        const format::ElementFormat e{static_cast<uint8_t>(x), static_cast<uint8_t>(y)};
        for (uint32_t i = 0; e.valid() && i < 128; ++i) {
          const uint32_t code = i & (e.code_count() - 1);
          const uint16_t value = format::float_to_bf16(format::decode_element(e, code));
          table[x][y].low[i] = static_cast<uint8_t>(value);
          table[x][y].high[i] = static_cast<uint8_t>(value >> 8);
        }
      }
    }
  }
};

const uint8_t* byte_table(format::ElementFormat e) {
  static const ByteTables tables;
  return tables.table[e.exponent_bits][e.mantissa_bits].low;
}

// For FP4 rows and weights as bytes (cpu/byte_gemm.inc). The codes as 2w + 12, in the order that
// the layout's look-up has: by code, or by 2 * magnitude + sign; repeated to fill. A row's byte of
// two codes as two signed bytes, the upper code first, and their sum. Block scales / 4 by byte.
struct FourBitTables {
  alignas(64) uint8_t by_code[64];
  alignas(64) uint8_t by_magnitude[64];
  uint16_t pair[256];
  int8_t pair_sum[256];
  float e4m3[256];
  float e8m0[256];
  FourBitTables() {
    const auto twice = [](uint32_t code) {
      return static_cast<int>(2.0f * format::decode_element(format::kE2M1, code & 15));
    };
    for (uint32_t i = 0; i < 64; ++i) {
      by_code[i] = static_cast<uint8_t>(twice(i) + 12);
      by_magnitude[i] = static_cast<uint8_t>(twice((i & 1) << 3 | (i & 15) >> 1) + 12);
    }
    for (uint32_t i = 0; i < 256; ++i) {
      const int low = twice(i);
      const int high = twice(i >> 4);
      pair[i] = static_cast<uint16_t>((high & 0xff) | (low & 0xff) << 8);
      pair_sum[i] = static_cast<int8_t>(low + high);
      e4m3[i] = 0.25f * format::decode_element(format::kE4M3, i);
      e8m0[i] = 0.25f * format::decode_e8m0(static_cast<uint8_t>(i));
    }
  }
};

const FourBitTables& four_bit_tables() {
  static const FourBitTables tables;
  return tables;
}

bool uses_tiles(const PackedMatrix& w, ActivationType x_type, RowClass row_class) {
  return w.path == CpuPath::kAmx && w.bf16_exact && x_type == ActivationType::kBF16 &&
         row_class == RowClass::kPrompt;
}

constexpr WideKernels kWideKernels = {&kAvx512Kernels, &kAmxKernel};

const Kernels& kernels_for(CpuPath path, const WideKernels& wide) {
  switch (path) {
    case CpuPath::kAvx2:
      return kAvx2Kernels;
    case CpuPath::kAvx512:
    case CpuPath::kAmx:
      return *wide.avx512;
    default:
      return kScalarKernels;
  }
}

// Whether the bf16 dot product runs: on AVX-512, with weights and activations that are bf16.
bool uses_pairs(const PackedMatrix& w, ActivationType x_type) {
  return x_type == ActivationType::kBF16 &&
         kAvx512Kernels.pairs[static_cast<int>(layout_codec(w.layout))].decode != nullptr &&
         layout_word_bytes(w.layout) == 64;
}

const CodecKernels& codec_kernels(const PackedMatrix& w, ActivationType x_type,
                                  const Kernels& kernels) {
  const auto codec = static_cast<int>(layout_codec(w.layout));
  return uses_pairs(w, x_type) ? kernels.pairs[codec] : kernels.codec[codec];
}

// Depth up to which activations are zero-filled, so that no kernel meets an end inside a step.
int64_t padded_depth(const PackedMatrix& w) { return round_up<int64_t>(w.cols, 32); }

struct WorkspacePlan {
  size_t activations = 0;  // bytes, shared by all threads
  size_t per_thread = 0;   // bytes
};

WorkspacePlan plan_workspace(const PackedMatrix& w, int64_t m) {
  WorkspacePlan plan;
  // f32 [segments][m][128] or bf16 [round_up(m, 32)][padded depth]: the former is never smaller.
  const int64_t rows = round_up<int64_t>(m, 32);
  const int64_t segments = ceil_div<int64_t>(padded_depth(w), kSegment);
  plan.activations = static_cast<size_t>(rows * segments * kSegment) * sizeof(float);
  plan.per_thread =
      static_cast<size_t>(kTileScratchFloats + kSmallActivations + 2 * kSegment) * sizeof(float);
  plan.per_thread = round_up<size_t>(plan.per_thread, 128);
  return plan;
}

float activation_to_float(const LinearArgs& a, int64_t row, int64_t k) {
  const int64_t at = row * a.x_stride + k;
  switch (a.x_type) {
    case ActivationType::kBF16:
      return format::bf16_to_float(static_cast<const uint16_t*>(a.x)[at]);
    case ActivationType::kF16:
      return format::f16_to_float(static_cast<const uint16_t*>(a.x)[at]);
    default:
      return static_cast<const float*>(a.x)[at];
  }
}

// Rows [begin, end) as pairs of bf16 [segments][m][64], zero from K on.
void pair_rows(const LinearArgs& a, const Kernels& kernels, int64_t begin, int64_t end,
               float* out) {
  const int64_t depth = padded_depth(*a.w);
  for (int64_t row = begin; row < end; ++row) {
    const uint16_t* in = static_cast<const uint16_t*>(a.x) + row * a.x_stride;
    for (int64_t k = 0; k < depth; k += kSegment) {
      auto* segment =
          reinterpret_cast<uint16_t*>(out + (k / kSegment * a.m + row) * (kSegment / 2));
      const int64_t count = std::min<int64_t>(depth - k, kSegment);
      const int64_t real = std::clamp<int64_t>(a.w->cols - k, 0, count);
      if (real == count) {
        kernels.to_pairs(in + k, count, segment);
        continue;
      }
      uint16_t tail[kSegment] = {};
      std::copy_n(in + k, real, tail);
      kernels.to_pairs(tail, count, segment);
    }
  }
}

// Rows [begin, end) as f32 [segments][m][128], zero from K on.
void convert_rows(const LinearArgs& a, int64_t begin, int64_t end, float* out) {
  const int64_t cols = a.w->cols;
  const int64_t depth = padded_depth(*a.w);
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t k = 0; k < depth; k += kSegment) {
      float* segment = out + (k / kSegment * a.m + row) * kSegment;
      const int64_t count = std::clamp<int64_t>(cols - k, 0, kSegment);
      if (a.x_type == ActivationType::kBF16) {
        const uint16_t* in = static_cast<const uint16_t*>(a.x) + row * a.x_stride + k;
        for (int64_t i = 0; i < count; ++i) segment[i] = format::bf16_to_float(in[i]);
      } else {
        for (int64_t i = 0; i < count; ++i) segment[i] = activation_to_float(a, row, k + i);
      }
      for (int64_t i = count; i < kSegment; ++i) segment[i] = 0.0f;
    }
  }
}

// 32-bit words of a ByteRow.
int64_t byte_row_words(const Kernels& kernels) {
  return kSegment / kernels.byte_item_depth + 2 * kSegmentGroups;
}

// One row's part of a segment as a ByteRow: `count` > 0 values of K from codes and scale bytes.
void fill_byte_row(const uint8_t* codes, const uint8_t* scales, int64_t count, int group,
                   const float* scale_values, int item_depth, uint32_t* out) {
  const FourBitTables& tables = four_bit_tables();
  uint8_t bytes[kSegment / 2] = {};
  std::memcpy(bytes, codes, static_cast<size_t>(ceil_div<int64_t>(count, 2)));
  if (count % 2 != 0) bytes[count / 2] &= 0x0f;
  uint32_t* start = out + kSegment / item_depth;
  int sums[kSegmentGroups] = {};
  for (int i = 0; i < kSegment / 4; ++i) {
    const uint32_t first = tables.pair[bytes[2 * i]];
    const uint32_t second = tables.pair[bytes[2 * i + 1]];
    if (item_depth == 4) {
      out[i] = first | second << 16;
    } else {
      out[2 * i] = first * 0x10001u;
      out[2 * i + 1] = second * 0x10001u;
    }
    sums[4 * i / group] += tables.pair_sum[bytes[2 * i]] + tables.pair_sum[bytes[2 * i + 1]];
  }
  float scale[kSegmentGroups] = {};
  for (int64_t g = 0; g * group < count; ++g) scale[g] = scale_values[scales[g]];
  for (int g = 0; g < kSegmentGroups; ++g) {
    const auto correction = static_cast<uint32_t>(-12 * sums[g]);
    start[g] = item_depth == 4 ? correction : (correction & 0xffffu) * 0x10001u;
  }
  std::memcpy(start + kSegmentGroups, scale, sizeof(scale));
}

// Rows [begin, end) as ByteRow [segments][m].
void fill_byte_rows(const LinearArgs& a, const Kernels& kernels, int64_t begin, int64_t end,
                    uint32_t* out) {
  const FourBitTables& tables = four_bit_tables();
  const int64_t words = byte_row_words(kernels);
  const int group = a.w->format.group;
  const float* scale_values =
      a.w->format.block_scale == format::BlockScale::kE4M3 ? tables.e4m3 : tables.e8m0;
  for (int64_t row = begin; row < end; ++row) {
    const uint8_t* codes = static_cast<const uint8_t*>(a.x) + row * a.x_stride;
    const uint8_t* scales = a.x_scales + row * a.x_scale_stride;
    for (int64_t k = 0; k < a.w->cols; k += kSegment) {
      fill_byte_row(codes + k / 2, scales + k / group, std::min<int64_t>(a.w->cols - k, kSegment),
                    group, scale_values, kernels.byte_item_depth,
                    out + (k / kSegment * a.m + row) * words);
    }
  }
}

// Rows [begin, end) of the padded bf16 copy that the tiles read.
void copy_rows_bf16(const LinearArgs& a, int64_t begin, int64_t end, uint16_t* out) {
  const int64_t stride = padded_depth(*a.w);
  for (int64_t row = begin; row < end; ++row) {
    uint16_t* to = out + row * stride;
    const int64_t count = row < a.m ? a.w->cols : 0;
    if (count > 0) {
      std::memcpy(to, static_cast<const uint16_t*>(a.x) + row * a.x_stride,
                  static_cast<size_t>(count) * 2);
    }
    std::memset(to + count, 0, static_cast<size_t>(stride - count) * 2);
  }
}

PanelJob base_job(const LinearArgs& a) {
  const PackedMatrix& w = *a.w;
  const format::ElementFormat e = w.format.element;
  const CpuCodec codec = layout_codec(w.layout);
  PanelJob job;
  job.m = a.m;
  job.data = w.data.data();
  job.panel_bytes = w.panel_bytes;
  job.depth = w.padded_cols;
  if (!w.format.dense) {
    if (is_bytes(codec)) {
      job.params.bytes = byte_table(e);
    } else if (is_table(codec)) {
      job.params.table = value_table(e);
    } else {
      job.params.sign_shift = 16 - e.bits();
      job.params.magnitude_shift = 10 - e.mantissa_bits;
      job.params.magnitude_mask =
          static_cast<uint16_t>((e.sign_bit() - 1) << job.params.magnitude_shift);
      job.correction = format::power_of_two(15 - e.bias());
    }
  }
  if (w.groups != 0) {
    const bool e4m3 = w.format.block_scale == format::BlockScale::kE4M3;
    job.scale_kind = e4m3 ? ScaleKind::kE4M3 : ScaleKind::kE8M0;
    if (e4m3) job.correction *= 256.0f;
    job.scales = w.block_scales.data();
    job.group = w.format.group;
    job.groups = w.groups;
  }
  job.outer = a.raw_sums || w.outer_scales.empty() ? nullptr : w.outer_scales.data();
  job.bias = a.bias;
  job.accumulate = a.accumulate;
  job.y = a.y;
  job.y_row = a.y_stride;
  job.n = w.rows;
  return job;
}

void run_tiles(const LinearArgs& a, ThreadPool& pool, std::byte* workspace,
               const WorkspacePlan& plan, const WideKernels& wide) {
  const UnitShape unit = unit_shape(a.w->layout);
  auto* x = reinterpret_cast<uint16_t*>(workspace);
  pool.for_ranges(round_up<int64_t>(a.m, 32), 32,
                  [&](int64_t begin, int64_t end, int) { copy_rows_bf16(a, begin, end, x); });
  TileJob base;
  base.panel = base_job(a);
  base.x = x;
  base.x_stride = padded_depth(*a.w);
  base.unit_depth = unit.depth;
  base.unit_bytes = unit.bytes;
  base.decode =
      kernels_for(a.w->path, wide).codec[static_cast<int>(layout_codec(a.w->layout))].decode;
  const TileFn run = *wide.amx;
  pool.for_ranges(a.w->panels, 1, [&](int64_t begin, int64_t end, int part) {
    TileJob job = base;
    job.panel.panel_begin = begin;
    job.panel.panel_end = end;
    job.panel.scratch =
        reinterpret_cast<float*>(workspace + plan.activations + part * plan.per_thread);
    run(job);
  });
}

void run_vectors(const LinearArgs& a, ThreadPool& pool, std::byte* workspace,
                 const WorkspacePlan& plan, const WideKernels& wide) {
  const Kernels& kernels = kernels_for(a.w->path, wide);
  const bool pairs = uses_pairs(*a.w, a.x_type);
  const CodecKernels& codec = codec_kernels(*a.w, a.x_type, kernels);
  const UnitShape unit = unit_shape(a.w->layout);
  const auto convert = [&](int64_t begin, int64_t end, float* out) {
    if (pairs) {
      pair_rows(a, kernels, begin, end, out);
    } else {
      convert_rows(a, begin, end, out);
    }
  };
  const int64_t copy = a.m * round_up<int64_t>(padded_depth(*a.w), kSegment);
  const bool small = copy <= kSmallActivations;
  if (!small) {
    pool.for_ranges(a.m, 1, [&](int64_t begin, int64_t end, int) {
      convert(begin, end, reinterpret_cast<float*>(workspace));
    });
  }
  const PanelJob base = base_job(a);
  pool.for_ranges(a.w->panels, 1, [&](int64_t begin, int64_t end, int part) {
    auto* own = reinterpret_cast<float*>(workspace + plan.activations + part * plan.per_thread);
    PanelJob job = base;
    job.scratch = own;
    float* x = small ? own + kTileScratchFloats : reinterpret_cast<float*>(workspace);
    if (small) convert(0, a.m, x);
    job.x = x;
    job.panel_begin = begin;
    job.panel_end = end;
    if (a.m <= kFewRows && codec.few[a.m - 1] != nullptr) {
      codec.few[a.m - 1](job);
    } else {
      (pairs ? kernels.pair_rows : kernels.rows)(job, codec.decode, unit.depth, unit.bytes);
    }
  });
}

void run_bytes(const LinearArgs& a, ThreadPool& pool, std::byte* workspace,
               const WorkspacePlan& plan, const WideKernels& wide) {
  const Kernels& kernels = kernels_for(a.w->path, wide);
  const FourBitTables& tables = four_bit_tables();
  const int64_t words = a.m * ceil_div<int64_t>(a.w->cols, kSegment) * byte_row_words(kernels);
  const bool small = words <= kSmallActivations;
  auto* shared = reinterpret_cast<uint32_t*>(workspace);
  if (!small) {
    pool.for_ranges(a.m, 1, [&](int64_t begin, int64_t end, int) {
      fill_byte_rows(a, kernels, begin, end, shared);
    });
  }
  PanelJob base = base_job(a);
  // Block scales come as in the other kernels; codes are whole, whatever the layout.
  base.correction = base.scale_kind == ScaleKind::kE4M3 ? 256.0f : 1.0f;
  base.params.unsigned_codes =
      layout_word_bytes(a.w->layout) == 64 ? tables.by_code : tables.by_magnitude;
  pool.for_ranges(a.w->panels, 1, [&](int64_t begin, int64_t end, int part) {
    auto* own = reinterpret_cast<float*>(workspace + plan.activations + part * plan.per_thread);
    PanelJob job = base;
    job.scratch = own;
    job.byte_rows = shared;
    if (small) {
      auto* x = reinterpret_cast<uint32_t*>(own + kTileScratchFloats);
      fill_byte_rows(a, kernels, 0, a.m, x);
      job.byte_rows = x;
    }
    job.panel_begin = begin;
    job.panel_end = end;
    if (a.m <= kFewRows && kernels.byte_few[a.m - 1] != nullptr) {
      kernels.byte_few[a.m - 1](job);
    } else {
      kernels.byte_rows(job);
    }
  });
}

void check_args(const LinearArgs& a) {
  SUB8_CHECK(a.y != nullptr && a.y_stride >= a.w->rows);
  SUB8_CHECK(!a.raw_sums || a.bias == nullptr);
  if (a.x_type == ActivationType::kE2M1) {
    SUB8_CHECK(linear_takes_e2m1(*a.w, a.row_class));
    SUB8_CHECK(a.x != nullptr && a.x_stride >= ceil_div<int64_t>(a.w->cols, 2));
    SUB8_CHECK(a.x_scales != nullptr && a.x_scale_stride >= a.w->groups);
    return;
  }
  SUB8_CHECK(a.w->cols == 0 || (a.x != nullptr && a.x_stride >= a.w->cols));
}

}  // namespace

void linear_cpu::run_linear(const LinearArgs& a, ThreadPool& pool, std::span<std::byte> workspace,
                            const WideKernels& wide) {
  SUB8_CHECK(a.w != nullptr);
  SUB8_CHECK_GE(a.m, 0);
  if (a.m == 0 || a.w->rows == 0) return;
  check_args(a);
  SUB8_CHECK_GE(workspace.size(), linear_workspace_bytes(*a.w, a.m, pool.size()));
  SUB8_CHECK_EQ(reinterpret_cast<uintptr_t>(workspace.data()) % 64, 0u);
  const WorkspacePlan plan = plan_workspace(*a.w, a.m);
  if (a.x_type == ActivationType::kE2M1) {
    run_bytes(a, pool, workspace.data(), plan, wide);
  } else if (uses_tiles(*a.w, a.x_type, a.row_class)) {
    run_tiles(a, pool, workspace.data(), plan, wide);
  } else {
    run_vectors(a, pool, workspace.data(), plan, wide);
  }
}

size_t linear_workspace_bytes(const PackedMatrix& w, int64_t m_max, int threads) {
  const WorkspacePlan plan = plan_workspace(w, m_max);
  return plan.activations + static_cast<size_t>(threads) * plan.per_thread;
}

bool linear_takes_e2m1(const PackedMatrix& w, RowClass row_class) {
  const format::WeightFormat& f = w.format;
  const bool nvfp4 = f.block_scale == format::BlockScale::kE4M3 && f.group == format::kNvfp4Block;
  const bool mxfp4 = f.block_scale == format::BlockScale::kE8M0 && f.group == format::kMxBlock;
  return !f.dense && f.element == format::kE2M1 && (nvfp4 || mxfp4) && w.cols > 0 &&
         !uses_tiles(w, ActivationType::kBF16, row_class);
}

bool linear_available(const PackedMatrix& w) { return cpu_path_available(w.path); }

void linear(const LinearArgs& args, ThreadPool& pool, std::span<std::byte> workspace) {
  SUB8_CHECK(args.w != nullptr && linear_available(*args.w));
  linear_cpu::run_linear(args, pool, workspace, kWideKernels);
}

int64_t linear_peak_loop(CpuPath path, ActivationType x_type, int64_t steps) {
  SUB8_CHECK(cpu_path_available(path));
  const Kernels& kernels = kernels_for(path, kWideKernels);
  const Kernels::Peak& peak =
      x_type == ActivationType::kE2M1 ? kernels.byte_peak : kernels.item_peak;
  alignas(64) float out[kPanel] = {};
  peak.run(steps, out);
  return peak.multiply_adds;
}

std::string linear_kernel_id(const PackedMatrix& w, int64_t m, ActivationType x_type,
                             RowClass row_class) {
  constexpr std::string_view kTypes[] = {"bf16", "f16", "f32", "e2m1"};
  std::string id =
      "linear_" + w.format.name() + "_" + std::string(kTypes[static_cast<int>(x_type)]) + "_";
  std::replace(id.begin(), id.end(), ':', '-');
  if (uses_tiles(w, x_type, row_class)) return id + "amx_32x32x32";
  const bool wide = w.path == CpuPath::kAvx512 || w.path == CpuPath::kAmx;
  id += std::string(wide ? "avx512" : cpu_path_name(w.path)) + "_";
  const Kernels& kernels = kernels_for(w.path, kWideKernels);
  if (x_type == ActivationType::kE2M1) {
    if (m >= 1 && m <= kFewRows && kernels.byte_few[m - 1] != nullptr)
      return id + std::to_string(m) + "x32";
    return id + (wide ? "6x32" : w.path == CpuPath::kAvx2 ? "4x32" : "2x32");
  }
  const CodecKernels& codec = codec_kernels(w, x_type, kernels);
  if (m >= 1 && m <= kFewRows && codec.few[m - 1] != nullptr) return id + std::to_string(m) + "x32";
  return id + (wide ? "12x32" : "3x32");
}

uint64_t linear_order_id(const PackedMatrix& w, ActivationType x_type, RowClass row_class) {
  constexpr uint64_t kFma = 1;
  constexpr uint64_t kTile = 2;
  if (uses_tiles(w, x_type, row_class)) return kTile;
  return kFma | static_cast<uint64_t>(w.groups != 0 ? w.format.group : 0) << 8;
}

}  // namespace sub8
