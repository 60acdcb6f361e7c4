#include "study/layer_latency.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/json_keys.h"
#include "kvcache/page_pool.h"

namespace sub8::study {
namespace {

namespace json = boost::json;
using quantize::LayerOption;

constexpr std::string_view kKind = "sub8-layer-latency";
constexpr int64_t kVersion = 1;

// Times one operation of the pass it looks into.
class Stopwatch final : public model::Observer {
 public:
  explicit Stopwatch(const model::Op* op) : op_(std::get_if<model::LinearOp>(op)) {}
  void linear_input(const model::LinearOp& op, const uint16_t* /*x*/, int64_t /*stride*/,
                    int64_t /*rows*/) override {
    if (&op == op_) start_ = std::chrono::steady_clock::now();
  }
  void linear_done(const model::LinearOp& op) override {
    if (&op != op_) return;
    const auto time = std::chrono::steady_clock::now() - start_;
    nanoseconds.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
  }
  std::vector<int64_t> nanoseconds;

 private:
  const model::LinearOp* op_;
  std::chrono::steady_clock::time_point start_;
};

int64_t median(std::vector<int64_t> values) {
  SUB8_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return std::max<int64_t>(values[values.size() / 2], 1);
}

Status read_entry(const JsonRef& node, LatencyTable& table) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef option_node, node.at("option"));
  SUB8_ASSIGN_OR_RETURN(const std::string option, option_node.as_string());
  SUB8_ASSIGN_OR_RETURN(const JsonRef n_node, node.at("n"));
  SUB8_ASSIGN_OR_RETURN(const int64_t n, n_node.as_int(1, int64_t{1} << 40));
  SUB8_ASSIGN_OR_RETURN(const JsonRef k_node, node.at("k"));
  SUB8_ASSIGN_OR_RETURN(const int64_t k, k_node.as_int(1, int64_t{1} << 40));
  SUB8_ASSIGN_OR_RETURN(const JsonRef time_node, node.at("median_us"));
  SUB8_ASSIGN_OR_RETURN(const double microseconds, time_node.as_double());
  if (!(microseconds > 0 && microseconds < 1e9)) {
    return corrupt_data(fmt::format("{} is {}, expected microseconds above 0 and below 1e9",
                                    time_node.where(), microseconds));
  }
  const auto time = std::max<int64_t>(std::llround(1000 * microseconds), 1);
  if (!table.nanoseconds.emplace(std::tuple(option, n, k), time).second)
    return corrupt_data(fmt::format("{}: '{}' of {} x {} comes a second time", node.where(),
                                    option.substr(0, 40), n, k));
  return {};
}

}  // namespace

Result<LatencyTable> read_latency_table(const std::filesystem::path& path) {
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  SUB8_ASSIGN_OR_RETURN(const json::value value, parse_json(text, path.string()));
  SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(text, path.string()));
  const JsonRef root(value, path.string());
  SUB8_ASSIGN_OR_RETURN(const std::string kind, root.get_string("kind", ""));
  if (kind != kKind) {
    return invalid_argument(fmt::format(
        "{}.kind is '{}', expected '{}': `sub8 bench layers MODEL --json FILE` writes such a table",
        root.where(), kind.substr(0, 40), kKind));
  }
  SUB8_ASSIGN_OR_RETURN(const int64_t version, root.get_int("schema_version", 0, 0, INT32_MAX));
  if (version != kVersion) {
    return unsupported(fmt::format("{}.schema_version: this program reads {}, the file has {}",
                                   root.where(), kVersion, version));
  }
  LatencyTable out;
  SUB8_ASSIGN_OR_RETURN(out.rows, root.get_int("rows", 0, 1, int64_t{1} << 40));
  SUB8_ASSIGN_OR_RETURN(const std::string mode, root.get_string("mode", ""));
  if (mode != "residue" && mode != "weight-only") {
    return corrupt_data(fmt::format("{}.mode is '{}', expected 'residue' or 'weight-only'",
                                    root.where(), mode.substr(0, 40)));
  }
  out.residue = mode == "residue";
  SUB8_ASSIGN_OR_RETURN(const JsonRef results_node, root.at("results"));
  SUB8_ASSIGN_OR_RETURN(const auto results, results_node.elements());
  for (const JsonRef& entry : results) SUB8_RETURN_IF_ERROR(read_entry(entry, out));
  return out;
}

json::object latency_json(const LatencyTable& table) {
  json::array results;
  for (const auto& [key, nanoseconds] : table.nanoseconds) {
    const auto& [option, n, k] = key;
    results.push_back({{"option", option},
                       {"n", n},
                       {"k", k},
                       {"median_us", static_cast<double>(nanoseconds) / 1000}});
  }
  return {{"kind", kKind},
          {"schema_version", kVersion},
          {"rows", table.rows},
          {"mode", table.residue ? "residue" : "weight-only"},
          {"results", std::move(results)}};
}

Result<LatencyTable> measure_layer_latency(
    model::Model& model, const checkpoint::WeightSource& source, std::span<const LayerGroup> groups,
    std::span<const LayerOption> options, const Sample& rows, int repeat,
    const SubstituteOptions& how,
    const std::function<void(int64_t, int64_t, std::string_view)>& progress) {
  LatencyTable out;
  out.rows = static_cast<int64_t>(rows.size());
  out.residue = model.options().mode.mode == model::ExecutionMode::kResidue;
  std::vector<int32_t> pages(static_cast<size_t>(model.options().kv_pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<int32_t> positions(rows.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> slots(positions.begin(), positions.end());
  std::vector<kernels::AttentionRow> attention;
  attention.reserve(positions.size());
  for (const int32_t position : positions) attention.push_back({pages.data(), position});
  const model::Batch batch{rows, positions, slots, attention, out.rows};

  std::map<std::pair<int64_t, int64_t>, const LayerGroup*> shapes;
  for (const LayerGroup& group : groups)
    shapes.try_emplace({group.weights / group.cols, group.cols}, &group);
  LayerSubstitutes substitutes(model, source, std::span(&rows, 1), how);
  const auto total = static_cast<int64_t>(shapes.size() * options.size());
  int64_t done = 0;
  for (const auto& [shape, group] : shapes) {
    SUB8_ASSIGN_OR_RETURN(const size_t op, find_operation(model.program(), *group));
    for (const LayerOption& option : options) {
      model::LinearSubstitute substitute;
      if (option.format) {
        SUB8_ASSIGN_OR_RETURN(substitute, substitutes.make(op, option));
        model.substitute_linear(op, &substitute);
      }
      Stopwatch watch(&model.program().body[op]);
      Status status;
      for (int i = 0; i <= repeat && status.ok(); ++i) {
        status = check_interrupt();
        if (status.ok()) status = model.forward(batch, &watch);
      }
      model.substitute_linear(op, nullptr);
      SUB8_RETURN_IF_ERROR(std::move(status));
      watch.nanoseconds.erase(watch.nanoseconds.begin());  // the first pass warms up
      out.nanoseconds[{option.name(), shape.first, shape.second}] =
          median(std::move(watch.nanoseconds));
      if (progress) progress(++done, total, group->name() + " as " + option.name());
    }
  }
  return out;
}

}  // namespace sub8::study
