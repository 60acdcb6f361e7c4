// Replies of /v1/completions.
#include <algorithm>
#include <chrono>

#include "server/reply.h"
#include "text/utf8.h"

namespace sub8::server {
namespace {

namespace json = boost::json;

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

// The "logprobs" member: parallel arrays over tokens.
class LogprobLists {
 public:
  explicit LogprobLists(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  void add(const engine::TokenLogprob& token, int64_t offset) {
    const std::string key = token_key(*tokenizer_, token.id);
    json::object top;
    // The chosen token is always among them, as vLLM has it.
    top[key] = json_logprob(token.logprob);
    for (const auto& [id, logprob] : token.top)
      top[token_key(*tokenizer_, id)] = json_logprob(logprob);
    push(key, json_logprob(token.logprob), std::move(top), offset);
  }
  // The prompt's first token has no probability.
  void add_unscored(int32_t id, int64_t offset) {
    push(token_key(*tokenizer_, id), nullptr, nullptr, offset);
  }
  json::object take() {
    json::object out{{"tokens", std::move(tokens_)},
                     {"token_logprobs", std::move(logprobs_)},
                     {"top_logprobs", std::move(top_)},
                     {"text_offset", std::move(offsets_)}};
    tokens_ = logprobs_ = top_ = offsets_ = json::array();
    return out;
  }

 private:
  void push(std::string_view token, json::value logprob, json::value top, int64_t offset) {
    tokens_.emplace_back(token);
    logprobs_.push_back(std::move(logprob));
    top_.push_back(std::move(top));
    offsets_.emplace_back(offset);
  }
  const Tokenizer* tokenizer_;
  json::array tokens_, logprobs_, top_, offsets_;
};

class CompletionReply final : public Reply {
 public:
  CompletionReply(const ServedModel& model, CompletionRequest request, std::string id)
      : model_(model),
        request_(std::move(request)),
        id_(std::move(id)),
        created_(std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count()) {
    int64_t prompt_tokens = 0;
    prompts_.resize(request_.prompts.size());
    for (const auto& prompt : request_.prompts) {
      prompt_tokens += static_cast<int64_t>(prompt.ids.size());
      for (int i = 0; i < request_.fields.request.n; ++i) choices_.emplace_back(*model.tokenizer);
    }
    totals_.set_prompt_tokens(prompt_tokens);
  }

  void add(size_t prompt, const engine::TokenEvent& event, std::string* sse) override {
    totals_.add(event);
    PromptState& state = prompts_[prompt];
    state.logprobs.insert(state.logprobs.end(), event.prompt_logprobs.begin(),
                          event.prompt_logprobs.end());
    const bool is_choice = event.token || event.finish != engine::FinishReason::kRunning;
    // A choice may be ahead of the prompt's log-probabilities, which come with the first one.
    if (is_choice) state.held.push_back(event);
    if (!prompt_complete(prompt)) return;
    const std::vector<engine::TokenEvent> ready = std::exchange(state.held, {});
    for (const engine::TokenEvent& one : ready) add_to_choice(prompt, one, sse);
  }

  void finish(std::string* sse) override {
    append_end(envelope(), request_.fields.include_usage, totals_, sse);
  }

  json::object body() override {
    json::array choices;
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& choice = choices_[i];
      json::object out{{"index", i},
                       {"text", std::move(choice.text)},
                       {"logprobs", nullptr},
                       {"finish_reason", choice.finish_reason},
                       {"stop_reason", choice.stop_reason}};
      if (request_.logprobs >= 0) out["logprobs"] = choice.logprobs.take();
      const size_t prompt = i / static_cast<size_t>(request_.fields.request.n);
      if (request_.prompt_logprobs >= 0) out["prompt_logprobs"] = prompt_logprobs(prompt);
      if (request_.fields.return_token_ids) {
        out["token_ids"] = std::move(choice.token_ids);
        out["prompt_token_ids"] =
            json::array(request_.prompts[prompt].ids.begin(), request_.prompts[prompt].ids.end());
      }
      choices.push_back(std::move(out));
    }
    json::object out = envelope();
    out["choices"] = std::move(choices);
    out["usage"] = totals_.usage();
    out["timings"] = totals_.timings();
    return out;
  }

 private:
  struct PromptState {
    std::vector<engine::TokenLogprob> logprobs;
    std::vector<engine::TokenEvent> held;
  };
  struct Choice {
    explicit Choice(const Tokenizer& tokenizer) : logprobs(tokenizer) {}
    bool begun = false;
    std::string text;
    int64_t offset = 0;  // characters of all tokens so far
    LogprobLists logprobs;
    json::array token_ids;
    json::value finish_reason;
    json::value stop_reason;
  };

  json::object envelope() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", request_.fields.model}};
  }

  bool prompt_complete(size_t prompt) const {
    return request_.fields.request.prompt_logprobs < 0 ||
           prompts_[prompt].logprobs.size() + 1 >= request_.prompts[prompt].ids.size() ||
           (!prompts_[prompt].held.empty() && prompts_[prompt].held.back().error);
  }

  // The prompt in front of the answer, with its log-probabilities.
  std::string begin_choice(size_t prompt, Choice& choice) {
    choice.begun = true;
    if (!request_.echo) return {};
    const auto& given = request_.prompts[prompt];
    if (request_.logprobs >= 0) {
      int64_t offset = 0;
      for (size_t i = 0; i < given.ids.size(); ++i) {
        if (i == 0) {
          choice.logprobs.add_unscored(given.ids[0], 0);
        } else if (i - 1 < prompts_[prompt].logprobs.size()) {
          choice.logprobs.add(prompts_[prompt].logprobs[i - 1], offset);
        }
        offset += count_characters(token_text(*model_.tokenizer, given.ids[i]));
      }
    }
    choice.offset = count_characters(given.text);
    return given.text;
  }

  void add_to_choice(size_t prompt, const engine::TokenEvent& event, std::string* sse) {
    const size_t index =
        prompt * static_cast<size_t>(request_.fields.request.n) + static_cast<size_t>(event.choice);
    Choice& choice = choices_[index];
    std::string text = choice.begun ? std::string() : begin_choice(prompt, choice);
    if (event.token && request_.logprobs >= 0) {
      choice.logprobs.add(*event.token, choice.offset);
      choice.offset += count_characters(token_text(*model_.tokenizer, event.token->id));
    }
    if (event.token && request_.fields.return_token_ids)
      choice.token_ids.emplace_back(event.token->id);
    text += event.text;
    choice.finish_reason = finish_reason_json(event.finish);
    choice.stop_reason = stop_reason_json(event);
    if (sse == nullptr) {
      choice.text += text;
      return;
    }
    json::object part{{"index", index},
                      {"text", std::move(text)},
                      {"logprobs", nullptr},
                      {"finish_reason", choice.finish_reason},
                      {"stop_reason", choice.stop_reason}};
    if (request_.logprobs >= 0) part["logprobs"] = choice.logprobs.take();
    if (request_.fields.return_token_ids)
      part["token_ids"] = std::exchange(choice.token_ids, json::array());
    json::object chunk = envelope();
    chunk["choices"] = json::array{std::move(part)};
    if (request_.fields.continuous_usage) chunk["usage"] = totals_.usage();
    append_event(chunk, sse);
  }

  // vLLM's form: one object per token from id to {"logprob", "rank", "decoded_token"}.
  json::value prompt_logprobs(size_t prompt) const {
    json::array out{nullptr};
    for (const engine::TokenLogprob& token : prompts_[prompt].logprobs) {
      json::object entry;
      const auto put = [&](int32_t id, float logprob, json::value rank) {
        entry[std::to_string(id)] = {{"logprob", json_logprob(logprob)},
                                     {"rank", std::move(rank)},
                                     {"decoded_token", token_text(*model_.tokenizer, id)}};
      };
      put(token.id, token.logprob, nullptr);
      for (size_t i = 0; i < token.top.size(); ++i)
        put(token.top[i].first, token.top[i].second, i + 1);
      out.push_back(std::move(entry));
    }
    return out;
  }

  const ServedModel& model_;
  CompletionRequest request_;
  std::string id_;
  int64_t created_;
  std::vector<PromptState> prompts_;
  std::vector<Choice> choices_;
  ReplyTotals totals_;
};

}  // namespace

std::unique_ptr<Reply> make_completion_reply(const ServedModel& model, CompletionRequest request,
                                             std::string id) {
  return std::make_unique<CompletionReply>(model, std::move(request), std::move(id));
}

}  // namespace sub8::server
