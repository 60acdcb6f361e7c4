// Finds stop strings in streamed text and holds back whatever could still become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sub8::engine {

class StopMatcher {
 public:
  // Strings must not be empty. `include`: what matched is part of the text.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false)
      : stops_(std::move(stops)), include_(include) {}

  // Text that is safe to emit after `piece` arrived: everything before the first match (or up to
  // its end), less a tail that may begin one. Where several strings match, the one that starts
  // first counts. Returns nothing more once matched().
  std::string push(std::string_view piece);

  // The held-back text, when no more will come.
  std::string finish();

  bool matched() const { return match_ >= 0; }
  // Which string matched.
  const std::string& match() const { return stops_[static_cast<size_t>(match_)]; }

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::string held_;
  int match_ = -1;
};

}  // namespace sub8::engine
