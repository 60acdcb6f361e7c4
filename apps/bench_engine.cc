// `sub8 bench engine`: many streams at once through the engine, in this process.
#include <algorithm>
#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "base/cpu.h"
#include "base/interrupt.h"
#include "bench.h"
#include "common.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

struct EngineBenchArgs {
  ModelArgs model;
  std::vector<int> streams = {1, 8, 32};
  int64_t prompt_tokens = 128;
  int64_t answer_tokens = 64;
  int64_t max_batch_tokens = engine::kCpuBatchTokens;
  int64_t prefix_tokens = 1024;
  double temperature = 0;
  int repeat = 3;
  std::string json_path;
};

// One round: all streams start at once.
struct Round {
  double tokens_per_s = 0;         // answers' tokens over the whole time, prefill included
  double decode_tokens_per_s = 0;  // in steps without prompt rows
  double sample_us = 0;            // per answer token: from logits to token and text
  double overhead_us = 0;          // per answer token: everything else outside the model
};

Result<Round> run_round(engine::Engine& engine, const EngineBenchArgs& args, int streams,
                        uint64_t& round) {
  const engine::Stats before = engine.stats();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < streams; ++i) {
    engine::Request request;
    request.prompt = bench_prompt(args.prompt_tokens, round++, engine.info().vocab_size);
    request.sampling.temperature = args.temperature;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = args.answer_tokens;
    SUB8_ASSIGN_OR_RETURN([[maybe_unused]] const engine::RequestId id,
                          engine.submit(std::move(request)));
  }
  std::vector<engine::TokenEvent> events;
  int64_t decoded = 0;
  while (!engine.idle()) {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    events.clear();
    const double prompt_seconds = engine.stats().prompt_seconds;
    SUB8_RETURN_IF_ERROR(engine.step(events));
    if (engine.stats().prompt_seconds == prompt_seconds)
      decoded += static_cast<int64_t>(events.size());
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const engine::Stats& after = engine.stats();
  const auto tokens = static_cast<double>(after.generation_tokens - before.generation_tokens);
  const double decode_seconds = after.decode_seconds - before.decode_seconds;
  const double sample = after.sample_seconds - before.sample_seconds;
  Round out;
  out.tokens_per_s = tokens / seconds;
  out.decode_tokens_per_s = static_cast<double>(decoded) / decode_seconds;
  out.sample_us = 1e6 * sample / tokens;
  out.overhead_us =
      1e6 * (seconds - sample - (after.model_seconds - before.model_seconds)) / tokens;
  return out;
}

// Seconds from a request's arrival to its first token: `prefix` and a few tokens of its own.
Result<double> first_token_seconds(engine::Engine& engine, std::vector<int32_t> prefix,
                                   uint64_t own) {
  constexpr int64_t kOwnTokens = 16;
  engine::Request request;
  request.prompt = std::move(prefix);
  for (const int32_t id : bench_prompt(kOwnTokens, own, engine.info().vocab_size))
    request.prompt.push_back(id);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  SUB8_ASSIGN_OR_RETURN([[maybe_unused]] const engine::RequestId id,
                        engine.submit(std::move(request)));
  std::vector<engine::TokenEvent> events;
  while (!engine.idle()) {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    SUB8_RETURN_IF_ERROR(engine.step(events));
  }
  const engine::RequestSummary& summary = *events.back().summary;
  return std::chrono::duration<double>(summary.first_token - summary.arrival).count();
}

// Time to the first token without and with the prompt's beginning in the prefix cache.
struct PrefixTimes {
  std::vector<double> cold, cached;
};

Result<PrefixTimes> time_prefix(engine::Engine& engine, const EngineBenchArgs& args,
                                uint64_t& round) {
  PrefixTimes out;
  for (int i = 0; i < args.repeat; ++i) {
    const std::vector<int32_t> prefix =
        bench_prompt(args.prefix_tokens, round++, engine.info().vocab_size);
    SUB8_ASSIGN_OR_RETURN(const double cold, first_token_seconds(engine, prefix, round++));
    SUB8_ASSIGN_OR_RETURN(const double cached, first_token_seconds(engine, prefix, round++));
    out.cold.push_back(cold);
    out.cached.push_back(cached);
  }
  return out;
}

template <class F>
Spread spread_of(const std::vector<Round>& rounds, F value) {
  std::vector<double> values;
  values.reserve(rounds.size());
  for (const Round& round : rounds) values.push_back(value(round));
  return spread(std::move(values));
}

Status bench_engine(const EngineBenchArgs& args) {
  SUB8_RETURN_IF_ERROR(
      check_output_files({{"--json", args.json_path}}, {{"MODEL", args.model.model}}));
  SUB8_ASSIGN_OR_RETURN(engine::RunOptions options, args.model.run_options());
  if (options.max_model_len == 0) {
    options.max_model_len =
        std::max(args.prompt_tokens + args.answer_tokens, args.prefix_tokens + 32);
  }
  options.max_sequences = *std::max_element(args.streams.begin(), args.streams.end());
  options.max_batch_tokens = args.max_batch_tokens;
  SUB8_ASSIGN_OR_RETURN(LoadedModel model, load_model(args.model, options));
  const bool quiet = args.json_path == "-";
  if (!quiet) {
    fmt::print("{} ({} threads), prompts of {} tokens, answers of {}; median of {}\n",
               cpu_features().model, model.pool->size(), args.prompt_tokens, args.answer_tokens,
               args.repeat);
    fmt::print("{:>8} {:>12} {:>16} {:>10} {:>12} {:>12}\n", "streams", "tokens/s",
               "decode tokens/s", "of one", "sampling us", "overhead us");
  }
  std::vector<std::vector<Round>> rounds(args.streams.size());
  uint64_t prompt = 0;
  ProgressBar bar("measuring");
  // Rounds alternate, so that a busy machine is busy for all.
  for (int i = 0; i <= args.repeat; ++i) {
    for (size_t at = 0; at < args.streams.size(); ++at) {
      bar.update(i, args.repeat + 1, fmt::format("{} streams", args.streams[at]));
      SUB8_ASSIGN_OR_RETURN(const Round round,
                            run_round(*model.engine, args, args.streams[at], prompt));
      if (i > 0) rounds[at].push_back(round);  // the first warms caches and page tables
    }
  }
  SUB8_ASSIGN_OR_RETURN(const PrefixTimes prefix, time_prefix(*model.engine, args, prompt));
  bar.clear();
  json::array results;
  double single = 0;
  for (size_t at = 0; at < args.streams.size(); ++at) {
    const Spread total = spread_of(rounds[at], [](const Round& r) { return r.tokens_per_s; });
    const Spread decode =
        spread_of(rounds[at], [](const Round& r) { return r.decode_tokens_per_s; });
    const Spread sample = spread_of(rounds[at], [](const Round& r) { return r.sample_us; });
    const Spread overhead = spread_of(rounds[at], [](const Round& r) { return r.overhead_us; });
    if (at == 0) single = decode.median;
    if (!quiet) {
      fmt::print("{:>8} {:>12.1f} {:>16.1f} {:>9.2f}x {:>12.1f} {:>12.1f}\n", args.streams[at],
                 total.median, decode.median, decode.median / single, sample.median,
                 overhead.median);
    }
    results.push_back({{"streams", args.streams[at]},
                       {"tokens_per_s", to_json(total)},
                       {"decode_tokens_per_s", to_json(decode)},
                       {"sample_us_per_token", to_json(sample)},
                       {"overhead_us_per_token", to_json(overhead)}});
  }
  const Spread cold = spread(prefix.cold);
  const Spread cached = spread(prefix.cached);
  if (!quiet) {
    fmt::print(
        "first token after {} common and 16 own tokens: {:.3f} s, in the prefix cache: {:.3f} "
        "s ({:.1f}%)\n",
        args.prefix_tokens, cold.median, cached.median, 100 * cached.median / cold.median);
  }
  return write_report(args.json_path, {{"schema_version", 1},
                                       {"machine", machine_json(model.pool->size())},
                                       {"model", args.model.model},
                                       {"weights", args.model.weights},
                                       {"prompt_tokens", args.prompt_tokens},
                                       {"answer_tokens", args.answer_tokens},
                                       {"max_batch_tokens", args.max_batch_tokens},
                                       {"temperature", args.temperature},
                                       {"prefix_tokens", args.prefix_tokens},
                                       {"first_token_s", to_json(cold)},
                                       {"first_token_cached_s", to_json(cached)},
                                       {"results", std::move(results)}});
}

}  // namespace

Verb add_bench_engine(CLI::App& bench, CLI::App** sub_command) {
  CLI::App* app = bench.add_subcommand("engine", "Many streams at once, in this process");
  *sub_command = app;
  auto args = std::make_shared<EngineBenchArgs>();
  args->model.add_to(*app);
  app->add_option("--streams", args->streams, "Streams that start at once, with commas between")
      ->check(CLI::Range(1, 1024))
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--prompt-tokens", args->prompt_tokens, "Length of each prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--answer-tokens", args->answer_tokens, "Length of each answer")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app->add_option("--max-batch-tokens", args->max_batch_tokens, "Token rows per step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--prefix-tokens", args->prefix_tokens,
                  "Common beginning of prompts for the time with and without prefix cache")
      ->check(CLI::Range(32, 1 << 20))
      ->capture_default_str();
  app->add_option("--temperature", args->temperature, "0 = always the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->add_option("--repeat", args->repeat, "Rounds; the median is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--json", args->json_path, "Write the figures here; - for standard output");
  return [args] { return bench_engine(*args); };
}

}  // namespace sub8::apps
