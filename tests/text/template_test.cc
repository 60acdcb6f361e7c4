#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "text/chat_template/chat_template.h"
#include "text/template_input.h"

namespace sub8 {
namespace {

Result<std::string> render(std::string_view source, std::string_view input = "{}",
                           const TemplateLimits& limits = {}) {
  SUB8_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::parse(source, "t.jinja"));
  const auto fields = parse_json(input, "input");
  return chat.render(test::make_input(fields->as_object()), limits);
}

// The text, or "error: ..." so that a mismatch shows why.
std::string text(std::string_view source, std::string_view input = "{}") {
  const auto result = render(source, input);
  return result.ok() ? *result : "error: " + result.error().message;
}

std::string failure(std::string_view source, ErrorCode code, const TemplateLimits& limits = {}) {
  const auto result = render(source, "{}", limits);
  if (result.ok()) return "no error: " + *result;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  return result.error().message;
}

// Over two thousand templates with what jinja2 makes of them (tools/text/make_template_golden.py).
TEST(Template, EqualsJinja2) {
  const auto file = read_file(std::string(SUB8_TEST_DATA) + "/../text/template_golden.json");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto golden = parse_json(*file, "template_golden.json");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  const ChatInput input = test::make_input(golden->at("input").as_object());
  int good = 0, errors = 0;
  for (const auto& item : golden->at("cases").as_array()) {
    const auto& row = item.as_array();
    const std::string source(row.at(0).as_string());
    const auto chat = ChatTemplate::parse(source, "golden");
    const auto result = chat.ok() ? chat->render(input) : Result<std::string>(chat.error());
    if (row.size() == 1) {
      EXPECT_FALSE(result.ok()) << source << "\nrenders: " << *result;
      ++errors;
    } else {
      ASSERT_TRUE(result.ok()) << source << "\n" << result.error().message;
      EXPECT_EQ(*result, std::string(row.at(1).as_string())) << source;
      ++good;
    }
  }
  EXPECT_GT(good, 600);
  EXPECT_GT(errors, 200);
}

// Field fault: tojson with HTML escapes, or without transformers' arguments.
TEST(Template, ToJsonIsTheOneOfTransformers) {
  const std::string value = R"({{ {"b": 1, "a": "<é>"} | tojson)";
  EXPECT_EQ(text(value + " }}"), R"({"b": 1, "a": "<é>"})");
  EXPECT_EQ(text(value + "(ensure_ascii=False) }}"), R"({"b": 1, "a": "<é>"})");
  EXPECT_EQ(text(value + "(ensure_ascii=True) }}"), R"({"b": 1, "a": "<\u00e9>"})");
  EXPECT_EQ(text(value + "(indent=2) }}"), "{\n  \"b\": 1,\n  \"a\": \"<é>\"\n}");
  EXPECT_EQ(text("{{ [1.0, 1e30, 1] | tojson }}"), "[1.0, 1e+30, 1]");
  EXPECT_EQ(text("{{ tools | tojson }}", R"({"tools":[{"type":"function","function":{"name":"f",
      "parameters":{"type":"object","properties":{"x":{"type":["integer","null"]}}}}}]})"),
            R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", )"
            R"("properties": {"x": {"type": ["integer", "null"]}}}}}])");
}

// A template's BOS is in the text exactly once, and only where the template writes it (that the
// tokenizer adds no other: tests/engine/bundle_test.cc).
TEST(Template, BosComesOnlyFromTheTemplate) {
  const std::string input = R"({"messages":[{"role":"user","content":"Hi"}],"bos_token":"<s>"})";
  EXPECT_EQ(text("{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}", input),
            "<s>[Hi]");
  EXPECT_EQ(text("{% for m in messages %}[{{ m.content }}]{% endfor %}", input), "[Hi]");
  EXPECT_EQ(text("{{ bos_token }}x{{ bos_token is defined }}"), "xFalse");
}

TEST(Template, TimeIsAnInput) {
  EXPECT_EQ(text("{{ strftime_now('%d %b %Y') }}", R"({"now":[2024,2,29,0,0,0]})"), "29 Feb 2024");
  EXPECT_EQ(text("{{ strftime_now('%A') }}", R"({"now":[2024,2,29,0,0,0]})"), "Thursday");
}

TEST(Template, ErrorsNameTheTemplateTheLineAndTheMatter) {
  const auto contains = [](const std::string& message, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  contains(failure("a\n{% if x %}\nb", ErrorCode::kCorruptData), {"t.jinja", "line 3", "endif"});
  contains(failure("a\n\n{{ x.y }}", ErrorCode::kInvalidArgument), {"t.jinja", "line 3", "'x'"});
  contains(failure("{{ raise_exception('No ' ~ 'way') }}", ErrorCode::kInvalidArgument),
           {"No way"});
  contains(failure("{% include 'x' %}", ErrorCode::kUnsupported), {"include"});
  contains(failure("{% import 'x' as y %}", ErrorCode::kUnsupported), {"import"});
  contains(failure("{{ 1 | pprint }}", ErrorCode::kUnsupported), {"pprint"});
  contains(failure("{{ [].append(1) }}", ErrorCode::kInvalidArgument), {"append", "unsafe"});
  contains(failure("{{ 9223372036854775807 + 1 }}", ErrorCode::kUnsupported), {"64 bits"});
  contains(failure("\xff", ErrorCode::kInvalidArgument), {"t.jinja"});
}

// Each of these would hang, crash or eat all memory without a limit.
TEST(Template, HostileTemplatesEndWithAnError) {
  const auto repeat = [](std::string_view unit, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += unit;
    return out;
  };
  const std::string ns = "{% set ns = namespace(x=[], s='ab') %}";
  const std::string many = "{% for i in range(100000) %}";
  const std::string sources[] = {
      "{{ range(1000000000) }}",
      "{{ range(-9223372036854775807, 9223372036854775807) }}",
      "{{ 'a' * 10000000000 }}",
      "{{ [0] * 10000000000 }}",
      "{{ ['a' * 6000000] * 6000000 }}",
      many + many + many + "{% endfor %}{% endfor %}{% endfor %}",
      many + repeat("{{ 'a' * 1000 }}", 10) + "{% endfor %}",
      ns + many + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
      ns + many + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      ns + many + "{% set ns.x = ns.x + ns.x + [1] %}{% endfor %}",
      ns + many + "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
      ns + many + "{% set ns.x = {'a': ns.x} %}{% endfor %}",
      ns + many + "{% set ns.x = [ns.x] | map('list') %}{% endfor %}{{ ns.x | list }}",
      ns + repeat("{% set ns.x = [ns.x, ns.x] %}", 60) + "{{ ns.x }}",
      ns + repeat("{% set ns.x = [ns.x, ns.x] %}", 60) + "{{ ns.x | tojson | length }}",
      ns + repeat("{% set ns.x = [ns.x, ns.x] %}", 60) +
          "{% set a = ns.x + [] %}{% set b = [ns.x[0]] + [ns.x[0]] %}{{ a == b[:1] + [ns.x[1] + "
          "[]] }}{{ ns.x }}",
      ns + "{% set ns.x = (1,) %}" + repeat("{% set ns.x = (ns.x, ns.x) %}", 60) +
          "{{ {ns.x: 1} }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}",
      "{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}",
      "{{ " + repeat("not ", 5000) + "1 }}",
      "{{ " + repeat("-", 5000) + "1 }}",
      "{{ 1" + repeat(" + 1", 5000) + " }}",
      "{{ x" + repeat(".y", 5000) + " }}",
      "{{ x" + repeat("|e", 5000) + " }}",
      "{{ " + repeat("1 if 1 else ", 5000) + "1 }}",
      repeat("{% if 1 %}", 5000),
      repeat("{% for i in [1] %}", 5000),
      "{{ '%999999999d' % 1 }}",
      "{{ '{:999999999}'.format(1) }}",
      "{{ 'x'.center(99999999999) }}",
      "{{ 'x' | indent(99999999999) }}",
      "{{ [1] | tojson(indent=99999999999) }}",
      "{{ [1] | batch(99999999999, 0) | list }}",
      "{{ [1] | slice(99999999999, 0) | list }}",
      "{% set s = 'a,' * 3000000 %}{{ s.split(',') | length }}",
      "{% set s = 'a' * 6000000 %}{{ s | list | length }}",
      "{% set s = 'a' * 6000000 %}" + many + "{{ s == s ~ '' }}{% endfor %}",
      "{% set s = 'a' * 6000000 %}" + many + "{{ 'b' in s }}{% endfor %}",
      "{{ ('a' * 6000000).replace('a', 'bbbbbbbb') | length }}",
      "{{ ('a' * 6000000).replace('', 'bbbbbbbb') | length }}",
      ns + "{% set ns.f = 1 %}" + many +
          "{% set g = ns.f %}{% macro m() %}{{ g }}{% endmacro %}{% set ns.f = m %}{% endfor %}" +
          "{{ 'a' * 10000000000 }}",
      ns + "{% set ns.me = ns %}{{ ns }}",
  };
  TemplateLimits limits;
  limits.max_steps = 300'000;
  limits.max_bytes = uint64_t{8} << 20;
  limits.max_created_bytes = uint64_t{32} << 20;
  for (const std::string& source : sources) {
    const auto result = render(source, "{}", limits);
    EXPECT_FALSE(result.ok()) << source.substr(0, 200);
  }
}

TEST(Template, LimitsAreStated) {
  TemplateLimits limits;
  limits.max_bytes = 10;
  EXPECT_NE(failure("{{ 'abcdef' }}{{ 'abcdef' }}", ErrorCode::kResourceExhausted, limits)
                .find("10 bytes"),
            std::string::npos);
  limits = {};
  limits.max_steps = 100;
  EXPECT_NE(failure("{% for i in range(1000) %}{{ i }}{% endfor %}", ErrorCode::kResourceExhausted,
                    limits)
                .find("100 evaluation steps"),
            std::string::npos);
}

TEST(Template, RendersRepeatedlyFromOneParse) {
  const auto chat = ChatTemplate::parse("{{ messages[0].content }}{% set x = 1 %}", "t");
  ASSERT_TRUE(chat.ok());
  for (const char* content : {"a", "b"}) {
    ChatInput input;
    input.messages = {boost::json::object{{"content", content}}};
    EXPECT_EQ(chat->render(input).value(), content);
  }
}

}  // namespace
}  // namespace sub8
