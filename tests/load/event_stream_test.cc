#include "load/event_stream.h"

#include <gtest/gtest.h>

namespace sub8::load {
namespace {

std::vector<std::string> read_in_pieces(std::string_view bytes, size_t piece) {
  EventStream stream(1 << 20);
  std::vector<std::string> out;
  for (size_t at = 0; at < bytes.size(); at += piece)
    EXPECT_TRUE(stream.push(bytes.substr(at, piece), out).ok());
  return out;
}

TEST(EventStream, EventsDoNotDependOnHowBytesArrive) {
  const std::string_view bytes =
      ": comment\n\ndata: one\n\nevent: x\ndata:two\ndata:  three\r\n\r\ndata\n\nid: 7\n\ndata: "
      "[DONE]\r\r";
  const std::vector<std::string> expected = {"one", "two\n three", "", "[DONE]"};
  for (size_t piece = 1; piece <= bytes.size(); ++piece)
    EXPECT_EQ(read_in_pieces(bytes, piece), expected) << "pieces of " << piece;
}

TEST(EventStream, AnEventWithoutEndIsNotHandedOut) {
  EventStream stream(100);
  std::vector<std::string> events;
  ASSERT_TRUE(stream.push("data: abc\n", events).ok());
  EXPECT_TRUE(events.empty());
  EXPECT_TRUE(stream.incomplete());
  ASSERT_TRUE(stream.push("\n", events).ok());
  EXPECT_FALSE(stream.incomplete());
}

TEST(EventStream, SizeIsLimited) {
  EventStream stream(100);
  std::vector<std::string> events;
  EXPECT_FALSE(stream.push(std::string(200, 'x'), events).ok());
  EventStream lines(100);
  std::string many;
  for (int i = 0; i < 50; ++i) many += "data: abcdef\n";
  EXPECT_FALSE(lines.push(many, events).ok());
}

}  // namespace
}  // namespace sub8::load
