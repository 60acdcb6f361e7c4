#include "server/tool_parser.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/json.h"

namespace sub8::server {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 5> kNames = {"none", "hermes", "llama3", "mistral",
                                                    "pythonic"};
constexpr std::string_view kSpace = " \t\r\n";

size_t skip_space(std::string_view text, size_t at) {
  const size_t found = text.find_first_not_of(kSpace, at);
  return found == std::string_view::npos ? text.size() : found;
}

// Length of the longest end of `text` that begins `marker`.
size_t partial_match(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.ends_with(marker.substr(0, n))) return n;
  }
  return 0;
}

std::optional<ToolCall> call_from(const json::value& value) {
  if (!value.is_object()) return std::nullopt;
  const json::value* name = value.get_object().if_contains("name");
  if (name == nullptr || !name->is_string() || name->get_string().empty()) return std::nullopt;
  const json::value* arguments = value.get_object().if_contains("arguments");
  if (arguments == nullptr) arguments = value.get_object().if_contains("parameters");
  ToolCall out{std::string(name->get_string()), "{}"};
  if (arguments == nullptr || arguments->is_null()) return out;
  if (arguments->is_object()) {
    out.arguments = json::serialize(*arguments);
  } else if (arguments->is_string()) {
    out.arguments = std::string(arguments->get_string());
  } else {
    return std::nullopt;
  }
  return out;
}

class PlainParser final : public ToolParser {
 public:
  ToolDelta push(std::string_view text) override { return {std::string(text), {}}; }
  ToolDelta finish() override { return {}; }
};

class HermesParser final : public ToolParser {
 public:
  ToolDelta push(std::string_view text) override {
    held_ += text;
    ToolDelta out;
    while (true) {
      if (!inside_) {
        const size_t open = held_.find(kOpen);
        if (open == std::string::npos) {
          const size_t keep = partial_match(held_, kOpen);
          out.content += held_.substr(0, held_.size() - keep);
          held_.erase(0, held_.size() - keep);
          return out;
        }
        out.content += held_.substr(0, open);
        held_.erase(0, open);
        inside_ = true;
      }
      const size_t close = held_.find(kClose);
      if (close == std::string::npos) return out;
      take_call(held_.substr(kOpen.size(), close - kOpen.size()),
                held_.substr(0, close + kClose.size()), out);
      held_.erase(0, close + kClose.size());
      inside_ = false;
    }
  }
  ToolDelta finish() override {
    ToolDelta out;
    // The end token may have come in place of the closing tag.
    if (inside_) {
      take_call(std::string_view(held_).substr(kOpen.size()), held_, out);
    } else {
      out.content = held_;
    }
    held_.clear();
    return out;
  }

 private:
  static constexpr std::string_view kOpen = "<tool_call>";
  static constexpr std::string_view kClose = "</tool_call>";
  static void take_call(std::string_view body, std::string_view whole, ToolDelta& out) {
    if (auto call = tool_call_from_json(body)) {
      out.calls.push_back(std::move(*call));
    } else {
      out.content += whole;
    }
  }
  std::string held_;
  bool inside_ = false;
};

// Mistral's marker opens the list of calls, which lasts to the end of the answer.
class MistralParser final : public ToolParser {
 public:
  ToolDelta push(std::string_view text) override {
    held_ += text;
    ToolDelta out;
    if (inside_) return out;
    const size_t open = held_.find(kOpen);
    inside_ = open != std::string::npos;
    const size_t ready = inside_ ? open : held_.size() - partial_match(held_, kOpen);
    out.content = held_.substr(0, ready);
    held_.erase(0, ready);
    return out;
  }
  ToolDelta finish() override {
    ToolDelta out;
    const std::string held = std::exchange(held_, {});
    if (inside_) {
      if (auto calls = parse(held)) {
        out.calls = std::move(*calls);
        return out;
      }
    }
    out.content = held;
    return out;
  }

 private:
  static constexpr std::string_view kOpen = "[TOOL_CALLS]";
  static constexpr std::string_view kArguments = "[ARGS]";

  // [TOOL_CALLS][{...}, ...], or [TOOL_CALLS]name{...} repeated, with [ARGS] in newer models.
  static std::optional<std::vector<ToolCall>> parse(std::string_view text) {
    const size_t first = skip_space(text, kOpen.size());
    if (text.substr(first).starts_with("[") && !text.substr(first).starts_with(kOpen)) {
      const size_t length = json_extent(text.substr(first));
      if (length == 0) return std::nullopt;
      return tool_calls_from_json_array(text.substr(first, length));
    }
    std::vector<ToolCall> out;
    size_t at = 0;
    while ((at = text.find(kOpen, at)) != std::string_view::npos) {
      at = skip_space(text, at + kOpen.size());
      const size_t brace = text.find('{', at);
      if (brace == std::string_view::npos) return std::nullopt;
      std::string_view name = text.substr(at, brace - at);
      if (name.ends_with(kArguments)) name.remove_suffix(kArguments.size());
      while (!name.empty() && kSpace.find(name.back()) != std::string_view::npos)
        name.remove_suffix(1);
      const size_t length = json_extent(text.substr(brace));
      if (name.empty() || length == 0) return std::nullopt;
      out.push_back({std::string(name), std::string(text.substr(brace, length))});
      at = brace + length;
    }
    if (out.empty()) return std::nullopt;
    return out;
  }
  std::string held_;
  bool inside_ = false;
};

// Families whose calls take the place of the text: the first character decides.
class WholeAnswerParser final : public ToolParser {
 public:
  using Parse = std::optional<std::vector<ToolCall>> (*)(std::string_view);
  WholeAnswerParser(std::string_view openers, std::string_view marker, Parse parse)
      : openers_(openers), marker_(marker), parse_(parse) {}

  ToolDelta push(std::string_view text) override {
    if (state_ == State::kText) return {std::string(text), {}};
    held_ += text;
    if (state_ == State::kUnknown) decide();
    if (state_ == State::kText) return {std::exchange(held_, {}), {}};
    return {};
  }
  ToolDelta finish() override {
    ToolDelta out;
    const std::string held = std::exchange(held_, {});
    if (state_ == State::kCall) {
      std::string_view body = held;
      body.remove_prefix(skip_space(body, 0));
      if (!marker_.empty() && body.starts_with(marker_)) body.remove_prefix(marker_.size());
      if (auto calls = parse_(body)) {
        out.calls = std::move(*calls);
        return out;
      }
    }
    out.content = held;
    return out;
  }

 private:
  enum class State { kUnknown, kText, kCall };
  void decide() {
    const std::string_view body = std::string_view(held_).substr(skip_space(held_, 0));
    if (body.empty()) return;
    if (openers_.find(body.front()) != std::string_view::npos ||
        (!marker_.empty() && body.starts_with(marker_))) {
      state_ = State::kCall;
    } else if (marker_.empty() || !marker_.starts_with(body)) {
      state_ = State::kText;
    }
  }
  std::string_view openers_;
  std::string_view marker_;
  Parse parse_;
  State state_ = State::kUnknown;
  std::string held_;
};

// One object, or several with semicolons between them.
std::optional<std::vector<ToolCall>> llama3_calls(std::string_view text) {
  std::vector<ToolCall> out;
  size_t at = skip_space(text, 0);
  while (at < text.size()) {
    const size_t length = json_extent(text.substr(at));
    if (length == 0) return std::nullopt;
    auto call = tool_call_from_json(text.substr(at, length));
    if (!call) return std::nullopt;
    out.push_back(std::move(*call));
    at = skip_space(text, at + length);
    if (at < text.size() && text[at] != ';') return std::nullopt;
    at = skip_space(text, at + 1);
  }
  if (out.empty()) return std::nullopt;
  return out;
}

}  // namespace

std::string_view tool_family_name(ToolFamily family) { return kNames[static_cast<size_t>(family)]; }

Result<ToolFamily> parse_tool_family(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<ToolFamily>(i);
  }
  return invalid_argument(
      fmt::format("the tool family must be one of {}, got '{}'", fmt::join(kNames, ", "), name));
}

ToolFamily detect_tool_family(std::string_view chat_template) {
  const auto has = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  if (has("<tool_call>")) return ToolFamily::kHermes;
  if (has("[TOOL_CALLS]")) return ToolFamily::kMistral;
  // Llama 3.2's and 4's templates describe the list of calls in words.
  if (has("[func_name1(")) return ToolFamily::kPythonic;
  if (has("<|python_tag|>") || has("\"parameters\": dictionary of argument name"))
    return ToolFamily::kLlama3;
  return ToolFamily::kNone;
}

bool marks_calls_with_special_tokens(ToolFamily family) {
  return family == ToolFamily::kMistral || family == ToolFamily::kLlama3;
}

size_t json_extent(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return i + 1;
    }
    if (depth == 0 && !quoted) return 0;
  }
  return 0;
}

std::optional<ToolCall> tool_call_from_json(std::string_view text) {
  const Result<json::value> value = parse_json(text, "tool call");
  if (!value.ok()) return std::nullopt;
  return call_from(*value);
}

std::optional<std::vector<ToolCall>> tool_calls_from_json_array(std::string_view text) {
  const Result<json::value> value = parse_json(text, "tool calls");
  if (!value.ok() || !value->is_array() || value->get_array().empty()) return std::nullopt;
  std::vector<ToolCall> out;
  for (const json::value& element : value->get_array()) {
    auto call = call_from(element);
    if (!call) return std::nullopt;
    out.push_back(std::move(*call));
  }
  return out;
}

std::unique_ptr<ToolParser> make_tool_parser(ToolFamily family) {
  switch (family) {
    case ToolFamily::kNone:
      return std::make_unique<PlainParser>();
    case ToolFamily::kHermes:
      return std::make_unique<HermesParser>();
    case ToolFamily::kLlama3:
      return std::make_unique<WholeAnswerParser>("{", "<|python_tag|>", llama3_calls);
    case ToolFamily::kMistral:
      return std::make_unique<MistralParser>();
    case ToolFamily::kPythonic:
      return std::make_unique<WholeAnswerParser>("[", "", tool_calls_from_python);
  }
  return std::make_unique<PlainParser>();
}

}  // namespace sub8::server
