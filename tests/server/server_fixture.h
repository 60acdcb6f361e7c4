// A running server over the scripted backend and a small real tokenizer.
#pragma once

#include <memory>
#include <string>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "server/fake_backend.h"
#include "server/http_client.h"
#include "server/server.h"

namespace sub8::server::testing {

namespace json = boost::json;

class ServerTest : public ::testing::Test {
 protected:
  ServerTest();
  ~ServerTest() override;

  // Starts the server; `config.port` is set to any free one. The answer is `answer`.
  void start(const std::string& answer, ServerConfig config = {}, ServerOptions options = {});
  // What the model says from the next request on.
  void set_answer(const std::string& answer, std::chrono::microseconds delay = {});
  std::vector<int32_t> ids(const std::string& text) const;

  Reply post(std::string_view path, const json::value& body) const;
  // The parsed body of a reply that must have this status.
  json::value post_json(std::string_view path, const json::value& body, int status = 200) const;
  // The parsed events of a stream, "[DONE]" checked and left out.
  std::vector<json::value> stream(std::string_view path, const json::value& body) const;
  // Waits until nothing runs in the backend; false after some seconds.
  bool backend_idle() const;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::string chat_template_text_;
  engine::EngineInfo info_;
  std::unique_ptr<FakeBackend> backend_;
  std::unique_ptr<Server> server_;
};

}  // namespace sub8::server::testing
