// The exact choice within budgets, against all choices one by one and against dynamic programming.
#include "study/budget_program.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace sub8::study {
namespace {

double total_score(const BudgetProgram& program, const std::vector<size_t>& choice) {
  double out = 0;
  for (size_t g = 0; g < choice.size(); ++g) out += program.groups[g][choice[g]].score;
  return out;
}

bool within(const BudgetProgram& program, const std::vector<size_t>& choice) {
  for (size_t b = 0; b < program.budgets.size(); ++b) {
    int64_t spent = 0;
    for (size_t g = 0; g < choice.size(); ++g) spent += program.groups[g][choice[g]].costs[b];
    if (spent > program.budgets[b].limit) return false;
  }
  return true;
}

// The least score over all choices; infinite where nothing fits.
double brute_force(const BudgetProgram& program) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<size_t> choice(program.groups.size(), 0);
  while (true) {
    if (within(program, choice)) best = std::min(best, total_score(program, choice));
    size_t g = 0;
    while (g < choice.size() && ++choice[g] == program.groups[g].size()) choice[g++] = 0;
    if (g == choice.size()) return best;
  }
}

// Scores over several decades, as sensitivities are; costs that grow as scores fall, mostly.
BudgetProgram random_program(std::mt19937_64& random, size_t groups, size_t options, size_t budgets,
                             int64_t largest) {
  BudgetProgram out;
  std::vector<int64_t> least(budgets, 0), most(budgets, 0);
  std::uniform_real_distribution<double> exponent(-7, -1);
  for (size_t g = 0; g < groups; ++g) {
    auto& list = out.groups.emplace_back();
    const size_t count = 1 + random() % options;
    std::vector<int64_t> low(budgets, INT64_MAX), high(budgets, 0);
    for (size_t o = 0; o < count; ++o) {
      BudgetOption option{std::pow(10.0, exponent(random)), {}};
      for (size_t b = 0; b < budgets; ++b) {
        const auto cost = static_cast<int64_t>(random() % static_cast<uint64_t>(largest));
        option.costs.push_back(cost);
        low[b] = std::min(low[b], cost);
        high[b] = std::max(high[b], cost);
      }
      list.push_back(option);
    }
    for (size_t b = 0; b < budgets; ++b) {
      least[b] += low[b];
      most[b] += high[b];
    }
  }
  for (size_t b = 0; b < budgets; ++b) {
    const auto span = static_cast<uint64_t>(most[b] - least[b]) + 1;
    out.budgets.push_back({"units", least[b] + static_cast<int64_t>(random() % span)});
  }
  return out;
}

class BudgetSolver : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_budget_solver()) GTEST_SKIP() << "built without CBC";
  }
};

TEST_F(BudgetSolver, AgreesWithAllChoices) {
  std::mt19937_64 random(7);
  int infeasible = 0;
  for (int round = 0; round < 300; ++round) {
    const int64_t largest = round % 3 == 0 ? 6 : round % 3 == 1 ? 1000 : int64_t{1} << 40;
    const auto program = random_program(random, 1 + round % 6, 5, 1 + round % 3, largest);
    const double best = brute_force(program);
    const auto solved = solve_budget(program);
    if (std::isinf(best)) {
      ++infeasible;
      ASSERT_FALSE(solved.ok()) << "round " << round;
      EXPECT_EQ(solved.error().code, ErrorCode::kInvalidArgument);
      continue;
    }
    ASSERT_TRUE(solved.ok()) << "round " << round << ": " << solved.error().message;
    ASSERT_TRUE(within(program, *solved)) << "round " << round;
    EXPECT_LE(total_score(program, *solved), best + 1e-10) << "round " << round;
  }
  EXPECT_GT(infeasible, 0);
}

// Many groups, one budget in small units: the textbook recursion over what is spent.
TEST_F(BudgetSolver, AgreesWithDynamicProgramming) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 8; ++round) {
    const auto program = random_program(random, 120, 13, 1, 60);
    const auto limit = static_cast<size_t>(program.budgets[0].limit);
    constexpr double kNone = std::numeric_limits<double>::infinity();
    std::vector<double> best(limit + 1, kNone);
    best[0] = 0;
    for (const auto& options : program.groups) {
      std::vector<double> next(limit + 1, kNone);
      for (const BudgetOption& option : options) {
        const auto cost = static_cast<size_t>(option.costs[0]);
        for (size_t spent = cost; spent <= limit; ++spent)
          next[spent] = std::min(next[spent], best[spent - cost] + option.score);
      }
      best = std::move(next);
    }
    const double want = *std::min_element(best.begin(), best.end());
    const auto solved = solve_budget(program);
    ASSERT_TRUE(solved.ok()) << solved.error().message;
    ASSERT_TRUE(within(program, *solved));
    EXPECT_NEAR(total_score(program, *solved), want, 1e-9) << "round " << round;
  }
}

TEST_F(BudgetSolver, TheLastUnitOfABudgetCounts) {
  BudgetProgram program;
  constexpr int64_t kLarge = (int64_t{1} << 44) + 1;
  program.groups = {{{1.0, {kLarge}}, {0.5, {kLarge + 1}}}, {{1.0, {3}}, {0.25, {kLarge}}}};
  program.budgets = {{"bytes", kLarge + kLarge}};
  EXPECT_EQ(*solve_budget(program), (std::vector<size_t>{0, 1}));
  program.budgets[0].limit += 1;
  EXPECT_EQ(*solve_budget(program), (std::vector<size_t>{1, 1}));
  program.budgets[0].limit = kLarge + 3;
  EXPECT_EQ(*solve_budget(program), (std::vector<size_t>{0, 0}));
}

TEST_F(BudgetSolver, SaysWhatDoesNotFit) {
  BudgetProgram program;
  program.groups = {{{1, {10, 1}}, {0, {20, 0}}}, {{1, {10, 1}}, {0, {20, 0}}}};
  program.budgets = {{"bytes", 19}, {"nanoseconds", 9}};
  auto solved = solve_budget(program);
  ASSERT_FALSE(solved.ok());
  EXPECT_NE(solved.error().message.find("19 bytes"), std::string::npos) << solved.error().message;
  EXPECT_NE(solved.error().message.find("takes 20"), std::string::npos) << solved.error().message;
  program.budgets = {{"bytes", 25}, {"nanoseconds", 0}};  // each alone fits
  solved = solve_budget(program);
  ASSERT_FALSE(solved.ok());
  EXPECT_NE(solved.error().message.find("together"), std::string::npos) << solved.error().message;
}

TEST(BudgetProgram, ScoresMustBeFinite) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    BudgetProgram program;
    program.groups = {{{bad, {1}}}};
    program.budgets = {{"bytes", 5}};
    const auto solved = solve_budget(program);
    ASSERT_FALSE(solved.ok());
    EXPECT_EQ(solved.error().code, ErrorCode::kCorruptData);
  }
}

TEST(BudgetProgram, ABuildWithoutASolverSaysSo) {
  if (has_budget_solver()) GTEST_SKIP() << "built with CBC";
  BudgetProgram program;
  program.groups = {{{0, {1}}}};
  program.budgets = {{"bytes", 5}};
  const auto solved = solve_budget(program);
  ASSERT_FALSE(solved.ok());
  EXPECT_EQ(solved.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(solved.error().message.find("coinor-libcbc-dev"), std::string::npos);
}

}  // namespace
}  // namespace sub8::study
