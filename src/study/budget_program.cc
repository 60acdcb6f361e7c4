#include "study/budget_program.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"

namespace sub8::study {
namespace {

constexpr int64_t kMostCost = int64_t{1} << 53;  // exact as double

Status check_program(const BudgetProgram& program) {
  for (const auto& options : program.groups) {
    SUB8_CHECK(!options.empty());
    for (const BudgetOption& option : options) {
      SUB8_CHECK_EQ(option.costs.size(), program.budgets.size());
      if (!std::isfinite(option.score))
        return corrupt_data(fmt::format("a score is {}, expected a finite number", option.score));
    }
  }
  for (size_t b = 0; b < program.budgets.size(); ++b) {
    int64_t least = 0;
    int64_t most = 0;
    for (const auto& options : program.groups) {
      const auto [low, high] = std::minmax_element(
          options.begin(), options.end(),
          [b](const BudgetOption& x, const BudgetOption& y) { return x.costs[b] < y.costs[b]; });
      SUB8_CHECK_GE(low->costs[b], 0);
      least += low->costs[b];
      most += high->costs[b];
      if (most > kMostCost)
        return invalid_argument(
            fmt::format("the costs in {} leave the range of whole numbers up to 2^53",
                        program.budgets[b].name));
    }
    if (least > program.budgets[b].limit) {
      return invalid_argument(
          fmt::format("no choice fits the budget of {} {}: the smallest one takes {}",
                      program.budgets[b].limit, program.budgets[b].name, least));
    }
  }
  return {};
}

bool no_better(const BudgetOption& x, const BudgetOption& y) {
  if (x.score < y.score) return false;
  for (size_t b = 0; b < x.costs.size(); ++b) {
    if (x.costs[b] < y.costs[b]) return false;
  }
  return true;
}

// Places of the options that no other one beats in score and all costs; of equal ones the first.
std::vector<size_t> undominated(const std::vector<BudgetOption>& options) {
  std::vector<size_t> out;
  for (size_t i = 0; i < options.size(); ++i) {
    bool dominated = false;
    for (size_t j = 0; j < options.size() && !dominated; ++j) {
      if (i == j || !no_better(options[i], options[j])) continue;
      dominated = !no_better(options[j], options[i]) || j < i;
    }
    if (!dominated) out.push_back(i);
  }
  return out;
}

}  // namespace

Result<std::vector<size_t>> solve_budget(const BudgetProgram& program) {
  SUB8_RETURN_IF_ERROR(check_program(program));
  BudgetProgram reduced;
  reduced.budgets = program.budgets;
  std::vector<std::vector<size_t>> places;
  for (const auto& options : program.groups) {
    places.push_back(undominated(options));
    auto& kept = reduced.groups.emplace_back();
    for (const size_t i : places.back()) kept.push_back(options[i]);
  }
  Result<std::vector<size_t>> solved = solve_reduced_program(reduced);
  if (!solved.ok() && solved.error().code == ErrorCode::kNotFound) {
    std::string names;
    for (const Budget& budget : program.budgets)
      names += fmt::format("{}{} {}", names.empty() ? "" : " and ", budget.limit, budget.name);
    return invalid_argument("no choice fits all budgets together: " + names);
  }
  if (!solved.ok()) return solved;
  std::vector<size_t> out;
  std::vector<int64_t> spent(program.budgets.size(), 0);
  for (size_t g = 0; g < program.groups.size(); ++g) {
    out.push_back(places[g][(*solved)[g]]);
    for (size_t b = 0; b < spent.size(); ++b) spent[b] += program.groups[g][out[g]].costs[b];
  }
  for (size_t b = 0; b < spent.size(); ++b) {
    if (spent[b] > program.budgets[b].limit)
      return internal_error(fmt::format("the solver spent {} of a budget of {} {}", spent[b],
                                        program.budgets[b].limit, program.budgets[b].name));
  }
  return out;
}

}  // namespace sub8::study
