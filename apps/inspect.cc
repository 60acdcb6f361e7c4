// `sub8 inspect`: what a checkpoint holds, without loading it.
#include <cstdio>
#include <map>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "checkpoint/weight_source.h"
#include "common.h"
#include "inspect_calibration.h"
#include "kernels/kv_write/kv_pages.h"
#include "verbs.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;
using checkpoint::WeightInfo;
using checkpoint::WeightKind;

struct InspectArgs {
  std::string model;
  bool json = false;
  bool all = false;
};

struct FormatTotal {
  int64_t matrices = 0;
  int64_t weights = 0;
  int64_t bytes = 0;
};

std::string_view kind_name(WeightKind kind) {
  switch (kind) {
    case WeightKind::kLinear:
      return "linear";
    case WeightKind::kEmbedding:
      return "embedding";
    case WeightKind::kVector:
      return "vector";
  }
  return "vector";
}

double bits_per_weight(int64_t bytes, int64_t weights) {
  return weights == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(weights);
}

// "model.layers.7.mlp.up_proj" -> "model.layers.*.mlp.up_proj"
std::string pattern_of(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size();) {
    size_t end = name.find('.', i);
    if (end == std::string::npos) end = name.size();
    const std::string part = name.substr(i, end - i);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    out += (out.empty() ? "" : ".") + (number ? std::string("*") : part);
    i = end + 1;
  }
  return out;
}

struct Totals {
  std::map<std::string, FormatTotal> by_format;
  FormatTotal quantised;  // Linear weights in coded formats
  FormatTotal all;
};

Totals add_up(const checkpoint::WeightSource& source) {
  Totals out;
  for (const WeightInfo& info : source.weights()) {
    const int64_t weights = info.rows * info.cols;
    for (FormatTotal* total : {&out.by_format[info.stored_type], &out.all}) {
      total->matrices += 1;
      total->weights += weights;
      total->bytes += info.stored_bytes;
    }
    if (!info.quantized()) continue;
    out.quantised.matrices += 1;
    out.quantised.weights += weights;
    out.quantised.bytes += info.stored_bytes;
  }
  return out;
}

// Bytes of one token over all layers, by the type of the cache's elements.
std::vector<std::pair<std::string, int64_t>> kv_token_bytes(const checkpoint::ModelConfig& c) {
  std::vector<std::pair<std::string, int64_t>> out;
  for (const auto type : {kernels::KvType::kF32, kernels::KvType::kBF16, kernels::KvType::kFp8,
                          kernels::KvType::kNvfp4}) {
    const kernels::KvLayout layout{type, static_cast<int>(c.kv_heads),
                                   static_cast<int>(c.head_dim)};
    out.emplace_back(kernels::kv_type_name(type),
                     c.layers * layout.page_bytes() / kernels::kPageTokens);
  }
  return out;
}

// Of how many layers the checkpoint has the scales of K and V for fp8 and nvfp4 caches.
Result<int64_t> layers_with_kv_scales(const checkpoint::WeightSource& source) {
  int64_t out = 0;
  for (int64_t layer = 0; layer < source.config().layers; ++layer) {
    SUB8_ASSIGN_OR_RETURN(const auto k, source.kv_scale(layer, false));
    SUB8_ASSIGN_OR_RETURN(const auto v, source.kv_scale(layer, true));
    out += k && v ? 1 : 0;
  }
  return out;
}

json::object describe(const checkpoint::WeightSource& source, const Totals& totals,
                      int64_t kv_scaled_layers) {
  const checkpoint::ModelConfig& c = source.config();
  json::object out{
      {"schema_version", 1},
      {"architecture", checkpoint::architecture_name(c.architecture)},
      {"model_type", c.model_type},
      {"quantization", source.quantization()},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"layers", c.layers},
      {"heads", c.heads},
      {"kv_heads", c.kv_heads},
      {"head_dim", c.head_dim},
      {"vocab_size", c.vocab_size},
      {"max_positions", c.max_positions},
      {"tied_head", source.tied_head()},
      {"weights", totals.all.weights},
      {"bytes", totals.all.bytes},
      {"storage_bits", bits_per_weight(totals.quantised.bytes, totals.quantised.weights)}};
  json::object kv;
  for (const auto& [type, bytes] : kv_token_bytes(c)) kv[type] = bytes;
  out["kv_token_bytes"] = std::move(kv);
  out["kv_cache_scheme"] = source.kv_cache_scheme();
  out["layers_with_kv_scales"] = kv_scaled_layers;
  json::object formats;
  for (const auto& [name, total] : totals.by_format) {
    formats[name] = {
        {"tensors", total.matrices}, {"weights", total.weights}, {"bytes", total.bytes}};
  }
  out["formats"] = std::move(formats);
  json::array tensors;
  for (const WeightInfo& info : source.weights()) {
    tensors.push_back({{"name", info.name},
                       {"kind", kind_name(info.kind)},
                       {"shape", {info.rows, info.cols}},
                       {"type", info.stored_type},
                       {"bytes", info.stored_bytes},
                       {"file", printable(info.file.filename().string())}});
  }
  out["tensors"] = std::move(tensors);
  const auto texts = [](const std::vector<std::string>& in) {
    json::array list;
    for (const std::string& text : in) list.emplace_back(printable(text));
    return list;
  };
  out["ignored"] = texts(source.ignored());
  out["warnings"] = texts(source.warnings());
  return out;
}

void print_tensors(const checkpoint::WeightSource& source, bool all) {
  struct Line {
    std::string name, shape, type;
    int64_t count = 0, bytes = 0;
  };
  std::vector<Line> lines;
  std::map<std::string, size_t> index;
  for (const WeightInfo& info : source.weights()) {
    const std::string name = all ? info.name : pattern_of(info.name);
    const std::string shape = info.kind == WeightKind::kVector
                                  ? fmt::format("{}", info.rows)
                                  : fmt::format("{} x {}", info.rows, info.cols);
    const std::string key = name + '\n' + shape + '\n' + info.stored_type;
    const auto [it, added] = index.try_emplace(key, lines.size());
    if (added) lines.push_back({name, shape, info.stored_type, 0, 0});
    lines[it->second].count += 1;
    lines[it->second].bytes += info.stored_bytes;
  }
  size_t width = 6;
  for (const Line& line : lines) width = std::max(width, line.name.size());
  fmt::print("{:<{}}  {:>5}  {:>15}  {:<12}  {:>10}\n", "tensor", width, "count", "shape", "type",
             "size");
  for (const Line& line : lines) {
    fmt::print("{:<{}}  {:>5}  {:>15}  {:<12}  {:>10}\n", line.name, width, line.count, line.shape,
               line.type, format_bytes(static_cast<double>(line.bytes)));
  }
}

void print_summary(const checkpoint::WeightSource& source, int64_t kv_scaled_layers) {
  const checkpoint::ModelConfig& c = source.config();
  fmt::print(
      "{} ({}), {} layers, hidden {}, {} heads, {} KV heads of {}, vocabulary {}, context {}\n",
      checkpoint::architecture_name(c.architecture), c.model_type, c.layers, c.hidden_size, c.heads,
      c.kv_heads, c.head_dim, c.vocab_size, c.max_positions);
  fmt::print("stored as: {}; head {}\n",
             source.quantization().empty() ? "plain 16/32-bit" : source.quantization(),
             source.tied_head() ? "tied to the embedding" : "of its own");
  std::string kv;
  for (const auto& [type, bytes] : kv_token_bytes(c))
    kv += fmt::format("{}{} {}", kv.empty() ? "" : ", ", type,
                      format_bytes(static_cast<double>(bytes)));
  fmt::print("KV cache per token: {}; ", kv);
  if (!source.kv_cache_scheme().empty()) fmt::print("exported for {}, ", source.kv_cache_scheme());
  fmt::print("scales of {} of {} layers\n\n", kv_scaled_layers, c.layers);
}

void print_totals(const Totals& totals) {
  fmt::print("\n{:<12}  {:>8}  {:>14}  {:>10}  {:>11}\n", "type", "tensors", "weights", "size",
             "bits/weight");
  for (const auto& [name, total] : totals.by_format) {
    fmt::print("{:<12}  {:>8}  {:>14}  {:>10}  {:>11.3f}\n", name, total.matrices, total.weights,
               format_bytes(static_cast<double>(total.bytes)),
               bits_per_weight(total.bytes, total.weights));
  }
  fmt::print("{:<12}  {:>8}  {:>14}  {:>10}  {:>11.3f}\n", "all", totals.all.matrices,
             totals.all.weights, format_bytes(static_cast<double>(totals.all.bytes)),
             bits_per_weight(totals.all.bytes, totals.all.weights));
  if (totals.quantised.weights > 0) {
    fmt::print("storage bits per quantised weight: {:.4f}\n",
               bits_per_weight(totals.quantised.bytes, totals.quantised.weights));
  }
}

Status inspect(const InspectArgs& args) {
  SUB8_ASSIGN_OR_RETURN(const auto source, checkpoint::open_checkpoint(args.model));
  const Totals totals = add_up(*source);
  SUB8_ASSIGN_OR_RETURN(const int64_t kv_scaled_layers, layers_with_kv_scales(*source));
  const auto calibration = inspect_calibration(*source);
  const auto awq = inspect_awq(*source);
  if (args.json) {
    json::object report = describe(*source, totals, kv_scaled_layers);
    report["calibration"] = calibration && calibration->error.empty()
                                ? json::value(calibration->facts)
                                : json::value(nullptr);
    report["calibration_error"] =
        calibration && !calibration->error.empty() ? json::value(calibration->error) : nullptr;
    report["awq"] = awq ? json::value(awq->facts) : json::value(nullptr);
    fmt::print("{}\n", valid_utf8(json::serialize(report)));
    return {};
  }
  print_summary(*source, kv_scaled_layers);
  print_tensors(*source, args.all);
  print_totals(totals);
  if (awq) fmt::print("{}\n", printable(awq->text));
  if (calibration) fmt::print("{}\n", printable(describe_calibration(*calibration)));
  for (const std::string& text : source->ignored()) fmt::print("not used: {}\n", printable(text));
  for (const std::string& text : source->warnings()) print_warning(text);
  return {};
}

}  // namespace

Verb add_inspect(CLI::App& app) {
  auto args = std::make_shared<InspectArgs>();
  app.add_option("MODEL", args->model, "A Hugging Face directory or a .gguf file")->required();
  app.add_flag("--json", args->json, "Print JSON, with every tensor");
  app.add_flag("--all", args->all, "List every tensor instead of one line per kind");
  return [args] { return inspect(*args); };
}

}  // namespace sub8::apps
