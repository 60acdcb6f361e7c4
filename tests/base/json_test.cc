#include "base/json.h"

#include <gtest/gtest.h>

namespace sub8 {
namespace {

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "{}x", "[1,]", "{\"a\":NaN}", "[Infinity]", "// c\n{}",
                           "{\"a\":\"\xff\"}", "nul"}) {
    const auto parsed = parse_json(text, "t.json");
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kCorruptData);
    EXPECT_NE(parsed.error().message.find("t.json"), std::string::npos);
  }
  EXPECT_FALSE(parse_json(std::string(100000, '['), "deep").ok());
  EXPECT_TRUE(parse_json(" {} \n", "t").ok());
}

TEST(Json, TypedAccessNamesThePath) {
  const auto doc =
      parse_json(R"({"a":{"b":[1,2.5,"x",null]},"n":3.0,"big":18446744073709551615})", "c.json");
  ASSERT_TRUE(doc.ok());
  const JsonRef root(*doc, "c.json");
  const JsonRef list = root.at("a")->at("b").value();
  const auto items = list.elements().value();
  EXPECT_EQ(items[0].as_int(0, 10).value(), 1);
  const auto bad = items[2].as_int(0, 10);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("c.json: $.a.b[2]"), std::string::npos) << bad.error().message;
  EXPECT_FALSE(items[1].as_int(0, 10).ok());
  EXPECT_FALSE(items[0].as_int(5, 10).ok());
  EXPECT_EQ(root.get_int("n", 0, 0, 10).value(), 3);
  EXPECT_EQ(root.get_int("absent", 7, 0, 10).value(), 7);
  EXPECT_FALSE(root.get_int("big", 0, 0, INT64_MAX).ok());
  EXPECT_FALSE(root.at("absent").ok());
}

}  // namespace
}  // namespace sub8
