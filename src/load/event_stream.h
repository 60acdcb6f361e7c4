// Server-sent events out of bytes as they arrive (WHATWG HTML, 9.2; only `data` fields matter
// here).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace sub8::load {

class EventStream {
 public:
  explicit EventStream(size_t max_event_bytes) : max_event_bytes_(max_event_bytes) {}

  // Appends the data of every event that `bytes` completes; several data lines are joined with line
  // feeds, comments and other fields are skipped. An event beyond the limit is an error.
  Status push(std::string_view bytes, std::vector<std::string>& events);
  // Whether bytes of an event that is not complete are held.
  bool incomplete() const { return !line_.empty() || has_data_; }

 private:
  void end_line(std::vector<std::string>& events);

  size_t max_event_bytes_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_return_ = false;  // the last byte was a carriage return
};

}  // namespace sub8::load
