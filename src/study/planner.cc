#include "study/planner.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checked_math.h"
#include "format/activation.h"
#include "model/execution_mode.h"
#include "study/budget_program.h"

namespace sub8::study {
namespace {

using quantize::LayerOption;

constexpr std::array<std::string_view, 4> kKindNames = {"storage-bits", "compute-bits", "bytes",
                                                        "latency-us"};
constexpr std::array<std::string_view, 4> kCostNames = {
    "bytes (storage bits)", "half bits (compute bits)", "bytes", "nanoseconds (latency)"};

OptionCost cost_of(const LayerGroup& group, const LayerOption& option, bool residue) {
  OptionCost out;
  out.half_bits = 2 * 16 * group.weights;
  if (!option.format) {
    out.bytes = group.original_bytes;
    return out;
  }
  const format::WeightFormat& format = *option.format;
  const int64_t select_groups = ceil_div<int64_t>(group.cols, format::kSelectGroup);
  const float ratio = option.prefill_ratio;
  for (const int64_t rows : group.rows) {
    out.bytes += format.storage_bytes(rows, group.cols);
    if (ratio <= 0 || ratio >= 1) continue;
    out.bytes += format.storage_bytes(rows, select_groups * format::selected_per_group(ratio)) +
                 select_groups;
  }
  if (residue && model::fp4_activations(format))
    out.half_bits = std::llround(8 * (1 + ratio)) * group.weights;
  return out;
}

int64_t cost_in(const OptionCost& cost, BudgetKind kind) {
  switch (kind) {
    case BudgetKind::kComputeBits:
      return cost.half_bits;
    case BudgetKind::kLatencyUs:
      return cost.nanoseconds.value_or(0);
    default:
      return cost.bytes;
  }
}

int64_t total_in(const PlanTable& table, const PlanChoice& choice, BudgetKind kind) {
  int64_t out = 0;
  for (size_t g = 0; g < table.groups.size(); ++g)
    out += cost_in(table.costs[g][choice.options[g]], kind);
  return out;
}

// Whole numbers of OptionCost as users see them.
double shown(int64_t cost, BudgetKind kind, const PlanTable& table) {
  const auto value = static_cast<double>(cost);
  const auto weights = static_cast<double>(table.weights);
  switch (kind) {
    case BudgetKind::kStorageBits:
      return 8 * value / weights;
    case BudgetKind::kComputeBits:
      return value / (2 * weights);
    case BudgetKind::kLatencyUs:
      return value / 1000;
    default:
      return value;
  }
}

BudgetLimit budget_of_cost(BudgetKind kind, int64_t cost, const PlanTable& table) {
  return {kind, shown(cost, kind, table), cost};
}

PlanChoice finish(const PlanTable& table, std::vector<size_t> options) {
  PlanChoice out;
  out.options = std::move(options);
  for (size_t g = 0; g < table.groups.size(); ++g)
    out.kl_divergence += table.kl_divergence[g][out.options[g]];
  out.cost.bytes = total_in(table, out, BudgetKind::kBytes);
  out.cost.storage_bits = shown(out.cost.bytes, BudgetKind::kStorageBits, table);
  out.cost.compute_bits =
      shown(total_in(table, out, BudgetKind::kComputeBits), BudgetKind::kComputeBits, table);
  if (table.has_latency) {
    out.cost.latency_us =
        shown(total_in(table, out, BudgetKind::kLatencyUs), BudgetKind::kLatencyUs, table);
  }
  return out;
}

Status check_kind(BudgetKind kind, const PlanTable& table) {
  if (kind == BudgetKind::kLatencyUs && !table.has_latency) {
    return invalid_argument(
        "a latency budget needs measured times: give --latency FILE, which `sub8 bench layers "
        "MODEL --json FILE` writes");
  }
  if (kind == BudgetKind::kComputeBits && !table.residue) {
    return invalid_argument(
        "a budget of compute bits means nothing in weight-only execution, where every format "
        "computes in 16 bits; plan with --mode residue");
  }
  return {};
}

}  // namespace

std::string_view budget_kind_name(BudgetKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

Result<BudgetKind> parse_budget_kind(std::string_view name) {
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (name == kKindNames[i]) return static_cast<BudgetKind>(i);
  }
  return invalid_argument(fmt::format("unknown budget '{}'; known: {}", name.substr(0, 40),
                                      fmt::join(kKindNames, ", ")));
}

std::vector<LayerOption> plan_options(std::span<const std::optional<format::WeightFormat>> formats,
                                      std::span<const float> ratios, bool residue) {
  std::vector<LayerOption> out;
  for (const auto& format : formats) {
    if (!residue || !format || !model::fp4_activations(*format)) {
      out.push_back({format, 0});
      continue;
    }
    for (const float ratio : ratios) out.push_back({format, ratio});
  }
  return out;
}

Result<PlanTable> plan_table(std::vector<LayerGroup> groups, std::vector<LayerOption> options,
                             const SensitivityCache& cache, bool residue,
                             const LatencyTable* latency) {
  PlanTable out;
  out.residue = residue;
  out.has_latency = latency != nullptr;
  if (latency != nullptr && latency->residue != residue) {
    return invalid_argument(fmt::format(
        "the latency table was measured in the mode '{}', the plan is for '{}'; measure again with "
        "`sub8 bench layers --mode {}`",
        latency->residue ? "residue" : "weight-only", residue ? "residue" : "weight-only",
        residue ? "residue" : "weight-only"));
  }
  for (const LayerGroup& group : groups) {
    out.weights += group.weights;
    std::vector<double>& scores = out.kl_divergence.emplace_back();
    std::vector<OptionCost>& costs = out.costs.emplace_back();
    const int64_t rows = group.weights / group.cols;
    for (const LayerOption& option : options) {
      const auto score = option.format ? cache.find(group.name(), option.name()) : 0.0;
      SUB8_CHECK(score.has_value());
      scores.push_back(*score);
      costs.push_back(cost_of(group, option, residue));
      if (latency == nullptr) continue;
      const auto time = latency->nanoseconds.find({option.name(), rows, group.cols});
      if (time == latency->nanoseconds.end()) {
        return not_found(fmt::format(
            "the latency table has no time of {} for {} x {} ({}); measure this model with the "
            "same formats and ratios by `sub8 bench layers`",
            option.name(), rows, group.cols, group.name()));
      }
      costs.back().nanoseconds = time->second;
    }
  }
  out.groups = std::move(groups);
  out.options = std::move(options);
  return out;
}

BudgetLimit make_budget(BudgetKind kind, double limit, const PlanTable& table) {
  const auto weights = static_cast<double>(table.weights);
  double cost = limit;
  if (kind == BudgetKind::kStorageBits) cost = limit * weights / 8;
  if (kind == BudgetKind::kComputeBits) cost = limit * weights * 2;
  if (kind == BudgetKind::kLatencyUs) cost = limit * 1000;
  // 4.1 bits of 10 weights are 41 bits, whatever the product's last digit.
  cost = std::floor(cost * (1 + 1e-12));
  return {kind, limit, static_cast<int64_t>(std::min(cost, 0x1p53))};
}

Result<BudgetLimit> parse_budget(std::string_view text, const PlanTable& table) {
  const size_t at = text.find('=');
  if (at == std::string_view::npos) {
    return invalid_argument(fmt::format(
        "budget '{}': expected KIND=VALUE, such as storage-bits=4.75 or bytes=nvfp4", text));
  }
  SUB8_ASSIGN_OR_RETURN(const BudgetKind kind, parse_budget_kind(text.substr(0, at)));
  SUB8_RETURN_IF_ERROR(check_kind(kind, table));
  const std::string_view value = text.substr(at + 1);
  for (size_t o = 0; o < table.options.size(); ++o) {
    if (value == table.options[o].name())
      return budget_of_cost(kind, total_in(table, uniform_plan(table, o), kind), table);
  }
  double limit = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), limit);
  const bool whole = error == std::errc() && end == value.data() + value.size();
  if (!whole || !std::isfinite(limit) || limit <= 0) {
    std::string names;
    for (const LayerOption& option : table.options)
      names += (names.empty() ? "" : ", ") + option.name();
    return invalid_argument(fmt::format(
        "budget '{}': expected a number above 0, or one of this run's options: {}", text, names));
  }
  return make_budget(kind, limit, table);
}

Result<PlanChoice> choose_plan(const PlanTable& table, std::span<const BudgetLimit> budgets) {
  BudgetProgram program;
  for (const BudgetLimit& budget : budgets) {
    SUB8_RETURN_IF_ERROR(check_kind(budget.kind, table));
    program.budgets.push_back(
        {std::string(kCostNames[static_cast<size_t>(budget.kind)]), budget.cost});
  }
  for (size_t g = 0; g < table.groups.size(); ++g) {
    auto& options = program.groups.emplace_back();
    for (size_t o = 0; o < table.options.size(); ++o) {
      BudgetOption option{table.kl_divergence[g][o], {}};
      for (const BudgetLimit& budget : budgets)
        option.costs.push_back(cost_in(table.costs[g][o], budget.kind));
      options.push_back(std::move(option));
    }
  }
  SUB8_ASSIGN_OR_RETURN(std::vector<size_t> choice, solve_budget(program));
  return finish(table, std::move(choice));
}

PlanChoice uniform_plan(const PlanTable& table, size_t option) {
  SUB8_CHECK_LT(option, table.options.size());
  return finish(table, std::vector<size_t>(table.groups.size(), option));
}

Result<std::vector<PlanChoice>> pareto_curve(const PlanTable& table, BudgetKind kind, int points) {
  SUB8_RETURN_IF_ERROR(check_kind(kind, table));
  int64_t least = 0;
  int64_t most = 0;
  for (const auto& options : table.costs) {
    const auto [low, high] = std::minmax_element(options.begin(), options.end(),
                                                 [kind](const OptionCost& a, const OptionCost& b) {
                                                   return cost_in(a, kind) < cost_in(b, kind);
                                                 });
    least += cost_in(*low, kind);
    most += cost_in(*high, kind);
  }
  std::vector<PlanChoice> out;
  for (int i = 0; i < points; ++i) {
    const double part = points > 1 ? static_cast<double>(i) / (points - 1) : 0.0;
    const int64_t cost =
        i + 1 == points && points > 1
            ? most
            : least + static_cast<int64_t>(part * static_cast<double>(most - least));
    const BudgetLimit budget = budget_of_cost(kind, cost, table);
    SUB8_ASSIGN_OR_RETURN(PlanChoice choice, choose_plan(table, std::span(&budget, 1)));
    if (out.empty() || choice.options != out.back().options) out.push_back(std::move(choice));
  }
  return out;
}

std::vector<quantize::PlannedLayer> planned_layers(const PlanTable& table,
                                                   const PlanChoice& choice) {
  std::vector<quantize::PlannedLayer> out;
  for (size_t g = 0; g < table.groups.size(); ++g) {
    const size_t o = choice.options[g];
    out.push_back({table.groups[g].modules, table.options[o], table.kl_divergence[g][o]});
  }
  return out;
}

}  // namespace sub8::study
