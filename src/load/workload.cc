#include "load/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace sub8::load {
namespace {

namespace json = boost::json;

// SplitMix64: the same sequence everywhere, unlike the distributions of <random>.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(seed * 0x9E3779B97F4A7C15u + stream) { next(); }
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  // In (0, 1].
  double unit() { return (static_cast<double>(next() >> 11) + 1) * 0x1p-53; }

 private:
  uint64_t state_;
};

// One token each in most vocabularies, with the space in front.
constexpr std::array<std::string_view, 48> kWords = {
    "time",  "year",  "people", "way",   "day",   "man",   "thing",  "world", "life",  "hand",
    "part",  "child", "eye",    "woman", "place", "work",  "week",   "case",  "point", "company",
    "good",  "new",   "first",  "last",  "long",  "great", "little", "own",   "other", "old",
    "right", "big",   "high",   "small", "large", "next",  "early",  "young", "few",   "public",
    "water", "house", "road",   "door",  "line",  "night", "name",   "city"};

constexpr uint64_t kPrefixStream = 0x7072656669780000u;
constexpr uint64_t kPromptStream = 0x70726F6D70740000u;

json::object common_body(const Workload& workload, const Target& target) {
  json::object body{{"model", target.model},
                    {"stream", true},
                    {"stream_options", {{"include_usage", true}}},
                    {"temperature", workload.temperature},
                    {"ignore_eos", true}};
  if (!workload.mode.empty()) body["mode"] = workload.mode;
  return body;
}

void set_limit(json::object& body, const Target& target, int64_t tokens) {
  body[target.endpoint == Endpoint::kChat ? "max_completion_tokens" : "max_tokens"] = tokens;
}

void set_prompt(json::object& body, const Target& target, const std::string& text) {
  if (target.endpoint == Endpoint::kChat) {
    body["messages"] = json::array{json::object{{"role", "user"}, {"content", text}}};
  } else {
    body["prompt"] = text;
  }
}

}  // namespace

Status check_workload(const Workload& w, const Target& target) {
  if (w.prefix_tokens > w.input_tokens) {
    return invalid_argument(fmt::format("--prefix-tokens {} is more than --input-tokens {}",
                                        w.prefix_tokens, w.input_tokens));
  }
  if (w.kind == PromptKind::kIds && target.endpoint == Endpoint::kChat)
    return invalid_argument("chat takes no token ids: use --prompts text with --endpoint chat");
  if (w.kind == PromptKind::kIds && w.first_id > w.last_id) {
    return invalid_argument(
        fmt::format("--first-id {} is above --last-id {}", w.first_id, w.last_id));
  }
  if (w.rate == 0 && w.concurrency == 0)
    return invalid_argument("one of --rate and --concurrency must be above 0");
  return {};
}

std::vector<double> arrival_seconds(const Workload& workload, int64_t count, uint64_t stream) {
  std::vector<double> out;
  Random random(workload.seed, stream);
  double at = 0;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(at);
    if (workload.rate > 0) at += -std::log(random.unit()) / workload.rate;
  }
  return out;
}

std::vector<int32_t> prompt_ids(const Workload& w, int64_t request) {
  std::vector<int32_t> out;
  const auto range = static_cast<uint64_t>(int64_t{w.last_id} - w.first_id + 1);
  const auto draw = [&](uint64_t stream, int64_t count) {
    Random random(w.seed, stream);
    for (int64_t i = 0; i < count; ++i)
      out.push_back(w.first_id + static_cast<int32_t>(random.below(range)));
  };
  draw(kPrefixStream, w.prefix_tokens);
  draw(kPromptStream + static_cast<uint64_t>(request), w.input_tokens - w.prefix_tokens);
  return out;
}

std::string prompt_text(const Workload& w, int64_t request, int64_t prefix_words, int64_t words) {
  std::string out;
  const auto draw = [&](uint64_t stream, int64_t count) {
    Random random(w.seed, stream);
    for (int64_t i = 0; i < count; ++i) {
      if (!out.empty()) out += ' ';
      out += kWords[random.below(kWords.size())];
    }
  };
  const int64_t common = std::min(prefix_words, words);
  draw(kPrefixStream, common);
  draw(kPromptStream + static_cast<uint64_t>(request), words - common);
  return out;
}

int64_t WordRate::words_for(int64_t tokens) const {
  const double words = (static_cast<double>(tokens) - overhead) / per_word;
  return std::max<int64_t>(1, std::llround(words));
}

std::string request_body(const Workload& w, const Target& target, int64_t request,
                         const WordRate& rate) {
  json::object body = common_body(w, target);
  set_limit(body, target, w.output_tokens);
  if (w.kind == PromptKind::kIds) {
    const std::vector<int32_t> ids = prompt_ids(w, request);
    body["prompt"] = json::array(ids.begin(), ids.end());
  } else {
    const int64_t prefix = w.prefix_tokens == 0 ? 0 : rate.words_for(w.prefix_tokens);
    set_prompt(body, target, prompt_text(w, request, prefix, rate.words_for(w.input_tokens)));
  }
  return json::serialize(body);
}

std::string probe_body(const Workload& w, const Target& target, int64_t words) {
  json::object body = common_body(w, target);
  set_limit(body, target, 1);
  set_prompt(body, target, prompt_text(w, -1, 0, words));
  return json::serialize(body);
}

}  // namespace sub8::load
