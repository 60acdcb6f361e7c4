// Attention, norms and activations at the shapes of small models.
//   build/cpu/bench/ops_bench --benchmark_filter=prefill
// GFLOP/s of attention counts 4 * head_dim operations per visible (query head, key) pair; GB/s
// counts the bytes of K and V that a decode step reads.
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/aligned_buffer.h"
#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/norm/norm.h"

namespace sub8::kernels {
namespace {

template <class T>
AlignedBuffer<T> buffer(int64_t count) {
  return AlignedBuffer<T>::uninitialized(static_cast<size_t>(count)).value();
}

AlignedBuffer<float> random_floats(int64_t count) {
  auto out = buffer<float>(count);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = uniform(random);
  return out;
}

// `rows` queries at the end of a context of `context` keys.
void attend(benchmark::State& state, int heads, int kv_heads, int head_dim, KvType type, int rows,
            int context, int threads) {
  AttentionShape shape;
  shape.heads = heads;
  shape.kv = {type, kv_heads, head_dim};
  shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const int64_t pages = (context + kPageTokens - 1) / kPageTokens;
  Arena arena;
  auto cache = AlignedBuffer<uint8_t>::uninitialized(
                   static_cast<size_t>(pages * shape.kv.page_bytes()), &arena)
                   .value();
  const int64_t elements = pages * shape.kv.page_bytes() * 8 / shape.kv.element_bits();
  const auto values = random_floats(elements);
  for (int64_t i = 0; i < elements; ++i) {
    if (type == KvType::kF32) {
      reinterpret_cast<float*>(cache.data())[i] = values[static_cast<size_t>(i)];
    } else {
      reinterpret_cast<uint16_t*>(cache.data())[i] =
          format::float_to_bf16(values[static_cast<size_t>(i)]);
    }
  }
  std::vector<int32_t> table(static_cast<size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  std::vector<AttentionRow> query_rows;
  double pairs = 0;
  for (int p = context - rows; p < context; ++p) {
    query_rows.push_back({table.data(), p});
    pairs += p + 1;
  }
  const int64_t cols = int64_t{heads} * head_dim;
  const auto q = random_floats(rows * cols);
  auto out = buffer<uint16_t>(rows * cols);
  ThreadPool pool(threads);
  auto workspace =
      buffer<std::byte>(static_cast<int64_t>(attention_workspace_bytes(shape, threads, context)));
  const CpuPath path = selected_cpu_path().value();
  for (auto _ : state) {
    const Status status = attention(path, pool, shape, cache.data(), {q.data(), cols}, query_rows,
                                    bf16_rows(out.data(), cols), workspace.span());
    if (!status.ok()) state.SkipWithError(status.error().message.c_str());
    benchmark::ClobberMemory();
  }
  state.SetLabel(std::string(cpu_path_name(path)));
  state.counters["GFLOP/s"] =
      benchmark::Counter(pairs * heads * 4e-9 * head_dim * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(pages * shape.kv.page_bytes() * state.iterations()),
      benchmark::Counter::kIsRate);
}

void norm_rows(benchmark::State& state, int64_t cols) {
  const int64_t rows = 64;
  const auto x = random_floats(rows * cols);
  const auto w = random_floats(cols);
  auto out = buffer<uint16_t>(rows * cols);
  ThreadPool pool(1);
  const CpuPath path = selected_cpu_path().value();
  for (auto _ : state) {
    rms_norm(path, pool, {x.data(), cols}, rows, cols, {w.data(), 1e-5f, false},
             bf16_rows(out.data(), cols));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * cols);
}

void activate_rows(benchmark::State& state, Activation f, int64_t cols) {
  const int64_t rows = 64;
  const auto gate = random_floats(rows * cols);
  const auto up = random_floats(rows * cols);
  auto out = buffer<uint16_t>(rows * cols);
  ThreadPool pool(1);
  const CpuPath path = selected_cpu_path().value();
  for (auto _ : state) {
    gated_activation(path, pool, f, {gate.data(), cols}, {up.data(), cols}, rows, cols,
                     bf16_rows(out.data(), cols));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * cols);
}

#define ATTEND(name, ...) BENCHMARK_CAPTURE(attend, name, __VA_ARGS__)->UseRealTime()
ATTEND(prefill_135m_512_bf16, 9, 3, 64, KvType::kBF16, 512, 512, 2);
ATTEND(prefill_135m_512_bf16_1t, 9, 3, 64, KvType::kBF16, 512, 512, 1);
ATTEND(prefill_135m_512_f32, 9, 3, 64, KvType::kF32, 512, 512, 2);
ATTEND(prefill_1b_512_of_4096_bf16, 32, 8, 128, KvType::kBF16, 512, 4096, 2);
ATTEND(decode_135m_512_bf16, 9, 3, 64, KvType::kBF16, 1, 512, 2);
ATTEND(decode_1b_4096_bf16, 32, 8, 128, KvType::kBF16, 1, 4096, 2);
ATTEND(decode_1b_32768_bf16, 32, 8, 128, KvType::kBF16, 1, 32768, 2);
ATTEND(decode_1b_32768_bf16_1t, 32, 8, 128, KvType::kBF16, 1, 32768, 1);
BENCHMARK_CAPTURE(norm_rows, rms_576, 576);
BENCHMARK_CAPTURE(norm_rows, rms_4096, 4096);
BENCHMARK_CAPTURE(activate_rows, silu_1536, Activation::kSilu, 1536);
BENCHMARK_CAPTURE(activate_rows, gelu_tanh_1536, Activation::kGeluTanh, 1536);

}  // namespace
}  // namespace sub8::kernels

BENCHMARK_MAIN();
