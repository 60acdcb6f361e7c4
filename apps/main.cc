// The sub8 program: parses the command line, dispatches to a verb, turns an Error into a message
// and an exit status.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/interrupt.h"
#include "common.h"
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

int run(int argc, char** argv) {
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
  add("inspect", "Show what a checkpoint holds", sub8::apps::add_inspect);
  add("eval", "Perplexity, KL divergence and top-1 agreement", sub8::apps::add_eval);
  add("bench", "Measure kernels and whole models", sub8::apps::add_bench);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "sub8: %s\nTry 'sub8 --help' or 'sub8 VERB --help'.\n",
                 sub8::apps::printable(error.what()).c_str());
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
