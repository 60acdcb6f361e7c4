// `sub8 bench layers`: time of each kind of linear layer in every option of the planner.
#include <algorithm>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "bench.h"
#include "common.h"
#include "kvcache/page_pool.h"
#include "study/layer_latency.h"
#include "study/planner.h"

namespace sub8::apps {
namespace {

struct LayerBenchArgs {
  std::string model;
  std::string mode = "weight-only";
  std::vector<std::string> formats = {"nvfp4", "mxfp4", "e2m2", "e3m2", "e4m3", "original"};
  std::vector<float> ratios = {0, 0.125f, 0.25f, 0.5f, 1};
  int64_t rows = 64;
  int repeat = 7;
  int threads = 0;
  std::string json_path;
};

Status bench_layers(const LayerBenchArgs& args) {
  SUB8_RETURN_IF_ERROR(check_output_files({{"--json", args.json_path}}, {{"MODEL", args.model}}));
  SUB8_ASSIGN_OR_RETURN(const auto options,
                        parse_layer_options(args.formats, args.ratios, args.mode == "residue"));
  SUB8_ASSIGN_OR_RETURN(const auto source, checkpoint::open_checkpoint(args.model));
  SUB8_ASSIGN_OR_RETURN(const auto groups, study::layer_groups(*source));
  if (args.rows > source->config().max_positions) {
    return invalid_argument(fmt::format("--rows {} is beyond the model's {} positions", args.rows,
                                        source->config().max_positions));
  }
  ThreadPool pool(args.threads > 0 ? args.threads : ThreadPool::default_threads());
  model::ModelOptions load;
  SUB8_ASSIGN_OR_RETURN(load.path, selected_cpu_path());
  if (args.mode == "residue") load.mode.mode = model::ExecutionMode::kResidue;
  load.substitution = true;
  load.max_rows = load.max_context = args.rows;
  load.kv_pages =
      static_cast<int32_t>((args.rows + kvcache::kPageTokens - 1) / kvcache::kPageTokens);
  SUB8_ASSIGN_OR_RETURN(const auto model, model::Model::load(*source, load, pool));
  study::SubstituteOptions how;
  how.open = [&] { return checkpoint::open_checkpoint(args.model); };
  ProgressBar bar("measuring");
  SUB8_ASSIGN_OR_RETURN(
      const study::LatencyTable table,
      study::measure_layer_latency(
          *model, *source, groups, options, bench_prompt(args.rows, 0, source->config().vocab_size),
          args.repeat, how, [&](int64_t done, int64_t total, std::string_view what) {
            bar.update(static_cast<double>(done), static_cast<double>(total), what);
          }));
  bar.clear();
  boost::json::object report = study::latency_json(table);
  report["machine"] = machine_json(pool.size());
  report["model"] = args.model;
  if (args.json_path != "-") {
    fmt::print("{:<16} {:>8} {:>8} {:>12}   M = {}\n", "option", "N", "K", "us", args.rows);
    for (const auto& [key, nanoseconds] : table.nanoseconds) {
      const auto& [option, n, k] = key;
      fmt::print("{:<16} {:>8} {:>8} {:>12.1f}\n", option, n, k,
                 static_cast<double>(nanoseconds) / 1000);
    }
  }
  return write_report(args.json_path, report);
}

}  // namespace

Verb add_bench_layers(CLI::App& bench, CLI::App** sub_command) {
  CLI::App* app = bench.add_subcommand("layers", "A model's linear layers in all formats");
  *sub_command = app;
  auto args = std::make_shared<LayerBenchArgs>();
  app->add_option("MODEL", args->model, "A Hugging Face directory or a .gguf file, not quantised")
      ->required();
  app->add_option("--mode", args->mode, "weight-only, or residue")
      ->check(CLI::IsMember({"weight-only", "residue"}))
      ->capture_default_str();
  app->add_option("--formats", args->formats, "Formats, as in plan")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--ratios", args->ratios, "Prefill ratios, as in plan")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--rows", args->rows, "Token rows M, of a prompt")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app->add_option("--repeat", args->repeat, "Passes; the median is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--threads", args->threads, "CPU threads [all that this process may use]")
      ->check(CLI::Range(1, 1024));
  app->add_option("--json", args->json_path,
                  "Write the table for `sub8 plan --latency` here; - for standard output");
  return [args] { return bench_layers(*args); };
}

}  // namespace sub8::apps
