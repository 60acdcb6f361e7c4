// Router, keys, CORS, and the small endpoints.
#include <cctype>
#include <set>

#include <fmt/format.h>

#include "server/http_message.h"
#include "server/server_fixture.h"

namespace sub8::server::testing {
namespace {

using AccessTest = ServerTest;

TEST(HttpMessage, HeaderValuesCannotAddHeaders) {
  HttpResponse response;
  response.headers = {{"X-Request-Id", "a\r\nSet-Cookie: b"}};
  const std::string head = format_head(response, Framing::kLength, true);
  EXPECT_EQ(head.find("\r\nSet-Cookie"), std::string::npos);
  EXPECT_EQ(request_id("abc-1.2_Z"), "abc-1.2_Z");
  EXPECT_NE(request_id("a b"), "a b");
  EXPECT_EQ(request_id("a b").size(), 32u);
  EXPECT_NE(request_id(std::string(65, 'a')).size(), 65u);
}

TEST(HttpMessage, ConstantTimeComparisonCompares) {
  EXPECT_TRUE(equal_in_constant_time("key", "key"));
  EXPECT_FALSE(equal_in_constant_time("key", "kez"));
  EXPECT_FALSE(equal_in_constant_time("key", "key2"));
  EXPECT_FALSE(equal_in_constant_time("key", ""));
  EXPECT_FALSE(equal_in_constant_time("", "key"));
}

TEST_F(AccessTest, HealthVersionModels) {
  start("x");
  HttpClient client(server_->port());
  Reply reply = client.get("/health");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, "");
  EXPECT_EQ(json::parse(client.get("/version").body).at("version"), "1.2.3");
  const json::value models = json::parse(client.get("/v1/models").body);
  EXPECT_EQ(models.at("object"), "list");
  ASSERT_EQ(models.at("data").as_array().size(), 2u);
  const json::value& model = models.at("data").at(0);
  EXPECT_EQ(model.at("id"), "tiny");
  EXPECT_EQ(model.at("root"), "/models/tiny");
  EXPECT_EQ(model.at("max_model_len"), 4096);
  EXPECT_EQ(model.at("sub8").at("mode"), "weight-only");
  EXPECT_EQ(model.at("sub8").at("mode_text"), "mode weight-only, as it were");
  EXPECT_EQ(model.at("sub8").at("recipe"), "e3m2");
  EXPECT_EQ(model.at("sub8").at("sampling_defaults").at("temperature"), 0.7);
  backend_->set_health(internal_error("the engine stopped"));
  reply = client.get("/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(json::parse(reply.body).at("error").at("message"), "the engine stopped");
}

TEST_F(AccessTest, UnknownPathsAndMethods) {
  start("x");
  HttpClient client(server_->port());
  Reply reply = client.get("/v1/nothing");
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(json::parse(reply.body).at("error").at("type"), "not_found_error");
  reply = client.get("/v1/completions");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers["allow"], "POST, OPTIONS");
  // The query is not part of the path.
  EXPECT_EQ(client.get("/health?x=1").status, 200);
  client.send("HEAD /version HTTP/1.1\r\nHost: x\r\n\r\n");
  reply = client.read_reply(true);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers["content-length"], "19");
  EXPECT_EQ(client.get("/health").status, 200);
}

TEST_F(AccessTest, KeysGuardTheApi) {
  ServerConfig config;
  config.api_keys = {"secret-1", "secret-2"};
  start("x", config);
  const auto status = [&](std::string_view header) {
    return HttpClient(server_->port()).get("/v1/models", header).status;
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("Authorization: Bearer wrong\r\n"), 401);
  EXPECT_EQ(status("Authorization: secret-1\r\n"), 401);
  EXPECT_EQ(status("Authorization: Bearer secret-1\r\n"), 200);
  EXPECT_EQ(status("Authorization: Bearer secret-2\r\n"), 200);
  HttpClient client(server_->port());
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.get("/metrics").status, 200);
  EXPECT_EQ(client.get("/").status, 200);
  const Reply refused = client.post("/v1/completions", "{\"prompt\": \"a\"}");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(json::parse(refused.body).at("error").at("type"), "authentication_error");
}

TEST_F(AccessTest, CorsIsOffUnlessAllowed) {
  start("x");
  const std::string origin = "Origin: https://app.example\r\n";
  Reply reply = HttpClient(server_->port()).get("/v1/models", origin);
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u);
  const std::string preflight = "OPTIONS /v1/completions HTTP/1.1\r\nHost: x\r\n" + origin +
                                "Access-Control-Request-Method: POST\r\n\r\n";
  HttpClient refused(server_->port());
  refused.send(preflight);
  EXPECT_EQ(refused.read_reply().status, 403);

  ServerConfig config;
  config.cors_origins = {"https://app.example"};
  server_->stop();
  start("x", config);
  reply = HttpClient(server_->port()).get("/v1/models", origin);
  EXPECT_EQ(reply.headers["access-control-allow-origin"], "https://app.example");
  reply = HttpClient(server_->port()).get("/v1/models", "Origin: https://other.example\r\n");
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u);
  HttpClient allowed(server_->port());
  allowed.send(preflight);
  reply = allowed.read_reply();
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers["access-control-allow-origin"], "https://app.example");
}

TEST_F(AccessTest, BodiesMustBeJson) {
  start("x");
  HttpClient client(server_->port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: "
      "2\r\n\r\n{}");
  EXPECT_EQ(client.read_reply().status, 415);
}

TEST_F(AccessTest, TokenizeAndDetokenize) {
  start("x");
  const json::value out =
      post_json("/tokenize", {{"prompt", "Hello there"}, {"return_token_strs", true}});
  const auto expected = ids("Hello there");
  EXPECT_EQ(out.at("tokens").as_array().size(), out.at("count").to_number<size_t>());
  EXPECT_EQ(out.at("max_model_len"), 4096);
  EXPECT_EQ(out.at("token_strs").as_array().size(), out.at("tokens").as_array().size());
  const json::value text =
      post_json("/detokenize", {{"tokens", json::array(expected.begin(), expected.end())}});
  EXPECT_EQ(text.at("prompt"), "Hello there");
  const json::value chat =
      post_json("/tokenize", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}});
  EXPECT_EQ(chat.at("tokens").as_array().size(),
            ids("<|im_start|>system\nYou are a test.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                "<|im_start|>assistant\n")
                .size());
  EXPECT_EQ(post("/detokenize", {{"tokens", {1, 100000}}}).status, 400);
  EXPECT_EQ(post("/detokenize", {{"tokens", "abc"}}).status, 400);
  EXPECT_EQ(post("/tokenize", json::object()).status, 400);
  EXPECT_EQ(post("/detokenize", {{"model", 5}, {"tokens", json::array()}}).status, 400);
  EXPECT_EQ(post("/detokenize", {{"model", "other"}, {"tokens", json::array()}}).status, 404);
}

TEST_F(AccessTest, TheDescriptionListsTheRoutes) {
  start("x");
  const json::value document = json::parse(HttpClient(server_->port()).get("/openapi.json").body);
  std::set<std::string> described;
  for (const auto& path : document.at("paths").as_object()) {
    for (const auto& operation : path.value().as_object()) {
      std::string method(operation.key());
      for (char& c : method) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      described.insert(method + " " + std::string(path.key()));
    }
  }
  std::set<std::string> served;
  for (const std::string& route : server_->routes()) {
    // The page's own files are not part of the API.
    const bool page = route == "GET /" || route.ends_with(".css") || route.ends_with(".js");
    if (!page) served.insert(route);
  }
  EXPECT_EQ(described, served);
}

// Every member that the description names is one that the server reads, and its type is checked.
TEST_F(AccessTest, DescribedMembersAreRead) {
  start("x");
  const json::value document = json::parse(HttpClient(server_->port()).get("/openapi.json").body);
  const json::value& schemas = document.at("components").at("schemas");
  const std::pair<const char*, const char*> cases[] = {{"/v1/completions", "CompletionRequest"},
                                                       {"/v1/chat/completions", "ChatRequest"}};
  for (const auto& [path, schema] : cases) {
    for (const auto& member : schemas.at(schema).at("properties").as_object()) {
      if (member.key() == "user" || member.key() == "chat_template_kwargs") continue;
      json::object body{{"prompt", "x"}, {"messages", {{{"role", "user"}, {"content", "x"}}}}};
      // No member takes a list of lists of booleans.
      body[member.key()] = json::array{json::array{true}};
      if (member.key() == "documents") body[member.key()] = 1;
      EXPECT_EQ(post(path, body).status, 400) << path << " " << member.key();
    }
  }
}

TEST_F(AccessTest, ThePageIsSelfContained) {
  start("x");
  HttpClient client(server_->port());
  const Reply page = client.get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'self'"),
            std::string::npos);
  for (const char* path : {"/", "/app.css", "/app.js"}) {
    const Reply file = client.get(path);
    EXPECT_EQ(file.status, 200) << path;
    EXPECT_EQ(file.body.find("http://"), std::string::npos) << path;
    EXPECT_EQ(file.body.find("https://"), std::string::npos) << path;
    EXPECT_GT(file.body.size(), 1000u) << path;
  }
}

TEST_F(AccessTest, MetricsHaveTheNamesOfDashboards) {
  start("abc");
  post_json("/v1/completions", {{"prompt", "a"}, {"max_tokens", 8}});
  ASSERT_TRUE(backend_idle());
  HttpClient client(server_->port());
  client.get("/no/such/path");
  const Reply reply = client.get("/metrics");
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.headers.at("content-type").starts_with("text/plain"));
  for (const char* name : {"vllm:num_requests_running{",
                           "vllm:num_requests_waiting{",
                           "vllm:kv_cache_usage_perc{",
                           "vllm:prompt_tokens_total{",
                           "vllm:generation_tokens_total{",
                           "vllm:request_success_total{",
                           "vllm:num_preemptions_total{",
                           "vllm:prefix_cache_queries_total{",
                           "vllm:prefix_cache_hits_total{",
                           "vllm:time_to_first_token_seconds_bucket{",
                           "vllm:inter_token_latency_seconds_sum{",
                           "vllm:request_time_per_output_token_seconds_count{",
                           "vllm:e2e_request_latency_seconds_bucket{",
                           "vllm:request_queue_time_seconds_bucket{",
                           "vllm:request_inference_time_seconds_bucket{",
                           "vllm:request_prefill_time_seconds_bucket{",
                           "vllm:request_decode_time_seconds_bucket{",
                           "vllm:request_prompt_tokens_bucket{",
                           "vllm:request_generation_tokens_bucket{",
                           "vllm:iteration_tokens_total_bucket{",
                           "vllm:request_params_n_bucket{",
                           "vllm:request_params_max_tokens_bucket{",
                           "vllm:cache_config_info{",
                           "http_requests_total{"}) {
    EXPECT_NE(reply.body.find(std::string("\n") + name), std::string::npos) << name;
  }
  EXPECT_NE(reply.body.find("model_name=\"tiny\""), std::string::npos);
  EXPECT_NE(reply.body.find("handler=\"other\",method=\"GET\",status=\"4xx\"} 1"),
            std::string::npos)
      << reply.body.substr(reply.body.find("http_requests_total"), 500);
}

}  // namespace
}  // namespace sub8::server::testing
