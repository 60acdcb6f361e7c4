#include "text/chat_template/chat_template.h"

#include "text/chat_template/eval.h"
#include "text/utf8.h"

namespace sub8 {
namespace {

using jinja::Runtime;
using jinja::Scope;
using jinja::TemplateFailure;
using jinja::Value;

// JSON as Python's json module reads it.
Value from_json(Runtime& rt, const boost::json::value& json, int depth) {
  if (depth > rt.limits().max_value_depth) {
    jinja::fail_as(ErrorCode::kResourceExhausted, "the input is nested too deeply");
  }
  const auto string = [&](std::string_view text) {
    const Status valid = check_utf8(text, "a string of the input");
    if (!valid.ok()) jinja::fail_as(valid.error().code, valid.error().message);
    return rt.string(std::string(text));
  };
  switch (json.kind()) {
    case boost::json::kind::null:
      return jinja::None{};
    case boost::json::kind::bool_:
      return json.get_bool();
    case boost::json::kind::int64:
      return int64_t{json.get_int64()};
    case boost::json::kind::uint64:
      if (json.get_uint64() > static_cast<uint64_t>(INT64_MAX)) {
        jinja::fail_as(ErrorCode::kUnsupported,
                       "the input has an integer beyond 64 bits (signed): " +
                           std::to_string(json.get_uint64()));
      }
      return static_cast<int64_t>(json.get_uint64());
    case boost::json::kind::double_:
      return json.get_double();
    case boost::json::kind::string:
      return string(json.get_string());
    case boost::json::kind::array: {
      std::vector<Value> items;
      for (const auto& item : json.get_array()) items.push_back(from_json(rt, item, depth + 1));
      return rt.list(std::move(items));
    }
    case boost::json::kind::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& member : json.get_object()) {
        Value key = string(member.key());
        items.emplace_back(std::move(key), from_json(rt, member.value(), depth + 1));
      }
      return rt.dict(std::move(items));
    }
  }
  return jinja::None{};
}

void define_input(Runtime& rt, Scope& scope, const ChatInput& input) {
  const auto optional = [&](const std::optional<boost::json::value>& json) {
    return json ? from_json(rt, *json, 1) : Value(jinja::None{});
  };
  std::vector<Value> messages;
  for (const auto& message : input.messages) messages.push_back(from_json(rt, message, 2));
  scope.set("messages", rt.list(std::move(messages)));
  scope.set("tools", optional(input.tools));
  scope.set("documents", optional(input.documents));
  scope.set("add_generation_prompt", input.add_generation_prompt);
  if (input.bos_token)
    scope.set("bos_token", from_json(rt, boost::json::value(*input.bos_token), 1));
  if (input.eos_token)
    scope.set("eos_token", from_json(rt, boost::json::value(*input.eos_token), 1));
  for (const auto& [name, token] : input.special_tokens) {
    scope.set(name, from_json(rt, boost::json::value(token), 1));
  }
  for (const auto& member : input.kwargs) {
    scope.set(std::string_view(member.key()), from_json(rt, member.value(), 1));
  }
}

Error to_error(const TemplateFailure& failure, const std::string& name, int line) {
  const int where = failure.line > 0 ? failure.line : line;
  return Error{failure.code, failure.message}.within(
      "chat template '" + name + "'" + (where > 0 ? ", line " + std::to_string(where) : ""));
}

}  // namespace

struct ChatTemplate::Parsed {
  std::string name;
  jinja::Body body;
};

std::tm local_time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view name) {
  constexpr size_t kMaxSource = 4u << 20;
  auto parsed = std::make_shared<Parsed>();
  parsed->name = std::string(name);
  if (source.size() > kMaxSource) {
    return resource_exhausted("chat template '" + parsed->name + "' has " +
                              std::to_string(source.size()) + " bytes, at most " +
                              std::to_string(kMaxSource) + " are allowed");
  }
  SUB8_RETURN_IF_ERROR(check_utf8(source, "chat template '" + parsed->name + "'"));
  try {
    parsed->body = jinja::parse_template(jinja::tokenize(source));
  } catch (const TemplateFailure& failure) {
    return to_error(failure, parsed->name, 0);
  }
  return ChatTemplate(std::move(parsed));
}

Result<std::string> ChatTemplate::render(const ChatInput& input,
                                         const TemplateLimits& limits) const {
  Runtime rt(limits);
  rt.now = input.now;
  try {
    const auto globals = rt.make_scope(nullptr);
    rt.keep(globals);
    jinja::define_globals(rt, *globals);
    const auto context = rt.make_scope(globals);
    define_input(rt, *context, input);
    const auto root = rt.make_scope(context);
    rt.keep(root);
    return jinja::Evaluator(rt).render(parsed_->body, root);
  } catch (const TemplateFailure& failure) {
    return to_error(failure, parsed_->name, rt.line);
  }
}

}  // namespace sub8
