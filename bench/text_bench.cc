// Encode and decode speed in bytes of text per second, one core.
// Usage: text_bench TOKENIZER_JSON TEXT_FILE [Google Benchmark options]
#include <cstdio>

#include <benchmark/benchmark.h>

#include "base/file.h"
#include "text/tokenizer.h"

namespace sub8 {
namespace {

struct Input {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string text;
};

Result<Input> read_input(const char* tokenizer, const char* text) {
  Input out;
  SUB8_ASSIGN_OR_RETURN(const std::string json, read_file(tokenizer));
  SUB8_ASSIGN_OR_RETURN(out.tokenizer, Tokenizer::from_json(json, tokenizer));
  SUB8_ASSIGN_OR_RETURN(out.text, read_file(text));
  return out;
}

void encode(benchmark::State& state, const Input& input) {
  for (auto _ : state) {
    auto ids = input.tokenizer->encode(input.text, {});
    if (!ids.ok()) return state.SkipWithError(ids.error().message.c_str());
    benchmark::DoNotOptimize(ids->data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(input.text.size()));
}

void decode(benchmark::State& state, const Input& input) {
  const auto ids = input.tokenizer->encode(input.text, {});
  if (!ids.ok()) return state.SkipWithError(ids.error().message.c_str());
  for (auto _ : state) benchmark::DoNotOptimize(input.tokenizer->decode(*ids, true));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(input.text.size()));
}

}  // namespace
}  // namespace sub8

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: text_bench TOKENIZER_JSON TEXT_FILE\n");
    return 2;
  }
  const auto input = sub8::read_input(argv[1], argv[2]);
  if (!input.ok()) {
    std::fprintf(stderr, "%s\n", input.error().message.c_str());
    return sub8::exit_status(input.error().code);
  }
  benchmark::RegisterBenchmark("encode", [&](benchmark::State& s) { sub8::encode(s, *input); });
  benchmark::RegisterBenchmark("decode", [&](benchmark::State& s) { sub8::decode(s, *input); });
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
