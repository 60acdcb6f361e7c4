// `sub8 run`: chat in the terminal, or one prompt from the command line or standard input.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "base/interrupt.h"
#include "chat.h"
#include "common.h"
#include "text/utf8.h"
#include "verbs.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

constexpr size_t kMaxStdinBytes = size_t{64} << 20;

struct RunArgs {
  ModelArgs model;
  std::optional<std::string> prompt;
  std::string system;
  bool raw = false;
  bool json = false;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool reuse_generated = false;
};

Result<std::string> read_stdin() {
  std::string out;
  char chunk[1 << 16];
  while (true) {
    const ssize_t got = ::read(STDIN_FILENO, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) {
      SUB8_RETURN_IF_ERROR(check_interrupt());
      continue;
    }
    if (got < 0)
      return invalid_argument(std::string("could not read standard input: ") +
                              std::strerror(errno));
    if (got == 0) return out;
    out.append(chunk, static_cast<size_t>(got));
    if (out.size() > kMaxStdinBytes)
      return invalid_argument("standard input is longer than 64 MiB");
  }
}

engine::SamplingParams sampling_params(const RunArgs& args, engine::SamplingParams p) {
  if (args.temperature) p.temperature = *args.temperature;
  if (args.top_k) p.top_k = *args.top_k;
  if (args.top_p) p.top_p = *args.top_p;
  if (args.min_p) p.min_p = *args.min_p;
  if (args.repetition_penalty) p.repetition_penalty = *args.repetition_penalty;
  if (args.presence_penalty) p.presence_penalty = *args.presence_penalty;
  if (args.frequency_penalty) p.frequency_penalty = *args.frequency_penalty;
  p.max_tokens = args.max_tokens;
  p.seed = args.seed;
  p.stop = args.stop;
  p.ignore_eos = args.ignore_eos;
  return p;
}

Status write_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return resource_exhausted(std::string("could not write to standard output: ") +
                              std::strerror(errno));
  }
  return {};
}

json::object to_json(const Answer& answer) {
  return {
      {"text", answer.text},
      {"finish_reason",
       answer.interrupted ? "interrupted" : std::string(engine::finish_reason_name(answer.finish))},
      {"stop", answer.stop.empty() ? json::value(nullptr) : json::value(answer.stop)},
      {"seed", answer.summary.seed},
      {"usage",
       {{"prompt_tokens", answer.summary.prompt_tokens},
        {"completion_tokens", answer.summary.completion_tokens}}},
      {"timings",
       {{"prompt_seconds", answer.prompt_seconds()}, {"answer_seconds", answer.answer_seconds()}}}};
}

Result<std::vector<int32_t>> make_prompt(const RunArgs& args, const engine::Bundle& bundle,
                                         const std::string& text) {
  const InterruptEndsProcess nothing_to_clean_up;  // a long text takes seconds
  if (args.raw) return bundle.raw_prompt(text);
  json::array messages;
  if (!args.system.empty()) messages.push_back({{"role", "system"}, {"content", args.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return bundle.chat_prompt(messages);
}

Status answer_once(const RunArgs& args, LoadedModel& model, const engine::SamplingParams& sampling,
                   const std::string& text) {
  SUB8_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, make_prompt(args, model.bundle, text));
  Status output;
  SUB8_ASSIGN_OR_RETURN(const Answer answer, generate(*model.engine, std::move(prompt), sampling,
                                                      [&](std::string_view piece) {
                                                        if (!args.json && output.ok())
                                                          output = write_stdout(piece);
                                                      }));
  SUB8_RETURN_IF_ERROR(std::move(output));
  if (!args.json && answer.interrupted && answer.summary.completion_tokens == 0)
    return cancelled("interrupted");
  if (args.json) {
    SUB8_RETURN_IF_ERROR(write_stdout(json::serialize(to_json(answer)) + "\n"));
  } else {
    SUB8_RETURN_IF_ERROR(write_stdout("\n"));
    if (answer.finish == engine::FinishReason::kContext) {
      fmt::print(stderr, "The context of {} tokens is full; the answer ends here.\n",
                 model.engine->info().max_model_len);
    }
    fmt::print(stderr, "{}\n", describe_speed(answer));
  }
  if (answer.interrupted) return cancelled("interrupted");
  return {};
}

Status run(const RunArgs& args) {
  std::optional<std::string> text = args.prompt;
  const bool interactive = !text && isatty(STDIN_FILENO) != 0;
  if (args.raw && !args.system.empty())
    return invalid_argument("--system needs the chat template; it does not go with --raw");
  if (interactive && args.raw)
    return invalid_argument("--raw completes one text: give it with --prompt or on standard input");
  SUB8_RETURN_IF_ERROR(check_model_args(args.model));
  const std::string_view origin = text ? "--prompt" : "standard input";
  if (!text && !interactive) {
    SUB8_ASSIGN_OR_RETURN(text, read_stdin());
  }
  if (text && text->empty()) {
    return invalid_argument(fmt::format("the prompt ({}) is empty; give a text to answer", origin));
  }
  if (text && find_invalid_utf8(*text) != std::string_view::npos)
    return invalid_argument(fmt::format("{}: not valid UTF-8", origin));
  // Wrong values are reported before the model is loaded; ids are checked when the vocabulary is
  // known.
  SUB8_RETURN_IF_ERROR(
      engine::validate(sampling_params(args, {}), std::numeric_limits<int32_t>::max()));
  SUB8_ASSIGN_OR_RETURN(engine::RunOptions options, args.model.run_options());
  options.reuse_generated = args.reuse_generated;
  SUB8_ASSIGN_OR_RETURN(LoadedModel model, load_model(args.model, options));
  const engine::SamplingParams sampling = sampling_params(args, model.bundle.sampling_defaults());
  if (interactive) {
    if (!model.bundle.chat_template) {
      return invalid_argument(
          "the model has no chat template, so there is no chat; complete a text with --raw "
          "--prompt TEXT");
    }
    return chat(model.bundle, *model.engine, {args.system, sampling});
  }
  return answer_once(args, model, sampling, *text);
}

}  // namespace

Verb add_run(CLI::App& app) {
  auto args = std::make_shared<RunArgs>();
  args->model.add_to(app);
  app.add_option("--prompt", args->prompt,
                 "Answer this and exit; without it: standard input, or a chat on a terminal");
  app.add_option("--system", args->system, "System prompt");
  app.add_flag("--raw", args->raw, "No chat template: complete the text as it is");
  app.add_flag("--json", args->json, "Print one JSON object instead of streaming text");
  app.add_option("--max-tokens", args->max_tokens,
                 "Longest answer, in tokens [to the end of the context]")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  app.add_option("--temperature", args->temperature,
                 "0 = always the most likely token [the model's own, else 0.7]");
  app.add_option("--top-k", args->top_k, "Sample among the k most likely tokens; 0 = off");
  app.add_option("--top-p", args->top_p,
                 "Sample among the most likely tokens that make up this probability");
  app.add_option("--min-p", args->min_p,
                 "Leave out tokens less likely than this share of the most likely one");
  app.add_option("--repetition-penalty", args->repetition_penalty,
                 "Above 1 makes tokens of prompt and answer less likely");
  app.add_option("--presence-penalty", args->presence_penalty,
                 "-2 to 2, once for every token of the answer");
  app.add_option("--frequency-penalty", args->frequency_penalty,
                 "-2 to 2, for every occurrence in the answer");
  app.add_option("--seed", args->seed, "Same seed, same answer [drawn]");
  app.add_option("--stop", args->stop,
                 "End the answer before this text; may be given several times")
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", args->ignore_eos, "Go on after the end token");
  app.add_flag("--reuse-generated", args->reuse_generated,
               "In a chat, keep the cache of answers where prompts are summed in another order "
               "(AMX): faster turns, but not to the last bit what a fresh start gives");
  return [args] { return run(*args); };
}

}  // namespace sub8::apps
