// POST /v1/completions: fields, streams, log-probabilities, errors.
#include <fmt/format.h>

#include "server/server_fixture.h"

namespace sub8::server::testing {
namespace {

constexpr std::string_view kPath = "/v1/completions";
using CompletionsTest = ServerTest;

// The text of choice `index` in a stream.
std::string streamed_text(const std::vector<json::value>& events, int index = 0) {
  std::string out;
  for (const json::value& event : events) {
    for (const json::value& choice : event.at("choices").as_array()) {
      if (choice.at("index") == index) out += choice.at("text").as_string();
    }
  }
  return out;
}

TEST_F(CompletionsTest, WholeReply) {
  start("Once upon a time");
  const json::value out =
      post_json(kPath, {{"model", "tiny"}, {"prompt", "Hello"}, {"max_tokens", 99}});
  EXPECT_TRUE(out.at("id").as_string().starts_with("cmpl-"));
  EXPECT_EQ(out.at("object"), "text_completion");
  EXPECT_EQ(out.at("model"), "tiny");
  const json::value& choice = out.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "Once upon a time");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_TRUE(choice.at("logprobs").is_null());
  const size_t answer = ids("Once upon a time").size() + 1;
  EXPECT_EQ(out.at("usage").at("completion_tokens").to_number<size_t>(), answer);
  EXPECT_EQ(out.at("usage").at("total_tokens").to_number<size_t>(),
            answer + out.at("usage").at("prompt_tokens").to_number<size_t>());
  EXPECT_EQ(out.at("usage").at("prompt_tokens_details").at("cached_tokens"), 1);
  EXPECT_EQ(out.at("timings").at("predicted_n").to_number<size_t>(), answer);
  EXPECT_EQ(out.at("timings").at("seed"), 7);
  // The first token's time is the prompt's, so that it does not count in the rate.
  const auto& timings = out.at("timings");
  const auto predicted_ms = timings.at("predicted_ms").to_number<double>();
  EXPECT_NEAR(timings.at("predicted_per_second").to_number<double>() * predicted_ms,
              1000.0 * static_cast<double>(answer - 1), 1e-3);
}

TEST_F(CompletionsTest, StreamEqualsWholeReplyAndSendsEveryToken) {
  start("Once upon a time, \xF0\x9F\x98\x80 smiled");
  const json::value body = {{"prompt", "Hello"}, {"max_tokens", 99}};
  const json::value whole = post_json(kPath, body);
  json::value streaming = body;
  streaming.as_object()["stream"] = true;
  streaming.as_object()["stream_options"] = {{"include_usage", true}};
  const auto events = stream(kPath, streaming);
  EXPECT_EQ(json::string(streamed_text(events)), whole.at("choices").at(0).at("text").as_string());
  // One chunk per token, and one with the usage.
  EXPECT_EQ(events.size(), whole.at("usage").at("completion_tokens").to_number<size_t>() + 1);
  EXPECT_TRUE(events.back().at("choices").as_array().empty());
  EXPECT_EQ(events.back().at("usage"), whole.at("usage"));
  EXPECT_EQ(events[events.size() - 2].at("choices").at(0).at("finish_reason"), "stop");
  for (size_t i = 0; i + 2 < events.size(); ++i)
    EXPECT_TRUE(events[i].at("choices").at(0).at("finish_reason").is_null());
}

TEST_F(CompletionsTest, UsageInEveryChunk) {
  start("abc");
  const auto events = stream(
      kPath, {{"prompt", "Hello"},
              {"stream", true},
              {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  int64_t tokens = 0;
  for (const json::value& event : events) {
    if (event.at("choices").as_array().empty()) continue;
    EXPECT_EQ(event.at("usage").at("completion_tokens").to_number<int64_t>(), ++tokens);
  }
  const auto plain = stream(kPath, {{"prompt", "Hello"}, {"stream", true}});
  for (const json::value& event : plain) EXPECT_FALSE(event.as_object().contains("usage"));
}

TEST_F(CompletionsTest, DefaultLimitIsSixteenTokens) {
  start(std::string(200, 'x'));
  const json::value out = post_json(kPath, {{"prompt", "Hello"}, {"max_tokens", nullptr}});
  EXPECT_EQ(out.at("usage").at("completion_tokens"), 16);
  EXPECT_EQ(out.at("choices").at(0).at("finish_reason"), "length");
}

TEST_F(CompletionsTest, StopStrings) {
  start("ABC DEF");
  const auto text = [&](const json::value& stop, bool streaming) {
    const json::value body = {
        {"prompt", "x"}, {"max_tokens", 50}, {"stop", stop}, {"stream", streaming}};
    return streaming
               ? streamed_text(stream(kPath, body))
               : std::string(post_json(kPath, body).at("choices").at(0).at("text").as_string());
  };
  for (const bool streaming : {false, true}) {
    EXPECT_EQ(text("C D", streaming), "AB");
    EXPECT_EQ(text("DEFG", streaming), "ABC DEF");
    EXPECT_EQ(text("F", streaming), "ABC DE");
    EXPECT_EQ(text(json::array{"F", "BC"}, streaming), "A");
    EXPECT_EQ(text("ABC DEF", streaming), "");
    EXPECT_EQ(text(nullptr, streaming), "ABC DEF");
  }
  const json::value out = post_json(kPath, {{"prompt", "x"}, {"max_tokens", 50}, {"stop", "C D"}});
  EXPECT_EQ(out.at("choices").at(0).at("stop_reason"), "C D");
  EXPECT_EQ(post(kPath, {{"prompt", "x"}, {"stop", ""}}).status, 400);
}

TEST_F(CompletionsTest, ACutCharacterIsStillValidJson) {
  start("\xF0\x9F\x98\x80");
  ASSERT_GT(ids("\xF0\x9F\x98\x80").size(), 2u);
  const json::value out = post_json(kPath, {{"prompt", "x"}, {"max_tokens", 2}, {"logprobs", 1}});
  EXPECT_EQ(out.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(out.at("choices").at(0).at("text"), "\xEF\xBF\xBD");
  const json::value& tokens = out.at("choices").at(0).at("logprobs").at("tokens");
  EXPECT_TRUE(tokens.at(0).as_string().starts_with("bytes:\\x")) << json::serialize(tokens);
}

TEST_F(CompletionsTest, PromptsThatCannotBeAnsweredAreNamed) {
  start("ok");
  for (const json::value& prompt : {json::value(json::array{json::array{1}, json::array()}),
                                    json::value(std::string(5000, 'x')),
                                    json::value(json::array{"x", std::string(5000, 'x')})}) {
    const json::value out = post_json(kPath, {{"prompt", prompt}}, 400);
    EXPECT_EQ(out.at("error").at("param"), "prompt") << json::serialize(out);
  }
}

TEST_F(CompletionsTest, TextThatNoContextHoldsIsNotTokenised) {
  start("ok");
  const std::string text(4 << 20, 'x');
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool chat = std::string_view(path).find("chat") != std::string_view::npos;
    json::object body{{"prompt", text}};
    if (chat) body = {{"messages", {{{"role", "user"}, {"content", text}}}}};
    const json::value out = post_json(path, body, 400);
    EXPECT_EQ(out.at("error").at("param"), chat ? "messages" : "prompt");
    EXPECT_NE(out.at("error").at("message").as_string().find("bytes"), json::string::npos)
        << json::serialize(out);
  }
  post_json(kPath, {{"prompt", text}, {"truncate_prompt_tokens", 4}});
}

TEST_F(CompletionsTest, LongValuesAreNotRepeated) {
  start("ok");
  const std::string reply = post(kPath, {{"prompt", "x"}, {"mode", std::string(5000, 'm')}}).body;
  EXPECT_LT(reply.size(), 500u) << reply;
}

TEST_F(CompletionsTest, PromptForms) {
  start("ok");
  const auto prompts = [&](const json::value& prompt) {
    const json::value out = post_json(kPath, {{"prompt", prompt}});
    return out.at("choices").as_array().size();
  };
  EXPECT_EQ(prompts("text"), 1u);
  EXPECT_EQ(prompts(json::array{"one", "two", "three"}), 3u);
  EXPECT_EQ(prompts(json::array{10, 11, 12}), 1u);
  EXPECT_EQ(backend_->last_request().prompt, (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(prompts(json::array{json::array{10, 11}, json::array{12}}), 2u);
  EXPECT_EQ(post_json(kPath, {{"prompt", {"a", "b"}}, {"n", 3}}).at("choices").as_array().size(),
            6u);
  for (const json::value& bad :
       {json::value(5), json::value(json::array()), json::value(json::array{true}),
        json::value(json::array{100000}), json::value(json::array{-1}), json::value(nullptr),
        json::value(json::array{json::array{1.5}}), json::value(json::object())}) {
    const json::value out = post_json(kPath, {{"prompt", bad}}, 400);
    EXPECT_EQ(out.at("error").at("param"), "prompt") << json::serialize(bad);
  }
}

TEST_F(CompletionsTest, ChoicesOfAStreamAreIndexed) {
  start("abc");
  const auto events = stream(kPath, {{"prompt", {"a", "b"}}, {"n", 2}, {"stream", true}});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(streamed_text(events, i), "abc");
}

TEST_F(CompletionsTest, Logprobs) {
  start("ab");
  for (const int count : {0, 3}) {
    const json::value out = post_json(kPath, {{"prompt", "x"}, {"logprobs", count}});
    const json::value& lists = out.at("choices").at(0).at("logprobs");
    const size_t tokens = ids("ab").size() + 1;
    EXPECT_EQ(lists.at("tokens").as_array().size(), tokens);
    EXPECT_EQ(lists.at("token_logprobs").as_array().size(), tokens);
    EXPECT_EQ(lists.at("top_logprobs").as_array().size(), tokens);
    EXPECT_EQ(lists.at("text_offset").as_array().size(), tokens);
    // The fake says -infinity, which JSON cannot.
    EXPECT_EQ(lists.at("token_logprobs").at(0), count == 0 ? json::value(-9999.0) : -9999.0);
    EXPECT_EQ(lists.at("text_offset").at(0), 0);
  }
  EXPECT_EQ(post(kPath, {{"prompt", "x"}, {"logprobs", 21}}).status, 400);
  EXPECT_EQ(post(kPath, {{"prompt", "x"}, {"logprobs", true}}).status, 400);
}

TEST_F(CompletionsTest, EchoWithPromptLogprobs) {
  start("ab");
  const json::value out =
      post_json(kPath, {{"prompt", "Hello"}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 0}});
  const json::value& choice = out.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "Hello");
  const json::value& lists = choice.at("logprobs");
  EXPECT_EQ(lists.at("tokens").as_array().size(),
            out.at("usage").at("prompt_tokens").to_number<size_t>());
  EXPECT_TRUE(lists.at("token_logprobs").at(0).is_null());
  EXPECT_EQ(lists.at("token_logprobs").at(1), -0.5);
  EXPECT_EQ(out.at("usage").at("completion_tokens"), 0);

  for (const bool streaming : {false, true}) {
    const json::value body = {{"prompt", "Hello"}, {"echo", true}, {"logprobs", 1},
                              {"max_tokens", 50},  {"n", 2},       {"stream", streaming}};
    if (streaming) {
      const auto events = stream(kPath, body);
      EXPECT_EQ(streamed_text(events, 0), "Helloab");
      EXPECT_EQ(streamed_text(events, 1), "Helloab");
    } else {
      const json::value both = post_json(kPath, body);
      EXPECT_EQ(both.at("choices").at(0).at("text"), "Helloab");
      EXPECT_EQ(both.at("choices").at(1).at("text"), "Helloab");
      EXPECT_EQ(both.at("choices").at(0).at("logprobs"), both.at("choices").at(1).at("logprobs"));
    }
  }
  // Without log-probabilities nothing is asked of the engine.
  post_json(kPath, {{"prompt", "Hello"}, {"echo", true}});
  EXPECT_EQ(backend_->last_request().prompt_logprobs, -1);
  const json::value extra = post_json(kPath, {{"prompt", "Hello"}, {"prompt_logprobs", 2}});
  EXPECT_TRUE(extra.at("choices").at(0).at("prompt_logprobs").at(0).is_null());
  EXPECT_EQ(extra.at("choices").at(0).at("prompt_logprobs").as_array().size(),
            extra.at("usage").at("prompt_tokens").to_number<size_t>());
}

TEST_F(CompletionsTest, FieldsReachTheEngine) {
  start("ab");
  post_json(kPath, {{"prompt", "x"},
                    {"temperature", 0.25},
                    {"top_k", 5},
                    {"top_p", 0.5},
                    {"min_p", 0.125},
                    {"seed", -1},
                    {"presence_penalty", 1},
                    {"frequency_penalty", -1},
                    {"repetition_penalty", 1.5},
                    {"logit_bias", {{"5", -100}, {"6", 2.5}}},
                    {"stop_token_ids", {7}},
                    {"ignore_eos", true},
                    {"min_tokens", 2},
                    {"max_tokens", 4},
                    {"include_stop_str_in_output", true},
                    {"skip_special_tokens", false},
                    {"priority", 3},
                    {"cache_salt", "s"},
                    {"mode", "weight-only"},
                    {"user", "u"}});
  const engine::Request request = backend_->last_request();
  const engine::SamplingParams& p = request.sampling;
  EXPECT_EQ(p.temperature, 0.25);
  EXPECT_EQ(p.top_k, 5);
  EXPECT_EQ(p.top_p, 0.5);
  EXPECT_EQ(p.min_p, 0.125);
  EXPECT_EQ(p.seed, UINT64_MAX);
  EXPECT_EQ(p.presence_penalty, 1);
  EXPECT_EQ(p.frequency_penalty, -1);
  EXPECT_EQ(p.repetition_penalty, 1.5);
  ASSERT_EQ(p.logit_bias.size(), 2u);
  EXPECT_EQ(p.logit_bias[1], (std::pair<int32_t, float>(6, 2.5f)));
  EXPECT_EQ(p.stop_token_ids, std::vector<int32_t>{7});
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(p.min_tokens, 2);
  EXPECT_EQ(p.max_tokens, 4);
  EXPECT_TRUE(p.include_stop_text);
  EXPECT_FALSE(request.skip_special);
  EXPECT_EQ(request.priority, 3);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.mode, model::ExecutionMode::kWeightOnly);
  // What a request leaves open, or sets to null, is the model's default.
  post_json(kPath, {{"prompt", "x"}, {"temperature", nullptr}, {"no_such_field", {1, 2}}});
  EXPECT_EQ(backend_->last_request().sampling.temperature, 0.7);
}

TEST_F(CompletionsTest, WrongValuesNameTheField) {
  start("ab");
  const std::pair<const char*, json::value> cases[] = {
      {"temperature", -1},
      {"temperature", "0.7"},
      {"top_k", -2},
      {"top_k", 1.5},
      {"top_p", 1.5},
      {"min_p", 1.1},
      {"n", 0},
      {"n", 1000},
      {"seed", "x"},
      {"max_tokens", -5},
      {"max_tokens", 0},
      {"min_tokens", 17},
      {"presence_penalty", 3},
      {"repetition_penalty", 0},
      {"logit_bias", json::object{{"x", 1}}},
      {"logit_bias", json::object{{"99999", 1}}},
      {"logit_bias", json::object{{"1", 101}}},
      {"logit_bias", 5},
      {"stop", 5},
      {"stop", json::array{"a", 5}},
      {"stop_token_ids", json::array{-1}},
      {"stream", "yes"},
      {"stream_options", 1},
      {"echo", 1},
      {"mode", "fast"},
      {"mode", "residue"},
      {"best_of", 2},
      {"suffix", "x"},
      {"bad_words", 5},
      {"bad_words", json::array{" "}},
      {"allowed_token_ids", json::array()},
      {"allowed_token_ids", json::array{-1}},
      {"allowed_token_ids", 5},
      {"response_format", json::object{{"type", "yaml"}}},
  };
  for (const auto& [key, value] : cases) {
    json::object body{{"prompt", "x"}};
    body[key] = value;
    const json::value out = post_json(kPath, body, 400);
    const std::string where = json::serialize(body);
    EXPECT_TRUE(out.at("error").at("param").as_string().starts_with(key)) << where;
    EXPECT_NE(out.at("error").at("message").as_string().find(std::string("$.") + key),
              json::string::npos)
        << where << json::serialize(out);
    EXPECT_EQ(out.at("error").at("type"), "invalid_request_error");
    EXPECT_EQ(out.at("error").at("code"), 400);
  }
  const json::value missing = post_json(kPath, {{"prompt", "x"}, {"model", "other"}}, 404);
  EXPECT_EQ(missing.at("error").at("param"), "model");
}

TEST_F(CompletionsTest, HostileBodies) {
  start("ab");
  std::string deep = R"({"prompt":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  const std::string bodies[] = {
      "",
      "{",
      "[]",
      "null",
      "\"text\"",
      "{\"prompt\": NaN}",
      "{\"prompt\": \"\xff\xfe\"}",
      "{\"prompt\": \"\\ud83d\"}",
      "{\"prompt\": \"\\ude00 x\"}",
      "{\"prompt\": \"\xc4\xe3\xba\xc3\"}",
      "{\"prompt\": \"x\"} trailing",
      "{'prompt': 'x'}",
      deep,
      R"({"prompt": "x", "n": 1, "n": 2})",
  };
  HttpClient client(server_->port());
  for (const std::string& body : bodies) {
    const Reply reply = client.post(kPath, body);
    EXPECT_EQ(reply.status, 400) << body.substr(0, 60);
    const json::value parsed = json::parse(reply.body);
    EXPECT_EQ(parsed.at("error").at("message").as_string().find('\xff'), json::string::npos);
  }
  EXPECT_EQ(client.post(kPath, R"({"prompt": "\ud83d\ude00"})").status, 200);
}

TEST_F(CompletionsTest, PromptsBeyondTheContextAreRefused) {
  info_.max_model_len = 64;
  start("ab");
  const json::array ids_of_64(64, 10);
  json::value out = post_json(kPath, {{"prompt", ids_of_64}}, 400);
  EXPECT_NE(out.at("error").at("message").as_string().find("64 tokens"), json::string::npos);
  EXPECT_EQ(post(kPath, {{"prompt", std::string(10'000, 'y')}}).status, 400);
  EXPECT_EQ(post(kPath, {{"prompt", json::array(63, 10)}, {"max_tokens", 4096}}).status, 200);
  EXPECT_EQ(post(kPath, {{"prompt", "x"}}).status, 200);
}

TEST_F(CompletionsTest, RequestsThatNeverFitIntoMemoryAreRefused) {
  info_.kv_pages = 2;
  start("ab");
  const json::value out = post_json(kPath, {{"prompt", "x"}, {"max_tokens", 1000}}, 400);
  EXPECT_NE(out.at("error").at("message").as_string().find("--kv-memory"), json::string::npos);
  EXPECT_EQ(post(kPath, {{"prompt", "x"}, {"max_tokens", 10}}).status, 200);
}

TEST_F(CompletionsTest, FailuresOfTheEngine) {
  start("abcdef");
  Script script;
  script.tokens = ids("abcdef");
  script.fail_at = 2;
  backend_->set_script(script);
  const json::value out = post_json(kPath, {{"prompt", "x"}}, 500);
  EXPECT_EQ(out.at("error").at("message"), "the fake model failed");
  const auto events = stream(kPath, {{"prompt", "x"}, {"stream", true}});
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].at("error").at("message"), "the fake model failed");
  EXPECT_EQ(events[2].at("error").at("code"), 500);
  backend_->set_health(internal_error("dead"));
  EXPECT_EQ(post(kPath, {{"prompt", "x"}, {"stream", true}}).status, 500);
}

TEST_F(CompletionsTest, StructuredOutputWithoutTheLibraryNamesTheInstall) {
  ServerOptions options;
  options.grammars_missing = "install xgrammar";
  start("ab", {}, std::move(options));
  for (const json::object& body :
       {json::object{{"response_format", {{"type", "json_object"}}}},
        json::object{
            {"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "object"}}}}}}}},
        json::object{{"structured_outputs", {{"regex", "a+"}}}},
        json::object{{"guided_choice", {"a", "b"}}}, json::object{{"regex", "a+"}},
        json::object{{"grammar", "root ::= \"a\""}}}) {
    json::object request = body;
    request["prompt"] = "x";
    const json::value out = post_json(kPath, request, 400);
    EXPECT_EQ(out.at("error").at("message"), "install xgrammar");
  }
  EXPECT_EQ(post(kPath, {{"prompt", "x"}, {"response_format", {{"type", "text"}}}}).status, 200);
}

}  // namespace
}  // namespace sub8::server::testing
