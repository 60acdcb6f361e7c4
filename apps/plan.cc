// `sub8 plan`: a format and a prefill ratio for each layer, within budgets.
#include <algorithm>
#include <map>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "base/fnv1a.h"
#include "common.h"
#include "kvcache/page_pool.h"
#include "study/budget_program.h"
#include "study/planner.h"
#include "study/plot.h"
#include "study/sensitivity.h"
#include "verbs.h"
#include "version.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;
using quantize::LayerOption;
using study::PlanChoice;
using study::PlanTable;

constexpr int64_t kStepRows = 512;
constexpr int64_t kLogitRows = 64;
constexpr double kMostReferenceBytes = 16e9;

struct PlanArgs {
  std::string model;
  std::string text;
  std::string output;
  std::string mode = "weight-only";
  std::vector<std::string> formats = {"nvfp4", "mxfp4", "e2m2", "e3m2", "e4m3", "original"};
  std::vector<float> ratios = {0, 0.125f, 0.25f, 0.5f, 1};
  std::vector<std::string> budgets;
  std::string scale = "amax";
  std::string mx_rule = "even";
  std::string cache;
  std::string latency;
  int64_t windows = 8;
  int64_t window = 256;
  int64_t seed = 42;
  std::string curve = "storage-bits";
  int points = 16;
  int threads = 0;
  std::string json_path;
  std::string plot_path;
};

std::string file_name(const std::string& path) {
  return valid_utf8(std::filesystem::path(path).lexically_normal().filename().string());
}

// Everything that is known before a forward pass.
struct Run {
  engine::Bundle bundle;
  std::vector<study::Sample> samples;
  std::vector<study::LayerGroup> groups;
  std::vector<LayerOption> options;
  quantize::RowRules rules;
  study::SensitivityKey key;
};

Result<Run> prepare(const PlanArgs& args) {
  Run out;
  SUB8_ASSIGN_OR_RETURN(out.options,
                        parse_layer_options(args.formats, args.ratios, args.mode == "residue"));
  SUB8_ASSIGN_OR_RETURN(out.rules.scale, quantize::parse_scale_method(args.scale));
  SUB8_ASSIGN_OR_RETURN(out.rules.block.mx, quantize::parse_mx_rule(args.mx_rule));
  const bool any_mx = std::any_of(out.options.begin(), out.options.end(), [](const auto& option) {
    return option.format && option.format->block_scale == format::BlockScale::kE8M0;
  });
  if (args.mx_rule != "even" && !any_mx)
    return invalid_argument("--mx-rule is for MX formats, and --formats names none");
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(args.text));
  SUB8_ASSIGN_OR_RETURN(auto source, checkpoint::open_checkpoint(args.model));
  SUB8_ASSIGN_OR_RETURN(out.groups, study::layer_groups(*source));
  const int64_t limit = source->config().max_positions;
  if (args.window > limit) {
    return invalid_argument(
        fmt::format("--window {} is beyond the model's {} positions", args.window, limit));
  }
  const double reference_bytes = 4.0 * static_cast<double>(args.windows) *
                                 static_cast<double>(args.window) *
                                 static_cast<double>(source->config().vocab_size);
  if (reference_bytes > kMostReferenceBytes) {
    return invalid_argument(fmt::format(
        "the reference's logits of {} windows of {} tokens would take {}; give fewer --windows",
        args.windows, args.window, format_bytes(reference_bytes)));
  }
  SUB8_ASSIGN_OR_RETURN(out.key.model, checkpoint::fingerprint(*source));
  SUB8_ASSIGN_OR_RETURN(out.bundle, engine::make_bundle(std::move(source)));
  for (const std::string& warning : out.bundle.warnings) print_warning(warning);
  const study::CalibrateOptions sampling{
      .samples = args.windows, .length = args.window, .seed = static_cast<uint64_t>(args.seed)};
  auto samples = study::text_samples(*out.bundle.tokenizer, text, sampling);
  if (!samples.ok()) return samples.error().within(args.text);
  out.samples = std::move(samples).value();
  Fnv1a hash;
  hash.add_text(text);
  out.key.text_hash = hash.text();
  out.key.sample = {file_name(args.text), static_cast<int64_t>(out.samples.size()), args.window,
                    static_cast<uint64_t>(args.seed)};
  out.key.rules = out.rules;
  out.key.residue = args.mode == "residue";
  return out;
}

Result<std::unique_ptr<model::Model>> load(const PlanArgs& args, const Run& run, ThreadPool& pool) {
  model::ModelOptions options;
  SUB8_ASSIGN_OR_RETURN(options.path, selected_cpu_path());
  if (args.mode == "residue") options.mode.mode = model::ExecutionMode::kResidue;
  options.substitution = true;
  options.max_context = args.window;
  options.max_rows = std::max(args.window, kStepRows);
  options.max_logit_rows = kLogitRows;
  const int64_t pages = (args.window + kvcache::kPageTokens - 1) / kvcache::kPageTokens;
  options.kv_pages = static_cast<int32_t>(pages * static_cast<int64_t>(run.samples.size()));
  say_decoded_memory(*run.bundle.source, false);
  ProgressBar bar("loading");
  options.progress = [&](const model::LoadProgress& p) {
    bar.update(static_cast<double>(p.done_bytes), static_cast<double>(p.total_bytes), p.module);
  };
  return model::Model::load(*run.bundle.source, options, pool);
}

bool all_measured(const Run& run, const study::SensitivityCache& cache) {
  for (const study::LayerGroup& group : run.groups) {
    for (const LayerOption& option : run.options) {
      if (option.format && !cache.find(group.name(), option.name())) return false;
    }
  }
  return true;
}

Status measure(const PlanArgs& args, const Run& run, study::SensitivityCache& cache) {
  if (all_measured(run, cache)) return {};
  SUB8_RETURN_IF_ERROR(cache.save());  // a place that cannot be written shows now
  ThreadPool pool(args.threads > 0 ? args.threads : ThreadPool::default_threads());
  SUB8_ASSIGN_OR_RETURN(const auto model, load(args, run, pool));
  ProgressBar bar("measuring");
  study::SensitivityOptions how;
  how.substitutes.open = [&] { return checkpoint::open_checkpoint(args.model); };
  how.substitutes.rules = run.rules;
  how.progress = [&](int64_t done, int64_t total, std::string_view what) {
    bar.update(static_cast<double>(done), static_cast<double>(total),
               fmt::format("{} of {}, {}", done, total, what));
  };
  return study::measure_sensitivity(*model, *run.bundle.source, run.groups, run.options,
                                    run.samples, how, cache);
}

void print_row(std::string_view name, const PlanChoice& choice, const PlanTable& table) {
  std::string line = fmt::format("{:<16} {:>12.4f}", name, choice.cost.storage_bits);
  if (table.residue) line += fmt::format(" {:>12.4f}", choice.cost.compute_bits);
  line += fmt::format(" {:>10}", format_bytes(static_cast<double>(choice.cost.bytes)));
  if (choice.cost.latency_us) line += fmt::format(" {:>12.1f}", *choice.cost.latency_us);
  fmt::print("{} {:>14.6f}\n", line, choice.kl_divergence);
}

void print_head(std::string_view first, const PlanTable& table) {
  std::string line = fmt::format("{:<16} {:>12}", first, "storage bits");
  if (table.residue) line += fmt::format(" {:>12}", "compute bits");
  line += fmt::format(" {:>10}", "size");
  if (table.has_latency) line += fmt::format(" {:>12}", "latency us");
  fmt::print("{} {:>14}\n", line, "predicted KLD");
}

// "nvfp4 60, e3m2 12": groups by option.
std::string summary(const PlanTable& table, const PlanChoice& choice) {
  std::map<size_t, int> counts;
  for (const size_t o : choice.options) ++counts[o];
  std::string out;
  for (const auto& [o, count] : counts)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", table.options[o].name(), count);
  return out;
}

json::object to_json(const PlanTable& table, const PlanChoice& choice) {
  json::object options;
  for (const size_t o : choice.options) {
    json::value& count = options[table.options[o].name()];
    count = count.is_null() ? 1 : count.as_int64() + 1;
  }
  json::object out{{"storage_bits", choice.cost.storage_bits},
                   {"compute_bits", choice.cost.compute_bits},
                   {"bytes", choice.cost.bytes},
                   {"kl_divergence", choice.kl_divergence},
                   {"groups", std::move(options)}};
  if (choice.cost.latency_us) out["latency_us"] = *choice.cost.latency_us;
  return out;
}

double on_axis(const quantize::PlanCost& cost, study::BudgetKind kind) {
  switch (kind) {
    case study::BudgetKind::kStorageBits:
      return cost.storage_bits;
    case study::BudgetKind::kComputeBits:
      return cost.compute_bits;
    case study::BudgetKind::kBytes:
      return static_cast<double>(cost.bytes);
    case study::BudgetKind::kLatencyUs:
      return cost.latency_us.value_or(0);
  }
  return 0;
}

struct Outcome {
  PlanTable table;
  study::BudgetKind curve_kind{};
  std::vector<study::BudgetLimit> budgets;
  std::vector<PlanChoice> curve;
  std::optional<PlanChoice> chosen;
};

study::Plot make_plot(const Outcome& outcome) {
  const auto kind = outcome.curve_kind;
  study::Plot plot{.title = "Predicted KL divergence by budget",
                   .x_label = std::string(study::budget_kind_name(kind)),
                   .y_label = "nats per token",
                   .log_y = true};
  study::Series curve{.name = "planned"};
  for (const PlanChoice& choice : outcome.curve)
    curve.points.emplace_back(on_axis(choice.cost, kind), choice.kl_divergence);
  study::Series uniform{.name = "one option everywhere", .line = false};
  for (size_t o = 0; o < outcome.table.options.size(); ++o) {
    const PlanChoice choice = study::uniform_plan(outcome.table, o);
    uniform.points.emplace_back(on_axis(choice.cost, kind), choice.kl_divergence);
  }
  plot.series = {std::move(curve), std::move(uniform)};
  if (outcome.chosen) {
    plot.series.push_back(
        {.name = "the plan",
         .points = {{on_axis(outcome.chosen->cost, kind), outcome.chosen->kl_divergence}},
         .line = false});
  }
  return plot;
}

json::object report(const Run& run, const Outcome& outcome) {
  json::array uniform;
  for (size_t o = 0; o < outcome.table.options.size(); ++o) {
    json::object row = to_json(outcome.table, study::uniform_plan(outcome.table, o));
    row["option"] = outcome.table.options[o].name();
    uniform.push_back(std::move(row));
  }
  json::array curve;
  for (const PlanChoice& choice : outcome.curve) curve.push_back(to_json(outcome.table, choice));
  json::object budgets;
  for (const auto& budget : outcome.budgets)
    budgets[study::budget_kind_name(budget.kind)] = budget.limit;
  json::object out{{"schema_version", 1},
                   {"mode", outcome.table.residue ? "residue" : "weight-only"},
                   {"text", run.key.sample.text},
                   {"windows", run.key.sample.windows},
                   {"window", run.key.sample.window},
                   {"seed", run.key.sample.seed},
                   {"layer_groups", outcome.table.groups.size()},
                   {"weights", outcome.table.weights},
                   {"budgets", std::move(budgets)},
                   {"uniform", std::move(uniform)},
                   {"curve", std::move(curve)}};
  out["plan"] = outcome.chosen ? json::value(to_json(outcome.table, *outcome.chosen)) : nullptr;
  return out;
}

void print_outcome(const Outcome& outcome) {
  const PlanTable& table = outcome.table;
  print_head("everywhere", table);
  for (size_t o = 0; o < table.options.size(); ++o)
    print_row(table.options[o].name(), study::uniform_plan(table, o), table);
  fmt::print("\n");
  print_head("best by budget", table);
  for (const PlanChoice& choice : outcome.curve) print_row("", choice, table);
  if (!outcome.chosen) return;
  fmt::print("\n");
  print_head("plan", table);
  print_row("", *outcome.chosen, table);
  fmt::print("layer groups: {}\n", summary(table, *outcome.chosen));
}

Status write_plan(const PlanArgs& args, const Run& run, const Outcome& outcome) {
  quantize::LayerPlan plan;
  plan.version = SUB8_VERSION;
  plan.model_name = file_name(args.model);
  plan.model = run.key.model;
  plan.residue = outcome.table.residue;
  plan.rules = run.rules;
  plan.sample = run.key.sample;
  for (const auto& budget : outcome.budgets)
    plan.budgets.push_back({std::string(study::budget_kind_name(budget.kind)), budget.limit});
  plan.kl_divergence = outcome.chosen->kl_divergence;
  plan.cost = outcome.chosen->cost;
  plan.layers = study::planned_layers(outcome.table, *outcome.chosen);
  return write_file_atomic(args.output, quantize::layer_plan_json(plan));
}

Status check_args(const PlanArgs& args) {
  SUB8_RETURN_IF_ERROR(check_output_files(
      {{"--out", args.output},
       {"--json", args.json_path},
       {"--plot", args.plot_path},
       {"--cache", args.cache}},
      {{"MODEL", args.model}, {"--text", args.text}, {"--latency", args.latency}}));
  if (args.output.empty() != args.budgets.empty()) {
    return invalid_argument(
        "--out FILE and --budget KIND=VALUE go together: one says where the plan is written, the "
        "other what it may cost. Without both the budget curve is printed");
  }
  // Said before the measuring, not after it.
  const auto solved = study::solve_budget({});
  return solved.ok() ? Status() : Status(solved.error());
}

Status run_plan(const PlanArgs& args) {
  SUB8_RETURN_IF_ERROR(check_args(args));
  Outcome outcome;
  SUB8_ASSIGN_OR_RETURN(outcome.curve_kind, study::parse_budget_kind(args.curve));
  std::optional<study::LatencyTable> latency;
  if (!args.latency.empty()) {
    SUB8_ASSIGN_OR_RETURN(latency, study::read_latency_table(args.latency));
  }
  SUB8_ASSIGN_OR_RETURN(const Run run, prepare(args));
  const std::string cache_path =
      args.cache.empty() && !args.output.empty() ? args.output + ".cache" : args.cache;
  SUB8_ASSIGN_OR_RETURN(study::SensitivityCache cache,
                        study::SensitivityCache::open(cache_path, run.key));
  SUB8_RETURN_IF_ERROR(measure(args, run, cache));
  SUB8_ASSIGN_OR_RETURN(outcome.table,
                        study::plan_table(run.groups, run.options, cache, args.mode == "residue",
                                          latency ? &*latency : nullptr));
  for (const std::string& text : args.budgets) {
    auto budget = study::parse_budget(text, outcome.table);
    if (!budget.ok()) return budget.error().within("--budget");
    const bool again = std::any_of(outcome.budgets.begin(), outcome.budgets.end(),
                                   [&](const auto& other) { return other.kind == budget->kind; });
    if (again)
      return invalid_argument(fmt::format("--budget: a second one of the kind of '{}'", text));
    outcome.budgets.push_back(*budget);
  }
  if (!outcome.budgets.empty()) {
    SUB8_ASSIGN_OR_RETURN(outcome.chosen, study::choose_plan(outcome.table, outcome.budgets));
  }
  SUB8_ASSIGN_OR_RETURN(outcome.curve,
                        study::pareto_curve(outcome.table, outcome.curve_kind, args.points));
  if (outcome.chosen) SUB8_RETURN_IF_ERROR(write_plan(args, run, outcome));
  const std::string text = valid_utf8(json::serialize(report(run, outcome))) + "\n";
  if (!args.plot_path.empty()) {
    SUB8_RETURN_IF_ERROR(
        write_file_atomic(args.plot_path, valid_utf8(study::render_svg(make_plot(outcome)))));
  }
  if (args.json_path == "-") {
    fmt::print("{}", text);
    return {};
  }
  if (!args.json_path.empty()) SUB8_RETURN_IF_ERROR(write_file_atomic(args.json_path, text));
  print_outcome(outcome);
  if (outcome.chosen) fmt::print("wrote {}\n", args.output);
  return {};
}

void add_sample_options(CLI::App& app, PlanArgs& args) {
  app.add_option("--text", args.text, "UTF-8 text that sensitivity is measured on")->required();
  app.add_option("--windows", args.windows, "Windows of the text, drawn with --seed")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--window", args.window, "Tokens of a window")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seed", args.seed, "Which windows are drawn")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53))
      ->capture_default_str();
  app.add_option("--cache", args.cache,
                 "Keeps measurements, so that a run can go on and other budgets cost nothing [PLAN "
                 "of --out, with .cache]");
}

}  // namespace

Verb add_plan(CLI::App& app) {
  auto args = std::make_shared<PlanArgs>();
  app.add_option("MODEL", args->model, "A Hugging Face directory or a .gguf file, not quantised")
      ->required();
  add_sample_options(app, *args);
  app.add_option("--mode", args->mode,
                 "How the result will run: weight-only, or residue (4-bit activations in nvfp4 and "
                 "mxfp4 layers, with a prefill ratio each)")
      ->check(CLI::IsMember({"weight-only", "residue"}))
      ->capture_default_str();
  app.add_option("--formats", args->formats, "Formats to choose from; original: stays as it is")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--ratios", args->ratios, "With --mode residue: prefill ratios to choose from")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option(
         "--budget", args->budgets,
         "KIND=VALUE; KIND: storage-bits, compute-bits, bytes, latency-us; VALUE: a number, "
         "or a format (nvfp4+0.25 with a ratio) whose cost everywhere is meant. May be given "
         "several times: all hold")
      ->allow_extra_args(false);
  app.add_option("--out", args->output, "The plan file to write");
  app.add_option("--latency", args->latency, "Times that `sub8 bench layers MODEL` measured");
  app.add_option("--scale", args->scale, "amax or mse, as in quantize")->capture_default_str();
  app.add_option("--mx-rule", args->mx_rule, "even, ceil or floor, as in quantize")
      ->capture_default_str();
  app.add_option("--curve", args->curve, "Kind of budget of the printed curve")
      ->capture_default_str();
  app.add_option("--points", args->points, "Budgets on the curve")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", args->threads, "CPU threads [all that this process may use]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--json", args->json_path, "Write the curve here; - for standard output");
  app.add_option("--plot", args->plot_path, "Write an SVG plot of the curve here");
  return [args] { return run_plan(*args); };
}

}  // namespace sub8::apps
