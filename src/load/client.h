// One request over HTTP/1.1, and what its client saw. Included by driver.cc alone: Asio is slow to
// compile.
#pragma once

#include <string>

#include <boost/asio/awaitable.hpp>

#include "base/error.h"
#include "load/sample.h"
#include "load/target.h"

namespace sub8::load {

// Sends `body` to the target's endpoint on a connection of its own and reads the event stream.
// Never throws for what a server or a network does: the sample says it.
boost::asio::awaitable<Sample> ask(const Target& target, const std::string& body);

// The body of a GET that answers 200, or why there is none.
struct Fetched {
  Status status;
  std::string body;
};
boost::asio::awaitable<Fetched> fetch(const Target& target, const std::string& path);

}  // namespace sub8::load
