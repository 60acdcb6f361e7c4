#include "server/server_fixture.h"

#include "base/file.h"

namespace sub8::server::testing {

ServerTest::ServerTest() {
  const std::string dir = std::string(SUB8_TEST_DATA) + "/models/llama-chat/";
  const std::string config = read_file(dir + "tokenizer_config.json").value();
  tokenizer_ = std::move(
      Tokenizer::from_json(read_file(dir + "tokenizer.json").value(), "tokenizer.json", config)
          .value());
  chat_template_text_ = std::string(json::parse(config).at("chat_template").as_string());
  chat_template_ = std::make_unique<ChatTemplate>(
      ChatTemplate::parse(chat_template_text_, "chat template").value());
  info_.max_model_len = 4096;
  info_.vocab_size = tokenizer_->vocab_size();
  info_.max_batch_tokens = 512;
  info_.max_sequences = 8;
  info_.kv_pages = 256;
  info_.page_tokens = 32;
  info_.kv_bytes = 1 << 20;
  info_.kv_type = "bf16";
  info_.mode = model::ExecutionMode::kWeightOnly;
  info_.mode_text = "mode weight-only, as it were\nnote: none";
  info_.modes = {model::ExecutionMode::kWeightOnly};
}

ServerTest::~ServerTest() {
  if (server_ != nullptr) server_->stop();
}

std::vector<int32_t> ServerTest::ids(const std::string& text) const {
  return tokenizer_->encode(text, {.add_special_tokens = false}).value();
}

void ServerTest::set_answer(const std::string& answer, std::chrono::microseconds delay) {
  Script script;
  script.tokens = ids(answer);
  script.end_token = *tokenizer_->special_ids().eos;
  script.delay = delay;
  backend_->set_script(std::move(script));
}

void ServerTest::start(const std::string& answer, ServerConfig config, ServerOptions options) {
  backend_ = std::make_unique<FakeBackend>(*tokenizer_, Script{}, info_);
  set_answer(answer);
  ServedModel model;
  model.names = {"tiny", "alias"};
  model.root = "/models/tiny";
  model.recipe = "e3m2";
  model.tokenizer = tokenizer_.get();
  model.chat_template = chat_template_.get();
  model.chat_template_text = chat_template_text_;
  model.defaults.temperature = 0.7;
  model.max_model_len = info_.max_model_len;
  config.port = 0;
  if (options.version.empty()) options.version = "1.2.3";
  server_ =
      std::make_unique<Server>(std::move(config), std::move(model), *backend_, std::move(options));
  const Status started = server_->start();
  ASSERT_TRUE(started.ok()) << started.error().message;
}

Reply ServerTest::post(std::string_view path, const json::value& body) const {
  return HttpClient(server_->port()).post(path, json::serialize(body));
}

json::value ServerTest::post_json(std::string_view path, const json::value& body,
                                  int status) const {
  const Reply reply = post(path, body);
  EXPECT_EQ(reply.status, status) << reply.body;
  boost::system::error_code error;
  json::value out = json::parse(reply.body, error);
  EXPECT_FALSE(error) << reply.body;
  return out;
}

std::vector<json::value> ServerTest::stream(std::string_view path, const json::value& body) const {
  const Reply reply = post(path, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  std::vector<std::string> events = sse_events(reply.body);
  std::vector<json::value> out;
  if (events.empty() || events.back() != "[DONE]") {
    ADD_FAILURE() << "the stream does not end with [DONE]: " << reply.body;
    return out;
  }
  events.pop_back();
  for (const std::string& event : events) out.push_back(json::parse(event));
  return out;
}

bool ServerTest::backend_idle() const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (backend_->stats().running > 0) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace sub8::server::testing
