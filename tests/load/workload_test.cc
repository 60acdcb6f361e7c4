#include "load/workload.h"

#include <set>

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace sub8::load {
namespace {

namespace json = boost::json;

TEST(Target, AddressesAreReadWhole) {
  const auto plain = parse_target("http://localhost:8000");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->authority(), "localhost:8000");
  EXPECT_EQ(plain->base, "");
  const auto path = parse_target("http://10.0.0.1/proxy/v1/");
  ASSERT_TRUE(path.ok());
  EXPECT_EQ(path->port, 80);
  EXPECT_EQ(path->base, "/proxy");
  const auto v6 = parse_target("http://[::1]:81/v1");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->authority(), "[::1]:81");
  for (const char* bad :
       {"", "localhost:8000", "ftp://x", "http://", "http://:80", "http://x:", "http://x:0",
        "http://x:65536", "http://x:8a", "http://[::1", "http://[::1]80", "http://a b",
        "http://x/?q", "http://u@x", "http://x/\r\nHost: y"}) {
    const auto target = parse_target(bad);
    ASSERT_FALSE(target.ok()) << bad;
    EXPECT_EQ(target.error().code, ErrorCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(parse_target("https://x").error().code, ErrorCode::kUnsupported);
}

TEST(Workload, PoissonArrivalsHaveTheRateAndAreRepeatable) {
  Workload w;
  w.rate = 4;
  const std::vector<double> arrivals = arrival_seconds(w, 4001, 0);
  EXPECT_EQ(arrivals, arrival_seconds(w, 4001, 0));
  EXPECT_NE(arrivals, arrival_seconds(w, 4001, 1));
  EXPECT_EQ(arrivals.front(), 0);
  // 4000 exponential gaps: the mean's standard error is 1.6%, the share of gaps above the mean 1/e.
  EXPECT_NEAR(arrivals.back() / 4000, 0.25, 0.02);
  int above = 0;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    EXPECT_GE(arrivals[i], arrivals[i - 1]);
    above += arrivals[i] - arrivals[i - 1] > 0.25 ? 1 : 0;
  }
  EXPECT_NEAR(above / 4000.0, 0.3679, 0.03);
  w.rate = 0;
  EXPECT_EQ(arrival_seconds(w, 3, 0), (std::vector<double>{0, 0, 0}));
}

TEST(Workload, PromptsHaveTheirLengthAndDifferBehindThePrefix) {
  Workload w;
  w.input_tokens = 100;
  w.prefix_tokens = 40;
  w.first_id = 50;
  w.last_id = 60;
  std::set<std::vector<int32_t>> seen;
  const std::vector<int32_t> first = prompt_ids(w, 0);
  for (int64_t i = 0; i < 50; ++i) {
    const std::vector<int32_t> ids = prompt_ids(w, i);
    ASSERT_EQ(ids.size(), 100u);
    EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + 40, first.begin()));
    for (const int32_t id : ids) EXPECT_TRUE(id >= 50 && id <= 60);
    EXPECT_TRUE(seen.insert(ids).second);
  }
}

TEST(Workload, BodiesAskForAStreamWithUsageAndFixedLength) {
  Workload w;
  w.input_tokens = 3;
  w.output_tokens = 9;
  Target target;
  target.model = "m";
  const json::object body = json::parse(request_body(w, target, 5, {})).as_object();
  EXPECT_EQ(body.at("prompt").as_array().size(), 3u);
  EXPECT_EQ(body.at("max_tokens").as_int64(), 9);
  EXPECT_TRUE(body.at("ignore_eos").as_bool());
  EXPECT_TRUE(body.at("stream_options").at("include_usage").as_bool());
  EXPECT_FALSE(body.contains("mode"));
  w.kind = PromptKind::kText;
  w.mode = "plain";
  target.endpoint = Endpoint::kChat;
  const WordRate rate{2.0, 1.0};
  const json::object chat = json::parse(request_body(w, target, 5, rate)).as_object();
  EXPECT_EQ(chat.at("max_completion_tokens").as_int64(), 9);
  EXPECT_EQ(chat.at("mode").as_string(), "plain");
  EXPECT_EQ(chat.at("messages").as_array().size(), 1u);
  EXPECT_EQ(rate.words_for(21), 10);
  EXPECT_EQ(rate.words_for(0), 1);
}

TEST(Workload, WhatDoesNotGoTogetherIsRefused) {
  const Target completions;
  Target chat;
  chat.endpoint = Endpoint::kChat;
  Workload w;
  w.concurrency = 1;
  EXPECT_TRUE(check_workload(w, completions).ok());
  EXPECT_FALSE(check_workload(w, chat).ok());
  Workload prefix = w;
  prefix.prefix_tokens = prefix.input_tokens + 1;
  EXPECT_FALSE(check_workload(prefix, completions).ok());
  Workload ids = w;
  ids.first_id = ids.last_id + 1;
  EXPECT_FALSE(check_workload(ids, completions).ok());
  Workload nothing = w;
  nothing.concurrency = 0;
  EXPECT_FALSE(check_workload(nothing, completions).ok());
}

}  // namespace
}  // namespace sub8::load
