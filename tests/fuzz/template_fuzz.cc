// Any bytes as a chat template, rendered over a fixed conversation under small limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/chat_template/chat_template.h"

namespace {

sub8::ChatInput fixed_input() {
  sub8::ChatInput input;
  input.messages = boost::json::parse(R"([
    {"role": "system", "content": "Be \u00e9 brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": null, "tool_calls":
      [{"function": {"name": "f", "arguments": {"a": [1, 2.5, true, null, "x"]}}}]}])")
                       .as_array();
  input.tools = input.messages;
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  input.kwargs = {{"x", 5}, {"s", "a b"}, {"l", {3, 1, 2}}};
  input.now.tm_year = 126;
  input.now.tm_mday = 1;
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sub8::ChatInput input = fixed_input();
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto chat = sub8::ChatTemplate::parse(source, "fuzz");
  if (!chat.ok()) return 0;
  sub8::TemplateLimits limits;
  limits.max_steps = 20'000;
  limits.max_bytes = 1 << 20;
  limits.max_created_bytes = 8 << 20;
  (void)chat->render(input, limits);
  return 0;
}
