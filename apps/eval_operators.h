// `sub8 eval --operators`: linear layers and attention one by one on captured activations.
#pragma once

#include <string>

#include "common.h"

namespace sub8::apps {

struct EvalOperatorsArgs {
  ModelArgs model;
  std::string text;
  int64_t window = 512;
  int64_t windows = 1;
  int64_t linear_rows = 128;
  int64_t calibration_windows = 4;
  std::string json_path;
};

// Prints a table, or JSON where `json_path` is "-"; both to their places where it is a path.
Status eval_operators(const EvalOperatorsArgs& args);

}  // namespace sub8::apps
