// The interactive chat of `sub8 run`: history, line editing, commands.
#pragma once

#include <functional>
#include <string>

#include <boost/json.hpp>

#include "base/error.h"
#include "engine/bundle.h"
#include "engine/engine.h"

namespace sub8::apps {

struct Answer {
  std::string text;
  engine::FinishReason finish = engine::FinishReason::kRunning;
  std::string stop;
  engine::RequestSummary summary;
  bool interrupted = false;

  double prompt_seconds() const;  // until the first token
  double answer_seconds() const;  // the rest
};

// Generates one answer, handing out text as it becomes safe to show. Ctrl-C ends the answer, with
// what was said so far.
Result<Answer> generate(engine::Engine& engine, std::vector<int32_t> prompt,
                        engine::SamplingParams sampling,
                        const std::function<void(std::string_view)>& emit);

// "prompt 12 tokens (9 cached) in 0.05 s, 240 tokens/s; answer ..."
std::string describe_speed(const Answer& answer);

struct ChatSettings {
  std::string system;
  engine::SamplingParams sampling;
};

Status chat(const engine::Bundle& bundle, engine::Engine& engine, const ChatSettings& settings);

}  // namespace sub8::apps
