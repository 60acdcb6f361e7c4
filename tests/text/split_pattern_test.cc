#include "text/split_pattern.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "text/unicode.h"
#include "text/utf8.h"

namespace sub8 {
namespace {

constexpr SplitPattern kAll[] = {SplitPattern::kGpt2,  SplitPattern::kLlama3,
                                 SplitPattern::kQwen2, SplitPattern::kQwen35,
                                 SplitPattern::kO200k, SplitPattern::kTekken};

// Whether the regex engine's Unicode tables do not have the character.
bool is_unassigned(char32_t c) {
  static const std::vector<bool> unassigned = [] {
    std::string text;
    for (char32_t s = 0; s < 0x110000; ++s) {
      if (s >= 0xd800 && s <= 0xdfff) continue;
      append_utf8(s, &text);
    }
    std::vector<Span> found;
    (void)Regex::compile(R"(\p{Cn})", "t")->find_all(text, &found);
    std::vector<bool> out(0x110000);
    for (const Span& s : found) {
      size_t pos = s.begin;
      out[next_scalar(text, &pos)] = true;
    }
    return out;
  }();
  return unassigned[c];
}

void expect_same(SplitPattern pattern, const Regex& regex, std::string_view text) {
  std::vector<Span> fast;
  append_split(pattern, text, 0, &fast);
  std::vector<Span> slow;
  ASSERT_TRUE(regex.find_all(text, &slow).ok());
  for (size_t i = 0; i < std::max(fast.size(), slow.size()); ++i) {
    ASSERT_LT(i, fast.size()) << text;
    ASSERT_LT(i, slow.size()) << text;
    ASSERT_EQ(fast[i].begin, slow[i].begin) << text;
    ASSERT_EQ(fast[i].end, slow[i].end)
        << split_pattern_regex(pattern) << " on '" << text << "' at " << fast[i].begin;
  }
}

Regex regex_of(SplitPattern pattern) {
  return Regex::compile(split_pattern_regex(pattern), "test").value();
}

TEST(SplitPattern, AllStringsOfThePiecesThatMatter) {
  // Every string of up to four of these; each alternative of each pattern depends on them.
  const std::vector<std::string> atoms = {" ",
                                          "\n",
                                          "\r",
                                          "\t",
                                          "a",
                                          "B",
                                          "s",
                                          "'",
                                          "1",
                                          "!",
                                          "/",
                                          "\xcc\x81" /* mark */,
                                          "\xe4\xb8\xad" /* Lo */,
                                          "\xc5\xbf" /* long s */,
                                          "\xc2\xa0",
                                          "\xc2\xbd" /* No */,
                                          "l",
                                          "E"};
  for (const SplitPattern pattern : kAll) {
    const Regex regex = regex_of(pattern);
    const size_t n = atoms.size();
    for (size_t code = 0; code < n * n * n * n; ++code) {
      std::string text;
      for (size_t rest = code, i = 0; i < 4; ++i, rest /= n) text += atoms[rest % n];
      expect_same(pattern, regex, text);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SplitPattern, RandomTextOverAllOfUnicode) {
  std::mt19937_64 random(20261130);
  const std::vector<std::string> pieces = {
      "'s",       "'LL", "'Ve", "  ",   "\r\n", "\n\n", "ab",
      "Ab",       "AB",  "12",  "1234", "--",   "//",   "\xc7\x85" /* Lt */,
      "e\xcc\x81"};
  for (const SplitPattern pattern : kAll) {
    const Regex regex = regex_of(pattern);
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      const auto size = random() % 30;
      for (uint64_t i = 0; i < size; ++i) {
        if (random() % 3 == 0) {
          text += pieces[random() % pieces.size()];
        } else {
          char32_t c = static_cast<char32_t>(random() % (random() % 2 ? 0x3000 : 0x110000));
          if ((c >= 0xd800 && c <= 0xdfff) || is_unassigned(c)) c = 'x';
          append_utf8(c, &text);
        }
      }
      expect_same(pattern, regex, text);
      if (HasFatalFailure()) return;
    }
  }
}

// Our classes and those of PCRE2 agree on every character.
TEST(SplitPattern, EveryCharacterHasTheClassesOfTheRegexEngine) {
  std::string text;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c < 0xd800 || c > 0xdfff) append_utf8(c, &text);
  }
  const CharTable& table = char_table();
  const std::pair<const char*, std::function<bool(uint16_t)>> cases[] = {
      {R"(\p{L})", [](uint16_t b) { return (b & kCharLetter) != 0; }},
      {R"(\p{M})", [](uint16_t b) { return (b & kCharMark) != 0; }},
      {R"(\p{N})", [](uint16_t b) { return (b & kCharNumber) != 0; }},
      {R"(\p{P})", [](uint16_t b) { return (b & kCharPunctuation) != 0; }},
      {R"(\p{Ll})", [](uint16_t b) { return (b & kCharLower) != 0; }},
      {R"([\p{Lu}\p{Lt}])", [](uint16_t b) { return (b & kCharUpper) != 0; }},
      {R"(\s)", [](uint16_t b) { return (b & kCharSpace) != 0; }},
      {R"(\S)", [](uint16_t b) { return (b & kCharSpace) == 0; }},
      {R"([\S])", [](uint16_t b) { return (b & kCharSpace) == 0; }},
  };
  for (const auto& [pattern, expected] : cases) {
    std::vector<Span> found;
    ASSERT_TRUE(Regex::compile(pattern, "t")->find_all(text, &found).ok());
    size_t next = 0;
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const char32_t c = next_scalar(text, &pos);
      const bool matched = next < found.size() && found[next].begin == begin;
      if (matched) ++next;
      // The engine's tables may be of an older Unicode; then it knows nothing of the character.
      if (matched != expected(table[c]) && is_unassigned(c)) continue;
      ASSERT_EQ(matched, expected(table[c])) << pattern << " U+" << std::hex << uint32_t{c};
    }
  }
}

TEST(Regex, OnigurumaSyntax) {
  const auto all = [](std::string_view pattern, std::string_view text) {
    std::vector<Span> found;
    const auto regex = Regex::compile(pattern, "t");
    if (!regex.ok()) return regex.error().message;
    if (const Status s = regex->find_all(text, &found); !s.ok()) return s.error().message;
    std::string out;
    for (const Span& s : found)
      out += "[" + std::string(text.substr(s.begin, s.end - s.begin)) + "]";
    return out;
  };
  EXPECT_EQ(all(R"(a{,2})", "aaa b"), "[aa][a][][]");
  EXPECT_EQ(all(R"(^b$)", "a\nb\nc"), "[b]");
  EXPECT_EQ(all(R"(\s)", "a\xe1\xa0\x8e"), "");  // U+180E is no space
  EXPECT_EQ(all(R"((?i:'s))", "'\xc5\xbf"), "['\xc5\xbf]");
  EXPECT_EQ(all(R"(\p{Letter}+|\p{^L})", "ab1"), "[ab][1]");
  EXPECT_EQ(all(R"(\u4e2d)", "\xe4\xb8\xad"), "[\xe4\xb8\xad]");
  EXPECT_EQ(all(R"([\w]+)", "a_\xcc\x81-"), "[a_\xcc\x81]");
  for (const char* pattern : {"[a[b]]", "[a&&b]", "(?m)a", "a{1,2}+", "\\p{Nonsense}", "(", "[a",
                              "\\", "\\p", "(?<=a+)b"}) {
    EXPECT_FALSE(Regex::compile(pattern, "t").ok()) << pattern;
  }
}

TEST(Regex, ExponentialPatternIsAnErrorNotAHang) {
  const Regex regex = Regex::compile("(a|b|ab)*[cd]", "the pattern").value();
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "ab";
  std::vector<Span> found;
  const Status status = regex.find_all(text, &found);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("the pattern"), std::string::npos);
}

}  // namespace
}  // namespace sub8
