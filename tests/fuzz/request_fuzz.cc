// Bodies of requests, and what models write where tool calls are looked for.
//
// The first byte chooses: completions, chat, or a family of tool calls. Checked besides crashes:
// every refusal says something and is valid UTF-8; a parser of tool calls loses no text that is no
// call, wherever the text is cut.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/file.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "text/utf8.h"

namespace {

using namespace sub8;
using namespace sub8::server;

void require(bool condition) {
  if (!condition) std::abort();
}

struct World {
  World() {
    const std::string dir = std::string(SUB8_TEST_DATA) + "/models/llama-chat/";
    tokenizer = std::move(
        Tokenizer::from_json(read_file(dir + "tokenizer.json").value(), "tokenizer").value());
    chat = std::make_unique<ChatTemplate>(
        ChatTemplate::parse("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                            "{{ tools | tojson if tools }}",
                            "template")
            .value());
    model.names = {"m"};
    model.tokenizer = tokenizer.get();
    model.chat_template = chat.get();
    info.vocab_size = tokenizer->vocab_size();
    info.max_model_len = 128;
    info.modes = {model::ExecutionMode::kWeightOnly};
  }
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat;
  ServedModel model;
  engine::EngineInfo info;
};

void check_refusal(const Error& error) {
  require(!error.message.empty());
  require(find_invalid_utf8(error.message) == std::string_view::npos);
}

void read_body(const World& world, std::string_view text, bool chat) {
  const auto json = parse_body(text);
  if (!json.ok()) return check_refusal(json.error());
  auto body = BodyReader::open(*json);
  if (!body.ok()) return check_refusal(body.error());
  if (chat) {
    const auto request = parse_chat_request(*body, world.model, world.info, ToolFamily::kHermes);
    if (!request.ok()) check_refusal(request.error());
  } else {
    const auto request = parse_completion_request(*body, world.model, world.info);
    if (!request.ok()) check_refusal(request.error());
  }
  body->unknown();
}

ToolDelta run_parser(ToolFamily family, std::string_view text, size_t step) {
  const auto parser = make_tool_parser(family);
  ToolDelta out;
  const auto add = [&out](const ToolDelta& delta) {
    out.content += delta.content;
    out.calls.insert(out.calls.end(), delta.calls.begin(), delta.calls.end());
  };
  for (size_t at = 0; at < text.size(); at += step) add(parser->push(text.substr(at, step)));
  add(parser->finish());
  return out;
}

void find_calls(ToolFamily family, std::string_view text) {
  const ToolDelta whole = run_parser(family, text, text.size() + 1);
  const ToolDelta bytes = run_parser(family, text, 1);
  require(whole.content == bytes.content);
  require(whole.calls.size() == bytes.calls.size());
  require(!whole.calls.empty() || whole.content == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const World world;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int kind = data[0] % 7;
  if (kind < 2) {
    read_body(world, text, kind == 1);
  } else {
    find_calls(static_cast<ToolFamily>(kind - 2), text);
  }
  return 0;
}
