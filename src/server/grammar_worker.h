// The processes that run XGrammar, apart from the server: whatever an expression costs, or breaks,
// it costs and breaks there.
//
// The server starts one host. It loads XGrammar and the vocabulary once and forks a child for each
// grammar, which shares both. A child compiles its grammar and then answers for all requests that
// have it. Limits of a child: memory beyond what the host has; an operation that takes more than
// 0.1 s of CPU time lowers its priority for good, once more after 1 s, and from then on it has a
// few seconds in all. A child ends with its socket or with the host, the host with its own socket.
// Signals that are meant to end the server are ignored: replies may still be finished.
#pragma once

#include "base/error.h"

namespace sub8::server {

// The verb with which the server starts its own program as a host.
inline constexpr const char* kGrammarWorkerVerb = "grammar-worker";

// The host, from the descriptors in grammar_protocol.h to its end; then the process ends. Returns
// where it could not start. For a process with one thread.
Error run_grammar_worker();

}  // namespace sub8::server
