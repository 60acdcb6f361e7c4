// `sub8 explain`: which kernel each linear layer uses on this machine, why, and why not the others.
#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/cpu.h"
#include "common.h"
#include "kernels/linear/bench.h"
#include "kernels/linear/op.h"
#include "kernels/quantize_act/quantize_act.h"
#include "kvcache/page_pool.h"
#include "model/mode_summary.h"
#include "verbs.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

constexpr CpuPath kPaths[] = {CpuPath::kAmx, CpuPath::kAvx512, CpuPath::kAvx2, CpuPath::kScalar};
constexpr double kSecondsPerCase = 0.05;

struct ExplainArgs {
  ModelArgs model;
  int64_t batch = 1;
  std::string rows = "generated";
  bool no_measure = false;
  bool json = false;
  bool all = false;
};

// A way to compute a layer.
struct Candidate {
  std::string name;   // the kernel's id, or the path where it cannot run here
  std::string state;  // "chosen", "slower" or "refused"
  std::string reason;
  std::optional<double> microseconds;
};

struct Layer {
  const model::LinearOp* op = nullptr;
  model::RowExecution execution;
  int64_t kernel_rows = 0;            // token rows, twice with a full residue
  std::vector<Candidate> candidates;  // the chosen one first

  const Candidate* runner_up() const {
    for (const Candidate& c : candidates) {
      if (c.state == "slower") return &c;
    }
    return nullptr;
  }
};

std::string describe_format(const model::RowExecution& how) {
  if (how.weight_only) return "16-bit activations";
  std::string_view name;
  switch (how.format) {
    case format::ActivationFormat::kNvfp4:
      name = "NVFP4";
      break;
    case format::ActivationFormat::kMxfp4:
      name = "MXFP4";
      break;
    case format::ActivationFormat::kFp8:
      name = "FP8";
      break;
    case format::ActivationFormat::kMxfp8:
      name = "MXFP8";
      break;
  }
  if (how.ratio == 0) return fmt::format("{} activations", name);
  if (how.ratio == 1) return fmt::format("{} activations + full residue (M-Ext)", name);
  return fmt::format("{} activations + residue of {} of the channels (K-Ext)", name, how.ratio);
}

std::string describe(const Layer& layer) {
  std::string out = describe_format(layer.execution);
  if (const auto alpha = model::input_alpha(*layer.op, layer.execution)) {
    out += alpha->source == format::AlphaSource::kStatic
               ? fmt::format(", static alpha {:.3e}", alpha->value)
               : fmt::format(", alpha per {}", format::alpha_source_name(alpha->source));
  }
  return out;
}

// Why the weight's own path computes these rows as it does.
std::string choice_reason(const PackedMatrix& w, ActivationType type, RowClass row_class) {
  const std::string path(cpu_path_name(w.path));
  const bool tiles = linear_kernel_id(w, 64, type, row_class).find("_amx_") != std::string::npos;
  if (w.path != CpuPath::kAmx) return "the strongest path in force, " + path;
  if (tiles) return "the strongest path in force; its tiles take prompt rows";
  if (type == ActivationType::kF32)
    return "AVX-512 of the amx path: tiles multiply bf16, these activations are f32";
  if (!w.bf16_exact)
    return "AVX-512 of the amx path: a weight times its block scale is no normal bf16 number, "
           "which "
           "tiles need";
  return "AVX-512 of the amx path: generated rows, tiles take prompt rows";
}

// Times of random weights of the same shapes, one measurement for each that differs.
class Stopwatch {
 public:
  Stopwatch(ThreadPool& pool, bool off) : pool_(pool), off_(off) {}

  Result<std::optional<double>> microseconds(const PackedMatrix& w, int64_t rows, CpuPath path,
                                             ActivationType type, RowClass row_class) {
    if (off_) return std::optional<double>();
    const auto key = std::tuple(w.format.name(), w.rows, w.cols, rows, path, type);
    const auto known = times_.find(key);
    if (known != times_.end()) return std::optional(known->second);
    SUB8_ASSIGN_OR_RETURN(const LinearBenchResult result,
                          bench_linear({w.format, w.rows, w.cols, rows, path, type, row_class},
                                       pool_, 1.0, true, kSecondsPerCase));
    return std::optional(times_[key] = 1e6 * result.median_seconds);
  }

 private:
  ThreadPool& pool_;
  bool off_;
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t, CpuPath, ActivationType>, double>
      times_;
};

// Of the rows that the layer's kernel reads: the model's own type, or what quantised rows become.
ActivationType row_type(const Layer& layer, ActivationType activations, RowClass row_class) {
  if (layer.execution.weight_only) return activations;
  return model::quantized_row_type(*layer.op->weight, layer.op->prompt.extension, layer.execution,
                                   row_class);
}

Result<std::vector<Candidate>> candidates(const Layer& layer, ActivationType activations,
                                          RowClass row_class, Stopwatch& watch) {
  const PackedMatrix& w = *layer.op->weight;
  const ActivationType type = row_type(layer, activations, row_class);
  const bool codes = type == ActivationType::kE2M1;
  std::vector<Candidate> out;
  Candidate chosen{linear_kernel_id(w, layer.kernel_rows, type, row_class),
                   "chosen",
                   codes ? fmt::format("{}, products of codes as bytes, a block's sum in integers",
                                       choice_reason(w, type, row_class))
                         : choice_reason(w, type, row_class),
                   {}};
  SUB8_ASSIGN_OR_RETURN(chosen.microseconds,
                        watch.microseconds(w, layer.kernel_rows, w.path, type, row_class));
  out.push_back(std::move(chosen));
  if (codes) {
    Candidate values{linear_kernel_id(w, layer.kernel_rows, ActivationType::kBF16, row_class),
                     "slower",
                     "the same rows as bf16 values q*s: the same bits",
                     {}};
    SUB8_ASSIGN_OR_RETURN(
        values.microseconds,
        watch.microseconds(w, layer.kernel_rows, w.path, ActivationType::kBF16, row_class));
    out.push_back(std::move(values));
  }
  for (const CpuPath path : kPaths) {
    if (path == w.path) continue;
    Candidate c;
    c.name = fmt::format("linear_{}_{}", w.format.name(), cpu_path_name(path));
    if (!cpu_path_available(path)) {
      c.state = "refused";
      c.reason = fmt::format("this CPU has no {}", path == CpuPath::kAmx      ? "AMX bf16 tiles"
                                                   : path == CpuPath::kAvx512 ? "AVX-512 with BF16 "
                                                                                "and VNNI"
                                                                              : "AVX2");
    } else if (path > w.path) {
      c.state = "refused";
      c.reason = fmt::format("SUB8_CPU={} keeps to a weaker path", cpu_path_name(w.path));
    } else {
      c.state = "slower";
      c.reason = fmt::format("a weaker path; SUB8_CPU={} takes it", cpu_path_name(path));
      SUB8_ASSIGN_OR_RETURN(c.microseconds,
                            watch.microseconds(w, layer.kernel_rows, path, type, row_class));
    }
    out.push_back(std::move(c));
  }
  out.push_back({"cuda", "refused", "models run on the CPU in this build", {}});
  return out;
}

std::vector<Layer> linear_layers(const model::Model& model, RowClass row_class, int64_t batch) {
  std::vector<Layer> out;
  for (const auto* ops : {&model.program().body, &model.program().head}) {
    for (const model::Op& op : *ops) {
      const auto* linear = std::get_if<model::LinearOp>(&op);
      if (linear == nullptr) continue;
      Layer layer;
      layer.op = linear;
      layer.execution = model::row_execution(model.options().mode.mode, linear->weight->format,
                                             linear->prompt.ratio, row_class, batch);
      layer.kernel_rows = layer.execution.ratio == 1 ? 2 * batch : batch;
      out.push_back(std::move(layer));
    }
  }
  return out;
}

json::object to_json(const Layer& layer) {
  const PackedMatrix& w = *layer.op->weight;
  json::array list;
  for (const Candidate& c : layer.candidates) {
    list.push_back({{"kernel", c.name},
                    {"state", c.state},
                    {"reason", c.reason},
                    {"median_us", c.microseconds ? json::value(*c.microseconds) : nullptr}});
  }
  json::array modules;
  for (const std::string& module : layer.op->modules) modules.emplace_back(module);
  const Candidate* next = layer.runner_up();
  const auto alpha = model::input_alpha(*layer.op, layer.execution);
  return {{"layer", layer.op->name},
          {"modules", std::move(modules)},
          {"format", w.format.name()},
          {"n", w.rows},
          {"k", w.cols},
          {"execution", describe_format(layer.execution)},
          {"alpha", alpha ? json::value(format::alpha_source_name(alpha->source)) : nullptr},
          {"static_alpha", alpha && alpha->source == format::AlphaSource::kStatic
                               ? json::value(alpha->value)
                               : nullptr},
          {"prefill_ratio", layer.op->prompt.ratio},
          {"kernel", layer.candidates[0].name},
          {"kernel_rows", layer.kernel_rows},
          {"runner_up", next == nullptr ? json::value(nullptr) : json::value(next->name)},
          {"candidates", std::move(list)}};
}

std::string time_text(const std::optional<double>& microseconds) {
  return microseconds ? fmt::format("{:.1f} us", *microseconds) : std::string("-");
}

// Layers that differ in nothing but their names are one block, unless all are asked for.
void print_layers(const std::vector<Layer>& layers, bool all) {
  std::map<std::string, std::vector<const Layer*>> blocks;
  std::vector<std::string> order;
  for (const Layer& layer : layers) {
    std::string key = fmt::format("{} {} {}", layer.op->weight->rows,
                                  describe_format(layer.execution), layer.op->weight->cols);
    if (const auto alpha = model::input_alpha(*layer.op, layer.execution))
      key += format::alpha_source_name(alpha->source);
    for (const Candidate& c : layer.candidates) key += c.name + c.reason;
    if (all) key = layer.op->name;
    if (blocks[key].empty()) order.push_back(key);
    blocks[key].push_back(&layer);
  }
  for (const std::string& key : order) {
    const std::vector<const Layer*>& block = blocks[key];
    const Layer& layer = *block[0];
    const PackedMatrix& w = *layer.op->weight;
    fmt::print("{}{}\n", layer.op->name,
               block.size() > 1 ? fmt::format(" and {} like it", block.size() - 1) : "");
    fmt::print("  stored {} [{} x {}], {}\n", w.format.name(), w.rows, w.cols, describe(layer));
    for (const Candidate& c : layer.candidates)
      fmt::print("  {:<8} {:<40} {:>12}  {}\n", c.state, c.name, time_text(c.microseconds),
                 c.reason);
  }
}

Status run_explain(const ExplainArgs& args) {
  SUB8_RETURN_IF_ERROR(check_model_args(args.model));
  SUB8_ASSIGN_OR_RETURN(const engine::RunOptions run, args.model.run_options());
  SUB8_ASSIGN_OR_RETURN(const int threads, args.model.thread_count());
  ThreadPool pool(threads);
  SUB8_ASSIGN_OR_RETURN(const auto source, open_source(args.model, pool));
  for (const std::string& warning : source->warnings()) print_warning(warning);
  model::ModelOptions options;
  SUB8_ASSIGN_OR_RETURN(options.path, selected_cpu_path());
  options.activations = run.activations;
  options.kv_type = run.kv_type;
  options.mode = run.mode;
  SUB8_ASSIGN_OR_RETURN(Calibrated calibrated, open_calibration(args.model, *source, run, pool));
  options.residue = std::move(calibrated.residue);
  options.extend = std::move(calibrated.extend);
  options.max_rows = options.max_logit_rows = 1;
  options.max_context = kvcache::kPageTokens;
  options.kv_pages = 1;
  say_decoded_memory(*source, options.activations == ActivationType::kF32);
  ProgressBar bar("loading");
  options.progress = [&](const model::LoadProgress& p) {
    bar.update(static_cast<double>(p.done_bytes), static_cast<double>(p.total_bytes), p.module);
  };
  SUB8_ASSIGN_OR_RETURN(const auto model, model::Model::load(*source, options, pool));
  bar.clear();
  const RowClass row_class = args.rows == "prompt" ? RowClass::kPrompt : RowClass::kGenerated;
  std::vector<Layer> layers = linear_layers(*model, row_class, args.batch);
  Stopwatch watch(pool, args.no_measure);
  for (Layer& layer : layers) {
    SUB8_ASSIGN_OR_RETURN(layer.candidates,
                          candidates(layer, options.activations, row_class, watch));
  }
  if (args.json) {
    json::array list;
    for (const Layer& layer : layers) list.push_back(to_json(layer));
    const json::object report{{"schema_version", 1},
                              {"model", args.model.model},
                              {"cpu", cpu_features().model},
                              {"threads", threads},
                              {"path", cpu_path_name(options.path)},
                              {"mode", model::execution_mode_name(run.mode.mode)},
                              {"batch", args.batch},
                              {"rows", args.rows},
                              {"layers", std::move(list)}};
    fmt::print("{}\n", valid_utf8(json::serialize(report)));
    return {};
  }
  fmt::print("{}, {} threads, path {}; mode {}, {} {} rows\n", cpu_features().model, threads,
             cpu_path_name(options.path), model::execution_mode_name(run.mode.mode), args.batch,
             args.rows);
  fmt::print("{}\n", model::describe_mode(model->program(), model->mode()));
  if (!model->kv_scale_origin().empty())
    fmt::print("KV cache {}, scales {}\n", kernels::kv_type_name(options.kv_type),
               model->kv_scale_origin());
  print_layers(layers, args.all);
  return {};
}

}  // namespace

Verb add_explain(CLI::App& app) {
  auto args = std::make_shared<ExplainArgs>();
  args->model.add_to(app);
  app.add_option("--batch", args->batch, "Token rows of the step that is explained")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--rows", args->rows, "What they are: generated or prompt")
      ->check(CLI::IsMember({"generated", "prompt"}))
      ->capture_default_str();
  app.add_flag("--no-measure", args->no_measure,
               "Leave out the times, which random weights of the same shapes give");
  app.add_flag("--all", args->all, "Every layer, not one block for layers that are alike");
  app.add_flag("--json", args->json, "Print JSON, with every layer");
  return [args] { return run_explain(*args); };
}

}  // namespace sub8::apps
