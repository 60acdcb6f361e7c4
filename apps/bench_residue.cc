// `sub8 bench residue`: what 4-bit activations and their residue cost on this machine.
#include <algorithm>
#include <cstdio>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "bench.h"
#include "common.h"
#include "kernels/linear/bench.h"
#include "study/residue_cost.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

struct ResidueBenchArgs {
  std::vector<std::string> formats = {"nvfp4", "mxfp4"};
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64};
  std::vector<int64_t> prompt_rows = {256, 512, 1024, 2048};
  std::vector<float> ratios = {0.125f, 0.25f, 0.5f};
  std::vector<std::string> shapes = {"4096x4096"};
  double seconds = 1;
  int threads = 0;
  bool cpu_time = false;
  std::string json_path;
};

// "NxK", or a name of bench_shapes().
Result<LinearShape> find_shape(const std::string& text) {
  for (const LinearShape& shape : bench_shapes()) {
    if (text == shape.name) return shape;
  }
  const size_t x = text.find('x');
  const auto number = [](std::string_view digits) -> int64_t {
    if (digits.empty() || digits.size() > 6) return 0;
    int64_t out = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9') return 0;
      out = 10 * out + (c - '0');
    }
    return out;
  };
  const int64_t n = x == std::string::npos ? 0 : number(std::string_view(text).substr(0, x));
  const int64_t k = x == std::string::npos ? 0 : number(std::string_view(text).substr(x + 1));
  if (n > 0 && k > 0) return LinearShape{text.c_str(), n, k};
  std::string names;
  for (const LinearShape& shape : bench_shapes())
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", shape.name);
  return invalid_argument(
      fmt::format("--shapes: '{}' is neither NxK, such as 4096x4096, nor one of {}", text, names));
}

// M-Ext with generated rows, K-Ext with prompt rows.
struct Work {
  format::WeightFormat format;
  LinearShape shape;
  int64_t m = 0;
  RowClass row_class = RowClass::kPrompt;
};

Result<std::vector<Work>> plan_work(const ResidueBenchArgs& args) {
  std::vector<Work> out;
  for (const std::string& name : args.formats) {
    SUB8_ASSIGN_OR_RETURN(const format::WeightFormat format, format::parse_weight_format(name));
    for (const std::string& text : args.shapes) {
      SUB8_ASSIGN_OR_RETURN(const LinearShape shape, find_shape(text));
      for (const int64_t m : args.rows) out.push_back({format, shape, m, RowClass::kGenerated});
      for (const int64_t m : args.prompt_rows) out.push_back({format, shape, m, RowClass::kPrompt});
    }
  }
  return out;
}

void print(const Work& work, const std::vector<study::ResidueCost>& costs) {
  for (const study::ResidueCost& c : costs) {
    fmt::print(
        "{:<8} {:>16} {:>5}  {:<18} {:>10.1f} {:>10.1f} {:>8.3f} {:>5.0f}% {:<10} {:>7.2f}%\n",
        work.format.name(), work.shape.name, work.m, c.form, c.best_us, c.median_us, c.over_plain,
        100 * c.floor_us / c.best_us, c.memory_bound ? "reads" : "products", 100 * c.growth);
  }
  std::fflush(stdout);
}

json::array to_json(const std::vector<study::ResidueCost>& costs) {
  json::array out;
  for (const study::ResidueCost& c : costs) {
    out.push_back({{"form", c.form},
                   {"kernel", c.kernel},
                   {"best_us", c.best_us},
                   {"median_us", c.median_us},
                   {"over_plain", c.over_plain},
                   {"floor_us", c.floor_us},
                   {"floor", c.memory_bound ? "reads" : "products"},
                   {"extra_bytes", c.extra_bytes},
                   {"storage_growth", c.growth}});
  }
  return out;
}

Status bench_residue(const ResidueBenchArgs& args) {
  SUB8_RETURN_IF_ERROR(check_output_files({{"--json", args.json_path}}, {}));
  SUB8_ASSIGN_OR_RETURN(const std::vector<Work> work, plan_work(args));
  if (args.cpu_time && args.threads != 1)
    return invalid_argument("--cpu-time measures one thread; give --threads 1");
  ThreadPool pool(args.threads > 0 ? args.threads : ThreadPool::default_threads());
  SUB8_ASSIGN_OR_RETURN(const CpuPath path, selected_cpu_path());
  SUB8_ASSIGN_OR_RETURN(const study::MachineRates rates, study::measure_machine_rates(path, pool));
  const bool quiet = args.json_path == "-";
  if (!quiet) {
    fmt::print(
        "{} ({} threads, {}), reads {:.1f} GB/s, products of bytes {:.0f} Gop/s, of bf16 rows "
        "{:.0f} Gop/s\n",
        cpu_features().model, pool.size(), cpu_path_name(path), rates.read_gb_per_s,
        rates.byte_gop_per_s, rates.value_gop_per_s);
    fmt::print("{:<8} {:>16} {:>5}  {:<18} {:>10} {:>10} {:>8} {:>6} {:<10} {:>8}\n", "weights",
               "layer", "M", "form", "best us", "median us", "/ plain", "floor", "bound by",
               "storage");
  }
  json::array results;
  ProgressBar bar("measuring");
  for (size_t i = 0; i < work.size(); ++i) {
    const Work& w = work[i];
    bar.update(static_cast<double>(i), static_cast<double>(work.size()),
               fmt::format("{} {} M = {}", w.format.name(), w.shape.name, w.m));
    std::vector<float> ratios = {1};
    if (w.row_class == RowClass::kPrompt)
      ratios.insert(ratios.begin(), args.ratios.begin(), args.ratios.end());
    SUB8_ASSIGN_OR_RETURN(const std::vector<study::ResidueCost> costs,
                          study::measure_residue_cost({w.format, w.shape.rows, w.shape.cols, w.m,
                                                       w.row_class, path, args.cpu_time},
                                                      ratios, rates, args.seconds, pool));
    bar.clear();
    if (!quiet) print(w, costs);
    results.push_back({{"format", w.format.name()},
                       {"layer", w.shape.name},
                       {"n", w.shape.rows},
                       {"k", w.shape.cols},
                       {"m", w.m},
                       {"rows", w.row_class == RowClass::kPrompt ? "prompt" : "generated"},
                       {"forms", to_json(costs)}});
  }
  return write_report(args.json_path, {{"schema_version", 1},
                                       {"machine", machine_json(pool.size())},
                                       {"clock", args.cpu_time ? "cpu" : "elapsed"},
                                       {"read_gb_per_s", rates.read_gb_per_s},
                                       {"byte_gop_per_s", rates.byte_gop_per_s},
                                       {"bf16_gop_per_s", rates.value_gop_per_s},
                                       {"results", std::move(results)}});
}

}  // namespace

Verb add_bench_residue(CLI::App& bench, CLI::App** sub_command) {
  CLI::App* app = bench.add_subcommand("residue", "4-bit activations and their residue, by rows");
  *sub_command = app;
  auto args = std::make_shared<ResidueBenchArgs>();
  app->add_option("--formats", args->formats, "Weight formats: nvfp4, mxfp4")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--rows", args->rows, "Generated rows M: plain and M-Ext")
      ->check(CLI::Range(1, 1 << 16))
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--prompt-rows", args->prompt_rows, "Prompt rows M: plain, K-Ext, M-Ext")
      ->check(CLI::Range(1, 1 << 16))
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--ratios", args->ratios, "Ratios of K-Ext")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--shapes", args->shapes, "Layers: NxK, or names of bench linear")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--seconds", args->seconds, "Time for each case")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  app->add_option("--threads", args->threads, "CPU threads [all that this process may use]")
      ->check(CLI::Range(1, 1024));
  app->add_flag("--cpu-time", args->cpu_time,
                "The thread's own time, for busy machines; with --threads 1");
  app->add_option("--json", args->json_path, "Write the figures here; - for standard output");
  return [args] { return bench_residue(*args); };
}

}  // namespace sub8::apps
