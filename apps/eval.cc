// `sub8 eval`: perplexity over a text; KL divergence, top-1 agreement and weight errors against a
// reference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "common.h"
#include "study/evaluate.h"
#include "study/plot.h"
#include "study/weight_error.h"
#include "verbs.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

// Logit rows at a time: a vocabulary of 150,000 in FP32 then takes 40 MB.
constexpr int64_t kLogitRows = 64;

struct EvalArgs {
  ModelArgs model;
  std::string text;
  std::string reference;
  std::string reference_activations;
  int64_t window = 512;
  int64_t max_windows = 0;
  std::string json_path;
  std::string plot_path;
};

struct Subject {
  engine::Bundle bundle;
  std::unique_ptr<model::Model> model;
};

// Loads a model for scoring: pages for one window, logits in blocks.
Result<Subject> load_subject(const ModelArgs& args, int64_t window, ThreadPool& pool,
                             const char* title) {
  Subject out;
  SUB8_ASSIGN_OR_RETURN(auto source, open_source(args, pool));
  SUB8_ASSIGN_OR_RETURN(out.bundle, engine::make_bundle(std::move(source)));
  for (const std::string& warning : out.bundle.warnings) print_warning(warning);
  SUB8_ASSIGN_OR_RETURN(const engine::RunOptions run, args.run_options());
  model::ModelOptions options;
  SUB8_ASSIGN_OR_RETURN(options.path, selected_cpu_path());
  options.activations = run.activations;
  options.kv_type = run.kv_type;
  options.max_rows = window;
  options.max_logit_rows = std::min(kLogitRows, window - 1);
  options.max_context = window;
  options.kv_pages =
      static_cast<int32_t>((window + kvcache::kPageTokens - 1) / kvcache::kPageTokens);
  const int64_t limit = out.bundle.source->config().max_positions;
  if (window > limit)
    return invalid_argument(
        fmt::format("--window {} is beyond the model's {} positions", window, limit));
  ProgressBar bar(title);
  options.progress = [&](const model::LoadProgress& p) {
    bar.update(static_cast<double>(p.done_bytes), static_cast<double>(p.total_bytes), p.module);
  };
  SUB8_ASSIGN_OR_RETURN(out.model, model::Model::load(*out.bundle.source, options, pool));
  return out;
}

json::object to_json(const EvalArgs& args, const study::Evaluation& e,
                     const std::vector<study::WeightError>& errors, const Subject& subject,
                     int64_t tokens) {
  json::object out{{"schema_version", 1},
                   {"model", args.model.model},
                   {"weights", args.model.weights.empty() ? subject.bundle.source->quantization()
                                                          : args.model.weights},
                   {"lm_head", args.model.lm_head},
                   {"activations", args.model.activations},
                   {"text", args.text},
                   {"text_tokens", tokens},
                   {"window", args.window},
                   {"windows", e.windows.size()},
                   {"scored_tokens", e.scored()},
                   {"perplexity", e.perplexity()},
                   {"mean_nll", std::log(e.perplexity())},
                   {"nll_standard_error", e.nll_standard_error()}};
  if (!args.reference.empty()) {
    out["reference"] = args.reference;
    out["kl_divergence"] = e.kl_divergence();
    out["kl_standard_error"] = e.kl_standard_error();
    out["top1_agreement"] = e.top1_agreement();
    json::array list;
    for (const study::WeightError& error : errors) {
      list.push_back({{"module", error.module}, {"format", error.format}, {"nmse", error.nmse}});
    }
    out["weight_nmse"] = std::move(list);
  }
  json::array windows;
  for (const study::WindowScore& w : e.windows) {
    windows.push_back({{"nll", w.negative_log_likelihood / static_cast<double>(w.scored)},
                       {"kl_divergence", w.kl_divergence / static_cast<double>(w.scored)}});
  }
  out["per_window"] = std::move(windows);
  return out;
}

void print_table(const EvalArgs& args, const study::Evaluation& e,
                 const std::vector<study::WeightError>& errors) {
  fmt::print("windows           {} of {} tokens ({} scored)\n", e.windows.size(), args.window,
             e.scored());
  fmt::print("perplexity        {:.4f}  (mean NLL {:.5f} +- {:.5f})\n", e.perplexity(),
             std::log(e.perplexity()), e.nll_standard_error());
  if (args.reference.empty()) return;
  fmt::print("KL divergence     {:.6f} +- {:.6f} nats per token\n", e.kl_divergence(),
             e.kl_standard_error());
  fmt::print("top-1 agreement   {:.3f}%\n", 100 * e.top1_agreement());
  if (errors.empty()) return;
  const auto [low, high] = std::minmax_element(
      errors.begin(), errors.end(), [](const auto& a, const auto& b) { return a.nmse < b.nmse; });
  double sum = 0;
  for (const auto& error : errors) sum += error.nmse;
  fmt::print(
      "weight NMSE       mean {:.3e} over {} matrices; least {:.3e} ({}), most {:.3e} ({})\n",
      sum / static_cast<double>(errors.size()), errors.size(), low->nmse, low->module, high->nmse,
      high->module);
}

Status write_outputs(const EvalArgs& args, const study::Evaluation& e,
                     const std::vector<study::WeightError>& errors, const json::object& report) {
  if (args.json_path == "-") {
    fmt::print("{}\n", json::serialize(report));
  } else if (!args.json_path.empty()) {
    SUB8_RETURN_IF_ERROR(write_file_atomic(args.json_path, json::serialize(report) + "\n"));
  }
  if (args.plot_path.empty()) return {};
  study::Plot plot;
  if (!errors.empty()) {
    plot = {.title = "Weight error by matrix",
            .x_label = "matrix, in the model's order",
            .y_label = "NMSE",
            .log_y = true};
    study::Series series{.name =
                             args.model.weights.empty() ? "stored weights" : args.model.weights};
    for (size_t i = 0; i < errors.size(); ++i)
      series.points.emplace_back(static_cast<double>(i), errors[i].nmse);
    plot.series.push_back(std::move(series));
  } else {
    plot = {.title = "Negative log-likelihood by window",
            .x_label = "window",
            .y_label = "nats per token"};
    study::Series series{.name = args.model.model};
    for (size_t i = 0; i < e.windows.size(); ++i) {
      series.points.emplace_back(
          static_cast<double>(i),
          e.windows[i].negative_log_likelihood / static_cast<double>(e.windows[i].scored));
    }
    plot.series.push_back(std::move(series));
  }
  return write_file_atomic(args.plot_path, study::render_svg(plot));
}

Status eval(const EvalArgs& args) {
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(args.text));
  SUB8_ASSIGN_OR_RETURN(const int threads, args.model.thread_count());
  ThreadPool pool(threads);
  SUB8_ASSIGN_OR_RETURN(const Subject subject,
                        load_subject(args.model, args.window, pool, "loading"));
  Result<std::vector<int32_t>> tokens =
      subject.bundle.tokenizer->encode(text, {.add_special_tokens = false});
  if (!tokens.ok()) return tokens.error().within(args.text);
  std::optional<Subject> reference;
  std::vector<study::WeightError> errors;
  if (!args.reference.empty()) {
    ModelArgs model = args.model;
    model.model = args.reference;
    model.weights.clear();
    model.lm_head.clear();
    model.four_over_six = false;
    if (!args.reference_activations.empty()) model.activations = args.reference_activations;
    SUB8_ASSIGN_OR_RETURN(reference,
                          load_subject(model, args.window, pool, "loading the reference"));
    SUB8_ASSIGN_OR_RETURN(
        errors, study::weight_errors(*subject.bundle.source, *reference->bundle.source, pool));
  }
  ProgressBar bar("evaluating");
  study::EvaluateOptions options{.window = args.window, .max_windows = args.max_windows};
  options.progress = [&](int64_t done, int64_t total) {
    bar.update(static_cast<double>(done), static_cast<double>(total),
               fmt::format("window {} of {}", done, total));
  };
  model::Model* const subjects[] = {subject.model.get()};
  SUB8_ASSIGN_OR_RETURN(
      const auto scores,
      study::evaluate(subjects, reference ? reference->model.get() : nullptr, *tokens, options));
  bar.clear();
  if (args.json_path != "-") print_table(args, scores[0], errors);
  return write_outputs(
      args, scores[0], errors,
      to_json(args, scores[0], errors, subject, static_cast<int64_t>(tokens->size())));
}

}  // namespace

Verb add_eval(CLI::App& app) {
  auto args = std::make_shared<EvalArgs>();
  args->model.add_to(app);
  app.add_option("--text", args->text, "UTF-8 text to score")->required();
  app.add_option("--window", args->window, "Tokens per window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-windows", args->max_windows, "Score only the first windows [all]")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--reference", args->reference,
                 "Model to compare with: KL divergence, top-1 agreement, weight NMSE");
  app.add_option("--reference-activations", args->reference_activations,
                 "bf16 or f32 for the reference [as for the model]")
      ->check(CLI::IsMember({"bf16", "f32"}));
  app.add_option("--json", args->json_path, "Write the report here; - for standard output");
  app.add_option("--plot", args->plot_path, "Write an SVG plot here");
  return [args] { return eval(*args); };
}

}  // namespace sub8::apps
