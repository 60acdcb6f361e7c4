// Replies of /v1/chat/completions.
#include <chrono>

#include "server/http_message.h"
#include "server/reply.h"

namespace sub8::server {
namespace {

namespace json = boost::json;

constexpr int kCallIdDigits = 24;
constexpr int kMistralIdDigits = 9;  // its templates refuse any other length

class ChatReply final : public Reply {
 public:
  ChatReply(const ServedModel& model, ChatRequest request, std::string id)
      : model_(model),
        request_(std::move(request)),
        id_(std::move(id)),
        created_(std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count()) {
    totals_.set_prompt_tokens(static_cast<int64_t>(request_.ids.size()));
    for (int i = 0; i < request_.fields.request.n; ++i) {
      choices_.emplace_back();
      choices_.back().parser = make_tool_parser(request_.tool_family);
    }
  }

  void add(size_t /*prompt*/, const engine::TokenEvent& event, std::string* sse) override {
    totals_.add(event);
    const bool over = event.finish != engine::FinishReason::kRunning;
    if (!event.token && !over) return;
    Choice& choice = choices_[event.choice];
    ToolDelta delta = take_text(choice, event.text, over);
    if (!request_.parallel_tool_calls) keep_first_call(choice, delta);
    if (event.token && request_.logprobs) choice.logprobs.push_back(logprob_entry(*event.token));
    if (event.token && request_.fields.return_token_ids)
      choice.token_ids.emplace_back(event.token->id);
    if (over) {
      choice.finish_reason = finish_reason_json(event.finish);
      choice.stop_reason = stop_reason_json(event);
      const bool called = choice.call_count > 0 || !delta.calls.empty();
      if (called && event.finish == engine::FinishReason::kStop &&
          request_.tool_choice != ToolChoice::kNamed) {
        choice.finish_reason = "tool_calls";
      }
    }
    if (sse != nullptr) {
      stream_delta(event, choice, delta, sse);
    } else {
      choice.content += delta.content;
      for (ToolCall& call : delta.calls) choice.calls.push_back(call_json(call));
      choice.call_count += static_cast<int>(delta.calls.size());
    }
  }

  void finish(std::string* sse) override {
    append_end(envelope("chat.completion.chunk"), request_.fields.include_usage, totals_, sse);
  }

  json::object body() override {
    json::array choices;
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& choice = choices_[i];
      json::object message{{"role", "assistant"}, {"content", nullptr}};
      if (!choice.content.empty() || choice.calls.empty()) message["content"] = choice.content;
      if (!choice.calls.empty()) message["tool_calls"] = std::move(choice.calls);
      json::object out{{"index", i},
                       {"message", std::move(message)},
                       {"logprobs", nullptr},
                       {"finish_reason", choice.finish_reason},
                       {"stop_reason", choice.stop_reason}};
      if (request_.logprobs) out["logprobs"] = {{"content", std::move(choice.logprobs)}};
      if (request_.fields.return_token_ids) out["token_ids"] = std::move(choice.token_ids);
      choices.push_back(std::move(out));
    }
    json::object out = envelope("chat.completion");
    out["choices"] = std::move(choices);
    out["usage"] = totals_.usage();
    out["timings"] = totals_.timings();
    if (request_.fields.return_token_ids)
      out["prompt_token_ids"] = json::array(request_.ids.begin(), request_.ids.end());
    return out;
  }

 private:
  struct Choice {
    std::unique_ptr<ToolParser> parser;
    bool begun = false;
    std::string content;
    std::string forced;  // kRequired: the list of calls so far
    json::array calls;
    int call_count = 0;
    json::array logprobs;
    json::array token_ids;
    json::value finish_reason;
    json::value stop_reason;
  };

  json::object envelope(std::string_view object) const {
    return {
        {"id", id_}, {"object", object}, {"created", created_}, {"model", request_.fields.model}};
  }

  // Content and calls that `text` completes.
  ToolDelta take_text(Choice& choice, std::string_view text, bool over) {
    if (request_.tool_choice == ToolChoice::kNamed || request_.tool_choice == ToolChoice::kRequired)
      return take_forced(choice, text, over);
    ToolDelta delta = choice.parser->push(text);
    if (over) {
      ToolDelta rest = choice.parser->finish();
      delta.content += rest.content;
      for (ToolCall& call : rest.calls) delta.calls.push_back(std::move(call));
    }
    return delta;
  }

  // The whole answer is JSON by the grammar; cut short by a limit, it may be incomplete.
  ToolDelta take_forced(Choice& choice, std::string_view text, bool over) const {
    choice.forced += text;
    ToolDelta delta;
    if (!over) return delta;
    if (request_.tool_choice == ToolChoice::kNamed) {
      delta.calls.push_back({request_.tool_name, choice.forced});
    } else if (auto calls = tool_calls_from_json_array(choice.forced)) {
      delta.calls = std::move(*calls);
    } else {
      delta.content = choice.forced;
    }
    return delta;
  }

  static void keep_first_call(const Choice& choice, ToolDelta& delta) {
    const size_t allowed = choice.call_count > 0 ? 0 : 1;
    if (delta.calls.size() > allowed) delta.calls.resize(allowed);
  }

  json::object call_json(const ToolCall& call) const {
    const int digits =
        request_.tool_family == ToolFamily::kMistral ? kMistralIdDigits : kCallIdDigits;
    const std::string prefix = request_.tool_family == ToolFamily::kMistral ? "" : "call_";
    return {{"id", prefix + random_hex(digits)},
            {"type", "function"},
            {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
  }

  json::object logprob_entry(const engine::TokenLogprob& token) const {
    const auto entry = [&](int32_t id, float logprob) {
      json::array bytes;
      for (const char c : model_.tokenizer->token_bytes(id))
        bytes.emplace_back(static_cast<int>(static_cast<unsigned char>(c)));
      return json::object{{"token", token_text(*model_.tokenizer, id)},
                          {"logprob", json_logprob(logprob)},
                          {"bytes", std::move(bytes)}};
    };
    json::object out = entry(token.id, token.logprob);
    json::array top;
    for (const auto& [id, logprob] : token.top) top.push_back(entry(id, logprob));
    out["top_logprobs"] = std::move(top);
    return out;
  }

  void stream_delta(const engine::TokenEvent& event, Choice& choice, const ToolDelta& delta,
                    std::string* sse) {
    if (!std::exchange(choice.begun, true)) {
      // With the first token, not before: clients time the first chunk.
      json::object role{{"role", "assistant"}, {"content", ""}};
      send_chunk(event.choice, std::move(role), nullptr, nullptr, nullptr, sse);
    }
    json::object message;
    if (!delta.calls.empty()) {
      json::array calls;
      for (const ToolCall& call : delta.calls) {
        json::object entry = call_json(call);
        entry["index"] = choice.call_count++;
        calls.push_back(std::move(entry));
      }
      message["tool_calls"] = std::move(calls);
      if (!delta.content.empty()) message["content"] = delta.content;
    } else {
      message["content"] = delta.content;
    }
    json::value logprobs;
    if (request_.logprobs) logprobs = {{"content", std::exchange(choice.logprobs, json::array())}};
    send_chunk(event.choice, std::move(message), std::move(logprobs), choice.finish_reason,
               choice.stop_reason, sse);
  }

  void send_chunk(uint32_t index, json::object delta, json::value logprobs,
                  json::value finish_reason, json::value stop_reason, std::string* sse) const {
    json::object part{{"index", index},
                      {"delta", std::move(delta)},
                      {"logprobs", std::move(logprobs)},
                      {"finish_reason", std::move(finish_reason)}};
    if (!stop_reason.is_null()) part["stop_reason"] = std::move(stop_reason);
    json::object chunk = envelope("chat.completion.chunk");
    chunk["choices"] = json::array{std::move(part)};
    if (request_.fields.continuous_usage) chunk["usage"] = totals_.usage();
    append_event(chunk, sse);
  }

  const ServedModel& model_;
  ChatRequest request_;
  std::string id_;
  int64_t created_;
  std::vector<Choice> choices_;
  ReplyTotals totals_;
};

}  // namespace

std::unique_ptr<Reply> make_chat_reply(const ServedModel& model, ChatRequest request,
                                       std::string id) {
  return std::make_unique<ChatReply>(model, std::move(request), std::move(id));
}

}  // namespace sub8::server
