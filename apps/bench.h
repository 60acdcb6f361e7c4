// Shared by the sub-verbs of `sub8 bench`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "base/error.h"
#include "verbs.h"

namespace sub8::apps {

struct Spread {
  double median = 0, low = 0, high = 0;
};
// Of at least one value.
Spread spread(std::vector<double> values);
boost::json::object to_json(const Spread& s);

// The processor, the threads, the path in force.
boost::json::object machine_json(int threads);

// To a file, to standard output for "-", nowhere for "".
Status write_report(const std::string& path, const boost::json::object& report);

// A prompt that shares no beginning with those of other rounds: nothing of it is in a prefix cache.
std::vector<int32_t> bench_prompt(int64_t tokens, uint64_t round, int64_t vocab_size);

// `sub8 bench engine`: bench_engine.cc. Runs if *parsed is true.
Verb add_bench_engine(CLI::App& bench, CLI::App** sub_command);
// `sub8 bench serve`: bench_serve.cc. Likewise.
Verb add_bench_serve(CLI::App& bench, CLI::App** sub_command);

// `sub8 bench layers`: bench_layers.cc, likewise.
Verb add_bench_layers(CLI::App& bench, CLI::App** sub_command);

// `sub8 bench residue`: bench_residue.cc, likewise.
Verb add_bench_residue(CLI::App& bench, CLI::App** sub_command);

}  // namespace sub8::apps
