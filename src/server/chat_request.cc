#include "server/chat_request.h"

#include <algorithm>

#include <fmt/format.h>

namespace sub8::server {
namespace {

namespace json = boost::json;

constexpr size_t kMaxMessages = 1 << 16;
constexpr size_t kMaxTools = 1024;

// Text parts joined with line breaks, as vLLM hands them to templates.
Result<std::string> join_parts(BodyReader& message, const json::array& parts) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string where = fmt::format("content[{}]", i);
    if (!parts[i].is_object()) return message.fail(where, "expected an object");
    const json::object& part = parts[i].get_object();
    const json::value* type = part.if_contains("type");
    const bool typed = type != nullptr && !type->is_null();
    if (typed && !type->is_string()) return message.fail(where + ".type", "expected a string");
    if (typed && type->get_string() != "text" && type->get_string() != "input_text") {
      return message.fail(where, fmt::format("parts of type '{}' are not supported, only text",
                                             std::string_view(type->get_string())));
    }
    const json::value* text = part.if_contains("text");
    if (text == nullptr || !text->is_string())
      return message.fail(where, "expected {\"type\": \"text\", \"text\": \"...\"}");
    if (i > 0) out += '\n';
    out += text->get_string();
  }
  return out;
}

// Templates expect the arguments as an object; the API carries them as a string of JSON.
Status unpack_tool_calls(BodyReader& message, json::value& calls) {
  if (!calls.is_array()) return message.fail("tool_calls", "expected an array");
  for (size_t i = 0; i < calls.get_array().size(); ++i) {
    const std::string where = fmt::format("tool_calls[{}]", i);
    json::value& call = calls.get_array()[i];
    json::value* function = call.is_object() ? call.get_object().if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object())
      return message.fail(where, "expected an object with \"function\"");
    const json::value* name = function->get_object().if_contains("name");
    if (name == nullptr || !name->is_string())
      return message.fail(where + ".function.name", "expected a string");
    json::value* arguments = function->get_object().if_contains("arguments");
    if (arguments == nullptr || !arguments->is_string()) continue;
    Result<json::value> parsed = parse_json(arguments->get_string(), where);
    if (parsed.ok() && parsed->is_object()) *arguments = std::move(*parsed);
  }
  return {};
}

Result<json::object> read_message(const json::value& value, std::string path, BodyReader& body) {
  Result<BodyReader> reader = BodyReader::open(value, std::move(path));
  if (!reader.ok()) return body.fail("messages", reader.error().message);
  BodyReader& message = *reader;
  json::object out = value.get_object();
  const auto blame = [&](Error error) -> Error {
    body.blame("messages");
    return error;
  };
  Result<std::optional<std::string>> role = message.string("role");
  if (!role.ok()) return blame(std::move(role).error());
  if (!*role || (*role)->empty()) return blame(message.fail("role", "is missing"));
  const json::value* content = message.raw("content");
  if (content == nullptr) {
    if (**role != "assistant") return blame(message.fail("content", "is missing"));
    out["content"] = "";
  } else if (content->is_array()) {
    Result<std::string> joined = join_parts(message, content->get_array());
    if (!joined.ok()) return blame(std::move(joined).error());
    out["content"] = *joined;
  } else if (!content->is_string()) {
    return blame(message.fail(
        "content",
        fmt::format("expected a string or an array of parts, got {}", json_type_name(*content))));
  }
  if (json::value* calls = out.if_contains("tool_calls")) {
    if (calls->is_null() || (calls->is_array() && calls->get_array().empty())) {
      out.erase("tool_calls");
    } else {
      Status unpacked = unpack_tool_calls(message, *calls);
      if (!unpacked.ok()) return blame(std::move(unpacked).error());
    }
  }
  return out;
}

Status read_tools(BodyReader& body, ChatPrompt& out) {
  const json::value* tools = body.raw("tools");
  if (tools == nullptr) return {};
  if (!tools->is_array()) return body.fail("tools", "expected an array");
  if (tools->get_array().empty()) return {};
  if (tools->get_array().size() > kMaxTools)
    return body.fail("tools", fmt::format("at most {} tools are allowed", kMaxTools));
  for (size_t i = 0; i < tools->get_array().size(); ++i) {
    const json::value& tool = tools->get_array()[i];
    const json::value* function =
        tool.is_object() ? tool.get_object().if_contains("function") : nullptr;
    const json::value* name = function != nullptr && function->is_object()
                                  ? function->get_object().if_contains("name")
                                  : nullptr;
    if (name == nullptr || !name->is_string() || name->get_string().empty()) {
      return body.fail(fmt::format("tools[{}]", i),
                       "expected {\"type\": \"function\", \"function\": {\"name\": \"...\"}}");
    }
    const json::value* type = tool.get_object().if_contains("type");
    if (type != nullptr && !type->is_null() && *type != "function")
      return body.fail(fmt::format("tools[{}].type", i), "expected \"function\"");
    const json::value* parameters = function->get_object().if_contains("parameters");
    if (parameters != nullptr && !parameters->is_null() && !parameters->is_object()) {
      return body.fail(
          fmt::format("tools[{}].function.parameters", i),
          fmt::format("expected a JSON schema as an object, got {}", json_type_name(*parameters)));
    }
  }
  out.tools = *tools;
  return {};
}

Status read_tool_choice(BodyReader& body, ChatRequest& out) {
  out.tool_choice = out.prompt.tools ? ToolChoice::kAuto : ToolChoice::kNone;
  const json::value* choice = body.raw("tool_choice");
  SUB8_ASSIGN_OR_RETURN(const auto parallel, body.boolean("parallel_tool_calls"));
  out.parallel_tool_calls = parallel.value_or(true);
  if (choice == nullptr) return {};
  if (choice->is_object()) {
    const json::value* function = choice->get_object().if_contains("function");
    const json::value* name = function != nullptr && function->is_object()
                                  ? function->get_object().if_contains("name")
                                  : nullptr;
    if (name == nullptr || !name->is_string()) {
      return body.fail("tool_choice",
                       "expected {\"type\": \"function\", \"function\": {\"name\": \"...\"}}");
    }
    out.tool_choice = ToolChoice::kNamed;
    out.tool_name = std::string(name->get_string());
  } else if (*choice == "none") {
    out.tool_choice = ToolChoice::kNone;
  } else if (*choice == "auto") {
    return {};
  } else if (*choice == "required") {
    out.tool_choice = ToolChoice::kRequired;
  } else {
    return body.fail("tool_choice",
                     "expected none, auto, required, or an object naming a function");
  }
  if (out.tool_choice != ToolChoice::kNone && !out.prompt.tools)
    return body.fail("tool_choice", "there are no tools to choose from");
  return {};
}

json::value parameters_of(const json::object& function) {
  const json::value* parameters = function.if_contains("parameters");
  if (parameters != nullptr && parameters->is_object()) return *parameters;
  return json::object{{"type", "object"}};
}

// A chosen tool is a grammar: the answer is its arguments, or a list of calls.
Status force_tools(BodyReader& body, ChatRequest& out) {
  if (out.tool_choice != ToolChoice::kNamed && out.tool_choice != ToolChoice::kRequired) return {};
  if (out.fields.grammar)
    return body.fail("tool_choice", "does not go together with another output format");
  json::array alternatives;
  for (const json::value& tool : out.prompt.tools->get_array()) {
    const json::object& function = tool.at("function").get_object();
    if (out.tool_choice == ToolChoice::kNamed) {
      if (function.at("name") != json::string(out.tool_name)) continue;
      out.fields.grammar =
          GrammarSpec{GrammarSpec::Kind::kJsonSchema, json::serialize(parameters_of(function))};
      return {};
    }
    alternatives.push_back(
        {{"type", "object"},
         {"properties",
          {{"name", {{"type", "string"}, {"enum", json::array{function.at("name")}}}},
           {"parameters", parameters_of(function)}}},
         {"required", {"name", "parameters"}},
         {"additionalProperties", false}});
  }
  if (out.tool_choice == ToolChoice::kNamed)
    return body.fail("tool_choice", fmt::format("there is no tool '{}'", out.tool_name));
  json::object schema{
      {"type", "array"}, {"minItems", 1}, {"items", {{"anyOf", std::move(alternatives)}}}};
  if (!out.parallel_tool_calls) schema["maxItems"] = 1;
  out.fields.grammar = GrammarSpec{GrammarSpec::Kind::kJsonSchema, json::serialize(schema)};
  return {};
}

Status read_limits(BodyReader& body, ChatRequest& out) {
  engine::SamplingParams& sampling = out.fields.request.sampling;
  SUB8_ASSIGN_OR_RETURN(const auto old_limit, body.integer("max_tokens", 1, INT32_MAX));
  SUB8_ASSIGN_OR_RETURN(const auto limit, body.integer("max_completion_tokens", 1, INT32_MAX));
  sampling.max_tokens = limit ? limit : old_limit;
  if (sampling.max_tokens && sampling.min_tokens > *sampling.max_tokens)
    return body.fail("min_tokens", "is larger than the limit of tokens");
  SUB8_ASSIGN_OR_RETURN(const auto logprobs, body.boolean("logprobs"));
  out.logprobs = logprobs.value_or(false);
  SUB8_ASSIGN_OR_RETURN(const auto top, body.integer("top_logprobs", 0, engine::kMaxTopLogprobs));
  if (top && *top > 0 && !out.logprobs) return body.fail("top_logprobs", "needs logprobs = true");
  sampling.top_logprobs = out.logprobs ? static_cast<int>(top.value_or(0)) : -1;
  return {};
}

}  // namespace

Result<ChatPrompt> read_chat_prompt(BodyReader& body) {
  ChatPrompt out;
  const json::value* messages = body.raw("messages");
  if (messages == nullptr) return body.fail("messages", "is missing");
  if (!messages->is_array()) return body.fail("messages", "expected an array");
  const json::array& list = messages->get_array();
  if (list.empty()) return body.fail("messages", "there must be at least one message");
  if (list.size() > kMaxMessages)
    return body.fail("messages", fmt::format("at most {} messages are allowed", kMaxMessages));
  for (size_t i = 0; i < list.size(); ++i) {
    SUB8_ASSIGN_OR_RETURN(json::object message,
                          read_message(list[i], fmt::format("$.messages[{}]", i), body));
    out.messages.push_back(std::move(message));
  }
  SUB8_RETURN_IF_ERROR(read_tools(body, out));
  if (const json::value* documents = body.raw("documents")) {
    if (!documents->is_array()) return body.fail("documents", "expected an array");
    for (size_t i = 0; i < documents->get_array().size(); ++i) {
      const json::value& document = documents->get_array()[i];
      if (!document.is_object()) {
        return body.fail(fmt::format("documents[{}]", i),
                         fmt::format("expected an object, got {}", json_type_name(document)));
      }
    }
    out.documents = *documents;
  }
  if (const json::value* kwargs = body.raw("chat_template_kwargs")) {
    if (!kwargs->is_object()) return body.fail("chat_template_kwargs", "expected an object");
    out.template_kwargs = kwargs->get_object();
  }
  SUB8_ASSIGN_OR_RETURN(const auto effort, body.string("reasoning_effort"));
  if (effort) out.template_kwargs["reasoning_effort"] = *effort;
  SUB8_RETURN_IF_ERROR(body.refuse(
      "chat_template", "templates are not taken from requests; chat_template_kwargs are"));
  SUB8_ASSIGN_OR_RETURN(const auto generation, body.boolean("add_generation_prompt"));
  SUB8_ASSIGN_OR_RETURN(const auto go_on, body.boolean("continue_final_message"));
  out.continue_final_message = go_on.value_or(false);
  if (out.continue_final_message && generation.value_or(false)) {
    return body.fail("continue_final_message",
                     "does not go together with add_generation_prompt = true");
  }
  out.add_generation_prompt = generation.value_or(!out.continue_final_message);
  SUB8_ASSIGN_OR_RETURN(const auto special, body.boolean("add_special_tokens"));
  out.add_special_tokens = special.value_or(false);
  return out;
}

Result<ChatRequest> parse_chat_request(BodyReader& body, const ServedModel& model,
                                       const engine::EngineInfo& info, ToolFamily family) {
  ChatRequest out;
  SUB8_ASSIGN_OR_RETURN(out.fields, read_generation_fields(body, model, info));
  SUB8_RETURN_IF_ERROR(read_limits(body, out));
  SUB8_RETURN_IF_ERROR(body.refuse("functions", "is not supported; use tools"));
  SUB8_RETURN_IF_ERROR(body.refuse("function_call", "is not supported; use tool_choice"));
  SUB8_RETURN_IF_ERROR(body.refuse("prompt_logprobs", "is not supported here, but in completions"));
  SUB8_RETURN_IF_ERROR(body.refuse("echo", "is not supported here, but in completions"));
  SUB8_ASSIGN_OR_RETURN(out.prompt, read_chat_prompt(body));
  SUB8_RETURN_IF_ERROR(read_tool_choice(body, out));
  SUB8_RETURN_IF_ERROR(force_tools(body, out));
  if (out.tool_choice == ToolChoice::kNone) out.prompt.tools.reset();
  if (out.tool_choice == ToolChoice::kAuto) {
    out.tool_family = family;
    // Some families mark a call with a special token.
    if (marks_calls_with_special_tokens(family)) out.fields.request.skip_special = false;
  }
  const Result<std::string> text = render_chat(model, out.prompt);
  if (!text.ok()) return body.fail("messages", text.error().message);
  if (!out.fields.truncate_prompt_tokens) {
    const Status fits = check_prompt_bytes(model, *text);
    if (!fits.ok()) return body.fail("messages", fits.error().message);
  }
  Result<std::vector<int32_t>> ids =
      encode_prompt(*model.tokenizer, *text, out.prompt.add_special_tokens);
  if (!ids.ok()) return body.fail("messages", ids.error().message);
  out.ids = std::move(ids).value();
  if (const auto keep = out.fields.truncate_prompt_tokens) {
    const auto size = static_cast<int64_t>(out.ids.size());
    if (size > *keep) out.ids.erase(out.ids.begin(), out.ids.end() - *keep);
  }
  return out;
}

}  // namespace sub8::server
