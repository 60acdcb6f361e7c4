#include "model/execution_mode.h"

#include <array>

#include <fmt/format.h>

namespace sub8::model {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"auto", "weight-only", "plain", "residue"};

}  // namespace

std::string_view execution_mode_name(ExecutionMode mode) {
  return kNames[static_cast<size_t>(mode)];
}

Result<ExecutionMode> parse_execution_mode(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<ExecutionMode>(i);
  }
  return invalid_argument(
      fmt::format("the execution mode must be one of {}, got '{}'", fmt::join(kNames, ", "), name));
}

}  // namespace sub8::model
