// `sub8 bench`: how fast kernels and whole models are on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/cpu.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "common.h"
#include "kernels/linear/bench.h"
#include "verbs.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

struct ModelBenchArgs {
  ModelArgs model;
  int64_t prompt_tokens = 512;
  int64_t answer_tokens = 64;
  int repeat = 5;
  std::string json_path;
};

struct Spread {
  double median = 0, low = 0, high = 0;
};

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

json::object to_json(const Spread& s) { return {{"median", s.median}, {"min", s.low}, {"max", s.high}}; }

json::object machine_json(int threads) {
  json::array paths;
  for (const CpuPath path : available_cpu_paths()) paths.push_back(json::value(cpu_path_name(path)));
  const auto path = selected_cpu_path();
  return {{"cpu", cpu_features().model},
          {"threads", threads},
          {"path", path.ok() ? cpu_path_name(*path) : "?"},
          {"paths", std::move(paths)}};
}

Status write_json(const std::string& path, const json::object& report) {
  if (path.empty()) return {};
  if (path == "-") {
    fmt::print("{}\n", json::serialize(report));
    return {};
  }
  return write_file_atomic(path, json::serialize(report) + "\n");
}

// One answer of `tokens` tokens after `prompt`: seconds until the first token, and per further token.
struct Timing {
  double prompt_seconds = 0;
  double token_seconds = 0;
};

Result<Timing> time_once(engine::Engine& engine, int64_t prompt_tokens, int64_t answer_tokens, uint64_t round) {
  engine::Request request;
  // Distinct prompts, so that nothing of an earlier one can be reused.
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    const auto word = static_cast<uint64_t>(i) * 2654435761u + round * 40503u + (i == 0 ? round : 0);
    request.prompt.push_back(static_cast<int32_t>(word % static_cast<uint64_t>(engine.model().config().vocab_size)));
  }
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = answer_tokens;
  const auto start = std::chrono::steady_clock::now();
  auto first = start;
  SUB8_ASSIGN_OR_RETURN([[maybe_unused]] const engine::RequestId id, engine.submit(std::move(request)));
  std::vector<engine::TokenEvent> events;
  int64_t tokens = 0;
  while (!engine.idle()) {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    events.clear();
    SUB8_RETURN_IF_ERROR(engine.step(events));
    if (!events.empty() && tokens++ == 0) first = std::chrono::steady_clock::now();
  }
  const auto end = std::chrono::steady_clock::now();
  Timing out;
  out.prompt_seconds = std::chrono::duration<double>(first - start).count();
  out.token_seconds = tokens > 1 ? std::chrono::duration<double>(end - first).count() / static_cast<double>(tokens - 1) : 0;
  return out;
}

Status bench_model(const ModelBenchArgs& args) {
  SUB8_ASSIGN_OR_RETURN(engine::RunOptions options, args.model.run_options());
  if (options.max_model_len == 0) options.max_model_len = args.prompt_tokens + args.answer_tokens;
  SUB8_ASSIGN_OR_RETURN(LoadedModel model, load_model(args.model, options));
  const double bandwidth = measure_read_bandwidth(*model.pool);
  std::vector<double> prefill, decode;
  ProgressBar bar("measuring");
  for (int i = 0; i <= args.repeat; ++i) {
    SUB8_ASSIGN_OR_RETURN(const Timing timing, time_once(*model.engine, args.prompt_tokens, args.answer_tokens, static_cast<uint64_t>(i)));
    if (i == 0) continue;  // warms caches and page tables
    prefill.push_back(static_cast<double>(args.prompt_tokens) / timing.prompt_seconds);
    if (timing.token_seconds > 0) decode.push_back(1 / timing.token_seconds);
    bar.update(i, args.repeat, fmt::format("round {} of {}", i, args.repeat));
  }
  bar.clear();
  const Spread p = spread(prefill);
  const Spread d = decode.empty() ? Spread{} : spread(decode);
  const auto weight_bytes = static_cast<double>(model.engine->model().weight_bytes());
  const double decode_bytes = weight_bytes * d.median;
  fmt::print("{} ({} threads)\n", cpu_features().model, model.pool->size());
  fmt::print("packed weights   {}, measured read bandwidth {:.1f} GB/s\n", format_bytes(weight_bytes), bandwidth / 1e9);
  fmt::print("prefill {:>5}    {:8.1f} tokens/s  ({:.1f} .. {:.1f})\n", args.prompt_tokens, p.median, p.low, p.high);
  fmt::print("decode  {:>5}    {:8.1f} tokens/s  ({:.1f} .. {:.1f}), {:.1f} GB/s of weights, {:.0f}% of the read bandwidth\n",
             args.answer_tokens, d.median, d.low, d.high, decode_bytes / 1e9, 100 * decode_bytes / bandwidth);
  return write_json(args.json_path, {{"schema_version", 1},
                                     {"machine", machine_json(model.pool->size())},
                                     {"model", args.model.model},
                                     {"weights", args.model.weights},
                                     {"weight_bytes", weight_bytes},
                                     {"read_bandwidth_bytes_per_s", bandwidth},
                                     {"prompt_tokens", args.prompt_tokens},
                                     {"answer_tokens", args.answer_tokens},
                                     {"prefill_tokens_per_s", to_json(p)},
                                     {"decode_tokens_per_s", to_json(d)}});
}

}  // namespace

Verb add_bench(CLI::App& app) {
  app.require_subcommand(1);
  CLI::App* model = app.add_subcommand("model", "Prefill and decode of a model");
  auto model_args = std::make_shared<ModelBenchArgs>();
  model_args->model.add_to(*model);
  model->add_option("--prompt-tokens", model_args->prompt_tokens, "Length of the prompt")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  model->add_option("--answer-tokens", model_args->answer_tokens, "Length of the answer")->check(CLI::Range(2, 1 << 20))->capture_default_str();
  model->add_option("--repeat", model_args->repeat, "Rounds; the median is reported")->check(CLI::Range(1, 1000))->capture_default_str();
  model->add_option("--json", model_args->json_path, "Write the figures here; - for standard output");
  return [model, model_args]() -> Status {
    if (model->parsed()) return bench_model(*model_args);
    return {};
  };
}

}  // namespace sub8::apps
