// POST /v1/chat/completions.
#include <fmt/format.h>

#include "server/server_fixture.h"

namespace sub8::server::testing {
namespace {

constexpr std::string_view kPath = "/v1/chat/completions";

class ChatTest : public ServerTest {
 protected:
  static json::array user(const char* text) { return {{{"role", "user"}, {"content", text}}}; }
  std::string prompt_text() const {
    return tokenizer_->decode(backend_->last_request().prompt, false);
  }
};

std::string streamed_content(const std::vector<json::value>& events) {
  std::string out;
  for (const json::value& event : events) {
    for (const json::value& choice : event.at("choices").as_array()) {
      if (const auto* content = choice.at("delta").as_object().if_contains("content"))
        out += content->as_string();
    }
  }
  return out;
}

TEST_F(ChatTest, WholeReply) {
  start("Hello you");
  const json::value out = post_json(kPath, {{"messages", user("Hi")}});
  EXPECT_TRUE(out.at("id").as_string().starts_with("chatcmpl-"));
  EXPECT_EQ(out.at("object"), "chat.completion");
  const json::value& choice = out.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "Hello you");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(prompt_text(),
            "<|im_start|>system\nYou are a test.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  // No limit but the context's.
  EXPECT_FALSE(backend_->last_request().sampling.max_tokens.has_value());
}

TEST_F(ChatTest, StreamStartsWithTheRoleAndTheFirstToken) {
  start("Hello you");
  const auto events = stream(
      kPath,
      {{"messages", user("Hi")}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(events[0].at("choices").at(0).at("delta").at("role"), "assistant");
  EXPECT_EQ(events[0].at("object"), "chat.completion.chunk");
  EXPECT_EQ(streamed_content(events), "Hello you");
  // The role, every token with the end token, the usage.
  EXPECT_EQ(events.size(), ids("Hello you").size() + 3);
  EXPECT_EQ(events[events.size() - 2].at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(events.back().at("usage").at("completion_tokens").to_number<size_t>(),
            ids("Hello you").size() + 1);
}

TEST_F(ChatTest, ContentParts) {
  start("x");
  post_json(kPath,
            {{"messages",
              {{{"role", "user"},
                {"content",
                 {{{"type", "text"}, {"text", "one"}}, {{"type", "text"}, {"text", "two"}}}}}}}});
  EXPECT_NE(prompt_text().find("one\ntwo"), std::string::npos);
  post_json(
      kPath,
      json::parse(R"({"messages": [{"role": "user", "content": [{"type": 5, "text": "x"}]}]})"),
      400);
  const json::value out = post_json(
      kPath,
      {{"messages",
        {{{"role", "user"},
          {"content", {{{"type", "image_url"}, {"image_url", {{"url", "http://x"}}}}}}}}}},
      400);
  EXPECT_NE(out.at("error").at("message").as_string().find("$.messages[0].content[0]"),
            json::string::npos)
      << json::serialize(out);
}

TEST_F(ChatTest, WrongMessages) {
  start("x");
  for (const json::value& messages :
       {json::value(nullptr), json::value("hi"), json::value(json::array()),
        json::value(json::array{"hi"}), json::value(json::array{json::object{{"content", "x"}}}),
        json::value(json::array{json::object{{"role", "user"}}}),
        json::value(json::array{json::object{{"role", 5}, {"content", "x"}}}),
        json::value(json::array{json::object{{"role", "user"}, {"content", 5}}})}) {
    const json::value out = post_json(kPath, {{"messages", messages}}, 400);
    EXPECT_TRUE(out.at("error").at("param").as_string().starts_with("messages"))
        << json::serialize(out);
  }
}

TEST_F(ChatTest, WrongToolsAndDocuments) {
  start("x");
  const std::pair<const char*, const char*> cases[] = {
      {R"("tools": [{"type": "retrieval", "function": {"name": "f"}}])", "tools[0].type"},
      {R"("tools": [{"type": 5, "function": {"name": "f"}}])", "tools[0].type"},
      {R"("tools": [{"function": {"name": "f", "parameters": "x"}}])",
       "tools[0].function.parameters"},
      {R"("tools": [{"function": {"name": "f", "parameters": []}}])",
       "tools[0].function.parameters"},
      {R"("documents": [{}, null])", "documents[1]"},
      {R"("documents": ["text"])", "documents[0]"},
  };
  for (const auto& [members, path] : cases) {
    const json::value out =
        post_json(kPath,
                  json::parse(fmt::format(
                      R"({{"messages": [{{"role": "user", "content": "x"}}], {}}})", members)),
                  400);
    EXPECT_EQ(out.at("error").at("param"), path) << json::serialize(out);
  }
}

TEST_F(ChatTest, LimitsUnderBothNames) {
  start(std::string(100, 'x'));
  const auto tokens = [&](json::object body) {
    body["messages"] = user("Hi");
    return post_json(kPath, body).at("usage").at("completion_tokens").to_number<int>();
  };
  EXPECT_EQ(tokens({{"max_tokens", 7}}), 7);
  EXPECT_EQ(tokens({{"max_completion_tokens", 5}}), 5);
  EXPECT_EQ(tokens({{"max_completion_tokens", 5}, {"max_tokens", 7}}), 5);
  EXPECT_EQ(tokens({{"max_completion_tokens", 5}, {"max_tokens", nullptr}}), 5);
}

TEST_F(ChatTest, Logprobs) {
  start("ab\xF0\x9F\x98\x80");
  for (const int top : {-1, 0, 5}) {
    json::object body{{"messages", user("Hi")}, {"logprobs", true}};
    if (top >= 0) body["top_logprobs"] = top;
    const json::value out = post_json(kPath, body);
    const json::array& content = out.at("choices").at(0).at("logprobs").at("content").as_array();
    ASSERT_EQ(content.size(), out.at("usage").at("completion_tokens").to_number<size_t>());
    std::string bytes;
    for (const json::value& entry : content) {
      EXPECT_EQ(entry.at("logprob"), -9999.0);
      EXPECT_EQ(entry.at("top_logprobs").as_array().size(), static_cast<size_t>(std::max(top, 0)));
      for (const json::value& b : entry.at("bytes").as_array())
        bytes += static_cast<char>(b.to_number<int>());
    }
    EXPECT_TRUE(bytes.starts_with("ab\xF0\x9F\x98\x80"));
  }
  EXPECT_EQ(post(kPath, {{"messages", user("x")}, {"logprobs", true}, {"top_logprobs", 21}}).status,
            400);
  EXPECT_EQ(post(kPath, {{"messages", user("x")}, {"top_logprobs", 2}}).status, 400);
  const auto events =
      stream(kPath, {{"messages", user("Hi")}, {"logprobs", true}, {"stream", true}});
  size_t entries = 0;
  for (const json::value& event : events) {
    const json::value& logprobs = event.at("choices").at(0).at("logprobs");
    if (!logprobs.is_null()) entries += logprobs.at("content").as_array().size();
  }
  EXPECT_EQ(entries, ids("ab\xF0\x9F\x98\x80").size() + 1);
}

TEST_F(ChatTest, ContinuesTheFinalMessage) {
  start("x");
  post_json(kPath, {{"messages",
                     {{{"role", "user"}, {"content", "Hi"}},
                      {{"role", "assistant"}, {"content", "The answer is"}}}},
                    {"continue_final_message", true},
                    {"add_generation_prompt", false}});
  EXPECT_TRUE(prompt_text().ends_with("assistant\nThe answer is")) << prompt_text();
}

TEST_F(ChatTest, ToolCallsOfTheHermesFamily) {
  ServerOptions options;
  options.tool_family = ToolFamily::kHermes;
  const std::string said =
      "Let me see.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
      "\"Oslo\"}}\n</tool_call>";
  start(said, {}, std::move(options));
  const json::array tools{
      {{"type", "function"},
       {"function", {{"name", "weather"}, {"parameters", {{"type", "object"}}}}}}};
  const json::value out = post_json(kPath, {{"messages", user("Hi")}, {"tools", tools}});
  const json::value& choice = out.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(choice.at("message").at("content"), "Let me see.");
  const json::value& call = choice.at("message").at("tool_calls").at(0);
  EXPECT_EQ(call.at("type"), "function");
  EXPECT_EQ(call.at("function").at("name"), "weather");
  EXPECT_EQ(json::parse(call.at("function").at("arguments").as_string()),
            (json::object{{"city", "Oslo"}}));

  const auto events = stream(kPath, {{"messages", user("Hi")}, {"tools", tools}, {"stream", true}});
  EXPECT_EQ(streamed_content(events), "Let me see.");
  int calls = 0;
  for (const json::value& event : events) {
    const json::object& delta = event.at("choices").at(0).at("delta").as_object();
    if (!delta.contains("tool_calls")) continue;
    ++calls;
    EXPECT_EQ(delta.at("tool_calls").at(0).at("index"), 0);
    EXPECT_EQ(delta.at("tool_calls").at(0).at("function").at("name"), "weather");
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(events.back().at("choices").at(0).at("finish_reason"), "tool_calls");

  // Without tools, or with none wanted, the text stays text.
  const json::value plain = post_json(kPath, {{"messages", user("Hi")}});
  EXPECT_EQ(plain.at("choices").at(0).at("message").at("content"), json::string(said));
  const json::value none =
      post_json(kPath, {{"messages", user("Hi")}, {"tools", tools}, {"tool_choice", "none"}});
  EXPECT_EQ(none.at("choices").at(0).at("finish_reason"), "stop");
  for (const json::value& choice_value :
       {json::value("maybe"), json::value(json::object{{"type", "function"}}),
        json::value(json::object{{"type", "function"}, {"function", {{"name", "other"}}}})}) {
    EXPECT_EQ(
        post(kPath, {{"messages", user("Hi")}, {"tools", tools}, {"tool_choice", choice_value}})
            .status,
        400);
  }
  EXPECT_EQ(post(kPath, {{"messages", user("Hi")}, {"tool_choice", "required"}}).status, 400);
}

// Accepts anything: what it compiled is what the test looks at.
class OpenGrammars final : public GrammarCompiler {
 public:
  Result<ConstraintFactory> compile(const GrammarSpec& spec) override {
    last = spec;
    return ConstraintFactory();
  }
  GrammarSpec last;
};

TEST_F(ChatTest, AForcedToolIsAGrammar) {
  OpenGrammars grammars;
  ServerOptions options;
  options.grammars = &grammars;
  start(R"({"city": "Oslo"})", {}, std::move(options));
  const json::object schema{{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}};
  const json::array tools{
      {{"type", "function"}, {"function", {{"name", "weather"}, {"parameters", schema}}}}};
  json::value out = post_json(
      kPath, {{"messages", user("Hi")},
              {"tools", tools},
              {"tool_choice", {{"type", "function"}, {"function", {{"name", "weather"}}}}}});
  EXPECT_EQ(json::parse(grammars.last.text), schema);
  EXPECT_EQ(
      out.at("choices").at(0).at("message").at("tool_calls").at(0).at("function").at("arguments"),
      R"({"city": "Oslo"})");
  EXPECT_EQ(out.at("choices").at(0).at("finish_reason"), "stop");

  set_answer(R"([{"name": "weather", "parameters": {"city": "Oslo"}}])");
  out = post_json(kPath, {{"messages", user("Hi")}, {"tools", tools}, {"tool_choice", "required"}});
  EXPECT_EQ(json::parse(grammars.last.text).at("type"), "array");
  EXPECT_EQ(out.at("choices").at(0).at("finish_reason"), "tool_calls");
  EXPECT_EQ(out.at("choices").at(0).at("message").at("tool_calls").at(0).at("function").at("name"),
            "weather");

  post_json(kPath, {{"messages", user("Hi")}, {"guided_choice", {"yes", "n\"o"}}});
  EXPECT_EQ(grammars.last.text, R"(root ::= "yes" | "n\"o")");
  post_json(kPath, {{"messages", user("Hi")}, {"structured_outputs", {{"regex", "a+"}}}});
  EXPECT_EQ(grammars.last.kind, GrammarSpec::Kind::kRegex);
  EXPECT_EQ(post(kPath, {{"messages", user("Hi")}, {"regex", "a"}, {"grammar", "b"}}).status, 400);
}

}  // namespace
}  // namespace sub8::server::testing
