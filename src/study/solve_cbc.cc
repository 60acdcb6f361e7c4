// The integer program through CBC's C interface.
//
//   x[g][o] in {0, 1};  sum_o x[g][o] = 1;  sum (cost - least of g) x <= limit - sum of the least
//   minimise sum score * x
//
// The solver's tolerances are absolute and near 1e-6. Hence scores are scaled to a largest
// difference of 1e6, and costs are divided by their greatest common divisor, so that a violation is
// at least 1, and cut into digits, so that no row has a coefficient whose rounding matters.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <Cbc_C_Interface.h>

#include "base/check.h"
#include "study/budget_program.h"

namespace sub8::study {
namespace {

constexpr double kScoreScale = 1e6;
constexpr int kDigitBits = 14;
constexpr int64_t kDigitBase = int64_t{1} << kDigitBits;
constexpr int64_t kLargestLimit = int64_t{1} << 30;  // of the last digit: beyond any sum

struct DeleteModel {
  void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
};
using ModelPtr = std::unique_ptr<Cbc_Model, DeleteModel>;

int64_t least_cost(const std::vector<BudgetOption>& options, size_t budget) {
  int64_t out = options[0].costs[budget];
  for (const BudgetOption& option : options) out = std::min(out, option.costs[budget]);
  return out;
}

double least_score(const std::vector<BudgetOption>& options) {
  double out = options[0].score;
  for (const BudgetOption& option : options) out = std::min(out, option.score);
  return out;
}

void add_columns(Cbc_Model* model, const BudgetProgram& program) {
  double widest = 0;
  for (const auto& options : program.groups) {
    for (const BudgetOption& option : options)
      widest = std::max(widest, option.score - least_score(options));
  }
  const double scale = widest > 0 ? kScoreScale / widest : 1.0;
  for (const auto& options : program.groups) {
    const double least = least_score(options);
    for (const BudgetOption& option : options)
      Cbc_addCol(model, "", 0, 1, (option.score - least) * scale, 1, 0, nullptr, nullptr);
  }
}

void add_choices(Cbc_Model* model, const BudgetProgram& program) {
  int column = 0;
  for (const auto& options : program.groups) {
    std::vector<int> columns(options.size());
    std::iota(columns.begin(), columns.end(), column);
    const std::vector<double> ones(options.size(), 1.0);
    Cbc_addRow(model, "", static_cast<int>(columns.size()), columns.data(), ones.data(), 'E', 1.0);
    column += static_cast<int>(columns.size());
  }
}

// sum cost * x <= limit with small coefficients: costs beyond a digit are written in base 2^14, and
// a carry, a whole number, goes from each digit's row to the next:
//   sum digit_i * x + carry_i <= limit_i + 2^14 * carry_i+1     (carry_0 = 0; the last row has
//   none)
// which some carries meet exactly if the whole sum meets the limit.
void add_budget(Cbc_Model* model, const BudgetProgram& program, size_t budget) {
  int64_t rest = program.budgets[budget].limit;
  int64_t divisor = 0;
  int64_t largest = 0;
  std::vector<int64_t> extra;  // of each column, above its group's least
  for (const auto& options : program.groups) {
    const int64_t least = least_cost(options, budget);
    rest -= least;
    for (const BudgetOption& option : options) {
      extra.push_back(option.costs[budget] - least);
      divisor = std::gcd(divisor, extra.back());
      largest = std::max(largest, extra.back());
    }
  }
  if (divisor == 0) return;  // all cost the same, and that fits
  rest /= divisor;
  largest /= divisor;
  int carry_in = -1;
  for (int shift = 0;; shift += kDigitBits) {
    const bool last = largest >> shift < kDigitBase;
    std::vector<int> columns;
    std::vector<double> costs;
    for (size_t i = 0; i < extra.size(); ++i) {
      const int64_t digit = extra[i] / divisor >> shift & (kDigitBase - 1);
      if (digit == 0) continue;
      columns.push_back(static_cast<int>(i));
      costs.push_back(static_cast<double>(digit));
    }
    if (carry_in >= 0) {
      columns.push_back(carry_in);
      costs.push_back(1.0);
    }
    int64_t limit = rest >> shift;
    if (!last) {
      limit &= kDigitBase - 1;
      carry_in = Cbc_getNumCols(model);
      Cbc_addCol(model, "", 0, static_cast<double>(program.groups.size() + 1), 0, 1, 0, nullptr,
                 nullptr);
      columns.push_back(carry_in);
      costs.push_back(-static_cast<double>(kDigitBase));
    }
    Cbc_addRow(model, "", static_cast<int>(columns.size()), columns.data(), costs.data(), 'L',
               static_cast<double>(std::min(limit, kLargestLimit)));
    if (last) return;
  }
}

}  // namespace

bool has_budget_solver() { return true; }

Result<std::vector<size_t>> solve_reduced_program(const BudgetProgram& program) {
  if (program.groups.empty()) return std::vector<size_t>();
  const ModelPtr model(Cbc_newModel());
  Cbc_setLogLevel(model.get(), 0);
  Cbc_setParameter(model.get(), "log", "0");
  // Preprocessing of CBC 2.10.8 cuts optima off: in one of 300 random programs of 5 groups the
  // result was not the least (tests/study/budget_program_test.cc).
  Cbc_setParameter(model.get(), "preprocess", "off");
  Cbc_setParameter(model.get(), "ratioGap", "0");
  Cbc_setParameter(model.get(), "allowableGap", "0");
  Cbc_setObjSense(model.get(), 1);
  add_columns(model.get(), program);
  add_choices(model.get(), program);
  for (size_t b = 0; b < program.budgets.size(); ++b) add_budget(model.get(), program, b);
  Cbc_solve(model.get());
  if (Cbc_isProvenInfeasible(model.get())) return not_found("no choice fits all budgets");
  if (!Cbc_isProvenOptimal(model.get()))
    return internal_error("CBC ended without a proven optimum");
  const double* values = Cbc_getColSolution(model.get());
  std::vector<size_t> out;
  for (const auto& options : program.groups) {
    const double* best = std::max_element(values, values + options.size());
    if (std::abs(*best - 1.0) > 1e-4)
      return internal_error("CBC gave a choice that is no whole number");
    out.push_back(static_cast<size_t>(best - values));
    values += options.size();
  }
  return out;
}

}  // namespace sub8::study
