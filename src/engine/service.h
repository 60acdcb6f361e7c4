// An engine on a thread of its own, for callers on any thread.
//
//   Service service(std::move(engine), {});
//   SUB8_ASSIGN_OR_RETURN(auto stream, service.submit(std::move(request), [&] { post_poll(); }));
//   std::vector<TokenEvent> events;
//   while (stream->wait(events, 1s)) { ...; events.clear(); }
//
// Threads. One engine thread runs steps and writes events; it never waits for a reader. Every
// public function of Service may be called from any thread. A RequestStream belongs to one reader
// at a time; cancel() alone may be called beside it.
//
// Slow readers. A stream holds at most `event_capacity` unread events (and those of the step that
// reached it). A choice whose stream is full is paused: it takes no part in steps, does not count
// as running, and is the first to lose its pages when others need them; it goes on when the reader
// has taken the events, with the same tokens as if it had never stopped.
//
// Errors. submit() checks everything that can be known about a request: kInvalidArgument for
// values, kUnsupported for a mode, kResourceExhausted for a request that could never fit into KV
// memory or a full queue, kCancelled once drain() or shutdown() was called. What fails later
// arrives as an event (kError). If the engine itself fails, all requests end with its error,
// health() returns it, and submit() refuses with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/stats.h"

namespace sub8::engine {

struct ServiceOptions {
  int event_capacity = 256;  // unread events per request, at least 1
  int max_queued = 4096;     // choices that wait or run; more are refused with kResourceExhausted
};

// The reader's end of one request. Dropping it cancels the request if it is not over. May outlive
// the service.
class RequestStream {
 public:
  virtual ~RequestStream() = default;

  virtual RequestId id() const = 0;

  // Appends the unread events, without waiting. False once the event with the summary was handed
  // out by an earlier call: nothing more will come.
  virtual bool poll(std::vector<TokenEvent>& out) = 0;

  // The same, but waits until there is something, the end, or the timeout (true, nothing appended).
  virtual bool wait(std::vector<TokenEvent>& out, std::chrono::milliseconds timeout) = 0;

  // Ends the request before the next step; its pages are free then. The stream still delivers a
  // last event (kCancelled) with the summary. Idempotent; nothing happens when the request is over.
  virtual void cancel() = 0;
};

class Service {
 public:
  // Starts the engine thread. What the engine refers to (tokenizer, thread pool) must outlive this.
  Service(std::unique_ptr<Engine> engine, const ServiceOptions& options);
  // shutdown().
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Checks and queues a request; never waits for a step. `on_ready` (may be empty) is called when
  // unread events appear where there were none, usually on the engine thread: it must return at
  // once and may not call the stream or the service (post to an executor and poll there). It is not
  // called any more when the stream's destructor has returned; the destructor waits for a call
  // under way.
  Result<std::unique_ptr<RequestStream>> submit(Request request,
                                                std::function<void()> on_ready = {});

  // State after the last step; any time, cheap.
  Stats stats() const;
  // Fixed facts: limits, modes, KV memory.
  const EngineInfo& info() const;
  // Success, or the error that stopped the engine.
  Status health() const;

  // Refuses new requests from now on, lets the others finish, and returns when none is left (true)
  // or at the deadline (false; they go on).
  bool drain(std::chrono::milliseconds timeout);
  // Refuses new requests, ends the others with kCancelled, and stops the thread. Idempotent.
  void shutdown();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the streams
};

}  // namespace sub8::engine
