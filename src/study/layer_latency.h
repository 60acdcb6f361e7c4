// Measured time of linear layers by format, ratio and shape: the planner's latency costs. `sub8
// bench layers` writes the table. Keys: docs/planner.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include <boost/json.hpp>

#include "base/error.h"
#include "checkpoint/weight_source.h"
#include "model/model.h"
#include "quantize/layer_plan.h"
#include "study/layer_substitutes.h"

namespace sub8::study {

struct LatencyTable {
  int64_t rows = 0;      // token rows M that were timed
  bool residue = false;  // the mode; else weight-only
  // (option, N, K) -> nanoseconds, median.
  std::map<std::tuple<std::string, int64_t, int64_t>, int64_t> nanoseconds;
};

// Errors name the place: other versions, times that are not above 0, entries that come twice.
Result<LatencyTable> read_latency_table(const std::filesystem::path& path);
boost::json::object latency_json(const LatencyTable& table);

// Times the first group of each shape inside whole forward passes of `rows` prompt rows, so that
// caches are as cold as they are in use; the median of `repeat` passes. The model as for
// measure_sensitivity.
Result<LatencyTable> measure_layer_latency(
    model::Model& model, const checkpoint::WeightSource& source, std::span<const LayerGroup> groups,
    std::span<const quantize::LayerOption> options, const Sample& rows, int repeat,
    const SubstituteOptions& how,
    const std::function<void(int64_t done, int64_t total, std::string_view what)>& progress);

}  // namespace sub8::study
