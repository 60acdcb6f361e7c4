#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

namespace sub8::engine {
namespace {

struct Outcome {
  std::string text;
  bool matched;
};

Outcome run(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(std::move(stops));
  std::string text;
  for (const std::string& piece : pieces) text += matcher.push(piece);
  if (!matcher.matched()) text += matcher.finish();
  return {text, matcher.matched()};
}

TEST(StopMatcher, AcrossTokenBoundaries) {
  const std::vector<std::string> pieces = {"AB", "C D", "E", "F"};
  EXPECT_EQ(run({"C D"}, pieces).text, "AB");
  EXPECT_EQ(run({"DEFG"}, pieces).text, "ABC DEF");
  EXPECT_FALSE(run({"DEFG"}, pieces).matched);
  EXPECT_EQ(run({"F"}, pieces).text, "ABC DE");
  EXPECT_EQ(run({"F", "BC"}, pieces).text, "A");
  EXPECT_EQ(run({"ABC DEF"}, pieces).text, "");
  EXPECT_EQ(run({"BC DEX", "C"}, pieces).text, "AB");
  EXPECT_EQ(run({}, pieces).text, "ABC DEF");
}

TEST(StopMatcher, NothingOfTheStopIsStreamed) {
  StopMatcher matcher({"\nUser:"});
  EXPECT_EQ(matcher.push("hi\n"), "hi");
  EXPECT_EQ(matcher.push("Us"), "");
  EXPECT_EQ(matcher.push("ual\nUser"), "\nUsual");
  EXPECT_EQ(matcher.push(":x"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.match(), "\nUser:");
  EXPECT_EQ(matcher.push("more"), "");
}

TEST(StopMatcher, OverlappingPrefixes) {
  EXPECT_EQ(run({"aab"}, {"a", "a", "a", "b"}).text, "a");
  EXPECT_EQ(run({"abab"}, {"ab", "aab", "ab"}).text, "aba");
  EXPECT_EQ(run({"é"}, {"caf\xc3", "\xa9!"}).text, "caf");
}

TEST(StopMatcher, TheMatchIsIncludedOnRequest) {
  StopMatcher matcher({"DEF", "C D"}, true);
  EXPECT_EQ(matcher.push("ABC"), "AB");
  EXPECT_EQ(matcher.push(" DEF"), "C D");
  EXPECT_EQ(matcher.match(), "C D");
  EXPECT_EQ(matcher.push("more"), "");
}

}  // namespace
}  // namespace sub8::engine
