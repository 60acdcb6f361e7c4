#include "load/event_stream.h"

#include <utility>

#include <fmt/format.h>

namespace sub8::load {

void EventStream::end_line(std::vector<std::string>& events) {
  std::string_view line = line_;
  if (line.empty()) {
    if (has_data_) events.push_back(std::exchange(data_, {}));
    has_data_ = false;
    return;
  }
  const size_t colon = line.find(':');
  if (line.substr(0, colon) == "data") {
    std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

Status EventStream::push(std::string_view bytes, std::vector<std::string>& events) {
  for (const char c : bytes) {
    const bool second_of_two = std::exchange(after_return_, c == '\r') && c == '\n';
    if (second_of_two) continue;
    if (c == '\r' || c == '\n') {
      end_line(events);
      continue;
    }
    if (line_.size() + data_.size() >= max_event_bytes_)
      return corrupt_data(fmt::format("an event is larger than {} bytes", max_event_bytes_));
    line_ += c;
  }
  return {};
}

}  // namespace sub8::load
