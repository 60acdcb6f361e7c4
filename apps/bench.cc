// `sub8 bench`: how fast kernels, whole models and servers are.
#include "bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

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

// One answer of `tokens` tokens after `prompt`: seconds until the first token, and per further
// token.
struct Timing {
  double prompt_seconds = 0;
  double token_seconds = 0;
};

Result<Timing> time_once(engine::Engine& engine, int64_t prompt_tokens, int64_t answer_tokens,
                         uint64_t round) {
  engine::Request request;
  request.prompt = bench_prompt(prompt_tokens, round, engine.info().vocab_size);
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = answer_tokens;
  const auto start = std::chrono::steady_clock::now();
  auto first = start;
  SUB8_ASSIGN_OR_RETURN([[maybe_unused]] const engine::RequestId id,
                        engine.submit(std::move(request)));
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
  out.token_seconds = tokens > 1 ? std::chrono::duration<double>(end - first).count() /
                                       static_cast<double>(tokens - 1)
                                 : 0;
  return out;
}

Status bench_model(const ModelBenchArgs& args) {
  SUB8_RETURN_IF_ERROR(
      check_output_files({{"--json", args.json_path}}, {{"MODEL", args.model.model}}));
  SUB8_ASSIGN_OR_RETURN(engine::RunOptions options, args.model.run_options());
  if (options.max_model_len == 0) options.max_model_len = args.prompt_tokens + args.answer_tokens;
  SUB8_ASSIGN_OR_RETURN(LoadedModel model, load_model(args.model, options));
  SUB8_ASSIGN_OR_RETURN(const double gigabytes, measure_read_bandwidth(*model.pool));
  const double bandwidth = 1e9 * gigabytes;
  std::vector<double> prefill, decode;
  ProgressBar bar("measuring");
  for (int i = 0; i <= args.repeat; ++i) {
    SUB8_ASSIGN_OR_RETURN(
        const Timing timing,
        time_once(*model.engine, args.prompt_tokens, args.answer_tokens, static_cast<uint64_t>(i)));
    if (i == 0) continue;  // warms caches and page tables
    prefill.push_back(static_cast<double>(args.prompt_tokens) / timing.prompt_seconds);
    if (timing.token_seconds > 0) decode.push_back(1 / timing.token_seconds);
    bar.update(i, args.repeat, fmt::format("round {} of {}", i, args.repeat));
  }
  bar.clear();
  const Spread p = spread(prefill);
  const Spread d = decode.empty() ? Spread{} : spread(decode);
  const auto weight_bytes = static_cast<double>(model.engine->info().weight_bytes);
  const double decode_bytes = weight_bytes * d.median;
  fmt::print("{} ({} threads)\n", cpu_features().model, model.pool->size());
  fmt::print("packed weights   {}, measured read bandwidth {:.1f} GB/s\n",
             format_bytes(weight_bytes), bandwidth / 1e9);
  fmt::print("prefill {:>5}    {:8.1f} tokens/s  ({:.1f} .. {:.1f})\n", args.prompt_tokens,
             p.median, p.low, p.high);
  fmt::print(
      "decode  {:>5}    {:8.1f} tokens/s  ({:.1f} .. {:.1f}), {:.1f} GB/s of weights, {:.0f}% of "
      "the read bandwidth\n",
      args.answer_tokens, d.median, d.low, d.high, decode_bytes / 1e9,
      100 * decode_bytes / bandwidth);
  return write_report(args.json_path, {{"schema_version", 1},
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

struct LinearBenchArgs {
  std::string formats = "e3m2,e2m2,nvfp4,mxfp4,e4m3,bf16";
  std::vector<int64_t> rows = {1, 64};
  std::string shapes = "all";
  int threads = 0;
  double seconds = 0.5;
  std::string json_path;
};

// A case of `bench linear`.
struct LinearCase {
  format::WeightFormat format;
  LinearShape shape;
  int64_t m = 0;
};

Result<std::vector<LinearCase>> linear_cases(const LinearBenchArgs& args) {
  std::vector<LinearCase> out;
  for (size_t begin = 0; begin <= args.formats.size();) {
    const size_t end = std::min(args.formats.find(',', begin), args.formats.size());
    SUB8_ASSIGN_OR_RETURN(const format::WeightFormat format,
                          format::parse_weight_format(args.formats.substr(begin, end - begin)));
    begin = end + 1;
    for (const LinearShape& shape : bench_shapes()) {
      if (args.shapes != "all" &&
          std::string_view(shape.name).find(args.shapes) == std::string_view::npos)
        continue;
      for (const int64_t m : args.rows) out.push_back({format, shape, m});
    }
  }
  if (out.empty())
    return invalid_argument(fmt::format("no layer's name contains '{}'", args.shapes));
  return out;
}

Status bench_linear_layers(const LinearBenchArgs& args) {
  SUB8_ASSIGN_OR_RETURN(const std::vector<LinearCase> cases, linear_cases(args));
  ThreadPool pool(args.threads > 0 ? args.threads : ThreadPool::default_threads());
  SUB8_ASSIGN_OR_RETURN(const CpuPath path, selected_cpu_path());
  SUB8_ASSIGN_OR_RETURN(const double bandwidth, measure_read_bandwidth(pool));
  const bool quiet = args.json_path == "-";
  if (!quiet) {
    fmt::print("{} ({} threads, {}), read bandwidth {:.1f} GB/s; best of {} s\n",
               cpu_features().model, pool.size(), cpu_path_name(path), bandwidth, args.seconds);
    fmt::print("{:<34} {:>16} {:>5} {:>10} {:>7} {:>6} {:>9} {:>9}\n", "kernel", "layer", "M", "us",
               "GB/s", "of bw", "Gweight/s", "GFLOP/s");
    std::fflush(stdout);
  }
  json::array results;
  ProgressBar bar("measuring");
  for (size_t i = 0; i < cases.size(); ++i) {
    const LinearCase& c = cases[i];
    SUB8_RETURN_IF_ERROR(check_interrupt());
    bar.update(static_cast<double>(i), static_cast<double>(cases.size()),
               fmt::format("{} {} M = {}", c.format.name(), c.shape.name, c.m));
    SUB8_ASSIGN_OR_RETURN(
        const LinearBenchResult r,
        bench_linear({c.format, c.shape.rows, c.shape.cols, c.m, path, ActivationType::kBF16,
                      c.m == 1 ? RowClass::kGenerated : RowClass::kPrompt},
                     pool, bandwidth, true, args.seconds));
    bar.clear();
    if (!quiet) {
      fmt::print("{:<34} {:>16} {:>5} {:>10.1f} {:>7.1f} {:>5.0f}% {:>9.1f} {:>9.1f}\n", r.kernel,
                 c.shape.name, c.m, 1e6 * r.best_seconds, r.packed_gb_per_s, 100 * r.read_share,
                 r.gweights_per_s, r.gflop_per_s);
      std::fflush(stdout);
    }
    results.push_back({{"kernel", r.kernel},
                       {"layer", c.shape.name},
                       {"n", c.shape.rows},
                       {"k", c.shape.cols},
                       {"m", c.m},
                       {"best_us", 1e6 * r.best_seconds},
                       {"median_us", 1e6 * r.median_seconds},
                       {"packed_bytes", r.packed_bytes},
                       {"gb_per_s", r.packed_gb_per_s},
                       {"read_share", r.read_share}});
  }
  return write_report(args.json_path, {{"schema_version", 1},
                                       {"machine", machine_json(pool.size())},
                                       {"read_bandwidth_bytes_per_s", 1e9 * bandwidth},
                                       {"results", std::move(results)}});
}

}  // namespace

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

json::object to_json(const Spread& s) {
  return {{"median", s.median}, {"min", s.low}, {"max", s.high}};
}

json::object machine_json(int threads) {
  json::array paths;
  for (const CpuPath path : available_cpu_paths())
    paths.push_back(json::value(cpu_path_name(path)));
  const auto path = selected_cpu_path();
  return {{"cpu", cpu_features().model},
          {"threads", threads},
          {"path", path.ok() ? cpu_path_name(*path) : "?"},
          {"paths", std::move(paths)}};
}

Status write_report(const std::string& path, const json::object& report) {
  if (path.empty()) return {};
  const std::string text = valid_utf8(json::serialize(report)) + "\n";
  if (path == "-") {
    fmt::print("{}", text);
    return {};
  }
  return write_file_atomic(path, text);
}

std::vector<int32_t> bench_prompt(int64_t tokens, uint64_t round, int64_t vocab_size) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < tokens; ++i) {
    const auto word =
        static_cast<uint64_t>(i) * 2654435761u + round * 40503u + (i == 0 ? round : 0);
    out.push_back(static_cast<int32_t>(word % static_cast<uint64_t>(vocab_size)));
  }
  return out;
}

Verb add_bench(CLI::App& app) {
  app.require_subcommand(1);
  CLI::App* model = app.add_subcommand("model", "Prefill and decode of a model");
  auto model_args = std::make_shared<ModelBenchArgs>();
  model_args->model.add_to(*model);
  model->add_option("--prompt-tokens", model_args->prompt_tokens, "Length of the prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  model->add_option("--answer-tokens", model_args->answer_tokens, "Length of the answer")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  model->add_option("--repeat", model_args->repeat, "Rounds; the median is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  model->add_option("--json", model_args->json_path,
                    "Write the figures here; - for standard output");
  CLI::App* linear = app.add_subcommand("linear", "Linear layers, by format and shape");
  auto linear_args = std::make_shared<LinearBenchArgs>();
  linear->add_option("--formats", linear_args->formats, "Weight formats, with commas between")
      ->capture_default_str();
  linear->add_option("--rows", linear_args->rows, "Token rows M")
      ->check(CLI::Range(1, 1 << 16))
      ->delimiter(',')
      ->capture_default_str();
  linear->add_option("--layers", linear_args->shapes, "Only layers whose name contains this")
      ->capture_default_str();
  linear
      ->add_option("--threads", linear_args->threads, "CPU threads [all that this process may use]")
      ->check(CLI::Range(1, 1024));
  linear->add_option("--seconds", linear_args->seconds, "Time for each case")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  linear->add_option("--json", linear_args->json_path,
                     "Write the figures here; - for standard output");
  CLI::App* engine = nullptr;
  const Verb engine_verb = add_bench_engine(app, &engine);
  CLI::App* layers = nullptr;
  const Verb layers_verb = add_bench_layers(app, &layers);
  CLI::App* residue = nullptr;
  const Verb residue_verb = add_bench_residue(app, &residue);
  CLI::App* serve = nullptr;
  const Verb serve_verb = add_bench_serve(app, &serve);
  return [model, model_args, linear_args, engine, engine_verb, layers, layers_verb, residue,
          residue_verb, serve, serve_verb]() -> Status {
    if (model->parsed()) return bench_model(*model_args);
    if (engine->parsed()) return engine_verb();
    if (layers->parsed()) return layers_verb();
    if (residue->parsed()) return residue_verb();
    if (serve->parsed()) return serve_verb();
    return bench_linear_layers(*linear_args);
  };
}

}  // namespace sub8::apps
