#include "kernels/linear/bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "base/aligned_buffer.h"
#include "format/dtype.h"
#include "kernels/linear/op.h"

namespace sub8 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Storage {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
};

}  // namespace

StoredMatrix random_weight(const format::WeightFormat& f, int64_t rows, int64_t cols) {
  auto storage = std::make_shared<Storage>();
  std::mt19937_64 rng(1);
  storage->codes.resize(static_cast<size_t>(rows * f.row_bytes(cols)));
  for (uint8_t& byte : storage->codes) byte = static_cast<uint8_t>(rng());
  if (f.dense) {
    const size_t item = format::dtype_bytes(f.dtype);
    for (size_t i = 0; i + item <= storage->codes.size(); i += item) {
      const float value = static_cast<float>(static_cast<int>(rng() % 255) - 127) / 128.0f;
      const uint32_t bits = format::float_bits(value);
      const uint16_t half = f.dtype == format::DType::kF16 ? format::float_to_f16(value)
                                                           : format::float_to_bf16(value);
      std::memcpy(&storage->codes[i], item == 4 ? static_cast<const void*>(&bits) : &half, item);
    }
  } else if (f.element.has_nan()) {  // 8 bits: one code a byte
    for (uint8_t& byte : storage->codes) {
      if (f.element.is_nonfinite(byte)) byte = 0;
    }
  }
  storage->scales.assign(static_cast<size_t>(rows * f.groups(cols)),
                         f.block_scale == format::BlockScale::kE4M3 ? 0x38 : 127);
  StoredMatrix out;
  out.format = f;
  out.rows = rows;
  out.cols = cols;
  out.codes = storage->codes;
  out.block_scales = storage->scales;
  const int64_t outer = f.outer_scale == format::OuterScale::kChannel  ? rows
                        : f.outer_scale == format::OuterScale::kTensor ? 1
                                                                       : 0;
  out.outer_scales.assign(static_cast<size_t>(outer), 0.02f);
  out.owner = std::move(storage);
  return out;
}

double measure_product_rate(CpuPath path, ActivationType x_type, ThreadPool& pool) {
  constexpr int64_t kSteps = 20'000;
  double best = 0;
  for (int repeat = 0; repeat < 32; ++repeat) {
    std::vector<int64_t> done(static_cast<size_t>(pool.size()));
    const Clock::time_point start = Clock::now();
    pool.for_ranges(pool.size(), 1, [&](int64_t, int64_t, int part) {
      done[static_cast<size_t>(part)] = linear_peak_loop(path, x_type, kSteps) * kSteps;
    });
    int64_t total = 0;
    for (const int64_t d : done) total += d;
    best = std::max(best, 2 * static_cast<double>(total) / seconds_since(start) * 1e-9);
  }
  return best;
}

Result<double> measure_read_bandwidth(ThreadPool& pool, int64_t bytes) {
  const int64_t words = bytes / 8;
  Arena arena;
  SUB8_ASSIGN_OR_RETURN(AlignedBuffer<uint64_t> data,
                        AlignedBuffer<uint64_t>::uninitialized(static_cast<size_t>(words), &arena));
  std::memset(data.data(), 0, static_cast<size_t>(words) * 8);
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()) * 8);  // a cache line each
  // In windows of 1/16, in turn: short enough to fall between interruptions, far enough apart that
  // no cache holds the next one.
  const int64_t window = words / 16;
  double best = 0;
  for (int repeat = 0; repeat < 96; ++repeat) {
    const uint64_t* base = data.data() + repeat % 16 * window;
    const Clock::time_point start = Clock::now();
    pool.for_ranges(window, 4096, [&](int64_t begin, int64_t end, int part) {
      uint64_t sum[8] = {};
      for (int64_t i = begin; i + 8 <= end; i += 8) {
        __builtin_prefetch(base + i + 256);
        for (int j = 0; j < 8; ++j) sum[j] += base[i + j];
      }
      for (uint64_t s : sum) sums[static_cast<size_t>(part) * 8] += s;
    });
    best = std::max(best, static_cast<double>(window * 8) / seconds_since(start) * 1e-9);
  }
  return sums[0] == 0 ? best : 0;  // the sums are used, so the reads happen
}

Result<LinearBenchResult> bench_linear(const LinearBenchCase& what, ThreadPool& pool,
                                       double read_gb_per_s, bool cold, double seconds) {
  const StoredMatrix stored = random_weight(what.format, what.rows, what.cols);
  const StoredMatrix* parts[] = {&stored};
  SUB8_ASSIGN_OR_RETURN(const int64_t bytes,
                        packed_bytes(what.format, what.rows, what.cols, what.path));
  const int64_t wanted = (int64_t{96} << 20) / std::max<int64_t>(bytes, 1) + 1;
  const int copies = cold ? static_cast<int>(std::min<int64_t>(wanted, 512)) : 1;
  Arena arena;
  std::vector<PackedMatrix> weights;
  for (int i = 0; i < copies; ++i) {
    SUB8_ASSIGN_OR_RETURN(PackedMatrix packed, pack_linear(parts, what.path, pool, &arena));
    weights.push_back(std::move(packed));
  }
  if (!linear_available(weights[0])) {
    return unsupported("this machine lacks the CPU path " + std::string(cpu_path_name(what.path)));
  }
  // As codes, every byte is one or two of them.
  std::vector<uint16_t> x(static_cast<size_t>(what.m * what.cols));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = format::float_to_bf16(static_cast<float>(i * 7 % 31) / 16.0f - 1.0f);
  const int64_t groups = weights[0].groups;
  const std::vector<uint8_t> scales(
      static_cast<size_t>(what.m * groups),
      what.format.block_scale == format::BlockScale::kE4M3 ? 0x38 : 127);
  std::vector<float> y(static_cast<size_t>(what.m * what.rows));
  SUB8_ASSIGN_OR_RETURN(AlignedBuffer<std::byte> workspace,
                        AlignedBuffer<std::byte>::uninitialized(
                            linear_workspace_bytes(weights[0], what.m, pool.size())));
  LinearArgs args;
  args.x = x.data();
  args.x_stride = what.cols;
  args.m = what.m;
  args.y = y.data();
  args.y_stride = what.rows;
  args.row_class = what.row_class;
  args.x_type = what.x_type;
  if (what.x_type == ActivationType::kE2M1) {
    args.x_scales = scales.data();
    args.x_scale_stride = groups;
    args.raw_sums = true;
  }

  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; times.size() < 5 || seconds_since(begin) < seconds; ++i) {
    args.w = &weights[i % weights.size()];
    const Clock::time_point start = Clock::now();
    linear(args, pool, workspace.span());
    times.push_back(seconds_since(start));
  }
  std::sort(times.begin(), times.end());
  LinearBenchResult out;
  out.kernel = linear_kernel_id(weights[0], what.m, args.x_type, args.row_class);
  out.what = what;
  out.packed_bytes = bytes;
  out.copies = copies;
  out.best_seconds = times.front();
  out.median_seconds = times[times.size() / 2];
  const double weights_count = static_cast<double>(what.rows * what.cols);
  out.packed_gb_per_s = static_cast<double>(bytes) / out.best_seconds * 1e-9;
  out.read_share = read_gb_per_s > 0 ? out.packed_gb_per_s / read_gb_per_s : 0;
  out.gweights_per_s = weights_count / out.best_seconds * 1e-9;
  out.gflop_per_s = 2 * weights_count * static_cast<double>(what.m) / out.best_seconds * 1e-9;
  return out;
}

std::vector<LinearShape> bench_shapes() {
  return {{"135M q|k|v", 960, 576},    {"135M o", 576, 576},      {"135M gate|up", 3072, 576},
          {"135M down", 576, 1536},    {"135M head", 49152, 576}, {"8B q|k|v", 6144, 4096},
          {"8B gate|up", 28672, 4096}, {"8B down", 4096, 14336}};
}

}  // namespace sub8
