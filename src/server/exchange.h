// One HTTP request and the way to answer it. Implemented by the connection; tests have their own.
//
// Either respond() once, or start(), any number of write(), finish(). respond() may be called on
// any thread; the rest only in functions given to the poster. Streams are server-sent events: one
// that has been silent for a while gets a comment line. When the client goes away or the time is
// up, `closed` is called once and everything sent afterwards is dropped.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "server/http_message.h"

namespace sub8::server {

// Runs a function later, in order with the others of the same connection. Callable on any thread,
// returns at once.
using PostFunction = std::function<void(std::function<void()>)>;

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual HttpRequest& request() = 0;
  // Does not keep the exchange alive.
  virtual PostFunction poster() const = 0;

  virtual void respond(HttpResponse response) = 0;

  struct Callbacks {
    std::function<void()> writable;  // unsent_bytes() fell below the limit again
    std::function<void()> closed;
  };
  // Both are dropped after finish() or closed.
  virtual void set_callbacks(Callbacks callbacks) = 0;
  virtual void start(HttpResponse head) = 0;
  virtual void write(std::string_view data) = 0;
  virtual void finish() = 0;
  // True while the reader is so far behind that nothing more should be written.
  virtual bool congested() const = 0;
  virtual bool closed() const = 0;
};

}  // namespace sub8::server
