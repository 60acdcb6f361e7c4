#include "text/utf8.h"

#include <gtest/gtest.h>

namespace sub8 {
namespace {

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    std::string text;
    append_utf8(c, &text);
    const bool surrogate = c >= 0xd800 && c <= 0xdfff;
    ASSERT_EQ(find_invalid_utf8(text) == std::string_view::npos, !surrogate) << uint32_t{c};
    if (surrogate) continue;
    size_t pos = 0;
    ASSERT_EQ(next_scalar(text, &pos), c);
    ASSERT_EQ(pos, text.size());
    ASSERT_EQ(previous_scalar(text, pos), 0u);
    ASSERT_EQ(static_cast<size_t>(utf8_length(static_cast<unsigned char>(text[0]))), text.size());
  }
}

TEST(Utf8, NamesTheFirstBadByte) {
  struct Case {
    std::string_view text;
    size_t bad;
  };
  for (const Case& c : {Case{"abc\x80", 3}, Case{"\xff\xfe", 0}, Case{"aaaaaaaaa\xc3", 9},
                        Case{"\xc0\x80", 0}, Case{"x\xed\xa0\x80", 1}, Case{"\xf4\x90\x80\x80", 0},
                        Case{"\xe0\x9f\xbf", 0}, Case{"ok\xe2\x82", 2}}) {
    EXPECT_EQ(find_invalid_utf8(c.text), c.bad);
    const Status status = check_utf8(c.text, "prompt");
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("offset " + std::to_string(c.bad)), std::string::npos);
    EXPECT_EQ(find_invalid_utf8(status.error().message), std::string_view::npos);
  }
  EXPECT_TRUE(check_utf8("a\xe2\x82\xac\xf0\x9f\x98\x80", "prompt").ok());
}

// Expected values are those of Python's bytes.decode("utf-8", "replace").
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xef\xbf\xbd";
  const auto lossy = [](std::string_view bytes) {
    std::string out;
    append_lossy_utf8(bytes, &out);
    return out;
  };
  EXPECT_EQ(lossy("a\x80z"), "a" + r + "z");
  EXPECT_EQ(lossy("\xf0\x9f\x98"), r);
  EXPECT_EQ(lossy("\xf0\x9f\x98z"), r + "z");
  EXPECT_EQ(lossy("\xe2\x82\xe2\x82\xac"), r + "\xe2\x82\xac");
  EXPECT_EQ(lossy("\xed\xa0\x80"), r + r + r);
  EXPECT_EQ(lossy("\xc0\xaf"), r + r);
  EXPECT_EQ(lossy("\xf4\x90\x80\x80"), r + r + r + r);
}

TEST(Utf8, IncompleteTails) {
  EXPECT_EQ(incomplete_utf8_tail(""), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xf0"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("a\xf0\x9f"), 2u);
  EXPECT_EQ(incomplete_utf8_tail("a\xf0\x9f\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_tail("a\xf0\x9f\x98\x80"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\x80\x80\x80\x80"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\xed\xa0"), 0u);  // would be a surrogate: can never be completed
  EXPECT_EQ(incomplete_utf8_tail("\xc3"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("\xc0"), 0u);
}

}  // namespace
}  // namespace sub8
