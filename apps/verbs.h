// The verbs of the sub8 program. Each registers its options on a subcommand and returns what runs
// it.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

#include "base/error.h"

namespace sub8::apps {

using Verb = std::function<Status()>;

Verb add_run(CLI::App& app);
Verb add_serve(CLI::App& app);
Verb add_quantize(CLI::App& app);
Verb add_calibrate(CLI::App& app);
Verb add_plan(CLI::App& app);
Verb add_inspect(CLI::App& app);
Verb add_explain(CLI::App& app);
Verb add_eval(CLI::App& app);
Verb add_bench(CLI::App& app);

}  // namespace sub8::apps
