#include "quantize/layer_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_keys.h"
#include "checkpoint/pretty_json.h"
#include "quantize/plan.h"

namespace sub8::quantize {
namespace {

namespace json = boost::json;

constexpr std::string_view kKind = "sub8-plan";
constexpr std::string_view kResidueMode = "residue";
constexpr std::string_view kWeightOnlyMode = "weight-only";
constexpr int64_t kMost = int64_t{1} << 53;

bool takes_ratio(const format::WeightFormat& format) {
  return format == format::nvfp4_format() || format == format::mx_format(format::kE2M1);
}

// A finite number of at least 0.
Result<double> amount(const JsonRef& parent, std::string_view key) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef node, parent.at(key));
  SUB8_ASSIGN_OR_RETURN(const double value, node.as_double());
  if (value >= 0) return value;
  return corrupt_data(fmt::format("{} is {}, expected at least 0", node.where(), value));
}

Result<std::string> text_of(const JsonRef& parent, std::string_view key) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef node, parent.at(key));
  return node.as_string();
}

Result<LayerOption> read_option(const JsonRef& node) {
  LayerOption out;
  SUB8_ASSIGN_OR_RETURN(const JsonRef format_node, node.at("format"));
  SUB8_ASSIGN_OR_RETURN(const std::string name, format_node.as_string());
  if (name != kOriginalName) {
    auto format = format::parse_weight_format(name);
    if (!format.ok()) return format.error().within(format_node.where());
    if (Status fits = format::check_quantizable(*format); !fits.ok())
      return fits.error().within(format_node.where());
    out.format = *format;
  }
  SUB8_ASSIGN_OR_RETURN(const double ratio, node.get_double("prefill_ratio", 0));
  out.prefill_ratio = static_cast<float>(ratio);
  for (const float known : {0.0f, 0.125f, 0.25f, 0.5f, 1.0f}) {
    if (out.prefill_ratio != known) continue;
    if (known == 0 || (out.format && takes_ratio(*out.format))) return out;
    return corrupt_data(fmt::format("{}: {} has no prefill ratio; nvfp4 and mxfp4 have",
                                    node.where(), name.substr(0, 40)));
  }
  return corrupt_data(fmt::format("{}.prefill_ratio is {}, expected 0, 0.125, 0.25, 0.5 or 1",
                                  node.where(), ratio));
}

Result<PlannedLayer> read_layer(const JsonRef& node, std::set<std::string>& seen) {
  PlannedLayer out;
  SUB8_ASSIGN_OR_RETURN(const JsonRef modules_node, node.at("modules"));
  SUB8_ASSIGN_OR_RETURN(const auto modules, modules_node.elements());
  if (modules.empty()) return corrupt_data(modules_node.where() + " is empty");
  for (const JsonRef& module : modules) {
    SUB8_ASSIGN_OR_RETURN(std::string name, module.as_string());
    if (!seen.insert(name).second)
      return corrupt_data(
          fmt::format("{}: '{}' comes a second time", module.where(), name.substr(0, 100)));
    out.modules.push_back(std::move(name));
  }
  SUB8_ASSIGN_OR_RETURN(out.option, read_option(node));
  SUB8_ASSIGN_OR_RETURN(out.kl_divergence, amount(node, "kl_divergence"));
  return out;
}

Status read_mode_and_rules(const JsonRef& root, LayerPlan& out) {
  SUB8_ASSIGN_OR_RETURN(const std::string mode, text_of(root, "mode"));
  if (mode != kResidueMode && mode != kWeightOnlyMode) {
    return corrupt_data(fmt::format("{}.mode is '{}', expected '{}' or '{}'", root.where(),
                                    mode.substr(0, 40), kResidueMode, kWeightOnlyMode));
  }
  out.residue = mode == kResidueMode;
  SUB8_ASSIGN_OR_RETURN(const JsonRef rules, root.at("rules"));
  SUB8_ASSIGN_OR_RETURN(const std::string scale, text_of(rules, "scale"));
  SUB8_ASSIGN_OR_RETURN(const std::string mx_rule, text_of(rules, "mx_rule"));
  auto method = parse_scale_method(scale);
  if (!method.ok()) return method.error().within(rules.where());
  auto rule = parse_mx_rule(mx_rule);
  if (!rule.ok()) return rule.error().within(rules.where());
  out.rules.scale = *method;
  out.rules.block.mx = *rule;
  return {};
}

Status read_sample(const JsonRef& root, PlanSample& out) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef node, root.at("sample"));
  SUB8_ASSIGN_OR_RETURN(out.text, node.get_string("text", ""));
  SUB8_ASSIGN_OR_RETURN(out.windows, node.get_int("windows", 0, 0, kMost));
  SUB8_ASSIGN_OR_RETURN(out.window, node.get_int("window", 0, 0, kMost));
  SUB8_ASSIGN_OR_RETURN(const int64_t seed, node.get_int("seed", 0, 0, kMost));
  out.seed = static_cast<uint64_t>(seed);
  return {};
}

Status read_cost(const JsonRef& root, LayerPlan& out) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef budgets, root.at("budgets"));
  SUB8_ASSIGN_OR_RETURN(const auto members, budgets.members());
  for (const auto& [kind, node] : members) {
    SUB8_ASSIGN_OR_RETURN(const double limit, node.as_double());
    out.budgets.push_back({kind, limit});
  }
  SUB8_ASSIGN_OR_RETURN(out.kl_divergence, amount(root, "kl_divergence"));
  SUB8_ASSIGN_OR_RETURN(const JsonRef cost, root.at("cost"));
  SUB8_ASSIGN_OR_RETURN(out.cost.storage_bits, amount(cost, "storage_bits"));
  SUB8_ASSIGN_OR_RETURN(out.cost.compute_bits, amount(cost, "compute_bits"));
  SUB8_ASSIGN_OR_RETURN(out.cost.bytes, cost.get_int("bytes", 0, 0, kMost));
  if (cost.find("latency_us")) {
    SUB8_ASSIGN_OR_RETURN(out.cost.latency_us, amount(cost, "latency_us"));
  }
  return {};
}

}  // namespace

std::string LayerOption::name() const {
  std::string out = format ? format->name() : std::string(kOriginalName);
  if (prefill_ratio > 0) out += fmt::format("+{}", prefill_ratio);
  return out;
}

bool LayerPlan::selects_channels() const {
  return std::any_of(layers.begin(), layers.end(), [](const PlannedLayer& layer) {
    return layer.option.prefill_ratio > 0 && layer.option.prefill_ratio < 1;
  });
}

std::string layer_plan_json(const LayerPlan& plan) {
  json::object budgets;
  for (const PlanBudget& budget : plan.budgets) budgets[budget.kind] = budget.limit;
  json::object cost{{"storage_bits", plan.cost.storage_bits},
                    {"compute_bits", plan.cost.compute_bits},
                    {"bytes", plan.cost.bytes}};
  if (plan.cost.latency_us) cost["latency_us"] = *plan.cost.latency_us;
  json::array layers;
  for (const PlannedLayer& layer : plan.layers) {
    json::array modules;
    for (const std::string& module : layer.modules) modules.emplace_back(module);
    json::object entry{{"modules", std::move(modules)}};
    entry["format"] =
        layer.option.format ? layer.option.format->name() : std::string(kOriginalName);
    if (plan.residue) entry["prefill_ratio"] = layer.option.prefill_ratio;
    entry["kl_divergence"] = layer.kl_divergence;
    layers.push_back(std::move(entry));
  }
  const json::object root{{"kind", kKind},
                          {"schema_version", kLayerPlanVersion},
                          {"producer", json::object{{"name", "sub8"}, {"version", plan.version}}},
                          {"model", json::object{{"name", plan.model_name},
                                                 {"layout", plan.model.layout},
                                                 {"content", plan.model.content}}},
                          {"mode", plan.residue ? kResidueMode : kWeightOnlyMode},
                          {"rules", json::object{{"scale", scale_method_name(plan.rules.scale)},
                                                 {"mx_rule", mx_rule_name(plan.rules.block.mx)}}},
                          {"sample", json::object{{"text", plan.sample.text},
                                                  {"windows", plan.sample.windows},
                                                  {"window", plan.sample.window},
                                                  {"seed", plan.sample.seed}}},
                          {"budgets", std::move(budgets)},
                          {"kl_divergence", plan.kl_divergence},
                          {"cost", std::move(cost)},
                          {"layers", std::move(layers)}};
  return checkpoint::pretty_json(root);
}

Result<LayerPlan> parse_layer_plan(std::string_view text, std::string_view source) {
  SUB8_ASSIGN_OR_RETURN(const json::value value, parse_json(text, source));
  SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(text, source));
  const JsonRef root(value, std::string(source));
  SUB8_ASSIGN_OR_RETURN(const std::string kind, root.get_string("kind", ""));
  if (kind != kKind) {
    return invalid_argument(
        fmt::format("{}.kind is '{}', expected '{}': this is no plan; `sub8 plan` writes one",
                    root.where(), kind.substr(0, 40), kKind));
  }
  SUB8_ASSIGN_OR_RETURN(const JsonRef version_node, root.at("schema_version"));
  SUB8_ASSIGN_OR_RETURN(const int64_t version, version_node.as_int(0, INT32_MAX));
  if (version != kLayerPlanVersion) {
    return unsupported(fmt::format("{}: this program reads version {}, the file has {}",
                                   version_node.where(), kLayerPlanVersion, version));
  }
  LayerPlan out;
  SUB8_ASSIGN_OR_RETURN(const JsonRef producer, root.at("producer"));
  SUB8_ASSIGN_OR_RETURN(out.version, text_of(producer, "version"));
  SUB8_ASSIGN_OR_RETURN(const JsonRef model, root.at("model"));
  SUB8_ASSIGN_OR_RETURN(out.model_name, text_of(model, "name"));
  SUB8_ASSIGN_OR_RETURN(out.model.layout, text_of(model, "layout"));
  SUB8_ASSIGN_OR_RETURN(out.model.content, text_of(model, "content"));
  SUB8_RETURN_IF_ERROR(read_mode_and_rules(root, out));
  SUB8_RETURN_IF_ERROR(read_sample(root, out.sample));
  SUB8_RETURN_IF_ERROR(read_cost(root, out));
  SUB8_ASSIGN_OR_RETURN(const JsonRef layers_node, root.at("layers"));
  SUB8_ASSIGN_OR_RETURN(const auto layers, layers_node.elements());
  std::set<std::string> seen;
  for (const JsonRef& node : layers) {
    SUB8_ASSIGN_OR_RETURN(PlannedLayer layer, read_layer(node, seen));
    if (layer.option.prefill_ratio > 0 && !out.residue) {
      return corrupt_data(fmt::format("{}: a prefill ratio in a plan for the mode '{}'",
                                      node.where(), kWeightOnlyMode));
    }
    out.layers.push_back(std::move(layer));
  }
  return out;
}

Result<LayerPlan> read_layer_plan(const std::filesystem::path& path) {
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return parse_layer_plan(text, path.string());
}

Status check_layer_plan(const LayerPlan& plan, const checkpoint::WeightSource& source) {
  SUB8_ASSIGN_OR_RETURN(const checkpoint::ModelFingerprint model, checkpoint::fingerprint(source));
  if (model != plan.model) {
    return invalid_argument(fmt::format(
        "the plan was made for another model, '{}': {} differ (plan {}, this model {}); make one "
        "for this model with `sub8 plan`",
        plan.model_name,
        model.layout != plan.model.layout ? "names, shapes or stored types" : "the weights' values",
        model.layout != plan.model.layout ? plan.model.layout : plan.model.content,
        model.layout != plan.model.layout ? model.layout : model.content));
  }
  // The entry of each module.
  std::map<std::string, size_t, std::less<>> entries;
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    for (const std::string& module : plan.layers[i].modules) {
      const checkpoint::WeightInfo* info = source.find(module);
      if (info == nullptr || info->kind != checkpoint::WeightKind::kLinear || module == "lm_head")
        return invalid_argument(fmt::format(
            "the plan names '{}', which is no linear layer of the model", module.substr(0, 100)));
      entries[module] = i;
    }
  }
  std::map<std::string, size_t> fused;  // fused group -> entry
  for (const checkpoint::WeightInfo& info : source.weights()) {
    if (info.kind != checkpoint::WeightKind::kLinear || info.name == "lm_head") continue;
    const auto entry = entries.find(info.name);
    if (entry == entries.end())
      return invalid_argument(fmt::format("the plan says nothing about '{}'", info.name));
    const auto [at, added] = fused.try_emplace(fused_group(info.name), entry->second);
    if (!added && at->second != entry->second) {
      return invalid_argument(fmt::format(
          "the plan has '{}' in an entry of its own, but it is computed together with others of "
          "'{}'; they need one format and one ratio",
          info.name, at->first));
    }
  }
  return {};
}

void apply_layer_plan(const LayerPlan& plan, Recipe& recipe) {
  recipe.rules = plan.rules;
  recipe.modules.emplace();
  for (const PlannedLayer& layer : plan.layers) {
    for (const std::string& module : layer.modules)
      recipe.modules->insert_or_assign(module, layer.option.format);
  }
}

}  // namespace sub8::quantize
