// The sub8 program: parses the command line, dispatches to a verb, turns an Error into a message
// and an exit status.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "base/interrupt.h"
#include "common.h"
#include "server/grammar_worker.h"
#include "strict_options.h"
#include "verbs.h"
#include "version.h"

namespace {

int report(const sub8::Error& error) {
  std::fprintf(stderr, "sub8: %s\n", sub8::apps::printable(error.message).c_str());
  return sub8::exit_status(error.code);
}

sub8::Error output_error() {
  return sub8::resource_exhausted(std::string("could not write to standard output: ") +
                                  std::strerror(errno));
}

// What is wrong with the command line, and where help is.
std::string usage_error(const CLI::App& app, int argc, char** argv, const CLI::ParseError& error) {
  std::string command = "sub8";
  const CLI::App* at = &app;
  int next = 1;
  for (bool found = true; found && next < argc;) {
    found = false;
    for (const CLI::App* verb : at->get_subcommands({})) {
      if (verb->get_name() != argv[next]) continue;
      at = verb;
      command += std::string(" ") + argv[next++];
      found = true;
      break;
    }
  }
  std::string message = error.what();
  const bool has_verbs = !at->get_subcommands({}).empty();
  if (has_verbs && next < argc && argv[next][0] != '-') {
    message = std::string("there is no '") + command + " " + argv[next] + "'; there is";
    for (const CLI::App* verb : at->get_subcommands({})) message += " " + verb->get_name();
  } else {
    // The parser lists what it did not expect from the last to the first.
    for (int i = next; i < argc; ++i) {
      const std::string word = argv[i];
      if (!word.starts_with("--")) continue;
      const std::string name = word.substr(0, word.find('='));
      if (name == "--" || name == "--help") break;
      if (at->get_option_no_throw(name) != nullptr) continue;
      message = "there is no option '" + name + "'";
      for (const CLI::Option* option : at->get_options()) {
        const std::string known = option->get_name();
        if (known.size() > 4 && (known.starts_with(name.substr(0, 6)) || name.starts_with(known)))
          message += "; did you mean '" + known + "'?";
      }
      break;
    }
  }
  return sub8::apps::printable(message) + "\n'" + command + " --help' lists what there is.";
}

// A standard descriptor that is closed would be given to the next file opened, and what is meant
// for the terminal would be written into that file. Standard output is replaced by one that refuses
// writes, as a closed one does.
bool fill_standard_descriptors() {
  const int modes[] = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", modes[fd]) != fd) return false;
  }
  return true;
}

int run(int argc, char** argv) {
  // Not for people: `sub8 serve` starts itself again like this.
  if (argc == 2 && std::string_view(argv[1]) == sub8::server::kGrammarWorkerVerb)
    return report(sub8::server::run_grammar_worker());
  CLI::App app{"Runs, quantises and measures language models with weights in floats below 8 bits."};
  app.set_version_flag("--version", std::string("sub8 ") + SUB8_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);
  std::vector<std::pair<CLI::App*, sub8::apps::Verb>> verbs;
  const auto add = [&](const char* name, const char* help, sub8::apps::Verb (*make)(CLI::App&)) {
    CLI::App* verb = app.add_subcommand(name, help);
    verbs.emplace_back(verb, make(*verb));
  };
  add("run", "Chat in the terminal, or complete a prompt", sub8::apps::add_run);
  add("serve", "Serve a model over HTTP with an OpenAI-compatible API", sub8::apps::add_serve);
  add("quantize", "Write a checkpoint with weights in another format", sub8::apps::add_quantize);
  add("calibrate", "Statistics, channel masks and K-Ext weights from text",
      sub8::apps::add_calibrate);
  add("plan", "Choose a format and a prefill ratio for each layer within budgets",
      sub8::apps::add_plan);
  add("inspect", "Show what a checkpoint holds", sub8::apps::add_inspect);
  add("explain", "Show which kernel each layer uses, and why", sub8::apps::add_explain);
  add("eval", "Perplexity, KL divergence and top-1 agreement", sub8::apps::add_eval);
  add("bench", "Measure kernels and whole models", sub8::apps::add_bench);
  sub8::apps::require_strict_values(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    const int status = app.exit(success);  // --help, --version
    if (!std::cout.flush()) return report(output_error());
    return status;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "sub8: %s\n", usage_error(app, argc, argv, error).c_str());
    return sub8::exit_status(sub8::ErrorCode::kInvalidArgument);
  }
  sub8::install_signal_handlers();
  for (auto& [verb, action] : verbs) {
    if (!verb->parsed()) continue;
    const sub8::Status status = action();
    if (!status.ok()) return report(status.error());
  }
  // Buffered output meets a full disk only here.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return report(output_error());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (!fill_standard_descriptors()) return sub8::exit_status(sub8::ErrorCode::kInternal);
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return report(sub8::resource_exhausted("out of memory"));
  } catch (const std::system_error& error) {
    // What fmt throws when standard output or error fails; else a thread that cannot be started.
    if (std::ferror(stdout) != 0) return report(output_error());
    return report(sub8::resource_exhausted(error.what()));
  } catch (const std::exception& error) {
    return report(sub8::internal_error(error.what()));
  }
}
