// `sub8 bench serve`: load on any OpenAI-compatible server.
#include <cstdlib>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "base/file.h"
#include "bench.h"
#include "common.h"
#include "load/driver.h"
#include "load/report.h"
#include "study/plot.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;

struct Preset {
  const char* name;
  const char* help;
  load::Workload workload;
};

// The protocols of two papers (docs/bench_serve.md).
std::vector<Preset> presets() {
  load::Workload long_prompts;
  long_prompts.input_tokens = 8192;
  long_prompts.output_tokens = 256;
  long_prompts.rate = 1;
  long_prompts.concurrency = 32;
  long_prompts.warmup = 32;
  long_prompts.requests = 128;
  load::Workload long_answers;
  long_answers.input_tokens = 512;
  long_answers.output_tokens = 1536;
  long_answers.concurrency = 32;
  long_answers.warmup = 32;
  long_answers.requests = 128;
  return {{"long-prompts", "8,192 in, 256 out, 1 request/s, at most 32 at once", long_prompts},
          {"long-answers", "512 in, 1,536 out, 32 at once", long_answers}};
}

struct ServeBenchArgs {
  std::string url = "http://127.0.0.1:8000";
  std::string endpoint = "completions";
  std::string model;
  std::string api_key;
  std::string preset;
  std::string prompts;
  double timeout_seconds = 600;
  load::Workload workload;
  std::string json_path;
  std::string plot_path;

  // What was given on the command line goes before the preset.
  std::vector<std::pair<CLI::Option*, std::function<void(load::Workload&)>>> fields;
};

Result<load::Target> make_target(const ServeBenchArgs& args) {
  SUB8_ASSIGN_OR_RETURN(load::Target target, load::parse_target(args.url));
  target.endpoint = args.endpoint == "chat" ? load::Endpoint::kChat : load::Endpoint::kCompletions;
  target.timeout_seconds = args.timeout_seconds;
  target.api_key = args.api_key;
  if (const char* key = std::getenv("SUB8_API_KEY"); target.api_key.empty() && key != nullptr)
    target.api_key = key;
  for (const char c : target.api_key) {
    if (static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f)
      return invalid_argument("--api-key has a character that no header can carry");
  }
  target.model = args.model;
  return target;
}

Result<load::Workload> make_workload(const ServeBenchArgs& args, const load::Target& target) {
  load::Workload out = args.workload;
  if (!args.preset.empty()) {
    for (const Preset& preset : presets()) {
      if (args.preset == preset.name) out = preset.workload;
    }
    for (const auto& [option, apply] : args.fields) {
      if (option->count() > 0) apply(out);
    }
  }
  const bool chat = target.endpoint == load::Endpoint::kChat;
  const std::string prompts = args.prompts.empty() ? (chat ? "text" : "ids") : args.prompts;
  out.kind = prompts == "text" ? load::PromptKind::kText : load::PromptKind::kIds;
  // Without pacing a limit is what makes the load; one stream is the least of it.
  if (out.rate == 0 && out.concurrency == 0) out.concurrency = 1;
  SUB8_RETURN_IF_ERROR(load::check_workload(out, target));
  return out;
}

json::object workload_json(const load::Workload& w) {
  return {{"requests", w.requests},
          {"warmup", w.warmup},
          {"rate_per_s", w.rate},
          {"concurrency", w.concurrency},
          {"input_tokens", w.input_tokens},
          {"output_tokens", w.output_tokens},
          {"prefix_tokens", w.prefix_tokens},
          {"prompts", w.kind == load::PromptKind::kIds ? "ids" : "text"},
          {"temperature", w.temperature},
          {"mode", w.mode},
          {"seed", w.seed}};
}

void print_row(const char* name, const load::Distribution& d) {
  if (d.count == 0) return;
  fmt::print("{:<6} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name,
             1e3 * d.mean, 1e3 * d.p50, 1e3 * d.p90, 1e3 * d.p95, 1e3 * d.p99, 1e3 * d.max);
}

void print_report(const load::Report& r, const load::Workload& w, const load::Target& target) {
  const std::string pace =
      w.rate > 0 ? fmt::format("{} requests/s (Poisson)", w.rate) : std::string("closed loop");
  const std::string limit =
      w.concurrency > 0 ? fmt::format("at most {} at once", w.concurrency) : "no limit";
  fmt::print("{} at {}: {} in, {} out, {}, {}\n", printable(target.model), target.authority(),
             w.input_tokens, w.output_tokens, pace, limit);
  fmt::print("{} of {} requests completed in {:.2f} s, up to {} at once\n", r.completed, r.requests,
             r.seconds, r.peak);
  if (r.completed > 0) {
    fmt::print("{:.2f} requests/s, {:.1f} output tokens/s, {:.1f} tokens/s with prompts\n",
               r.requests_per_second(), r.output_tokens_per_second(), r.tokens_per_second());
    fmt::print("{:<6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "mean", "p50", "p90",
               "p95", "p99", "max");
    print_row("TTFT", r.first_token);
    print_row("TPOT", r.token);
    print_row("ITL", r.gap);
    print_row("E2E", r.total);
  }
  if (r.wait_seconds > 0.001 * static_cast<double>(r.requests)) {
    fmt::print(
        "the limit held requests back for {:.2f} s each, which is in none of these figures\n",
        r.wait_seconds / static_cast<double>(r.requests));
  }
  if (r.wrong_length > 0)
    fmt::print("{} answers had another length than was asked for\n", r.wrong_length);
  if (r.uncounted > 0)
    fmt::print("{} answers came without a usage: their events were counted\n", r.uncounted);
  for (const auto& [name, group] : r.failures) {
    fmt::print("{} failed ({}), the first with: {}\n", group.count, name, printable(group.example));
  }
}

// How much of the requests (of the gaps) took at most so long.
std::string render_plot(const load::RunResult& run, const std::string& title) {
  study::Plot plot;
  plot.title = title;
  plot.x_label = "milliseconds";
  plot.y_label = "share that took at most so long, %";
  plot.log_x = true;
  const auto add = [&](const char* name, std::vector<double> values) {
    constexpr size_t kPoints = 200;
    std::sort(values.begin(), values.end());
    study::Series series{name, {}, true};
    for (size_t i = 0; i <= kPoints && !values.empty(); ++i) {
      const size_t at = i * (values.size() - 1) / kPoints;
      series.points.emplace_back(
          1e3 * values[at], 100 * static_cast<double>(at + 1) / static_cast<double>(values.size()));
    }
    plot.series.push_back(std::move(series));
  };
  std::vector<double> first, token, gaps, total;
  for (const load::Sample& sample : run.samples) {
    if (!sample.ok()) continue;
    first.push_back(sample.first_token_seconds);
    total.push_back(sample.seconds);
    if (sample.output_tokens > 1) token.push_back(sample.token_seconds());
    gaps.insert(gaps.end(), sample.gaps.begin(), sample.gaps.end());
  }
  add("TTFT", std::move(first));
  add("TPOT", std::move(token));
  add("ITL", std::move(gaps));
  add("E2E", std::move(total));
  return study::render_svg(plot);
}

Status bench_serve(const ServeBenchArgs& args) {
  SUB8_RETURN_IF_ERROR(
      check_output_files({{"--json", args.json_path}, {"--plot", args.plot_path}}, {}));
  SUB8_ASSIGN_OR_RETURN(load::Target target, make_target(args));
  SUB8_ASSIGN_OR_RETURN(const load::Workload workload, make_workload(args, target));
  if (target.model.empty()) {
    SUB8_ASSIGN_OR_RETURN(target.model, load::discover_model(target));
  }
  ProgressBar bar("load");
  SUB8_ASSIGN_OR_RETURN(const load::RunResult run,
                        load::run_load(target, workload, [&](int64_t done, int64_t total) {
                          bar.update(static_cast<double>(done), static_cast<double>(total),
                                     fmt::format("{} of {} requests", done, total));
                        }));
  bar.clear();
  const load::Report report = load::summarize(run, workload);
  if (args.json_path != "-") print_report(report, workload, target);
  json::object out{{"schema_version", 1},       {"url", args.url},
                   {"endpoint", args.endpoint}, {"model", target.model},
                   {"preset", args.preset},     {"workload", workload_json(workload)}};
  for (auto& [key, value] : load::to_json(report)) out.emplace(key, std::move(value));
  SUB8_RETURN_IF_ERROR(write_report(args.json_path, out));
  if (!args.plot_path.empty()) {
    const std::string title = fmt::format("{}: {} in, {} out", target.model, workload.input_tokens,
                                          workload.output_tokens);
    SUB8_RETURN_IF_ERROR(write_file_atomic(args.plot_path, render_plot(run, valid_utf8(title))));
  }
  if (report.completed == 0) {
    std::string message = fmt::format("none of the {} requests was answered", report.requests);
    for (const auto& [name, group] : report.failures)
      message += fmt::format("; {} failed ({}): {}", group.count, name, printable(group.example));
    // As where the server is asked for its model's name.
    const bool unreachable = report.failures.size() == 1 && report.failures.contains("connect");
    return unreachable ? not_found(std::move(message)) : internal_error(std::move(message));
  }
  return {};
}

void add_workload_options(CLI::App& app, const std::shared_ptr<ServeBenchArgs>& args) {
  load::Workload& w = args->workload;
  // An option of the workload; `check` may be null.
  const auto field = [&](const char* name, auto load::Workload::*member, const char* help,
                         const CLI::Validator& check) {
    CLI::Option* option =
        app.add_option(name, w.*member, help)->check(check)->capture_default_str();
    args->fields.emplace_back(option, [raw = args.get(), member](load::Workload& out) {
      out.*member = raw->workload.*member;
    });
  };
  const CLI::Range counts(int64_t{1}, int64_t{1} << 20);
  field("--requests", &load::Workload::requests, "Requests that are measured", counts);
  field("--warmup", &load::Workload::warmup, "Requests before, which are not measured",
        CLI::Range(int64_t{0}, int64_t{1} << 20));
  field("--rate", &load::Workload::rate,
        "Mean arrivals per second, Poisson; 0: as fast as --concurrency allows",
        CLI::Range(0.0, 1e6));
  field("--concurrency", &load::Workload::concurrency,
        "Requests at once; 0: no limit [1 without --rate]",
        CLI::Range(int64_t{0}, int64_t{1} << 16));
  field("--input-tokens", &load::Workload::input_tokens, "Length of each prompt", counts);
  field("--output-tokens", &load::Workload::output_tokens, "Length of each answer", counts);
  field("--prefix-tokens", &load::Workload::prefix_tokens,
        "Of the prompt: the same in all requests", CLI::Range(int64_t{0}, int64_t{1} << 20));
  field("--first-id", &load::Workload::first_id, "Prompts hold token ids from this one ...",
        CLI::Range(0, 1 << 30));
  field("--last-id", &load::Workload::last_id, "... to this one", CLI::Range(0, 1 << 30));
  field("--temperature", &load::Workload::temperature, "0 = always the most likely token",
        CLI::Range(0.0, 100.0));
  field("--seed", &load::Workload::seed, "Of prompts and arrivals",
        CLI::Range(uint64_t{0}, uint64_t{1} << 53));
  CLI::Option* mode = app.add_option("--mode", w.mode, "Execution mode to ask a sub8 server for");
  args->fields.emplace_back(
      mode, [raw = args.get()](load::Workload& out) { out.mode = raw->workload.mode; });
}

}  // namespace

Verb add_bench_serve(CLI::App& bench, CLI::App** sub_command) {
  CLI::App* app = bench.add_subcommand("serve", "Load on any OpenAI-compatible server");
  *sub_command = app;
  auto args = std::make_shared<ServeBenchArgs>();
  app->add_option("--url", args->url, "The server, http://HOST:PORT")->capture_default_str();
  app->add_option("--endpoint", args->endpoint, "completions or chat")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->capture_default_str();
  app->add_option("--model", args->model, "What the server calls the model [the first it lists]");
  app->add_option("--api-key", args->api_key, "Key to send [SUB8_API_KEY in the environment]");
  std::string preset_help = "Fixed protocol, whose parts other options may change:";
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    preset_help += fmt::format(" {} ({});", preset.name, preset.help);
    names.emplace_back(preset.name);
  }
  preset_help.pop_back();
  app->add_option("--preset", args->preset, preset_help)->check(CLI::IsMember(names));
  add_workload_options(*app, args);
  app->add_option("--prompts", args->prompts,
                  "ids (random tokens, exact lengths) or text (English words) [ids; text for chat]")
      ->check(CLI::IsMember({"ids", "text"}));
  app->add_option("--timeout", args->timeout_seconds, "Seconds that a request may take")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  app->add_option("--json", args->json_path, "Write the figures here; - for standard output");
  app->add_option("--plot", args->plot_path, "Write their distributions here, as SVG");
  return [args] { return bench_serve(*args); };
}

}  // namespace sub8::apps
