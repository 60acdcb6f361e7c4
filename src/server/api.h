// The endpoints: one file per group, joined to a router here.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <spdlog/logger.h>

#include "server/backend.h"
#include "server/body_reader.h"
#include "server/config.h"
#include "server/generation.h"
#include "server/grammar.h"
#include "server/grammar_queue.h"
#include "server/metrics.h"
#include "server/router.h"
#include "server/served_model.h"
#include "server/tool_parser.h"

namespace sub8::server {

// Names of body members that were ignored, so that each is logged once.
struct IgnoredNames {
  std::mutex mutex;
  std::set<std::string> names;
};

// What handlers work with. Everything it refers to outlives the server; handlers run on several
// threads at once.
struct Api {
  const ServedModel& model;
  Backend& backend;
  Metrics& metrics;
  GrammarCompiler* grammars;     // null: structured output is refused
  GrammarQueue& grammar_queue;   // where one waits for them
  std::string grammars_missing;  // why, and what to install
  ToolFamily tool_family;
  std::string version;
  std::shared_ptr<spdlog::logger> log;
  IgnoredNames& ignored;
};

void add_generation_routes(const Api& api,
                           Router& router);             // /v1/completions, /v1/chat/completions
void add_model_routes(const Api& api, Router& router);  // /v1/models, /health, /version, /metrics
void add_tokenize_routes(const Api& api, Router& router);  // /tokenize, /detokenize
void add_static_routes(const Api& api, Router& router);    // /, /openapi.json

// Says once per name which members of request bodies are not known.
void log_unknown_members(const Api& api, const BodyReader& body);

// Decimal fraction of milliseconds, for logs.
double to_ms(double seconds);

}  // namespace sub8::server
