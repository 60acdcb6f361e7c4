// From sensitivities and costs to a plan: one option for each group of layers, with the least
// predicted KL divergence within the budgets.
//
// Source: ResServe appendix E.1. The prediction is the sum of the groups' own divergences. Compute
// bits are the paper's effective bits, b(1 + ratio) averaged over multiply-adds, with b the wider
// MMA operand: 4 for 4-bit weights with 4-bit activations, 16 for 16-bit activations.
//
// Example:
//   SUB8_ASSIGN_OR_RETURN(const PlanTable table, plan_table(groups, options, cache, true,
//   nullptr)); SUB8_ASSIGN_OR_RETURN(const BudgetLimit budget, parse_budget("storage-bits=4.75",
//   table)); SUB8_ASSIGN_OR_RETURN(const PlanChoice choice, choose_plan(table, {budget}));
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "quantize/layer_plan.h"
#include "study/layer_latency.h"
#include "study/layer_substitutes.h"
#include "study/sensitivity_cache.h"

namespace sub8::study {

enum class BudgetKind : uint8_t { kStorageBits, kComputeBits, kBytes, kLatencyUs };
std::string_view budget_kind_name(BudgetKind kind);  // "storage-bits", "compute-bits", ...
Result<BudgetKind> parse_budget_kind(std::string_view name);

// What one option of one group costs, in whole numbers.
struct OptionCost {
  // Codes and scales; for a ratio between 0 and 1 the extension columns and one mask.
  int64_t bytes = 0;
  int64_t half_bits = 0;  // 2 b (1 + ratio) * weights
  std::optional<int64_t> nanoseconds;
};

struct PlanTable {
  std::vector<LayerGroup> groups;
  std::vector<quantize::LayerOption> options;
  std::vector<std::vector<double>> kl_divergence;  // [group][option]
  std::vector<std::vector<OptionCost>> costs;      // [group][option]
  int64_t weights = 0;                             // of all groups
  bool residue = false;                            // 4-bit formats compute with 4-bit activations
  bool has_latency = false;
};

// All options of a run: every format (nothing: original), the 4-bit ones once for each ratio where
// the mode is residue.
std::vector<quantize::LayerOption> plan_options(
    std::span<const std::optional<format::WeightFormat>> formats, std::span<const float> ratios,
    bool residue);

// The cache has all of groups x options. `latency` may be null; else an error names what it lacks.
Result<PlanTable> plan_table(std::vector<LayerGroup> groups,
                             std::vector<quantize::LayerOption> options,
                             const SensitivityCache& cache, bool residue,
                             const LatencyTable* latency);

struct BudgetLimit {
  BudgetKind kind = BudgetKind::kStorageBits;
  double limit = 0;  // as users see it
  int64_t cost = 0;  // the same in the whole numbers of OptionCost, rounded down
};
BudgetLimit make_budget(BudgetKind kind, double limit, const PlanTable& table);
// "KIND=NUMBER", or "KIND=OPTION": what that option costs everywhere. Errors for kinds that the
// mode or the table does not have.
Result<BudgetLimit> parse_budget(std::string_view text, const PlanTable& table);

struct PlanChoice {
  std::vector<size_t> options;  // of each group, places in the table's
  double kl_divergence = 0;     // predicted
  quantize::PlanCost cost;
};

// The choice with the least prediction (budget_program.h).
Result<PlanChoice> choose_plan(const PlanTable& table, std::span<const BudgetLimit> budgets);
// The same option everywhere.
PlanChoice uniform_plan(const PlanTable& table, size_t option);
// Best choices for `points` budgets from the least to the most that any choice costs, evenly
// spaced; equal neighbours once.
Result<std::vector<PlanChoice>> pareto_curve(const PlanTable& table, BudgetKind kind, int points);

// The layers of the plan file.
std::vector<quantize::PlannedLayer> planned_layers(const PlanTable& table,
                                                   const PlanChoice& choice);

}  // namespace sub8::study
