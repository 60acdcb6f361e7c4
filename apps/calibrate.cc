// `sub8 calibrate`: statistics of activations over text, channel masks and K-Ext weights beside a
// model.
#include "study/calibrate.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "base/file.h"
#include "common.h"
#include "quantize/awq.h"
#include "quantize/plan.h"
#include "quantize/row_quantizer.h"
#include "study/store_calibration.h"
#include "verbs.h"

namespace sub8::apps {
namespace {

struct CalibrateArgs {
  std::string model;
  std::string text;
  std::string jsonl;
  std::string original;
  std::string out;  // empty: the model's directory
  std::string alpha = "auto";
  std::vector<float> ratios = {0.25f};
  std::string mx_rule = "even";
  bool mx_rule_given = false;
  int64_t samples = 1024;
  int64_t length = 2048;
  int64_t seed = 42;
  int threads = 0;
  bool overwrite = false;
};

Status make_directory(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directory(path, error);
  if (!error) return {};
  return resource_exhausted(
      fmt::format("could not create '{}': {}", path.string(), error.message()));
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).lexically_normal().filename().string();
}

Result<std::vector<study::Sample>> read_samples(const CalibrateArgs& args,
                                                const engine::Bundle& bundle,
                                                const study::CalibrateOptions& options) {
  if (args.text.empty() == args.jsonl.empty())
    return invalid_argument("calibration reads either --text FILE or --jsonl FILE");
  SUB8_ASSIGN_OR_RETURN(const std::string content,
                        read_file(args.text.empty() ? args.jsonl : args.text));
  if (args.text.empty()) return study::jsonl_samples(bundle, content, args.jsonl, options);
  auto samples = study::text_samples(*bundle.tokenizer, content, options);
  if (!samples.ok()) return samples.error().within(args.text);
  return samples;
}

// Where sub8/residue.* is written, after the checks that need no model.
Result<std::filesystem::path> output_directory(const CalibrateArgs& args) {
  std::error_code ignored;
  if (args.out.empty() && std::filesystem::is_regular_file(args.model, ignored)) {
    return invalid_argument(
        fmt::format("'{}' is a single file: nothing can be stored beside it; --out DIR stores the "
                    "calibration elsewhere, and `sub8 quantize` makes a directory of the model",
                    args.model));
  }
  std::filesystem::path directory = args.out.empty() ? args.model : args.out;
  if (!args.out.empty() && std::filesystem::exists(directory, ignored) &&
      !std::filesystem::is_directory(directory, ignored))
    return invalid_argument(fmt::format("--out: '{}' is not a directory", args.out));
  const std::filesystem::path stored = directory / "sub8";
  for (const char* name : {"residue.json", "residue.safetensors"}) {
    if (args.overwrite || !std::filesystem::exists(stored / name, ignored)) continue;
    return invalid_argument(
        fmt::format("'{}' exists: this model is calibrated already; --overwrite replaces its "
                    "statistics, masks and columns",
                    (stored / name).string()));
  }
  return directory;
}

Result<std::optional<format::AlphaSource>> parse_alpha(const std::string& name) {
  if (name == "auto") return std::optional<format::AlphaSource>();
  const auto source = format::parse_alpha_source(name);
  if (source && *source != format::AlphaSource::kTensor) return source;
  return invalid_argument(
      fmt::format("--alpha must be auto, row or static, got '{}'; alphas per tensor depend on the "
                  "batch and are chosen at load only",
                  name));
}

// --mx-rule speaks of mxfp4 columns only.
Status check_mx_rule(const CalibrateArgs& args, const checkpoint::WeightSource& source) {
  if (!args.mx_rule_given) return {};
  for (const checkpoint::WeightInfo& info : source.weights()) {
    if (info.format == format::mx_format(format::kE2M1)) return {};
  }
  return invalid_argument(
      "--mx-rule is for the extension columns of mxfp4 weights, and this model has none");
}

Status run_calibrate(const CalibrateArgs& args) {
  SUB8_ASSIGN_OR_RETURN(const std::filesystem::path directory, output_directory(args));
  study::StoreOptions store;
  SUB8_ASSIGN_OR_RETURN(store.alpha, parse_alpha(args.alpha));
  SUB8_ASSIGN_OR_RETURN(store.ratios, parse_select_ratios(args.ratios));
  SUB8_ASSIGN_OR_RETURN(store.rules.mx, quantize::parse_mx_rule(args.mx_rule));
  SUB8_ASSIGN_OR_RETURN(auto source, checkpoint::open_checkpoint(args.model));
  SUB8_RETURN_IF_ERROR(check_mx_rule(args, *source));
  std::unique_ptr<checkpoint::WeightSource> original;
  if (!args.original.empty()) {
    SUB8_ASSIGN_OR_RETURN(original, checkpoint::open_checkpoint(args.original));
    // The columns are of the weights that were quantised, so of the scaled ones.
    SUB8_ASSIGN_OR_RETURN(const auto awq, quantize::read_awq(args.model));
    if (awq) {
      SUB8_ASSIGN_OR_RETURN(original, quantize::fold_awq(std::move(original), awq->scales));
    }
    store.original = original.get();
    store.original_name = file_name(args.original);
  }
  SUB8_ASSIGN_OR_RETURN(const engine::Bundle bundle, engine::make_bundle(std::move(source)));
  for (const std::string& warning : bundle.warnings) print_warning(warning);
  study::CalibrateOptions options{
      .samples = args.samples, .length = args.length, .seed = static_cast<uint64_t>(args.seed)};
  SUB8_ASSIGN_OR_RETURN(const auto samples, read_samples(args, bundle, options));
  store.text_name = file_name(args.text.empty() ? args.jsonl : args.text);
  size_t longest = 0;
  for (const study::Sample& sample : samples) longest = std::max(longest, sample.size());

  ThreadPool pool(args.threads > 0 ? args.threads : ThreadPool::default_threads());
  say_decoded_memory(*bundle.source, false);
  ProgressBar loading("loading");
  SUB8_ASSIGN_OR_RETURN(const auto model, study::load_for_calibration(
                                              *bundle.source, static_cast<int64_t>(longest),
                                              [&](const model::LoadProgress& p) {
                                                loading.update(static_cast<double>(p.done_bytes),
                                                               static_cast<double>(p.total_bytes),
                                                               p.module);
                                              },
                                              pool));
  loading.clear();
  ProgressBar bar("calibrating");
  options.progress = [&](int64_t done, int64_t total) {
    bar.update(static_cast<double>(done), static_cast<double>(total),
               fmt::format("sample {} of {}", done, total));
  };
  SUB8_ASSIGN_OR_RETURN(const study::Calibration calibration,
                        study::calibrate(*model, samples, options));
  bar.clear();
  SUB8_RETURN_IF_ERROR(make_directory(directory));
  ProgressBar columns("extending");
  store.progress = [&](int64_t done, int64_t total, std::string_view module) {
    columns.update(static_cast<double>(done), static_cast<double>(total), module);
  };
  SUB8_ASSIGN_OR_RETURN(
      const study::StoreReport report,
      study::store_calibration(directory, *bundle.source, calibration, options, store, pool));
  columns.clear();
  fmt::print(
      "{} samples, {} tokens, {} modules, KV scales of {} layers; alpha of activations: {}\n",
      calibration.samples, calibration.tokens, report.modules, report.kv_layers,
      store.alpha ? format::alpha_source_name(*store.alpha) : "not named");
  if (report.extended == 0) {
    fmt::print("no extension columns: {}\n",
               store.ratios.empty() ? "none were asked for" : "no nvfp4 or mxfp4 weights");
  } else {
    fmt::print("extension columns for {} modules from {}, {} ({:.1f}% of the weights)\n",
               report.extended,
               original ? "the original's weights" : "decoded weights (no --original)",
               format_bytes(static_cast<double>(report.extension_bytes)),
               100 * static_cast<double>(report.extension_bytes) /
                   static_cast<double>(quantize::size_table(*bundle.source).quantized_bytes));
  }
  fmt::print("wrote {}\n", (directory / "sub8/residue.*").string());
  return {};
}

}  // namespace

Verb add_calibrate(CLI::App& app) {
  auto args = std::make_shared<CalibrateArgs>();
  app.add_option("MODEL", args->model,
                 "A Hugging Face directory; sub8/residue.* is written into it")
      ->required();
  app.add_option("--text", args->text, "UTF-8 text to calibrate on");
  app.add_option("--jsonl", args->jsonl,
                 "Or prompts, one a line: a string, or an object with text, prompt or messages");
  app.add_option("--samples", args->samples, "Most samples to run")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--length", args->length, "Most tokens of a sample")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--seed", args->seed, "Chooses among more samples than that")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53))
      ->capture_default_str();
  app.add_option("--original", args->original,
                 "The checkpoint that MODEL was quantised from: extension columns come from its "
                 "weights [from MODEL's decoded weights]");
  app.add_option("--ratios", args->ratios,
                 "Ratios that get extension columns: some of 0.125,0.25,0.5")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--alpha", args->alpha,
                 "What NVFP4 and FP8 activations of this model take their alpha from from now on: "
                 "row (each row's own maximum), static (each layer's maximum over this text), or "
                 "auto (the model's own choice)")
      ->capture_default_str();
  CLI::Option* mx_rule =
      app.add_option("--mx-rule", args->mx_rule,
                     "Shared exponent of MXFP4 extension columns: even, ceil or floor")
          ->capture_default_str();
  app.add_option("--out", args->out,
                 "Write sub8/residue.* into this directory instead, for models in a single file; "
                 "--calibration reads it");
  app.add_flag("--overwrite", args->overwrite, "Replace an earlier calibration of MODEL");
  app.add_option("--threads", args->threads, "CPU threads [all that this process may use]")
      ->check(CLI::Range(1, 1024));
  return [args, mx_rule] {
    args->mx_rule_given = mx_rule->count() > 0;
    return run_calibrate(*args);
  };
}

}  // namespace sub8::apps
