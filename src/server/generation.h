// Runs one generating request: submits its prompts, carries events from the engine to the client,
// and cancels when the client goes away.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/backend.h"
#include "server/exchange.h"
#include "server/reply.h"

namespace sub8::server {

struct GenerationResult {
  std::string request_id;
  engine::FinishReason finish = engine::FinishReason::kRunning;  // of the last choice to end
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  double queue_seconds = 0;
  double first_token_seconds = 0;  // since arrival; 0 without a token
  double seconds = 0;
};

struct GenerationOptions {
  bool stream = false;
  // Called once for each request whose events were all read; on the connection's strand.
  std::function<void(const GenerationResult&)> on_result;
};

// Submits all `requests` and returns; the rest happens on the connection's strand. Refusals are
// answered through the exchange. The backend must outlive the exchange.
void generate(const std::shared_ptr<Exchange>& exchange, Backend& backend,
              std::vector<engine::Request> requests, std::unique_ptr<Reply> reply,
              GenerationOptions options);

}  // namespace sub8::server
