// `sub8 serve`: the OpenAI-compatible server.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <regex>
#include <thread>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/interrupt.h"
#include "common.h"
#include "engine/service.h"
#include "server/grammar_pool.h"
#include "server/grammar_worker.h"
#include "server/log_queue.h"
#include "server/server.h"
#include "verbs.h"
#include "version.h"

namespace sub8::apps {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMaxKeyFileBytes = 1 << 20;
constexpr size_t kMaxTemplateBytes = 16 << 20;
// Log lines that wait for whoever reads standard error.
constexpr size_t kMaxLogBytes = 4 << 20;
// File descriptors that are not connections: the model's files, grammars, standard streams, the
// listener.
constexpr size_t kOtherDescriptors = 128;

struct ServeArgs {
  ModelArgs model;
  server::ServerConfig http;
  std::vector<std::string> names;
  std::string api_key_file;
  std::string chat_template_file;
  std::string tool_family = "auto";
  std::string xgrammar;
  std::string log_level = "info";
  uint64_t kv_memory = 0;
  int max_sequences = 16;
  int64_t max_batch_tokens = engine::kCpuBatchTokens;
  bool no_prefix_cache = false;
  bool reuse_generated = false;
  int max_queued = 4096;
  double drain_seconds = 30;
  double request_seconds = 3600;
  double grammar_seconds = 10;
};

int64_t physical_memory_bytes() {
  return int64_t{::sysconf(_SC_PHYS_PAGES)} * int64_t{::sysconf(_SC_PAGESIZE)};
}

// Full contexts for all sequences, but no more than a quarter of the machine unless told so.
Result<int64_t> default_kv_memory(const engine::Bundle& bundle, const engine::RunOptions& options) {
  SUB8_ASSIGN_OR_RETURN(const int64_t context, engine::context_kv_bytes(bundle, options));
  const int64_t share = std::max(context, physical_memory_bytes() / 4);
  return std::min(context * options.max_sequences, share);
}

// "e3m2, head e3m2": the format that most Linear weights have, and the head's.
std::string describe_recipe(const checkpoint::WeightSource& source) {
  std::map<std::string, int64_t> weights;
  for (const checkpoint::WeightInfo& info : source.weights()) {
    if (info.kind == checkpoint::WeightKind::kLinear && info.name != "lm_head")
      weights[info.stored_type] += info.rows * info.cols;
  }
  const auto most =
      std::max_element(weights.begin(), weights.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  std::string out = most == weights.end() ? "no linear layers" : most->first;
  if (weights.size() > 1) out += fmt::format(" and {} more formats", weights.size() - 1);
  if (const checkpoint::WeightInfo* head = source.find("lm_head"))
    out += fmt::format(", head {}", head->stored_type);
  return out;
}

Status read_keys(ServeArgs& args) {
  // Set but empty is a mistake in a script, and must not open the server to all.
  if (const char* key = std::getenv("SUB8_API_KEY"); key != nullptr) {
    if (*key == '\0')
      return invalid_argument("SUB8_API_KEY is set but empty; give it a key, or unset it");
    args.http.api_keys.emplace_back(key);
  }
  if (!args.api_key_file.empty()) {
    SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(args.api_key_file, kMaxKeyFileBytes));
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      std::string line = text.substr(at, end - at);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (!line.empty() && line.front() != '#') args.http.api_keys.push_back(std::move(line));
      at = end + 1;
    }
  }
  const auto empty = [](const std::string& key) { return key.empty(); };
  if (std::any_of(args.http.api_keys.begin(), args.http.api_keys.end(), empty))
    return invalid_argument("--api-key must not be empty");
  const auto unsendable = [](const std::string& key) {
    return std::any_of(key.begin(), key.end(),
                       [](unsigned char c) { return c <= 0x20 || c == 0x7f; });
  };
  if (std::any_of(args.http.api_keys.begin(), args.http.api_keys.end(), unsendable)) {
    return invalid_argument(
        "a key of --api-key, --api-key-file or SUB8_API_KEY holds a space or a control character, "
        "which no client can send; choose another one");
  }
  if (!args.api_key_file.empty() && args.http.api_keys.empty()) {
    return invalid_argument(
        fmt::format("--api-key-file {}: there is no key in it", args.api_key_file));
  }
  return {};
}

// Browsers send scheme://host[:port], in lower case and without a path; anything else never
// matches.
Status check_origins(const std::vector<std::string>& origins) {
  static const std::regex form(
      R"([a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?)");
  for (const std::string& origin : origins) {
    if (origin == "*" || origin == "null" || std::regex_match(origin, form)) continue;
    return invalid_argument(fmt::format(
        "--cors-origin '{}': expected an origin as browsers send it, like https://example.org or "
        "http://localhost:3000 (lower case, no path), or *",
        origin));
  }
  return {};
}

// Every connection takes a file descriptor.
void raise_descriptor_limit(server::ServerConfig& http) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = http.max_connections + kOtherDescriptors;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur < wanted && limit.rlim_cur > kOtherDescriptors) {
    http.max_connections = limit.rlim_cur - kOtherDescriptors;
    print_warning(fmt::format("{} connections at most, by this system's limit of open files",
                              http.max_connections));
  }
}

std::string default_name(const std::string& path) {
  const std::filesystem::path clean = std::filesystem::path(path).lexically_normal();
  const std::string name =
      clean.has_filename() ? clean.filename().string() : clean.parent_path().filename().string();
  return name.empty() ? "model" : name;
}

server::ServedModel served_model(const ServeArgs& args, const LoadedModel& model,
                                 int64_t max_model_len) {
  server::ServedModel out;
  out.names = args.names;
  if (out.names.empty()) out.names.push_back(default_name(args.model.model));
  out.root = args.model.model;
  out.recipe = describe_recipe(*model.bundle.source);
  out.created = std::time(nullptr);
  out.tokenizer = model.bundle.tokenizer.get();
  if (model.bundle.chat_template) out.chat_template = &*model.bundle.chat_template;
  out.defaults = model.bundle.sampling_defaults();
  out.max_model_len = max_model_len;
  return out;
}

Result<server::ToolFamily> tool_family(const std::string& name, std::string_view chat_template) {
  if (name == "auto") return server::detect_tool_family(chat_template);
  Result<server::ToolFamily> out = server::parse_tool_family(name);
  if (!out.ok()) return out.error().within("--tool-call-parser");
  return out;
}

// Null where nobody asked for it; an error where it was asked for and cannot be had.
Result<std::unique_ptr<server::GrammarCompiler>> open_grammars(const ServeArgs& args,
                                                               const engine::Bundle& bundle,
                                                               const engine::EngineInfo& info) {
  std::string folder = args.xgrammar;
  if (const char* from_environment = std::getenv("SUB8_XGRAMMAR");
      folder.empty() && from_environment != nullptr) {
    folder = from_environment;
  }
  if (folder.empty()) return std::unique_ptr<server::GrammarCompiler>();
  server::GrammarPoolOptions options;
  options.host.arguments = {server::kGrammarWorkerVerb};
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(args.grammar_seconds * 1000));
  auto opened = server::GrammarPool::start(
      server::grammar::make_vocabulary(folder, *bundle.tokenizer, info.vocab_size, info.end_ids),
      std::move(options));
  if (!opened.ok()) {
    return opened.error().within(
        fmt::format("--xgrammar {} (installed with `{}`)", folder, server::kXGrammarInstall));
  }
  return std::unique_ptr<server::GrammarCompiler>(std::move(*opened));
}

void announce(const ServeArgs& args, const server::ServedModel& model,
              const engine::EngineInfo& info, uint16_t port) {
  const engine::SamplingParams& p = model.defaults;
  fmt::print(stderr,
             "{}: {}, context {} tokens, KV memory {} ({} tokens), {} at once\n"
             "sampling unless a request says otherwise: temperature {}, top_k {}, top_p {}, min_p "
             "{}, repetition_penalty {}\n",
             model.names.front(), model.recipe, info.max_model_len,
             format_bytes(static_cast<double>(info.kv_bytes)),
             int64_t{info.kv_pages} * info.page_tokens, info.max_sequences, p.temperature, p.top_k,
             p.top_p, p.min_p, p.repetition_penalty);
  const bool loopback = args.http.host.starts_with("127.") || args.http.host == "::1" ||
                        args.http.host == "localhost";
  if (!loopback && args.http.api_keys.empty())
    print_warning("anyone who reaches this address may use the server: there is no --api-key");
  const bool v6 = args.http.host.find(':') != std::string::npos;
  fmt::print(stderr, "Listening on http://{}{}{}:{} (a page for people, and the API under /v1)\n",
             v6 ? "[" : "", args.http.host, v6 ? "]" : "", port);
}

// Until Ctrl-C or SIGTERM; then lets replies finish. A second signal ends the process at once.
void serve_until_interrupted(server::Server& server, engine::Service& service, double drain_seconds,
                             spdlog::logger& log) {
  while (!interrupted()) std::this_thread::sleep_for(50ms);
  log.info("draining seconds={}", drain_seconds);
  server.begin_drain();
  const bool finished =
      server.wait_idle(std::chrono::milliseconds(static_cast<int64_t>(drain_seconds * 1000)));
  if (!finished) {
    log.warn("drain_timeout: what is still running is cancelled");
    service.shutdown();  // tells the clients
    server.wait_idle(2s);
  }
  server.stop();
  service.shutdown();
  log.info("stopped");
}

Status serve(ServeArgs args) {
  std::optional<InterruptEndsProcess> preparing(std::in_place);
  SUB8_RETURN_IF_ERROR(read_keys(args));
  SUB8_RETURN_IF_ERROR(check_origins(args.http.cors_origins));
  const auto log_queue = std::make_shared<server::LogQueue>(STDERR_FILENO, kMaxLogBytes);
  const auto log = std::make_shared<spdlog::logger>("sub8", log_queue);
  log->set_pattern("time=%Y-%m-%dT%H:%M:%S.%e%z level=%l event=%v");
  log->set_level(spdlog::level::from_str(args.log_level));
  raise_descriptor_limit(args.http);
  args.http.request_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(args.request_seconds * 1000));

  SUB8_ASSIGN_OR_RETURN(engine::RunOptions options, args.model.run_options());
  options.max_sequences = args.max_sequences;
  options.max_batch_tokens = args.max_batch_tokens;
  options.mixed_modes = true;
  options.kv_memory_bytes = static_cast<int64_t>(args.kv_memory);
  options.prefix_cache = !args.no_prefix_cache;
  options.reuse_generated = args.reuse_generated;
  std::string template_text;
  const auto prepare = [&](engine::Bundle& bundle, engine::RunOptions& run) -> Status {
    template_text = bundle.source->texts().chat_template;
    if (!args.chat_template_file.empty()) {
      SUB8_ASSIGN_OR_RETURN(template_text, read_file(args.chat_template_file, kMaxTemplateBytes));
      if (template_text.find_first_not_of(" \t\r\n") == std::string::npos) {
        return invalid_argument(
            fmt::format("--chat-template {}: the file holds no template", args.chat_template_file));
      }
      SUB8_ASSIGN_OR_RETURN(bundle.chat_template,
                            ChatTemplate::parse(template_text, args.chat_template_file));
    }
    if (run.kv_memory_bytes == 0) {
      SUB8_ASSIGN_OR_RETURN(run.kv_memory_bytes, default_kv_memory(bundle, run));
    }
    return {};
  };
  SUB8_ASSIGN_OR_RETURN(LoadedModel model, load_model(args.model, options, prepare));
  preparing.reset();
  server::ServerOptions server_options;
  server_options.version = SUB8_VERSION;
  server_options.log = log;
  server_options.dropped_log_lines = [log_queue] { return log_queue->dropped(); };
  SUB8_ASSIGN_OR_RETURN(server_options.tool_family, tool_family(args.tool_family, template_text));

  engine::Service service(std::move(model.engine), {.max_queued = args.max_queued});
  server::ServiceBackend backend(service);
  server::ServedModel served = served_model(args, model, service.info().max_model_len);
  served.chat_template_text = template_text;
  SUB8_ASSIGN_OR_RETURN(const std::unique_ptr<server::GrammarCompiler> grammars,
                        open_grammars(args, model.bundle, service.info()));
  server_options.grammars = grammars.get();
  server_options.grammars_missing = fmt::format(
      "structured output needs XGrammar, which this server was started without; "
      "install it with `{}` and start the server with --xgrammar DIR",
      server::kXGrammarInstall);
  server::Server server(args.http, served, backend, std::move(server_options));
  SUB8_RETURN_IF_ERROR(server.start());
  announce(args, served, service.info(), server.port());
  serve_until_interrupted(server, service, args.drain_seconds, *log);
  return {};
}

void add_http_options(CLI::App& app, ServeArgs& args) {
  app.add_option("--host", args.http.host, "Address to listen on; 0.0.0.0 for all")
      ->capture_default_str();
  app.add_option("--port", args.http.port, "0 for any free one")->capture_default_str();
  app.add_option("--api-key", args.http.api_keys,
                 "Key that clients must send; may be given several times. Better: --api-key-file, "
                 "or SUB8_API_KEY in the environment");
  app.add_option("--api-key-file", args.api_key_file, "File with one key per line");
  app.add_option("--cors-origin", args.http.cors_origins,
                 "Web origin whose pages may call the server, or *; may be given several times");
  app.add_option("--max-connections", args.http.max_connections, "Connections at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-body", args.http.max_body_bytes, "Largest request, e.g. 32MB")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 60));
  app.add_option("--request-timeout", args.request_seconds, "Seconds that a request may take")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  app.add_option("--drain-timeout", args.drain_seconds,
                 "Seconds that replies get to finish after SIGTERM")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--log-level", args.log_level, "What goes to standard error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
}

}  // namespace

Verb add_serve(CLI::App& app) {
  auto args = std::make_shared<ServeArgs>();
  args->model.add_to(app);
  add_http_options(app, *args);
  app.add_option("--served-model-name", args->names,
                 "What clients call the model; may be given several times [the file's name]");
  app.add_option("--chat-template", args->chat_template_file,
                 "Jinja file to use instead of the model's own");
  app.add_option("--tool-call-parser", args->tool_family,
                 "How the model writes tool calls: auto, none, hermes, llama3, mistral, pythonic")
      ->capture_default_str();
  app.add_option(
      "--xgrammar", args->xgrammar,
      "Folder that holds the Python packages xgrammar and apache-tvm-ffi, for structured "
      "output [SUB8_XGRAMMAR in the environment]");
  app.add_option("--grammar-timeout", args->grammar_seconds,
                 "Seconds to compile a grammar, and to find out which tokens it allows next")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  app.add_option("--kv-memory", args->kv_memory,
                 "Memory for the KV cache, e.g. 2GB [full contexts for all sequences, at most a "
                 "quarter of the machine's memory]")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 60));
  app.add_option("--max-sequences", args->max_sequences, "Answers that are generated at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-batch-tokens", args->max_batch_tokens, "Token rows per step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--max-queued", args->max_queued, "Answers that run or wait; more get 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--no-prefix-cache", args->no_prefix_cache, "Compute every prompt in full");
  app.add_flag("--reuse-generated", args->reuse_generated,
               "Let prompts reuse cached answers too; results then depend on what is cached");
  return [args] { return serve(*args); };
}

}  // namespace sub8::apps
