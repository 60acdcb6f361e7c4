// `sub8 eval`: perplexity over a text; KL divergence, top-1 agreement and weight errors against a
// reference.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "common.h"
#include "eval_operators.h"
#include "model/mode_summary.h"
#include "quantize/awq.h"
#include "study/evaluate.h"
#include "study/plot.h"
#include "study/report.h"
#include "study/weight_error.h"
#include "verbs.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

// Logit rows at a time: a vocabulary of 150,000 in FP32 then takes 40 MB.
constexpr int64_t kLogitRows = 64;
constexpr auto kNll = &study::WindowScore::negative_log_likelihood;
constexpr auto kKl = &study::WindowScore::kl_divergence;

struct EvalArgs {
  ModelArgs model;
  std::string sweep;
  std::string text;
  std::string reference;
  std::string reference_activations;
  int64_t window = 512;
  int64_t max_windows = 0;
  std::string json_path;
  std::string plot_path;
  std::string rows = "prompt";
  bool operators = false;
  int64_t operator_rows = 128;
  int64_t operator_calibration = 4;
  std::string report_path;
  std::string baseline;
  study::BootstrapOptions bootstrap;
};

struct Subject {
  engine::Bundle bundle;
  model::ModelOptions options;
  std::unique_ptr<model::Model> model;  // null until loaded
};

// Opens a model for scoring: pages for one window, logits in blocks.
Result<Subject> open_subject(const ModelArgs& args, int64_t window, ThreadPool& pool) {
  Subject out;
  SUB8_ASSIGN_OR_RETURN(auto source, open_source(args, pool));
  SUB8_ASSIGN_OR_RETURN(out.bundle, engine::make_bundle(std::move(source)));
  for (const std::string& warning : out.bundle.warnings) print_warning(warning);
  SUB8_ASSIGN_OR_RETURN(const engine::RunOptions run, args.run_options());
  model::ModelOptions& options = out.options;
  SUB8_ASSIGN_OR_RETURN(options.path, selected_cpu_path());
  options.activations = run.activations;
  options.kv_type = run.kv_type;
  options.mode = run.mode;
  SUB8_ASSIGN_OR_RETURN(Calibrated calibrated,
                        open_calibration(args, *out.bundle.source, run, pool));
  options.residue = std::move(calibrated.residue);
  options.extend = std::move(calibrated.extend);
  options.max_rows = window;
  options.max_logit_rows = std::min(kLogitRows, window - 1);
  options.max_context = window;
  options.kv_pages =
      static_cast<int32_t>((window + kvcache::kPageTokens - 1) / kvcache::kPageTokens);
  const int64_t limit = out.bundle.source->config().max_positions;
  if (window > limit)
    return invalid_argument(
        fmt::format("--window {} is beyond the model's {} positions", window, limit));
  return out;
}

// Packs the weights.
Status load_subject(Subject& subject, ThreadPool& pool, const std::string& title) {
  const checkpoint::WeightSource& source = *subject.bundle.source;
  ProgressBar bar(title);
  subject.options.progress = [&](const model::LoadProgress& p) {
    bar.update(static_cast<double>(p.done_bytes), static_cast<double>(p.total_bytes), p.module);
  };
  SUB8_ASSIGN_OR_RETURN(subject.model, model::Model::load(source, subject.options, pool));
  bar.clear();
  fmt::print(stderr, "{}\n", model::describe_mode(subject.model->program(), subject.model->mode()));
  if (!subject.model->kv_scale_origin().empty())
    fmt::print(stderr, "KV cache {}, scales {}\n", kernels::kv_type_name(subject.options.kv_type),
               subject.model->kv_scale_origin());
  return {};
}

// One row of the report: a model, what it scored, and how far its weights are from the reference's.
struct Row {
  ModelArgs args;
  bool other_model = false;  // a sweep's @DIR
  study::Evaluation score;
  std::vector<study::WeightError> errors;
  std::string quantization;  // as stored, where nothing is quantised at load
  double storage_bits = 0;   // per quantised weight
  // In force.
  model::ExecutionMode mode{};
  model::ModeFacts facts;
  std::string kv_cache_dtype, kv_scales, attention;

  // What tells the rows of a sweep apart.
  std::string label() const {
    std::string out = args.weights.empty() ? "original" : args.weights;
    if (other_model) out = "@" + args.model;
    if (args.four_over_six) out += "+4/6";
    if (!args.lm_head.empty()) out += "+head";
    if (args.mode != "auto") out += "+" + args.mode;
    if (args.prefill_ratio >= 0) out += fmt::format("+ratio={}", args.prefill_ratio);
    if (!args.kv_cache_dtype.empty()) out += "+kv=" + args.kv_cache_dtype;
    if (args.attention != "auto") out += "+" + args.attention;
    if (args.alpha != "auto") out += "+alpha=" + args.alpha;
    return out;
  }
};

// One flag of a variant, without its plus.
Status apply_flag(std::string_view flag, ModelArgs& args) {
  constexpr std::string_view kRatio = "ratio=";
  constexpr std::string_view kKv = "kv=";
  constexpr std::string_view kAlpha = "alpha=";
  if ((flag == "head" || flag == "4/6") && args.weights.empty()) {
    return invalid_argument(
        fmt::format("--sweep: 'original' is not quantised, so '+{}' has no meaning there", flag));
  }
  if (flag == "head") {
    args.lm_head = args.weights;
  } else if (flag == "4/6") {
    args.four_over_six = true;
  } else if (flag.starts_with(kRatio)) {
    const std::string_view digits = flag.substr(kRatio.size());
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), args.prefill_ratio);
    const bool inside = args.prefill_ratio >= 0 && args.prefill_ratio <= 1;
    if (error != std::errc() || end != digits.data() + digits.size() || !inside)
      return invalid_argument(fmt::format("--sweep: '{}' is no ratio from 0 to 1", digits));
  } else if (flag.starts_with(kKv)) {
    Result<kernels::KvType> type = kernels::parse_kv_type(flag.substr(kKv.size()));
    if (!type.ok()) return type.error().within("--sweep");
    args.kv_cache_dtype = flag.substr(kKv.size());
  } else if (flag.starts_with(kAlpha)) {
    args.alpha = flag.substr(kAlpha.size());
    if (!format::parse_alpha_source(args.alpha))
      return invalid_argument(
          fmt::format("--sweep: '{}' is no source of an alpha: row, static or tensor", args.alpha));
  } else if (model::parse_execution_mode(flag).ok()) {
    args.mode = flag;
  } else if (kernels::parse_attention_kind(flag).ok()) {
    args.attention = flag;
  } else {
    return invalid_argument(
        fmt::format("--sweep: unknown '+{}'; known are +head, +4/6, +ratio=R, +kv=TYPE, "
                    "+alpha=SOURCE, the modes of --mode, e.g. +plain, and the kinds of "
                    "--attention, e.g. +resattn",
                    flag));
  }
  return {};
}

// "original", FORMAT or @MODEL, then flags; applied to the options of the whole run.
Result<ModelArgs> parse_variant(std::string_view text, ModelArgs args) {
  const size_t end = std::min(text.find('+'), text.size());
  const std::string_view weights = text.substr(0, end);
  if (weights.empty()) {
    return invalid_argument(
        "--sweep: an item is empty or has no format in front of its flags; give original or a "
        "format, e.g. original,nvfp4+plain");
  }
  std::vector<std::string> kinds;  // what the flags so far have set
  if (weights.starts_with('@')) {
    args.model = weights.substr(1);
    args.calibration.clear();  // it is the run's model's
    if (args.model.empty())
      return invalid_argument("--sweep: '@' needs a model behind it, such as @out/planned");
  }
  args.weights = weights == "original" || weights.starts_with('@') ? "" : weights;
  text.remove_prefix(end);
  while (!text.empty()) {
    text.remove_prefix(1);
    const std::string_view flag = text.substr(0, text.find('+'));
    text.remove_prefix(flag.size());
    const std::string kind(model::parse_execution_mode(flag).ok()     ? "a mode"
                           : kernels::parse_attention_kind(flag).ok() ? "a kind of attention"
                           : flag.starts_with("ratio=")               ? "a ratio"
                           : flag.starts_with("kv=")                  ? "a KV cache type"
                           : flag.starts_with("alpha=")               ? "an alpha"
                                                                      : flag);
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) {
      return invalid_argument(
          fmt::format("--sweep: '+{}' gives {} a second time in one item", flag, kind));
    }
    kinds.push_back(kind);
    SUB8_RETURN_IF_ERROR(apply_flag(flag, args));
  }
  return args;
}

Result<std::vector<ModelArgs>> variants(const EvalArgs& args) {
  if (args.sweep.empty()) return std::vector<ModelArgs>{args.model};
  if (!args.model.weights.empty() || !args.model.lm_head.empty() || args.model.four_over_six) {
    return invalid_argument(
        "--sweep names the formats itself; leave out --weights, --lm-head and --four-over-six");
  }
  std::vector<ModelArgs> out;
  std::string_view rest = args.sweep;
  while (true) {
    const std::string_view item = rest.substr(0, rest.find(','));
    std::string_view trimmed = item;
    while (trimmed.starts_with(' ')) trimmed.remove_prefix(1);
    while (trimmed.ends_with(' ')) trimmed.remove_suffix(1);
    SUB8_ASSIGN_OR_RETURN(ModelArgs variant, parse_variant(trimmed, args.model));
    if (Status fits = check_model_args(variant); !fits.ok())
      return fits.error().within(fmt::format("--sweep: '{}'", trimmed));
    SUB8_ASSIGN_OR_RETURN(const engine::RunOptions run, variant.run_options());
    if (!can_use_calibration(run)) variant.calibration.clear();
    out.push_back(std::move(variant));
    if (item.size() == rest.size()) return out;
    rest.remove_prefix(item.size() + 1);
  }
}

// Codes and scales per weight, over the matrices in coded formats and those that are rounded to
// `baseline` (its storage if it were stored); 0 where there are none.
double storage_bits(const checkpoint::WeightSource& source, std::string_view baseline) {
  double bits = 0;
  double weights = 0;
  for (const checkpoint::WeightInfo& info : source.weights()) {
    if (!info.quantized() && info.stored_type != baseline) continue;
    bits += 8 * static_cast<double>(info.stored_bytes);
    weights += static_cast<double>(info.rows * info.cols);
  }
  return weights == 0 ? 0 : bits / weights;
}

// The row that differences are to: --baseline's, else the first.
Result<size_t> baseline_place(const EvalArgs& args, const std::vector<Row>& rows) {
  if (args.baseline.empty()) return size_t{0};
  std::string labels;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].label() == args.baseline) return i;
    labels += (i == 0 ? "" : ", ") + rows[i].label();
  }
  return invalid_argument(
      fmt::format("--baseline '{}' is none of the sweep's rows: {}", args.baseline, labels));
}

json::value to_json(const std::optional<study::Interval>& interval) {
  if (!interval) return nullptr;
  return json::object{
      {"estimate", interval->estimate}, {"low", interval->low}, {"high", interval->high}};
}

json::object to_json(const study::BootstrapOptions& bootstrap) {
  return {{"resamples", bootstrap.resamples},
          {"confidence", bootstrap.confidence},
          {"seed", bootstrap.seed}};
}

// One window has no standard error.
json::value standard_error(const study::Evaluation& e, double value) {
  return e.windows.size() > 1 ? json::value(value) : json::value(nullptr);
}

// A number, or the least and the greatest where layers differ; null where the mode has no ratio.
json::value prefill_ratio(const Row& row) {
  const bool has_ratio =
      row.mode == model::ExecutionMode::kResidue || row.mode == model::ExecutionMode::kPaper;
  if (!has_ratio || row.facts.quantized == 0) return nullptr;
  if (row.facts.lowest_ratio == row.facts.highest_ratio) return row.facts.lowest_ratio;
  return json::array{row.facts.lowest_ratio, row.facts.highest_ratio};
}

// JSON has no infinity.
json::value finite_or_null(double value) {
  return std::isfinite(value) ? json::value(value) : json::value(nullptr);
}

json::object to_json(const EvalArgs& args, const Row& row, int64_t tokens) {
  const study::Evaluation& e = row.score;
  json::object out{
      {"schema_version", 1},
      {"model", row.args.model},
      {"weights", row.args.weights.empty() ? row.quantization : row.args.weights},
      {"lm_head", row.args.lm_head},
      {"four_over_six", row.args.four_over_six},
      {"storage_bits", row.storage_bits},
      {"activations", row.args.activations},
      {"mode", model::execution_mode_name(row.mode)},
      {"prefill_ratio", prefill_ratio(row)},
      {"alpha", row.facts.alpha().empty() ? json::value(nullptr) : json::value(row.facts.alpha())},
      {"kv_cache_dtype", row.kv_cache_dtype},
      {"kv_scales", row.kv_scales.empty() ? json::value(nullptr) : json::value(row.kv_scales)},
      {"attention", row.attention},
      {"rows", args.rows},
      {"text", args.text},
      {"text_tokens", tokens},
      {"window", args.window},
      {"windows", e.windows.size()},
      {"scored_tokens", e.scored()},
      {"perplexity", finite_or_null(e.perplexity())},
      {"mean_nll", e.mean_nll()},
      {"nll_standard_error", standard_error(e, e.nll_standard_error())},
      {"nll_interval", to_json(study::mean_interval(e.windows, kNll, args.bootstrap))},
      {"bootstrap", to_json(args.bootstrap)}};
  if (!args.reference.empty()) {
    out["reference"] = args.reference;
    out["kl_divergence"] = e.kl_divergence();
    out["kl_standard_error"] = standard_error(e, e.kl_standard_error());
    out["kl_interval"] = to_json(study::mean_interval(e.windows, kKl, args.bootstrap));
    out["top1_agreement"] = e.top1_agreement();
    json::array list;
    for (const study::WeightError& error : row.errors) {
      list.push_back({{"module", error.module}, {"format", error.format}, {"nmse", error.nmse}});
    }
    out["weight_nmse"] = std::move(list);
  }
  json::array windows;
  for (const study::WindowScore& w : e.windows) {
    const auto scored = static_cast<double>(w.scored);
    windows.push_back(
        {{"nll", w.negative_log_likelihood / scored},
         {"kl_divergence",
          args.reference.empty() ? json::value(nullptr) : json::value(w.kl_divergence / scored)}});
  }
  out["per_window"] = std::move(windows);
  return out;
}

double mean_nmse(const std::vector<study::WeightError>& errors) {
  double sum = 0;
  for (const auto& error : errors) sum += error.nmse;
  return errors.empty() ? 0 : sum / static_cast<double>(errors.size());
}

void print_table(const EvalArgs& args, const Row& row) {
  const study::Evaluation& e = row.score;
  fmt::print("windows           {} of {} tokens ({} scored)\n", e.windows.size(), args.window,
             e.scored());
  const auto with_error = [&](double value) {
    return e.windows.size() > 1 ? fmt::format(" +- {:.6f}", value) : std::string();
  };
  fmt::print("perplexity        {:.4f}  (mean NLL {:.6f}{})\n", e.perplexity(), e.mean_nll(),
             with_error(e.nll_standard_error()));
  if (args.reference.empty()) return;
  fmt::print("KL divergence     {:.6f}{} nats per token\n", e.kl_divergence(),
             with_error(e.kl_standard_error()));
  fmt::print("top-1 agreement   {:.3f}%\n", 100 * e.top1_agreement());
  if (row.errors.empty()) return;
  const auto [low, high] =
      std::minmax_element(row.errors.begin(), row.errors.end(),
                          [](const auto& a, const auto& b) { return a.nmse < b.nmse; });
  fmt::print(
      "weight NMSE       mean {:.3e} over {} matrices; least {:.3e} ({}), most {:.3e} ({})\n",
      mean_nmse(row.errors), row.errors.size(), low->nmse, low->module, high->nmse, high->module);
}

void print_sweep(const EvalArgs& args, const std::vector<Row>& rows) {
  fmt::print("{} windows of {} tokens ({} scored), against {}\n", rows[0].score.windows.size(),
             args.window, rows[0].score.scored(), args.reference);
  fmt::print("{:<26} {:>10} {:>22} {:>9} {:>12}\n", "weights", "perplexity", "KL divergence",
             "top-1", "weight NMSE");
  for (const Row& row : rows) {
    const std::string error = row.score.windows.size() > 1
                                  ? fmt::format("+- {:<8.6f}", row.score.kl_standard_error())
                                  : std::string();
    fmt::print("{:<26} {:>10.4f} {:>10.6f} {:<11} {:>8.3f}% {:>12.3e}\n", row.label(),
               row.score.perplexity(), row.score.kl_divergence(), error,
               100 * row.score.top1_agreement(), mean_nmse(row.errors));
  }
}

std::string shown(const std::optional<study::Interval>& interval) {
  if (!interval) return "one window, no interval";
  return fmt::format("{:+.6f} [{:+.6f}, {:+.6f}]", interval->estimate, interval->low,
                     interval->high);
}

void print_differences(const EvalArgs& args, const std::vector<Row>& rows, size_t baseline) {
  if (rows.size() < 2) return;
  const Row& base = rows[baseline];
  fmt::print("\ndifferences to {}, {:g}% intervals of the paired bootstrap over windows\n",
             base.label(), 100 * args.bootstrap.confidence);
  fmt::print("{:<26} {:>36} {:>36}\n", "weights", "KL divergence", "log-perplexity");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == baseline) continue;
    const auto difference = [&](double study::WindowScore::*field) {
      return shown(study::difference_interval(rows[i].score.windows, base.score.windows, field,
                                              args.bootstrap));
    };
    fmt::print("{:<26} {:>36} {:>36}\n", rows[i].label(), difference(kKl), difference(kNll));
  }
}

// The document of --report.
study::Report make_document(const EvalArgs& args, const std::vector<Row>& rows, size_t baseline,
                            int64_t tokens) {
  study::Report out;
  out.title = "Evaluation of " + valid_utf8(args.model.model);
  out.has_reference = !args.reference.empty();
  const study::Evaluation& first = rows[0].score;
  out.facts.push_back(fmt::format("{} windows of {} tokens of {} ({} tokens in all, {} scored).",
                                  first.windows.size(), args.window, valid_utf8(args.text), tokens,
                                  first.scored()));
  if (out.has_reference) {
    out.facts.push_back(fmt::format(
        "Reference: {}, {} activations.", valid_utf8(args.reference),
        args.reference_activations.empty() ? args.model.activations : args.reference_activations));
  }
  out.facts.push_back(fmt::format("Rows count as {} rows. {}.", args.rows, cpu_features().model));
  for (const Row& row : rows) out.rows.push_back({valid_utf8(row.label()), row.score, row.errors});
  out.baseline = baseline;
  out.bootstrap = args.bootstrap;
  return out;
}

// Markdown's plots lie beside it, as NAME-kl_divergence.svg.
Status write_document(const EvalArgs& args, const study::Report& report) {
  const std::filesystem::path path = args.report_path;
  if (path.extension() == ".html")
    return write_file_atomic(path, valid_utf8(study::render_html(report)));
  std::vector<std::string> images;
  for (const auto& [name, svg] : study::report_plots(report)) {
    images.push_back(path.stem().string() + "-" + name);
    SUB8_RETURN_IF_ERROR(write_file_atomic(path.parent_path() / images.back(), valid_utf8(svg)));
  }
  return write_file_atomic(path, valid_utf8(study::render_markdown(report, images)));
}

study::Plot make_plot(const EvalArgs& args, const std::vector<Row>& rows) {
  study::Plot plot;
  const bool weights =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return !row.errors.empty(); });
  plot = weights ? study::Plot{.title = "Weight error by matrix",
                               .x_label = "matrix, in the model's order",
                               .y_label = "NMSE",
                               .log_y = true}
                 : study::Plot{.title = "Negative log-likelihood by window",
                               .x_label = "window",
                               .y_label = "nats per token"};
  for (const Row& row : rows) {
    if (weights && row.errors.empty()) continue;  // the original beside its own rounding
    study::Series series{.name = rows.size() > 1 ? row.label() : args.model.model};
    double x = 0;
    if (weights) {
      for (const study::WeightError& error : row.errors)
        series.points.emplace_back(x++, error.nmse);
    } else {
      for (const study::WindowScore& w : row.score.windows)
        series.points.emplace_back(x++, w.negative_log_likelihood / static_cast<double>(w.scored));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

// One model's report, or a sweep's: an object with the reports under "rows".
json::object make_report(const EvalArgs& args, const std::vector<Row>& rows, size_t baseline,
                         int64_t tokens) {
  if (args.sweep.empty()) return to_json(args, rows[0], tokens);
  json::array list;
  for (const Row& row : rows) {
    json::object report = to_json(args, row, tokens);
    report["label"] = row.label();
    const auto& base = rows[baseline].score.windows;
    for (const auto& [key, field] :
         {std::pair("kl_difference", kKl), std::pair("nll_difference", kNll)}) {
      report[key] =
          to_json(study::difference_interval(row.score.windows, base, field, args.bootstrap));
    }
    list.push_back(std::move(report));
  }
  return {{"schema_version", 1}, {"baseline", rows[baseline].label()}, {"rows", std::move(list)}};
}

Status write_outputs(const EvalArgs& args, const std::vector<Row>& rows, int64_t tokens) {
  SUB8_ASSIGN_OR_RETURN(const size_t baseline, baseline_place(args, rows));
  const std::string report =
      valid_utf8(json::serialize(make_report(args, rows, baseline, tokens))) + "\n";
  if (args.json_path == "-") {
    fmt::print("{}", report);
  } else {
    if (args.sweep.empty()) {
      print_table(args, rows[0]);
    } else {
      print_sweep(args, rows);
      print_differences(args, rows, baseline);
    }
    if (!args.json_path.empty()) {
      SUB8_RETURN_IF_ERROR(write_file_atomic(args.json_path, report));
    }
  }
  if (!args.report_path.empty())
    SUB8_RETURN_IF_ERROR(write_document(args, make_document(args, rows, baseline, tokens)));
  if (args.plot_path.empty()) return {};
  return write_file_atomic(args.plot_path, valid_utf8(study::render_svg(make_plot(args, rows))));
}

Result<Subject> open_reference(const EvalArgs& args, ThreadPool& pool) {
  ModelArgs model = args.model;
  model.model = args.reference;
  model.weights.clear();
  model.lm_head.clear();
  model.four_over_six = false;
  model.mode = "auto";
  model.prefill_ratio = -1;
  model.kv_cache_dtype.clear();
  model.attention = "auto";
  model.alpha = "auto";
  model.calibration.clear();
  if (!args.reference_activations.empty()) model.activations = args.reference_activations;
  return open_subject(model, args.window, pool);
}

// Options that exclude each other, and names of outputs.
Status check_eval_args(const EvalArgs& args, const std::vector<ModelArgs>& models) {
  if (args.sweep.empty()) SUB8_RETURN_IF_ERROR(check_model_args(args.model));
  SUB8_RETURN_IF_ERROR(check_output_files(
      {{"--json", args.json_path}, {"--plot", args.plot_path}, {"--report", args.report_path}},
      {{"MODEL", args.model.model}, {"--reference", args.reference}, {"--text", args.text}}));
  const std::string kind = std::filesystem::path(args.report_path).extension();
  if (!args.report_path.empty() && kind != ".md" && kind != ".html")
    return invalid_argument(
        fmt::format("--report '{}': the name must end in .md or .html, which says what is written",
                    args.report_path));
  if (args.baseline.empty()) return {};
  if (args.sweep.empty()) return invalid_argument("--baseline names a row of a --sweep");
  std::vector<Row> rows;
  rows.reserve(models.size());
  for (const ModelArgs& model : models)
    rows.push_back({.args = model, .other_model = model.model != args.model.model});
  const auto place = baseline_place(args, rows);
  return place.ok() ? Status() : place.error();
}

Status check_same_vocabulary(const EvalArgs& args, const Subject& subject,
                             const Subject& reference) {
  const int64_t vocab = subject.bundle.source->config().vocab_size;
  const int64_t other = reference.bundle.source->config().vocab_size;
  if (vocab == other) return {};
  return invalid_argument(
      fmt::format("the model has a vocabulary of {} tokens, the reference '{}' one of {}: they "
                  "cannot be compared",
                  vocab, args.reference, other));
}

// Against the reference's weights, scaled as AWQ scaled the model's.
Result<std::vector<study::WeightError>> weight_errors(const EvalArgs& args,
                                                      const checkpoint::WeightSource& source,
                                                      const Subject& reference, ThreadPool& pool) {
  SUB8_ASSIGN_OR_RETURN(const auto awq, quantize::read_awq(source.path()));
  if (!awq) return study::weight_errors(source, *reference.bundle.source, pool);
  SUB8_ASSIGN_OR_RETURN(auto original, checkpoint::open_checkpoint(args.reference));
  auto scaled = quantize::fold_awq(std::move(original), awq->scales);
  if (!scaled.ok()) return scaled.error().within(source.path().string() + "/sub8/awq.safetensors");
  return study::weight_errors(source, **scaled, pool);
}

Status eval(EvalArgs args) {
  if (args.operators) {
    if (!args.sweep.empty() || !args.reference.empty() || !args.plot_path.empty()) {
      return invalid_argument(
          "--operators is a report of its own; it does not go with --sweep, --reference or --plot");
    }
    return eval_operators({args.model, args.text, args.window,
                           std::max<int64_t>(1, args.max_windows), args.operator_rows,
                           args.operator_calibration, args.json_path});
  }
  if (!args.sweep.empty() && args.reference.empty()) args.reference = args.model.model;
  SUB8_ASSIGN_OR_RETURN(const std::vector<ModelArgs> models, variants(args));
  SUB8_RETURN_IF_ERROR(check_eval_args(args, models));
  std::optional<InterruptEndsProcess> preparing(std::in_place);
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(args.text));
  SUB8_ASSIGN_OR_RETURN(const int threads, args.model.thread_count());
  ThreadPool pool(threads);
  study::EvaluateOptions options{.window = args.window, .max_windows = args.max_windows};
  if (args.rows == "generated") options.rows = RowClass::kGenerated;
  // What can be wrong shows before the weights are loaded, which takes the time.
  std::optional<Subject> reference;
  if (!args.reference.empty()) {
    SUB8_ASSIGN_OR_RETURN(reference, open_reference(args, pool));
  }
  std::vector<Subject> subjects;
  for (const ModelArgs& model : models) {
    SUB8_ASSIGN_OR_RETURN(Subject subject, open_subject(model, args.window, pool));
    if (reference) SUB8_RETURN_IF_ERROR(check_same_vocabulary(args, subject, *reference));
    subjects.push_back(std::move(subject));
  }
  Result<std::vector<int32_t>> tokens =
      subjects[0].bundle.tokenizer->encode(text, {.add_special_tokens = false});
  if (!tokens.ok()) return tokens.error().within(args.text);
  const auto token_count = static_cast<int64_t>(tokens->size());
  if (Status enough = study::check_length(token_count, options); !enough.ok())
    return enough.error().within(args.text);
  if (reference) SUB8_RETURN_IF_ERROR(load_subject(*reference, pool, "loading the reference"));
  // A reference is meant to be as it is, and a sweep names its formats.
  if (args.sweep.empty())
    say_decoded_memory(*subjects[0].bundle.source, args.model.activations == "f32");
  std::vector<Row> rows;
  std::vector<model::Model*> pointers;
  for (size_t i = 0; i < models.size(); ++i) {
    Row row{.args = models[i], .other_model = models[i].model != args.model.model};
    const checkpoint::WeightSource& source = *subjects[i].bundle.source;
    SUB8_RETURN_IF_ERROR(
        load_subject(subjects[i], pool, args.sweep.empty() ? "loading" : "loading " + row.label()));
    row.quantization = source.quantization();
    row.storage_bits = storage_bits(source, models[i].weights);
    const model::Model& loaded = *subjects[i].model;
    row.mode = loaded.mode();
    row.facts = model::mode_facts(loaded.program(), loaded.mode());
    row.kv_scales = loaded.kv_scale_origin();
    row.kv_cache_dtype = kernels::kv_type_name(loaded.options().kv_type);
    row.attention =
        kernels::attention_kind_name(loaded.attention(loaded.mode(), RowClass::kGenerated));
    if (reference) {
      SUB8_ASSIGN_OR_RETURN(row.errors, weight_errors(args, source, *reference, pool));
    }
    pointers.push_back(subjects[i].model.get());
    rows.push_back(std::move(row));
  }
  preparing.reset();
  ProgressBar bar("evaluating");
  options.progress = [&](int64_t done, int64_t total) {
    bar.update(static_cast<double>(done), static_cast<double>(total),
               fmt::format("window {} of {}", done, total));
  };
  SUB8_ASSIGN_OR_RETURN(
      auto scores,
      study::evaluate(pointers, reference ? reference->model.get() : nullptr, *tokens, options));
  bar.clear();
  for (size_t i = 0; i < rows.size(); ++i) rows[i].score = std::move(scores[i]);
  return write_outputs(args, rows, token_count);
}

}  // namespace

Verb add_eval(CLI::App& app) {
  auto args = std::make_shared<EvalArgs>();
  args->model.add_to(app);
  app.add_option("--sweep", args->sweep,
                 "Compare formats on one pass of the reference: a list of original or "
                 "FORMAT, or @MODEL for another checkpoint, with flags (+head, +4/6, +MODE, "
                 "+ratio=R, +kv=TYPE, +alpha=SOURCE), e.g. "
                 "original,e3m2+head,nvfp4+4/6,nvfp4+plain,nvfp4+residue+ratio=1");
  app.add_option("--text", args->text, "UTF-8 text to score")->required();
  app.add_option("--window", args->window, "Tokens per window")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-windows", args->max_windows, "Score only the first windows [all]")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option(
      "--reference", args->reference,
      "Model to compare with: KL divergence, top-1 agreement, weight NMSE [with --sweep: "
      "MODEL]");
  app.add_option("--reference-activations", args->reference_activations,
                 "bf16 or f32 for the reference [as for the model]")
      ->check(CLI::IsMember({"bf16", "f32"}));
  app.add_option("--rows", args->rows,
                 "What scored rows count as where the mode distinguishes them: prompt or generated")
      ->check(CLI::IsMember({"prompt", "generated"}))
      ->capture_default_str();
  app.add_flag(
      "--operators", args->operators,
      "Instead of scoring: NMSE of single linear layers and attention with nvfp4 and mxfp4 "
      "weights, 4- and 8-bit activations, queries and KV caches, on activations captured "
      "from MODEL (--max-windows windows, default 1)");
  app.add_option("--operator-rows", args->operator_rows, "With --operators: rows per linear layer")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option(
         "--operator-calibration", args->operator_calibration,
         "With --operators: windows behind the measured ones, on which K-Ext's channels are "
         "selected")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--baseline", args->baseline,
                 "With --sweep: the row that differences are to, as it is listed [the first]");
  app.add_option("--resamples", args->bootstrap.resamples, "Of the bootstrap over windows")
      ->check(CLI::Range(100, 10000000))
      ->capture_default_str();
  app.add_option("--confidence", args->bootstrap.confidence, "Of its intervals")
      ->check(CLI::Range(0.01, 0.9999))
      ->capture_default_str();
  app.add_option("--bootstrap-seed", args->bootstrap.seed, "Which windows it draws")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 53))
      ->capture_default_str();
  app.add_option("--report", args->report_path,
                 "Write a document with tables and plots here: .md (plots beside it) or .html");
  app.add_option("--json", args->json_path, "Write the report here; - for standard output");
  app.add_option("--plot", args->plot_path, "Write an SVG plot here");
  return [args] { return eval(*args); };
}

}  // namespace sub8::apps
