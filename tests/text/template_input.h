// Requests to render a template, as the golden file and template_tool use them.
#pragma once

#include <string>

#include "text/chat_template/chat_template.h"

namespace sub8::test {

// Day of the week and of the year follow from the date.
inline std::tm make_time(const boost::json::array& parts) {
  std::tm time{};
  const auto part = [&](size_t i) { return static_cast<int>(parts.at(i).as_int64()); };
  time.tm_year = part(0) - 1900;
  time.tm_mon = part(1) - 1;
  time.tm_mday = part(2);
  time.tm_hour = part(3);
  time.tm_min = part(4);
  time.tm_sec = part(5);
  timegm(&time);
  return time;
}

inline ChatInput make_input(const boost::json::object& fields) {
  ChatInput input;
  input.now = make_time({2026, 7, 4, 9, 5, 3});
  for (const auto& member : fields) {
    const std::string_view key = member.key();
    const boost::json::value& value = member.value();
    if (key == "messages" && value.is_array()) {
      input.messages = value.as_array();
    } else if (key == "tools") {
      input.tools = value;
    } else if (key == "documents") {
      input.documents = value;
    } else if (key == "add_generation_prompt" && value.is_bool()) {
      input.add_generation_prompt = value.as_bool();
    } else if (key == "bos_token" && value.is_string()) {
      input.bos_token = std::string(value.as_string());
    } else if (key == "eos_token" && value.is_string()) {
      input.eos_token = std::string(value.as_string());
    } else if (key == "now" && value.is_array()) {
      input.now = make_time(value.as_array());
    } else {
      input.kwargs[key] = value;
    }
  }
  return input;
}

inline Result<std::string> render_request(const boost::json::value& request) {
  const auto* object = request.if_object();
  const auto* source = object == nullptr ? nullptr : object->if_contains("template");
  const auto* fields = object == nullptr ? nullptr : object->if_contains("input");
  if (source == nullptr || !source->is_string() || fields == nullptr || !fields->is_object()) {
    return invalid_argument("expected {\"template\": text, \"input\": {...}}");
  }
  SUB8_ASSIGN_OR_RETURN(const ChatTemplate chat,
                        ChatTemplate::parse(source->as_string(), "template"));
  return chat.render(make_input(fields->as_object()));
}

}  // namespace sub8::test
