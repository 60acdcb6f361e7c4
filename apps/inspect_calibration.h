// What `sub8 inspect` says of sub8/residue.*.
#pragma once

#include <optional>
#include <string>

#include <boost/json.hpp>

#include "checkpoint/weight_source.h"

namespace sub8::apps {

// The calibration beside a model: its facts, or why it cannot be used.
struct CalibrationReport {
  boost::json::object facts;  // empty where `error` is not
  std::string error;
};
// Nothing where there is none.
std::optional<CalibrationReport> inspect_calibration(const checkpoint::WeightSource& source);

// Whether AWQ's scales were folded into the weights: a line for people, and facts; nothing where
// there is no record.
struct AwqFacts {
  boost::json::object facts;
  std::string text;
};
std::optional<AwqFacts> inspect_awq(const checkpoint::WeightSource& source);

// For people, lines without the last line feed.
std::string describe_calibration(const CalibrationReport& report);

}  // namespace sub8::apps
