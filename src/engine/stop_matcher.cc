#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace sub8::engine {

std::string StopMatcher::push(std::string_view piece) {
  if (matched()) return {};
  held_ += piece;
  size_t first = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = held_.find(stops_[i]);
    if (at < first) {
      first = at;
      match_ = static_cast<int>(i);
    }
  }
  if (matched()) {
    held_.resize(first + (include_ ? match().size() : 0));
    return std::exchange(held_, {});
  }
  // The longest tail that is a proper prefix of a stop string stays.
  size_t hold = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > hold; --length) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, length)))
        hold = length;
    }
  }
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace sub8::engine
