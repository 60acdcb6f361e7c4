// `sub8 quantize`: writes a checkpoint with its weights in another format.
#include "quantize/quantize.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "common.h"
#include "quantize/awq.h"
#include "quantize/fake_int.h"
#include "quantize/layer_plan.h"
#include "study/awq_search.h"
#include "study/store_calibration.h"
#include "verbs.h"
#include "version.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

// Rows of each layer's input that --awq searches on.
constexpr int64_t kAwqRows = 128;

struct QuantizeArgs {
  std::string input;
  std::string output;
  std::string weights;
  std::string plan;
  std::string text;
  bool awq = false;
  std::vector<float> ratios = {0.25f};
  int64_t samples = 1024;
  int64_t length = 2048;
  int64_t seed = 42;
  std::string lm_head;
  std::vector<std::string> skip;
  std::vector<std::string> overrides;
  std::string scale = "amax";
  std::string mx_rule = "even";
  bool mx_rule_given = false;
  std::string layout = "auto";
  std::string decoded = "bf16";
  bool four_over_six = false;
  bool export_input_scales = false;
  std::string calibration;
  bool overwrite = false;
  bool dry_run = false;
  bool layers = false;
  int threads = 0;
  std::string json_path;
};

// int4 and the like.
Status refuse_baseline(std::string_view option, const std::string& name) {
  if (!quantize::parse_fake_int(name).ok()) return {};
  return unsupported(fmt::format(
      "{}: {} is a baseline for measurements: `run` and `eval` round to it in memory, and no file "
      "has it; give a floating-point format, e.g. e2m1:g32 or nvfp4",
      option, name));
}

// --mx-rule speaks of MX formats only. A plan refuses it anyway.
Status check_mx_rule(const QuantizeArgs& args, const quantize::Recipe& recipe) {
  if (!args.mx_rule_given || !args.plan.empty()) return {};
  const auto is_mx = [](const format::WeightFormat& f) {
    return f.block_scale == format::BlockScale::kE8M0;
  };
  bool any = is_mx(recipe.weights) || (recipe.lm_head && is_mx(*recipe.lm_head));
  for (const quantize::FormatOverride& o : recipe.overrides) any = any || is_mx(o.format);
  if (any) return {};
  return invalid_argument(
      "--mx-rule is for MX formats (mxfp4, mxfp6_e3m2, mxfp6_e2m3, mxfp8), and none is asked for");
}

Result<quantize::Recipe> make_recipe(const QuantizeArgs& args) {
  quantize::Recipe out;
  if (args.weights.empty() == args.plan.empty())
    return invalid_argument("give either --weights FORMAT or --plan FILE");
  if (args.awq && args.text.empty())
    return invalid_argument("--awq searches its scales on the activations of a text: give --text");
  if (args.awq && args.export_input_scales) {
    return invalid_argument(
        "--awq changes the activations, so static scales of the input do not fit the result: leave "
        "out --export-input-scales; the result is calibrated on --text");
  }
  SUB8_RETURN_IF_ERROR(refuse_baseline("--weights", args.weights));
  SUB8_RETURN_IF_ERROR(refuse_baseline("--lm-head", args.lm_head));
  for (const std::string& text : args.overrides)
    SUB8_RETURN_IF_ERROR(refuse_baseline("--override", text.substr(text.rfind('=') + 1)));
  if (args.plan.empty()) {
    SUB8_ASSIGN_OR_RETURN(out.weights, format::parse_weight_format(args.weights));
  }
  if (!args.lm_head.empty()) {
    SUB8_ASSIGN_OR_RETURN(out.lm_head, format::parse_weight_format(args.lm_head));
  }
  for (const std::string& pattern : args.skip) {
    SUB8_ASSIGN_OR_RETURN(auto parsed, quantize::NamePattern::parse(pattern));
    out.skip.push_back(std::move(parsed));
  }
  for (const std::string& text : args.overrides) {
    SUB8_ASSIGN_OR_RETURN(auto parsed, quantize::parse_override(text));
    out.overrides.push_back(std::move(parsed));
  }
  SUB8_ASSIGN_OR_RETURN(out.rules.scale, quantize::parse_scale_method(args.scale));
  SUB8_ASSIGN_OR_RETURN(out.rules.block.mx, quantize::parse_mx_rule(args.mx_rule));
  SUB8_RETURN_IF_ERROR(check_mx_rule(args, out));
  out.rules.block.four_over_six = args.four_over_six;
  SUB8_ASSIGN_OR_RETURN(out.layout, quantize::parse_layout(args.layout));
  out.export_input_scales = args.export_input_scales;
  out.decoded_dtype = args.decoded == "f32" ? format::DType::kF32 : format::DType::kBF16;
  return out;
}

std::string file_name(const std::string& path) {
  return valid_utf8(std::filesystem::path(path).lexically_normal().filename().string());
}

// The tokenizer and template files that make the output a complete model directory.
Result<std::vector<quantize::ExtraFile>> extra_files(const checkpoint::WeightSource& source) {
  const checkpoint::CheckpointTexts& texts = source.texts();
  std::vector<quantize::ExtraFile> out;
  const auto add = [&](const char* name, const std::string& content) {
    if (!content.empty()) out.push_back({name, content});
  };
  if (source.gguf_tokenizer() != nullptr) {
    SUB8_ASSIGN_OR_RETURN(const auto tokenizer, engine::load_tokenizer(source));
    add("tokenizer.json", tokenizer->to_json());
  } else {
    add("tokenizer.json", texts.tokenizer);
  }
  add("tokenizer_config.json", texts.tokenizer_config);
  add("special_tokens_map.json", texts.special_tokens_map);
  add("chat_template.jinja", texts.chat_template);
  return out;
}

void print_sizes(const quantize::QuantizeReport& report) {
  fmt::print("{:<14}  {:>8}  {:>14}  {:>10}\n", "format", "modules", "weights", "size");
  for (const quantize::FormatSize& row : report.output.matrices) {
    fmt::print("{:<14}  {:>8}  {:>14}  {:>10}\n", row.format, row.modules, row.weights,
               format_bytes(static_cast<double>(row.bytes)));
  }
  const quantize::FormatSize& vectors = report.output.vectors;
  fmt::print("{:<14}  {:>8}  {:>14}  {:>10}\n", "norms, biases", vectors.modules, vectors.weights,
             format_bytes(static_cast<double>(vectors.bytes)));
  fmt::print("{} -> {}, {:.4f} storage bits per quantised weight, layout {}\n",
             format_bytes(static_cast<double>(report.source.total_bytes)),
             format_bytes(static_cast<double>(report.output.total_bytes)),
             report.output.storage_bits(), quantize::layout_name(report.layout));
}

void print_errors(const quantize::QuantizeReport& report, bool all) {
  const quantize::LayerReport* worst = nullptr;
  double sum = 0;
  int64_t count = 0;
  for (const quantize::LayerReport& layer : report.layers) {
    if (!layer.nmse) continue;
    if (all) fmt::print("{:<50}  {:<12}  NMSE {:.4e}\n", layer.name, layer.format, *layer.nmse);
    if (worst == nullptr || *layer.nmse > *worst->nmse) worst = &layer;
    sum += *layer.nmse;
    ++count;
  }
  if (worst == nullptr) return;
  fmt::print("weight NMSE: mean {:.4e} over {} matrices, most {:.4e} ({})\n",
             sum / static_cast<double>(count), count, *worst->nmse, worst->name);
}

// What --awq found: the scales, and how each input fared.
struct AwqOutcome {
  quantize::AwqRecord record;
  std::vector<study::AwqSiteReport> sites;
};

void print_awq(const AwqOutcome& awq, bool all) {
  int64_t scaled = 0;
  double logs = 0;
  for (const study::AwqSiteReport& site : awq.sites) {
    if (all)
      fmt::print("{:<50}  {}\n", site.name,
                 site.skipped.empty() ? fmt::format("AWQ exponent {:.2f}, output error x {:.3f}",
                                                    site.exponent, site.error)
                                      : "not scaled: " + site.skipped);
    if (site.exponent == 0) continue;
    ++scaled;
    logs += std::log(site.error);
  }
  fmt::print("AWQ: {} of {} inputs scaled, output error there x {:.3f} (geometric mean)\n", scaled,
             awq.sites.size(), scaled == 0 ? 1.0 : std::exp(logs / static_cast<double>(scaled)));
}

json::value to_json(const std::optional<AwqOutcome>& awq) {
  if (!awq) return nullptr;
  json::array sites;
  for (const study::AwqSiteReport& site : awq->sites) {
    sites.push_back(
        {{"name", site.name},
         {"exponent", site.exponent},
         {"relative_error", site.error},
         {"skipped", site.skipped.empty() ? json::value(nullptr) : json::value(site.skipped)}});
  }
  return json::object{{"text", awq->record.text},
                      {"samples", awq->record.samples},
                      {"tokens", awq->record.tokens},
                      {"inputs", std::move(sites)}};
}

json::object to_json(const quantize::QuantizeReport& report, const std::optional<AwqOutcome>& awq) {
  json::array layers;
  for (const quantize::LayerReport& layer : report.layers) {
    layers.push_back({{"name", layer.name},
                      {"source_type", layer.source_type},
                      {"format", layer.format},
                      {"shape", {layer.rows, layer.cols}},
                      {"bytes", layer.bytes},
                      {"nmse", layer.nmse ? json::value(*layer.nmse) : json::value(nullptr)}});
  }
  return {{"schema_version", 1},
          {"layout", quantize::layout_name(report.layout)},
          {"source_bytes", report.source.total_bytes},
          {"bytes", report.output.total_bytes},
          {"file_bytes", report.file_bytes},
          {"storage_bits", report.output.storage_bits()},
          {"awq", to_json(awq)},
          {"layers", std::move(layers)}};
}

void print_report(const QuantizeArgs& args, const quantize::QuantizeReport& report,
                  const std::optional<AwqOutcome>& awq, double seconds) {
  if (args.json_path == "-") {
    fmt::print("{}\n", valid_utf8(json::serialize(to_json(report, awq))));
    return;
  }
  print_sizes(report);
  if (awq) print_awq(*awq, args.layers);
  print_errors(report, args.layers);
  if (!args.dry_run) fmt::print("wrote {} in {}\n", args.output, format_duration(seconds));
}

// The report's file first, which a standard output that cannot be written leaves alone.
Status write_report(const QuantizeArgs& args, const quantize::QuantizeReport& report,
                    const std::optional<AwqOutcome>& awq, double seconds) {
  if (!args.json_path.empty() && args.json_path != "-") {
    SUB8_RETURN_IF_ERROR(write_file_atomic(
        args.json_path, valid_utf8(json::serialize(to_json(report, awq))) + "\n"));
  }
  int number = 0;
  try {
    print_report(args, report, awq, seconds);
    if (std::fflush(stdout) != 0) number = errno;
  } catch (const std::system_error& error) {  // what fmt throws
    number = error.code().value();
  }
  if (number == 0) return {};
  return resource_exhausted(std::string("could not write to standard output: ") +
                            std::strerror(number));
}

// The plan, after the checks that need no model.
Result<quantize::LayerPlan> read_plan(const QuantizeArgs& args) {
  SUB8_ASSIGN_OR_RETURN(quantize::LayerPlan plan, quantize::read_layer_plan(args.plan));
  const bool rules = args.scale != "amax" || args.mx_rule != "even" || args.four_over_six;
  if (rules || !args.skip.empty() || !args.overrides.empty()) {
    return invalid_argument(
        "--plan says what each layer becomes and by which rules: leave out --skip, --override, "
        "--scale, --mx-rule and --four-over-six");
  }
  if (plan.residue && args.text.empty()) {
    return invalid_argument(
        "the plan has prefill ratios, which need the activations of a text: give --text FILE (and "
        "--samples, --length, --seed) as for `sub8 calibrate`");
  }
  if (!plan.residue && !args.text.empty() && !args.awq)
    return invalid_argument(
        "the plan is for weight-only execution, which calibrates nothing: leave out --text");
  return plan;
}

// The samples of --text, as `sub8 calibrate` draws them.
Result<std::vector<study::Sample>> read_samples(const QuantizeArgs& args,
                                                const checkpoint::WeightSource& source,
                                                const study::CalibrateOptions& sampling) {
  SUB8_ASSIGN_OR_RETURN(const auto tokenizer, engine::load_tokenizer(source));
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(args.text));
  auto samples = study::text_samples(*tokenizer, text, sampling);
  if (!samples.ok()) return samples.error().within(args.text);
  return samples;
}

study::CalibrateOptions sampling_of(const QuantizeArgs& args) {
  return {.samples = args.samples, .length = args.length, .seed = static_cast<uint64_t>(args.seed)};
}

// Captures activations of the input model and searches on them.
Result<AwqOutcome> find_awq_scales(const QuantizeArgs& args, const quantize::Recipe& recipe,
                                   const checkpoint::WeightSource& source, ThreadPool& pool) {
  SUB8_ASSIGN_OR_RETURN(const quantize::Plan plan, quantize::plan_quantization(source, recipe));
  study::CalibrateOptions sampling = sampling_of(args);
  SUB8_ASSIGN_OR_RETURN(const auto samples, read_samples(args, source, sampling));
  int64_t tokens = 0;
  for (const study::Sample& sample : samples) tokens += static_cast<int64_t>(sample.size());
  study::RowCapture rows(tokens, kAwqRows);
  study::Calibration calibration;
  {
    SUB8_ASSIGN_OR_RETURN(const auto model,
                          study::load_for_calibration(source, args.length, {}, pool));
    ProgressBar bar("capturing");
    sampling.progress = [&](int64_t done, int64_t total) {
      bar.update(static_cast<double>(done), static_cast<double>(total),
                 fmt::format("sample {} of {}", done, total));
    };
    SUB8_ASSIGN_OR_RETURN(calibration, study::calibrate(*model, samples, sampling, &rows));
  }
  ProgressBar bar("searching AWQ scales");
  study::AwqSearchOptions options;
  options.progress = [&](int64_t done, int64_t total, std::string_view site) {
    bar.update(static_cast<double>(done), static_cast<double>(total), site);
  };
  SUB8_ASSIGN_OR_RETURN(study::AwqSearch search,
                        study::search_awq(source, plan, recipe, calibration, rows, options, pool));
  return AwqOutcome{
      {std::move(search.scales), file_name(args.text), calibration.samples, calibration.tokens},
      std::move(search.sites)};
}

// Calibrates the finished weights and stores masks, columns and ratios beside them. `original` is
// what was quantised, AWQ's scales folded in.
Status store_calibration(const QuantizeArgs& args, const std::optional<quantize::LayerPlan>& plan,
                         const format::BlockRules& rules, const checkpoint::WeightSource& original,
                         const std::filesystem::path& directory, ThreadPool& pool) {
  SUB8_ASSIGN_OR_RETURN(auto source, checkpoint::open_checkpoint(directory));
  SUB8_ASSIGN_OR_RETURN(const engine::Bundle bundle, engine::make_bundle(std::move(source)));
  study::CalibrateOptions sampling = sampling_of(args);
  SUB8_ASSIGN_OR_RETURN(const auto samples, read_samples(args, *bundle.source, sampling));
  study::StoreOptions store;
  store.original = &original;
  store.original_name = file_name(args.input);
  store.text_name = file_name(args.text);
  store.rules = rules;
  if (plan) {
    store.ratios.clear();
    for (const quantize::PlannedLayer& layer : plan->layers) {
      if (!layer.option.format || !model::fp4_activations(*layer.option.format)) continue;
      for (const std::string& module : layer.modules)
        store.planned[module] = layer.option.prefill_ratio;
    }
  } else {
    SUB8_ASSIGN_OR_RETURN(store.ratios, parse_select_ratios(args.ratios));
  }
  ProgressBar bar("calibrating");
  sampling.progress = [&](int64_t done, int64_t total) {
    bar.update(static_cast<double>(done), static_cast<double>(total),
               fmt::format("sample {} of {}", done, total));
  };
  SUB8_ASSIGN_OR_RETURN(const auto model,
                        study::load_for_calibration(*bundle.source, args.length, {}, pool));
  SUB8_ASSIGN_OR_RETURN(const study::Calibration calibration,
                        study::calibrate(*model, samples, sampling));
  const auto stored =
      study::store_calibration(directory, *bundle.source, calibration, sampling, store, pool);
  return stored.ok() ? Status() : Status(stored.error());
}

// What a calibration of the input measured, for static activation scales.
Status take_input_amax(const QuantizeArgs& args, const checkpoint::WeightSource& source,
                       quantize::Recipe& recipe) {
  if (!args.calibration.empty() && !args.export_input_scales) {
    return invalid_argument(
        "--calibration gives the static activation scales of --export-input-scales, which is "
        "missing");
  }
  if (!args.export_input_scales) return {};
  const std::string directory = args.calibration.empty() ? args.input : args.calibration;
  if (!checkpoint::has_residue(directory)) {
    if (args.calibration.empty()) return {};
    return not_found(fmt::format("--calibration: '{}' has no sub8/residue.json", directory));
  }
  SUB8_ASSIGN_OR_RETURN(const auto residue, checkpoint::read_residue(directory, source));
  for (const auto& [name, module] : residue->modules) recipe.input_amax[name] = module.amax;
  return {};
}

Status run_quantize(const QuantizeArgs& args) {
  SUB8_ASSIGN_OR_RETURN(quantize::Recipe recipe, make_recipe(args));
  SUB8_RETURN_IF_ERROR(check_output_files(
      {{"--json", args.json_path}},
      {{"IN", args.input}, {"OUT", args.output}, {"--plan", args.plan}, {"--text", args.text}}));
  std::optional<quantize::LayerPlan> plan;
  if (!args.plan.empty()) {
    SUB8_ASSIGN_OR_RETURN(plan, read_plan(args));
  }
  if (args.plan.empty() && !args.text.empty()) {
    const auto ratios = parse_select_ratios(args.ratios);
    if (!ratios.ok()) return ratios.error();
  }
  SUB8_ASSIGN_OR_RETURN(auto source, checkpoint::open_checkpoint(args.input));
  if (plan) {
    if (Status fits = quantize::check_layer_plan(*plan, *source); !fits.ok())
      return fits.error().within(args.plan);
    quantize::apply_layer_plan(*plan, recipe);
  }
  for (const std::string& warning : source->warnings()) print_warning(warning);
  SUB8_RETURN_IF_ERROR(take_input_amax(args, *source, recipe));
  quantize::OutputOptions options;
  options.directory = args.output;
  options.overwrite = args.overwrite;
  options.dry_run = args.dry_run;
  options.source_name = file_name(args.input);
  options.version = SUB8_VERSION;
  if (!args.dry_run) {
    SUB8_ASSIGN_OR_RETURN(options.extra_files, extra_files(*source));
  }
  ThreadPool pool(args.threads > 0 ? args.threads : ThreadPool::default_threads());
  std::optional<AwqOutcome> awq;
  if (args.awq && !args.dry_run) {
    SUB8_ASSIGN_OR_RETURN(awq, find_awq_scales(args, recipe, *source, pool));
    SUB8_ASSIGN_OR_RETURN(source, quantize::fold_awq(std::move(source), awq->record.scales));
  }
  const bool calibrates = plan ? plan->residue : !args.text.empty();
  options.complete = [&](const std::filesystem::path& directory) -> Status {
    if (awq) SUB8_RETURN_IF_ERROR(quantize::write_awq(directory, awq->record));
    if (!calibrates) return {};
    return store_calibration(args, plan, recipe.rules.block, *source, directory, pool);
  };
  ProgressBar bar("quantising");
  SUB8_ASSIGN_OR_RETURN(const quantize::QuantizeReport report,
                        quantize::quantize_checkpoint(
                            *source, recipe, options, pool, [&](const quantize::Progress& p) {
                              bar.update(static_cast<double>(p.done_bytes),
                                         static_cast<double>(p.total_bytes), p.module);
                            }));
  bar.clear();
  for (const std::string& warning : report.warnings) print_warning(warning);
  Status reported = write_report(args, report, awq, bar.seconds());
  if (reported.ok() || args.dry_run) return reported;
  return Error{reported.error().code,
               reported.error().message + "; '" + args.output + "' is complete"};
}

}  // namespace

Verb add_quantize(CLI::App& app) {
  auto args = std::make_shared<QuantizeArgs>();
  app.add_option("IN", args->input, "A Hugging Face directory or a .gguf file")->required();
  app.add_option("OUT", args->output, "The directory to write")->required();
  app.add_option(
      "--weights", args->weights,
      "Format of the Linear weights: eXmY of 3 to 8 bits (e3m2, e2m2, ...), with group scales "
      "eXmY:g32, :g64 or :g128 (Y at most 3), nvfp4, mxfp4, mxfp6_e3m2, mxfp6_e2m3, mxfp8");
  app.add_option(
      "--plan", args->plan,
      "Instead of --weights: formats and prefill ratios of each layer, from `sub8 plan`");
  CLI::Option* text = app.add_option("--text", args->text,
                                     "UTF-8 text that the result is calibrated on, as by `sub8 "
                                     "calibrate`; a --plan for the mode residue needs it");
  app.add_flag("--awq", args->awq,
               "Scale input channels by their activations on --text before quantising, folded "
               "into the layer before (AWQ)");
  app.add_option("--ratios", args->ratios,
                 "With --text and --weights: ratios that get extension columns, some of "
                 "0.125,0.25,0.5")
      ->needs(text)
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--samples", args->samples, "With --text: at most this many samples")
      ->needs(text)
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--length", args->length, "With --text: tokens of a sample")
      ->needs(text)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--seed", args->seed, "With --text: which samples are drawn")
      ->needs(text)
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53))
      ->capture_default_str();
  app.add_option("--lm-head", args->lm_head,
                 "Quantise the output head too, to this format [kept in 16 bits]");
  app.add_option("--skip", args->skip,
                 "Leave matching modules as they are: a name or the end of one after a dot "
                 "(down_proj), a pattern with * or re:REGEX; may be given several times")
      ->allow_extra_args(false);
  app.add_option(
         "--override", args->overrides,
         "PATTERN=FORMAT for matching modules, patterns as in --skip; the first match counts; "
         "may be given several times")
      ->allow_extra_args(false);
  app.add_option("--scale", args->scale,
                 "amax, or mse to search the scale with the least squared error")
      ->capture_default_str();
  CLI::Option* mx_rule = app.add_option("--mx-rule", args->mx_rule,
                                        "Shared exponent of MX formats: even, ceil or floor")
                             ->capture_default_str();
  app.add_flag("--four-over-six", args->four_over_six,
               "nvfp4: try mapping the largest value of a block to 4 as well as to 6");
  app.add_option("--layout", args->layout, "auto, sub8, modelopt or compressed-tensors")
      ->capture_default_str();
  app.add_option("--decoded", args->decoded, "What kept weights of a GGUF become: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_flag("--export-input-scales", args->export_input_scales,
               "Write static activation scales (input_scale): those that IN has, or from its "
               "calibration by `sub8 calibrate`; other engines then compute W4A4");
  app.add_option("--calibration", args->calibration,
                 "With --export-input-scales: the directory whose sub8/residue.* is used [IN]");
  app.add_flag("--overwrite", args->overwrite, "Replace OUT and all it holds, if sub8 wrote it");
  app.add_flag("--dry-run", args->dry_run, "Print sizes only; read no weight, write nothing");
  app.add_flag("--layers", args->layers, "Print the error of every matrix");
  app.add_option("--threads", args->threads, "CPU threads [all that this process may use]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--json", args->json_path, "Write the report here; - for standard output");
  return [args, mx_rule] {
    args->mx_rule_given = mx_rule->count() > 0;
    return run_quantize(*args);
  };
}

}  // namespace sub8::apps
