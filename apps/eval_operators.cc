#include "eval_operators.h"

#include <cstdio>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "quantize/load_source.h"
#include "study/operator_error.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

// The model's weights as nvfp4 and mxfp4, the latter by our rule and by the one that the paper's
// exports use.
struct Formats {
  std::vector<std::unique_ptr<checkpoint::WeightSource>> sources;
  std::vector<study::OperatorWeights> weights;
};

Result<Formats> open_formats(const std::string& model, int threads) {
  struct Format {
    const char* name;
    format::WeightFormat format;
    format::MxRule rule;
  };
  Formats out;
  for (const Format& f :
       {Format{"nvfp4", format::nvfp4_format(), format::MxRule::kEven},
        Format{"mxfp4", format::mx_format(format::kE2M1), format::MxRule::kEven},
        Format{"mxfp4-ceil", format::mx_format(format::kE2M1), format::MxRule::kCeil}}) {
    SUB8_ASSIGN_OR_RETURN(auto source, checkpoint::open_checkpoint(model));
    quantize::Recipe recipe;
    recipe.weights = f.format;
    recipe.rules.block.mx = f.rule;
    SUB8_ASSIGN_OR_RETURN(source, quantize::quantize_at_load(std::move(source), recipe, threads));
    out.weights.push_back({f.name, source.get(), f.rule});
    out.sources.push_back(std::move(source));
  }
  return out;
}

double share(int64_t part, int64_t total) {
  return total == 0 ? 0 : static_cast<double>(part) / static_cast<double>(total);
}

json::array layers_json(const study::OperatorError& error) {
  json::array out;
  for (size_t i = 0; i < error.layers.size(); ++i) {
    json::object layer{{"layer", error.layers[i]}, {"nmse", error.per_layer[i].nmse()}};
    if (!error.per_layer_original.empty())
      layer["nmse_original_kv"] = error.per_layer_original[i].nmse();
    out.push_back(std::move(layer));
  }
  return out;
}

json::object to_json(const EvalOperatorsArgs& args, const study::OperatorReport& report) {
  json::array linear, attention, scales;
  for (const study::OperatorError& error : report.linear) {
    linear.push_back({{"variant", error.variant},
                      {"nmse", error.pooled().nmse()},
                      {"layers", layers_json(error)}});
  }
  for (const study::OperatorError& error : report.attention) {
    attention.push_back({{"variant", error.variant},
                         {"nmse", error.pooled().nmse()},
                         {"nmse_original_kv", error.pooled_original().nmse()},
                         {"layers", layers_json(error)}});
  }
  for (const study::ScaleShares& s : report.scales) {
    scales.push_back({{"what", s.what},
                      {"zero", share(s.zero, s.total)},
                      {"subnormal", share(s.subnormal, s.total)},
                      {"scales", s.total}});
  }
  return {{"schema_version", 1},
          {"model", args.model.model},
          {"text", args.text},
          {"window", args.window},
          {"windows", args.windows},
          {"linear_rows", args.linear_rows},
          {"calibration_windows", args.calibration_windows},
          {"linear", linear},
          {"attention", attention},
          {"block_scales", scales}};
}

void print(const EvalOperatorsArgs& args, const study::OperatorReport& report) {
  fmt::print("{:<26} {:>12}   linear layers, {} rows each, against exact weights\n", "linear",
             "NMSE", args.linear_rows);
  for (const study::OperatorError& error : report.linear)
    fmt::print("{:<26} {:>12.4e}\n", error.variant, error.pooled().nmse());
  fmt::print("\n{:<26} {:>12} {:>14}   {} windows of {} tokens\n", "attention", "same KV",
             "original KV", args.windows, args.window);
  for (const study::OperatorError& error : report.attention)
    fmt::print("{:<26} {:>12.4e} {:>14.4e}\n", error.variant, error.pooled().nmse(),
               error.pooled_original().nmse());
  fmt::print("\n{:<26} {:>12} {:>14}\n", "block scales", "zero", "subnormal");
  for (const study::ScaleShares& s : report.scales)
    fmt::print("{:<26} {:>11.4f}% {:>13.4f}%\n", s.what, 100 * share(s.zero, s.total),
               100 * share(s.subnormal, s.total));
}

}  // namespace

Status eval_operators(const EvalOperatorsArgs& args) {
  const ModelArgs& m = args.model;
  const bool plain = m.weights.empty() && m.lm_head.empty() && m.mode == "auto" &&
                     m.attention == "auto" && m.kv_cache_dtype.empty() && m.activations == "bf16";
  if (!plain) {
    return invalid_argument(
        "--operators runs the model as stored and quantises its operators itself; leave out "
        "--weights, --lm-head, --mode, --attention, --kv-cache-dtype and --activations");
  }
  SUB8_RETURN_IF_ERROR(check_output_files({{"--json", args.json_path}},
                                          {{"MODEL", args.model.model}, {"--text", args.text}}));
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(args.text));
  SUB8_ASSIGN_OR_RETURN(const int threads, m.thread_count());
  ThreadPool pool(threads);
  SUB8_ASSIGN_OR_RETURN(Formats formats, open_formats(m.model, threads));
  SUB8_ASSIGN_OR_RETURN(auto source, checkpoint::open_checkpoint(m.model));
  SUB8_ASSIGN_OR_RETURN(const engine::Bundle bundle, engine::make_bundle(std::move(source)));
  Result<std::vector<int32_t>> tokens =
      bundle.tokenizer->encode(text, {.add_special_tokens = false});
  if (!tokens.ok()) return tokens.error().within(args.text);
  model::ModelOptions options;
  SUB8_ASSIGN_OR_RETURN(options.path, selected_cpu_path());
  options.max_rows = options.max_context = args.window;
  options.max_logit_rows = 1;
  options.kv_pages =
      static_cast<int32_t>((args.window + kvcache::kPageTokens - 1) / kvcache::kPageTokens);
  ProgressBar bar("measuring");
  options.progress = [&](const model::LoadProgress& p) {
    bar.update(static_cast<double>(p.done_bytes), static_cast<double>(p.total_bytes), p.module);
  };
  SUB8_ASSIGN_OR_RETURN(const auto model, model::Model::load(*bundle.source, options, pool));
  study::OperatorOptions how{.window = args.window,
                             .windows = args.windows,
                             .linear_rows = std::min(args.linear_rows, args.window * args.windows),
                             .calibration_windows = args.calibration_windows};
  how.progress = [&](int64_t done, int64_t total, const std::string& layer) {
    bar.update(static_cast<double>(done), static_cast<double>(total), layer);
  };
  SUB8_ASSIGN_OR_RETURN(
      const study::OperatorReport report,
      study::operator_errors(*model, *bundle.source, formats.weights, *tokens, how));
  bar.clear();
  const std::string out = valid_utf8(json::serialize(to_json(args, report))) + "\n";
  if (args.json_path == "-") {
    fmt::print("{}", out);
    return {};
  }
  print(args, report);
  return args.json_path.empty() ? Status() : write_file_atomic(args.json_path, out);
}

}  // namespace sub8::apps
