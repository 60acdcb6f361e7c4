// Compiled grammars, each in a process of its own, as the server's GrammarCompiler.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "server/grammar.h"
#include "server/grammar_host.h"
#include "server/grammar_process.h"

namespace sub8::server {

// The command that installs XGrammar.
extern const char* const kXGrammarInstall;

struct GrammarPoolOptions {
  GrammarHostProgram host;
  std::chrono::milliseconds timeout{10'000};  // see GrammarProcess
  // Grammars in use, and those kept for the next request that has them: the least recently used go.
  size_t max_processes = 32;
  int64_t max_unused_bytes = int64_t{512} << 20;
};

class GrammarPool final : public GrammarCompiler {
 public:
  // Starts the host and waits until it has loaded XGrammar.
  static Result<std::unique_ptr<GrammarPool>> start(const grammar::Vocabulary& vocabulary,
                                                    GrammarPoolOptions options);

  // Requests with the same grammar share its process, also while it is being compiled. A
  // resource_exhausted error: too many different ones are in use.
  Result<ConstraintFactory> compile(const GrammarSpec& spec) override;
  std::optional<ConstraintFactory> find(const GrammarSpec& spec) override;
  void stop() override;

 private:
  struct Entry {
    GrammarSpec spec;
    std::shared_ptr<GrammarProcess> process;
  };
  GrammarPool(std::shared_ptr<GrammarHost> host, GrammarPoolOptions options);
  std::shared_ptr<GrammarProcess> find_locked(const GrammarSpec& spec);
  Result<std::shared_ptr<GrammarProcess>> find_or_start(const GrammarSpec& spec);
  bool drop_unused(int64_t* bytes = nullptr);
  void trim();

  const GrammarPoolOptions options_;
  const std::shared_ptr<GrammarHost> host_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  bool stopped_ = false;
};

}  // namespace sub8::server
