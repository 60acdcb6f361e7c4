#include "chat.h"

#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include "base/interrupt.h"
#include "common.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

constexpr std::string_view kHelp =
    "Type a message; a line that ends with \\ goes on in the next. Ctrl-C stops an answer, Ctrl-D "
    "leaves.\n"
    "  /reset          forget the conversation\n"
    "  /drop           forget its oldest turn, to make room\n"
    "  /system TEXT    set the system prompt and forget the conversation\n"
    "  /history        show the conversation\n"
    "  /speed          show or hide the speed after each answer\n"
    "  /help, /quit";

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// One line from the terminal, with editing and history.
class LineReader {
 public:
  LineReader() {
    if (isatty(STDIN_FILENO) == 0) return;
    // The editor drops every byte that the locale's characters do not have: UTF-8, whatever the
    // environment says.
    if (std::setlocale(LC_CTYPE, "") == nullptr ||
        std::string_view(nl_langinfo(CODESET)) != "UTF-8") {
      std::setlocale(LC_CTYPE, "C.UTF-8");
    }
    editor_ = el_init("sub8", stdin, stdout, stderr);
    history_ = history_init();
    if (editor_ == nullptr || history_ == nullptr) return;
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, 1000);
    ::history(history_, &event, H_SETUNIQUE, 1);
    el_set(editor_, EL_PROMPT, &LineReader::prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_HIST, ::history, history_);
    el_set(editor_, EL_SIGNAL, 0);
    el_source(editor_, nullptr);
  }
  ~LineReader() {
    if (history_ != nullptr) history_end(history_);
    if (editor_ != nullptr) el_end(editor_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Outcome { kLine, kInterrupted, kEnd };

  Outcome read(std::string& line, bool continuation) {
    continuation_ = continuation;
    line.clear();
    if (editor_ == nullptr || history_ == nullptr) return read_plain(line);
    int count = 0;
    const char* text = el_gets(editor_, &count);
    if (interrupted()) {
      clear_interrupt();
      el_reset(editor_);
      std::printf("\n");
      return Outcome::kInterrupted;
    }
    if (text == nullptr || count <= 0) return Outcome::kEnd;
    line.assign(text, static_cast<size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    if (!line.empty()) {
      HistEvent event;
      ::history(history_, &event, H_ENTER, line.c_str());
    }
    return Outcome::kLine;
  }

 private:
  static Outcome read_plain(std::string& line) {
    int c = 0;
    while ((c = std::getchar()) != EOF && c != '\n') line.push_back(static_cast<char>(c));
    return c == EOF && line.empty() ? Outcome::kEnd : Outcome::kLine;
  }
  static const char* prompt(EditLine*) { return continuation_ ? "... " : "> "; }
  static inline bool continuation_ = false;
  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
};

class Conversation {
 public:
  explicit Conversation(std::string system) : system_(std::move(system)) {}

  void reset() { turns_.clear(); }
  void set_system(std::string text) {
    system_ = std::move(text);
    reset();
  }
  // Removes the oldest message pair; false when there is none.
  bool drop_oldest() {
    if (turns_.empty()) return false;
    turns_.erase(
        turns_.begin(),
        turns_.begin() + std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(turns_.size())));
    return true;
  }
  void add(const char* role, std::string text) {
    turns_.push_back({{"role", role}, {"content", std::move(text)}});
  }
  void remove_last() { turns_.pop_back(); }
  json::array messages() const {
    json::array out;
    if (!system_.empty()) out.push_back({{"role", "system"}, {"content", system_}});
    for (const auto& turn : turns_) out.push_back(turn);
    return out;
  }

 private:
  std::string system_;
  std::vector<json::object> turns_;
};

}  // namespace

Result<Answer> generate(engine::Engine& engine, std::vector<int32_t> prompt,
                        engine::SamplingParams sampling,
                        const std::function<void(std::string_view)>& emit) {
  Answer out;
  engine::Request request;
  request.prompt = std::move(prompt);
  request.sampling = std::move(sampling);
  SUB8_ASSIGN_OR_RETURN(const engine::RequestId id, engine.submit(std::move(request)));
  std::vector<engine::TokenEvent> events;
  while (!engine.idle()) {
    events.clear();
    if (interrupted()) {
      clear_interrupt();
      engine.cancel(id, events);
      out.interrupted = true;
    } else {
      SUB8_RETURN_IF_ERROR(engine.step(events));
    }
    for (engine::TokenEvent& event : events) {
      if (event.error) return std::move(*event.error);
      if (!event.text.empty()) emit(event.text);
      out.text += event.text;
      out.finish = event.finish;
      out.stop = std::move(event.stop);
      if (event.summary) out.summary = *event.summary;
    }
  }
  return out;
}

double Answer::prompt_seconds() const {
  const bool answered = summary.first_token != engine::TimePoint{};
  return seconds_between(summary.arrival, answered ? summary.first_token : summary.finished);
}

double Answer::answer_seconds() const {
  const bool answered = summary.first_token != engine::TimePoint{};
  return answered ? seconds_between(summary.first_token, summary.finished) : 0;
}

std::string describe_speed(const Answer& answer) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  const engine::RequestSummary& s = answer.summary;
  std::string out = fmt::format("prompt: {} tokens", s.prompt_tokens);
  if (s.cached_tokens > 0) out += fmt::format(" ({} cached)", s.cached_tokens);
  out += fmt::format(", {:.2f} s, {:.0f} tokens/s; answer: {} tokens", answer.prompt_seconds(),
                     rate(s.prompt_tokens - s.cached_tokens, answer.prompt_seconds()),
                     s.completion_tokens);
  if (s.completion_tokens > 1) {
    out += fmt::format(", {:.2f} s, {:.1f} tokens/s", answer.answer_seconds(),
                       rate(s.completion_tokens - 1, answer.answer_seconds()));
  }
  return out;
}

Status chat(const engine::Bundle& bundle, engine::Engine& engine, const ChatSettings& settings) {
  LineReader reader;
  Conversation conversation(settings.system);
  bool show_speed = true;
  std::printf("%s\n", std::string(kHelp).c_str());
  std::string message;
  std::string line;
  while (true) {
    const auto outcome = reader.read(line, !message.empty());
    if (outcome == LineReader::Outcome::kEnd) {
      std::printf("\n");
      return {};
    }
    if (outcome == LineReader::Outcome::kInterrupted) {
      message.clear();
      continue;
    }
    if (line.ends_with('\\')) {
      line.back() = '\n';
      message += line;
      continue;
    }
    message += line;
    const std::string text = std::exchange(message, {});
    if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (text == "/quit" || text == "/exit") return {};
    if (text == "/help") {
      std::printf("%s\n", std::string(kHelp).c_str());
    } else if (text == "/reset") {
      conversation.reset();
      std::printf("The conversation is forgotten.\n");
    } else if (text == "/drop") {
      std::printf(conversation.drop_oldest() ? "The oldest turn is forgotten.\n"
                                             : "There is nothing to drop.\n");
    } else if (text == "/speed") {
      show_speed = !show_speed;
      std::printf("The speed is %s after each answer.\n", show_speed ? "shown" : "not shown");
    } else if (text == "/history") {
      for (const auto& turn : conversation.messages())
        std::printf("%s\n", json::serialize(turn).c_str());
    } else if (text.starts_with("/system")) {
      conversation.set_system(text.size() > 8 ? text.substr(8) : "");
      std::printf("The system message is set, the conversation forgotten.\n");
    } else if (text.starts_with("/")) {
      std::printf("Unknown command; /help lists them.\n");
    } else {
      conversation.add("user", text);
      Result<std::vector<int32_t>> prompt = bundle.chat_prompt(conversation.messages());
      Result<Answer> answer = prompt.ok()
                                  ? generate(engine, std::move(prompt).value(), settings.sampling,
                                             [](std::string_view piece) {
                                               std::fwrite(piece.data(), 1, piece.size(), stdout);
                                               std::fflush(stdout);
                                             })
                                  : Result<Answer>(prompt.error());
      if (!answer.ok()) {
        conversation.remove_last();
        if (answer.error().code == ErrorCode::kInternal) return answer.error();
        fmt::print(
            stderr,
            "{}\nThe message was not sent. /drop forgets the oldest turn, /reset all of them.\n",
            answer.error().message);
        continue;
      }
      std::printf("\n");
      if (answer->interrupted) fmt::print(stderr, "(stopped)\n");
      if (answer->finish == engine::FinishReason::kContext) {
        fmt::print(stderr,
                   "The context of {} tokens is full. /drop forgets the oldest turn, /reset all of "
                   "them.\n",
                   engine.info().max_model_len);
      }
      if (show_speed) fmt::print(stderr, "{}\n", describe_speed(*answer));
      conversation.add("assistant", answer->text);
    }
    std::fflush(stdout);
  }
}

}  // namespace sub8::apps
