// What the engine costs beside the model: steps over a model that takes no time, and the sampler.
#include <random>

#include <benchmark/benchmark.h>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "text/byte_vocab.h"

namespace sub8::engine {
namespace {

constexpr int64_t kVocab = 49152;

std::vector<float> normal_logits(int64_t rows, int64_t vocab) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(static_cast<size_t>(rows * vocab));
  for (float& x : out) x = normal(random);
  return out;
}

class NullRunner final : public Runner {
 public:
  NullRunner(int64_t rows, int64_t vocab) : logits_(normal_logits(rows, vocab)) {
    info_.vocab_size = vocab;
    info_.max_rows = 4096;
    info_.max_logit_rows = rows;
    info_.max_context = 1 << 16;
    info_.kv_pages = 1 << 16;
    info_.modes = {model::ExecutionMode::kWeightOnly};
  }
  const RunnerInfo& info() const override { return info_; }
  uint64_t row_key(model::ExecutionMode, RowClass) const override { return 1; }
  Status forward(const model::Batch& batch) override {
    benchmark::DoNotOptimize(batch.tokens.data());
    return {};
  }
  Result<std::span<const float>> logits(std::span<const int32_t> rows) override {
    return std::span<const float>(logits_).first(rows.size() *
                                                 static_cast<size_t>(info_.vocab_size));
  }
  ThreadPool* pool() override { return nullptr; }

 private:
  RunnerInfo info_;
  std::vector<float> logits_;
};

// Scheduling, batch, text, events and counters of decode steps: the vocabulary is tiny.
void BM_DecodeStep(benchmark::State& state) {
  const auto streams = static_cast<int>(state.range(0));
  const auto tokenizer = Tokenizer::from_gguf(testing::byte_vocab()).value();
  EngineOptions options;
  options.max_model_len = 1 << 16;
  options.max_batch_tokens = 4096;
  options.max_sequences = streams;
  Engine engine(std::make_unique<NullRunner>(streams, 16), *tokenizer, {}, options);
  std::vector<TokenEvent> events;
  int64_t tokens = 0;
  for (auto _ : state) {
    while (engine.stats().running < streams) {
      Request request;
      request.prompt.assign(100, 1);
      request.sampling.temperature = 0;
      request.sampling.max_tokens = 1024;
      if (!engine.submit(std::move(request)).ok()) return state.SkipWithError("refused");
      if (!engine.step(events).ok()) return state.SkipWithError("failed");
    }
    events.clear();
    if (!engine.step(events).ok()) return state.SkipWithError("failed");
    tokens += static_cast<int64_t>(events.size());
  }
  state.SetItemsProcessed(tokens);
  state.counters["us_per_token"] = benchmark::Counter(
      static_cast<double>(tokens) / 1e6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_DecodeStep)->Arg(1)->Arg(8)->Arg(32)->Arg(256);

void sample(benchmark::State& state, SamplingParams params) {
  params.seed = 1;
  const std::vector<float> logits = normal_logits(1, kVocab);
  Sampler sampler(params, {}, {});
  SamplerScratch scratch;
  const auto path = selected_cpu_path();
  if (!path.ok()) return state.SkipWithError("SUB8_CPU");
  scratch.path = *path;
  uint32_t index = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sampler.sample(logits, index++, scratch)->id);
}
void BM_Greedy(benchmark::State& state) { sample(state, {.temperature = 0}); }
void BM_Temperature(benchmark::State& state) { sample(state, {.temperature = 0.8}); }
void BM_TopK(benchmark::State& state) { sample(state, {.temperature = 0.8, .top_k = 40}); }
void BM_TopP(benchmark::State& state) { sample(state, {.temperature = 0.8, .top_p = 0.9}); }
void BM_MinP(benchmark::State& state) { sample(state, {.temperature = 0.8, .min_p = 0.05}); }
void BM_Penalties(benchmark::State& state) {
  sample(state, {.temperature = 0.8, .top_k = 40, .presence_penalty = 0.5});
}
void BM_Logprobs(benchmark::State& state) { sample(state, {.temperature = 0, .top_logprobs = 5}); }
BENCHMARK(BM_Greedy);
BENCHMARK(BM_Temperature);
BENCHMARK(BM_TopK);
BENCHMARK(BM_TopP);
BENCHMARK(BM_MinP);
BENCHMARK(BM_Penalties);
BENCHMARK(BM_Logprobs);

}  // namespace
}  // namespace sub8::engine

BENCHMARK_MAIN();
