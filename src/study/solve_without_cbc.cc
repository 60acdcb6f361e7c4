// Stands in for solve_cbc.cc where the build found no CBC.
#include "study/budget_program.h"

namespace sub8::study {

bool has_budget_solver() { return false; }

Result<std::vector<size_t>> solve_reduced_program(const BudgetProgram& /*program*/) {
  return unsupported(
      "this build cannot solve plans: it was configured without CBC (Debian: coinor-libcbc-dev); "
      "install it, configure and build again");
}

}  // namespace sub8::study
