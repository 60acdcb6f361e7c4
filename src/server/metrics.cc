#include "server/metrics.h"

#include <array>

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace sub8::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Builds families from one snapshot of the engine.
class Families {
 public:
  explicit Families(std::string model_name)
      : labels_{{"model_name", std::move(model_name)}, {"engine", "0"}} {}

  void gauge(const char* name, const char* help, double value) {
    ClientMetric metric = labelled();
    metric.gauge.value = value;
    add(name, help, MetricType::Gauge, std::move(metric));
  }
  void counter(const char* name, const char* help, double value) {
    ClientMetric metric = labelled();
    metric.counter.value = value;
    add(name, help, MetricType::Counter, std::move(metric));
  }
  void histogram(const char* name, const char* help, const engine::Histogram& from) {
    ClientMetric metric = labelled();
    uint64_t total = 0;
    for (size_t i = 0; i < from.counts.size(); ++i) {
      total += static_cast<uint64_t>(from.counts[i]);
      ClientMetric::Bucket bucket;
      bucket.cumulative_count = total;
      bucket.upper_bound =
          i < from.bounds.size() ? from.bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back(bucket);
    }
    metric.histogram.sample_count = total;
    metric.histogram.sample_sum = from.sum;
    add(name, help, MetricType::Histogram, std::move(metric));
  }
  // Several values of one metric that differ in a label.
  void counters(const char* name, const char* help, const char* label,
                const std::vector<std::pair<std::string, double>>& values) {
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = MetricType::Counter;
    for (const auto& [key, value] : values) {
      ClientMetric metric = labelled();
      metric.label.push_back({label, key});
      metric.counter.value = value;
      family.metric.push_back(std::move(metric));
    }
    families_.push_back(std::move(family));
  }
  void info(const char* name, const char* help,
            const std::vector<std::pair<std::string, std::string>>& values) {
    ClientMetric metric = labelled();
    for (const auto& [key, value] : values) metric.label.push_back({key, value});
    metric.gauge.value = 1;
    add(name, help, MetricType::Gauge, std::move(metric));
  }
  std::vector<MetricFamily>& all() { return families_; }

 private:
  ClientMetric labelled() const {
    ClientMetric out;
    for (const auto& [key, value] : labels_) out.label.push_back({key, value});
    return out;
  }
  void add(const char* name, const char* help, MetricType type, ClientMetric metric) {
    families_.push_back({name, help, type, {std::move(metric)}});
  }
  std::vector<std::pair<std::string, std::string>> labels_;
  std::vector<MetricFamily> families_;
};

double count_of(const engine::Stats& stats, engine::FinishReason reason) {
  return static_cast<double>(stats.finished[static_cast<size_t>(reason)]);
}

void add_gauges(const engine::Stats& s, Families& out) {
  out.gauge("vllm:num_requests_running", "Choices that take part in steps", s.running);
  out.gauge("vllm:num_requests_waiting", "Choices that wait for memory or a slot", s.waiting);
  out.gauge("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1", s.kv_usage());
  out.gauge("sub8:num_requests_paused", "Choices whose reader is behind", s.paused);
  out.gauge("sub8:kv_pages", "KV pages", s.kv_pages);
  out.gauge("sub8:kv_pages_used", "KV pages owned by a choice", s.kv_pages_used);
  out.gauge("sub8:kv_pages_cached", "KV pages kept for their content", s.kv_pages_cached);
  out.gauge("sub8:kv_pages_free", "KV pages without content", s.kv_pages_free);
}

void add_counters(const engine::Stats& s, Families& out) {
  const auto put = [&](const char* name, const char* help, auto value) {
    out.counter(name, help, static_cast<double>(value));
  };
  put("vllm:prompt_tokens_total", "Prompt tokens of requests that got their first token",
      s.prompt_tokens);
  put("vllm:prompt_tokens_cached_total", "Of those, found in the prefix cache",
      s.cached_prompt_tokens);
  put("vllm:generation_tokens_total", "Generated tokens", s.generation_tokens);
  put("vllm:num_preemptions_total", "Times that a choice lost its pages", s.preemptions);
  put("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache",
      s.prefix_cache_queries);
  put("vllm:prefix_cache_hits_total", "Tokens found there", s.prefix_cache_hits);
  put("sub8:steps_total", "Steps of the engine", s.steps);
  put("sub8:computed_rows_total", "Token rows computed, those after preemption included",
      s.computed_rows);
  put("sub8:prompt_seconds_total", "Seconds in steps that held prompt rows", s.prompt_seconds);
  put("sub8:decode_seconds_total", "Seconds in the other steps", s.decode_seconds);
  put("sub8:model_seconds_total", "Of both, seconds inside the model", s.model_seconds);
  using enum engine::FinishReason;
  out.counters("vllm:request_success_total", "Finished choices by reason", "finished_reason",
               {{"stop", count_of(s, kStop)},
                {"length", count_of(s, kLength) + count_of(s, kContext)},
                {"abort", count_of(s, kCancelled)},
                {"error", count_of(s, kError)}});
}

void add_histograms(const engine::Stats& s, Families& out) {
  out.histogram("vllm:time_to_first_token_seconds", "Arrival to first token",
                s.time_to_first_token);
  out.histogram("vllm:inter_token_latency_seconds", "Between tokens", s.inter_token_latency);
  out.histogram("vllm:request_time_per_output_token_seconds",
                "Mean time per token after the first, per request", s.time_per_output_token);
  out.histogram("vllm:e2e_request_latency_seconds", "Arrival to last token", s.e2e_latency);
  out.histogram("vllm:request_queue_time_seconds", "Arrival to first step", s.queue_time);
  out.histogram("vllm:request_inference_time_seconds", "First step to last token",
                s.inference_time);
  out.histogram("vllm:request_prefill_time_seconds", "First step to first token", s.prefill_time);
  out.histogram("vllm:request_decode_time_seconds", "First to last token", s.decode_time);
  out.histogram("vllm:request_prompt_tokens", "Prompt tokens per request", s.request_prompt_tokens);
  out.histogram("vllm:request_generation_tokens", "Generated tokens per request",
                s.request_generation_tokens);
  out.histogram("vllm:iteration_tokens_total", "Token rows per step", s.iteration_tokens);
  out.histogram("vllm:request_params_n", "n of requests", s.request_params_n);
  out.histogram("vllm:request_params_max_tokens", "max_tokens of requests",
                s.request_params_max_tokens);
}

const prometheus::Histogram::BucketBoundaries kDurationBounds = {
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};

}  // namespace

struct Metrics::Impl {
  Impl(const Backend& server_backend, std::string name, std::function<uint64_t()> dropped)
      : backend(server_backend),
        model_name(std::move(name)),
        dropped_log_lines(std::move(dropped)) {}
  const Backend& backend;
  std::string model_name;
  std::function<uint64_t()> dropped_log_lines;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter()
          .Name("http_requests_total")
          .Help("HTTP requests by path, method and class of status")
          .Register(registry);
  prometheus::Family<prometheus::Histogram>& durations =
      prometheus::BuildHistogram()
          .Name("http_request_duration_seconds")
          .Help("HTTP requests: complete header to last byte")
          .Register(registry);
};

Metrics::Metrics(const Backend& backend, std::string model_name,
                 std::function<uint64_t()> dropped_log_lines)
    : impl_(std::make_unique<Impl>(backend, std::move(model_name), std::move(dropped_log_lines))) {}

Metrics::~Metrics() = default;

void Metrics::count(const AccessRecord& record, bool known_path) {
  // Paths and methods of strangers must not make labels without end.
  const std::string path = known_path ? record.path : "other";
  const bool known_method = record.method == "GET" || record.method == "POST" ||
                            record.method == "HEAD" || record.method == "OPTIONS";
  const std::string method = known_method ? record.method : "other";
  impl_->requests
      .Add({{"handler", path},
            {"method", method},
            {"status", fmt::format("{}xx", record.status / 100)}})
      .Increment();
  impl_->durations.Add({{"handler", path}, {"method", method}}, kDurationBounds)
      .Observe(record.seconds);
}

std::string Metrics::text() const {
  const engine::Stats stats = impl_->backend.stats();
  const engine::EngineInfo& info = impl_->backend.info();
  Families families(impl_->model_name);
  add_gauges(stats, families);
  add_counters(stats, families);
  add_histograms(stats, families);
  if (impl_->dropped_log_lines) {
    families.counter("sub8:log_lines_dropped_total", "Log lines that nobody took in time",
                     static_cast<double>(impl_->dropped_log_lines()));
  }
  families.info("vllm:cache_config_info", "How the KV cache is laid out",
                {{"block_size", std::to_string(info.page_tokens)},
                 {"num_gpu_blocks", std::to_string(info.kv_pages)},
                 {"cache_dtype", info.kv_type},
                 {"enable_prefix_caching", info.prefix_cache ? "True" : "False"}});
  std::vector<MetricFamily> all = std::move(families.all());
  for (MetricFamily& family : impl_->registry.Collect()) all.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace sub8::server
