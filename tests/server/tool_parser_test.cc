#include "server/tool_parser.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

namespace sub8::server {
namespace {

namespace json = boost::json;

// Pushes `text` in pieces of `size` bytes.
ToolDelta parse(ToolFamily family, std::string_view text, size_t size) {
  const auto parser = make_tool_parser(family);
  ToolDelta out;
  const auto add = [&](ToolDelta delta) {
    out.content += delta.content;
    out.calls.insert(out.calls.end(), delta.calls.begin(), delta.calls.end());
  };
  for (size_t at = 0; at < text.size(); at += size) add(parser->push(text.substr(at, size)));
  add(parser->finish());
  return out;
}

struct Case {
  ToolFamily family;
  const char* text;
  const char* content;
  std::vector<std::pair<const char*, const char*>> calls;  // name, arguments
};

const Case kCases[] = {
    {ToolFamily::kNone, "<tool_call>x</tool_call>", "<tool_call>x</tool_call>", {}},
    {ToolFamily::kHermes, "just text < and more", "just text < and more", {}},
    {ToolFamily::kHermes,
     "A<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"</b>\"}}</tool_call>B"
     "<tool_call>\n{\"name\": \"g\"}\n</tool_call>",
     "AB",
     {{"f", R"({"x":"</b>"})"}, {"g", "{}"}}},
    {ToolFamily::kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "", {{"f", "{}"}}},
    {ToolFamily::kHermes, "<tool_call>broken</tool_call>!", "<tool_call>broken</tool_call>!", {}},
    {ToolFamily::kHermes, "text <tool_c", "text <tool_c", {}},
    {ToolFamily::kLlama3, "Hello {not} a call", "Hello {not} a call", {}},
    {ToolFamily::kLlama3,
     "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
     "",
     {{"f", R"({"a":1})"}}},
    {ToolFamily::kLlama3,
     "<|python_tag|>{\"name\":\"f\",\"parameters\":{}}; "
     "{\"name\":\"g\",\"parameters\":{\"b\":[1,2]}}",
     "",
     {{"f", "{}"}, {"g", R"({"b":[1,2]})"}}},
    {ToolFamily::kLlama3, "{\"answer\": 42}", "{\"answer\": 42}", {}},
    {ToolFamily::kMistral, "text [TOOL", "text [TOOL", {}},
    {ToolFamily::kMistral,
     "Sure.[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}, {\"name\": \"g\"}]",
     "Sure.",
     {{"f", R"({"a":"]"})"}, {"g", "{}"}}},
    {ToolFamily::kMistral,
     "[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g[ARGS]{}",
     "",
     {{"f", R"({"a":1})"}, {"g", "{}"}}},
    {ToolFamily::kMistral, "[TOOL_CALLS] nonsense", "[TOOL_CALLS] nonsense", {}},
    {ToolFamily::kPythonic,
     "[f(a=1, b='x\\'y', c=[1.5, None], d={'k': True}), api.g()]",
     "",
     {{"f", R"({"a":1,"b":"x'y","c":[1.5,null],"d":{"k":true}})"}, {"api.g", "{}"}}},
    {ToolFamily::kPythonic, "[1, 2, 3]", "[1, 2, 3]", {}},
    {ToolFamily::kPythonic, "[f(a=open('x'))]", "[f(a=open('x'))]", {}},
    {ToolFamily::kPythonic, "plain", "plain", {}},
};

TEST(ToolParser, EveryFamilyInPiecesOfAnySize) {
  for (const Case& c : kCases) {
    for (const size_t size : {1u, 2u, 3u, 7u, 1000u}) {
      const ToolDelta out = parse(c.family, c.text, size);
      EXPECT_EQ(out.content, c.content) << c.text << " in pieces of " << size;
      ASSERT_EQ(out.calls.size(), c.calls.size()) << c.text << " in pieces of " << size;
      for (size_t i = 0; i < c.calls.size(); ++i) {
        EXPECT_EQ(out.calls[i].name, c.calls[i].first);
        EXPECT_EQ(json::parse(out.calls[i].arguments), json::parse(c.calls[i].second))
            << out.calls[i].arguments;
      }
    }
  }
}

TEST(ToolParser, TextIsNotHeldBackWithoutReason) {
  const auto hermes = make_tool_parser(ToolFamily::kHermes);
  EXPECT_EQ(hermes->push("Hello ").content, "Hello ");
  EXPECT_EQ(hermes->push("a<to").content, "a");
  EXPECT_EQ(hermes->push("ast").content, "<toast");
  const auto llama = make_tool_parser(ToolFamily::kLlama3);
  EXPECT_EQ(llama->push("Hello").content, "Hello");
}

TEST(ToolParser, FamiliesAreFoundInTemplates) {
  EXPECT_EQ(detect_tool_family("... <tool_call></tool_call> ..."), ToolFamily::kHermes);
  EXPECT_EQ(detect_tool_family("{{ '[TOOL_CALLS]' }}"), ToolFamily::kMistral);
  EXPECT_EQ(detect_tool_family("{{ '<|python_tag|>' }}"), ToolFamily::kLlama3);
  EXPECT_EQ(detect_tool_family("[func_name1(params_name1=params_value1"), ToolFamily::kPythonic);
  EXPECT_EQ(detect_tool_family("{{ message }}"), ToolFamily::kNone);
  for (const char* name : {"none", "hermes", "llama3", "mistral", "pythonic"})
    EXPECT_EQ(tool_family_name(parse_tool_family(name).value()), name);
  EXPECT_FALSE(parse_tool_family("gemma").ok());
}

TEST(ToolParser, PythonLiterals) {
  EXPECT_EQ(tool_calls_from_python(R"([f(s="\n\x41\u00e9\q", i=-12_000, f=1e3)])")->at(0).arguments,
            json::serialize(json::object{{"s", "\nA\xC3\xA9\\q"}, {"i", -12000}, {"f", 1e3}}));
  for (const char* bad : {"[f(a=)]", "[f(a=1]", "[f(1)]", "f(a=1)", "[f(a='x)]", "[f(a=1)] x",
                          "[f(a='\\ud800')]", "[]", "[f(a=1__)]["}) {
    EXPECT_FALSE(tool_calls_from_python(bad).has_value()) << bad;
  }
  std::string deep = "[f(a=" + std::string(5000, '[') + std::string(5000, ']') + ")]";
  EXPECT_FALSE(tool_calls_from_python(deep).has_value());
}

}  // namespace
}  // namespace sub8::server
