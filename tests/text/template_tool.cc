// Renders chat templates for tools/text/compare_templates.py: one JSON request a line on stdin,
// {"template": text, "input": {...}}; one JSON answer a line on stdout, {"text": ...} or
// {"error": ...}. The fields of "input" are those of ChatInput; further ones become kwargs.
// "now" is [year, month, day, hour, minute, second].
#include <iostream>
#include <string>

#include "base/json.h"
#include "text/template_input.h"

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    boost::json::object answer;
    const auto request = sub8::parse_json(line, "request", 200);
    const auto rendered = request.ok() ? sub8::test::render_request(*request)
                                       : sub8::Result<std::string>(request.error());
    if (rendered.ok()) {
      answer["text"] = *rendered;
    } else {
      answer["error"] = rendered.error().message;
    }
    std::cout << boost::json::serialize(answer) << "\n" << std::flush;
  }
}
