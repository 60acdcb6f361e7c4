// The server's side of the host process that runs XGrammar (grammar_worker.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/error.h"
#include "server/grammar.h"
#include "server/grammar_protocol.h"

namespace sub8::server {

// What to start as a host.
struct GrammarHostProgram {
  std::string path = "/proc/self/exe";
  std::vector<std::string> arguments;  // behind the program's name
};

// Any thread.
class GrammarHost {
 public:
  // Returns once XGrammar is loaded there; an error says why it could not be.
  static Result<std::shared_ptr<GrammarHost>> start(GrammarHostProgram program,
                                                    const grammar::Vocabulary& vocabulary);
  // Ends the host and all its children, and waits for that.
  ~GrammarHost();
  GrammarHost(const GrammarHost&) = delete;
  GrammarHost& operator=(const GrammarHost&) = delete;

  struct Child {
    int64_t id = 0;
    grammar::Descriptor socket;
  };
  // Starts a child that compiles `spec`. A host that has ended is started again.
  Result<Child> spawn(const GrammarSpec& spec);
  // Ends a child at once. Nothing happens when it has ended.
  void kill(int64_t id);

 private:
  GrammarHost(GrammarHostProgram program, grammar::Descriptor vocabulary);
  // With start_mutex_ held.
  Status launch();
  void end(std::chrono::milliseconds patience);

  const GrammarHostProgram program_;
  const grammar::Descriptor vocabulary_;  // a file in memory
  std::mutex start_mutex_;                // guards pid_ and next_id_; may be held for long
  pid_t pid_ = 0;                         // 0: none runs
  int64_t next_id_ = 1;
  std::mutex control_mutex_;     // for kill(); taken within the other
  grammar::Descriptor control_;  // changed with both held
};

}  // namespace sub8::server
