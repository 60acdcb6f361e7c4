#include "text/chat.h"

namespace sub8 {

Result<std::string> chat_prompt(const ChatTemplate* chat, const std::optional<std::string>& system,
                                const std::vector<ChatTurn>& turns, ChatInput defaults) {
  if (chat == nullptr) {
    return invalid_argument(
        "the model has no chat template: use --raw to have it continue the text as it is, or add "
        "a chat_template.jinja to the model's directory");
  }
  defaults.messages.clear();
  const auto add = [&](const std::string& role, const std::string& content) {
    defaults.messages.push_back(boost::json::object{{"role", role}, {"content", content}});
  };
  if (system) add("system", *system);
  for (const ChatTurn& turn : turns) add(turn.role, turn.content);
  defaults.add_generation_prompt = true;
  return chat->render(defaults);
}

}  // namespace sub8
