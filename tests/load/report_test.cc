#include "load/report.h"

#include <gtest/gtest.h>

namespace sub8::load {
namespace {

TEST(Report, PercentilesInterpolateBetweenRanks) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const Distribution d = distribution(values);
  EXPECT_EQ(d.count, 101);
  EXPECT_DOUBLE_EQ(d.mean, 50);
  EXPECT_DOUBLE_EQ(d.p50, 50);
  EXPECT_DOUBLE_EQ(d.p90, 90);
  EXPECT_DOUBLE_EQ(d.p99, 99);
  EXPECT_DOUBLE_EQ(d.max, 100);
  EXPECT_DOUBLE_EQ(distribution({1, 2}).p50, 1.5);
  EXPECT_DOUBLE_EQ(distribution({7}).p99, 7);
  EXPECT_EQ(distribution({}).count, 0);
}

TEST(Report, FailuresAreCountedApartAndLeaveNoFigures) {
  Workload workload;
  workload.output_tokens = 3;
  RunResult run;
  run.seconds = 2;
  Sample good;
  good.first_token_seconds = 0.5;
  good.seconds = 1.5;
  good.gaps = {0.4, 0.6};
  good.prompt_tokens = 10;
  good.output_tokens = 3;
  good.counted_by_server = true;
  Sample cut = good;
  cut.output_tokens = 2;
  Sample refused;
  refused.failure = Failure::kStatus;
  refused.message = "429: later";
  refused.seconds = 100;
  Sample other = refused;
  other.message = "500";
  run.samples = {good, refused, cut, other};
  const Report r = summarize(run, workload);
  EXPECT_EQ(r.requests, 4);
  EXPECT_EQ(r.completed, 2);
  EXPECT_EQ(r.wrong_length, 1);
  EXPECT_EQ(r.failures.at("status").count, 2);
  EXPECT_EQ(r.failures.at("status").example, "429: later");
  EXPECT_DOUBLE_EQ(r.token.min, 0.5);  // (1.5 - 0.5) / 2
  EXPECT_DOUBLE_EQ(r.token.max, 1.0);  // the same over one token
  EXPECT_DOUBLE_EQ(r.total.max, 1.5);
  EXPECT_EQ(r.gap.count, 4);
  EXPECT_DOUBLE_EQ(r.output_tokens_per_second(), 2.5);
  EXPECT_DOUBLE_EQ(r.tokens_per_second(), 12.5);
  const auto json = to_json(r);
  EXPECT_EQ(json.at("failed").as_int64(), 2);
}

}  // namespace
}  // namespace sub8::load
