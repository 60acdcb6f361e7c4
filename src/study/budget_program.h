// One option for each of several groups, with the least total score within all budgets: the
// multiple-choice knapsack problem, solved exactly as an integer program.
//
// Source: ResServe appendix E.1; Yao et al. 2021 (HAWQ-V3). Solver: CBC (coin-or), where the build
// found it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace sub8::study {

struct BudgetOption {
  double score = 0;            // finite, to be small
  std::vector<int64_t> costs;  // one for each budget, 0 .. 2^53 over all groups
};

struct Budget {
  std::string name;  // with its unit, for errors: "storage bytes"
  int64_t limit = 0;
};

struct BudgetProgram {
  std::vector<Budget> budgets;
  std::vector<std::vector<BudgetOption>> groups;  // each with at least one option
};

// The chosen option of each group. Costs are whole numbers, so the budgets hold exactly; the total
// score is within 1e-9 of the groups' largest score of the least one. Errors: scores that are not
// finite; invalid_argument that names the budget (and the least it could be) where nothing fits;
// unsupported in a build without CBC.
Result<std::vector<size_t>> solve_budget(const BudgetProgram& program);

// Whether this build can solve.
bool has_budget_solver();

// ---- For solve_budget ---------------------------------------------------------------------------

// The solver's own part: `program` is checked, reduced to undominated options, and each budget
// alone can be met. kNotFound where all together cannot.
Result<std::vector<size_t>> solve_reduced_program(const BudgetProgram& program);

}  // namespace sub8::study
