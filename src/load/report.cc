#include "load/report.h"

#include <algorithm>
#include <cmath>

namespace sub8::load {
namespace {

namespace json = boost::json;

double percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

json::object to_json(const Distribution& d) {
  return {{"count", d.count}, {"mean", d.mean}, {"min", d.min}, {"p50", d.p50},
          {"p90", d.p90},     {"p95", d.p95},   {"p99", d.p99}, {"max", d.max}};
}

}  // namespace

Distribution distribution(std::vector<double> values) {
  Distribution out;
  out.count = static_cast<int64_t>(values.size());
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += value;
  out.mean = sum / static_cast<double>(values.size());
  out.min = values.front();
  out.p50 = percentile(values, 0.50);
  out.p90 = percentile(values, 0.90);
  out.p95 = percentile(values, 0.95);
  out.p99 = percentile(values, 0.99);
  out.max = values.back();
  return out;
}

double Report::requests_per_second() const {
  return per_second(static_cast<double>(completed), seconds);
}
double Report::output_tokens_per_second() const {
  return per_second(static_cast<double>(output_tokens), seconds);
}
double Report::tokens_per_second() const {
  return per_second(static_cast<double>(prompt_tokens + output_tokens), seconds);
}

Report summarize(const RunResult& run, const Workload& workload) {
  Report out;
  out.requests = static_cast<int64_t>(run.samples.size());
  out.seconds = run.seconds;
  out.wait_seconds = run.wait_seconds;
  out.peak = run.peak;
  std::vector<double> first, token, gaps, total;
  for (const Sample& sample : run.samples) {
    if (!sample.ok()) {
      FailureGroup& group = out.failures[failure_name(sample.failure)];
      if (group.count++ == 0) group.example = sample.message;
      continue;
    }
    ++out.completed;
    if (sample.output_tokens != workload.output_tokens) ++out.wrong_length;
    if (!sample.counted_by_server) ++out.uncounted;
    out.prompt_tokens += sample.prompt_tokens >= 0 ? sample.prompt_tokens : workload.input_tokens;
    out.output_tokens += sample.output_tokens;
    first.push_back(sample.first_token_seconds);
    total.push_back(sample.seconds);
    if (sample.output_tokens > 1) token.push_back(sample.token_seconds());
    gaps.insert(gaps.end(), sample.gaps.begin(), sample.gaps.end());
  }
  out.first_token = distribution(std::move(first));
  out.token = distribution(std::move(token));
  out.gap = distribution(std::move(gaps));
  out.total = distribution(std::move(total));
  return out;
}

json::object to_json(const Report& r) {
  json::object failures;
  for (const auto& [name, group] : r.failures)
    failures[name] = json::object{{"count", group.count}, {"example", group.example}};
  return {{"requests", r.requests},
          {"completed", r.completed},
          {"failed", r.requests - r.completed},
          {"failures", std::move(failures)},
          {"wrong_length", r.wrong_length},
          {"uncounted", r.uncounted},
          {"seconds", r.seconds},
          {"wait_seconds", r.wait_seconds},
          {"peak_concurrency", r.peak},
          {"prompt_tokens", r.prompt_tokens},
          {"output_tokens", r.output_tokens},
          {"requests_per_s", r.requests_per_second()},
          {"output_tokens_per_s", r.output_tokens_per_second()},
          {"total_tokens_per_s", r.tokens_per_second()},
          {"ttft_s", to_json(r.first_token)},
          {"tpot_s", to_json(r.token)},
          {"itl_s", to_json(r.gap)},
          {"e2e_s", to_json(r.total)}};
}

}  // namespace sub8::load
