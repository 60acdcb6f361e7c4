#include "study/calibrate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "base/cpu.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "engine/philox.h"
#include "format/dtype.h"
#include "kvcache/page_pool.h"

namespace sub8::study {
namespace {

constexpr int64_t kStepRows = 512;

Status check_options(const CalibrateOptions& options) {
  if (options.samples < 1) {
    return invalid_argument(
        fmt::format("calibration needs at least 1 sample, got {}", options.samples));
  }
  if (options.length < 1) {
    return invalid_argument(
        fmt::format("a sample must have at least 1 token, got {}", options.length));
  }
  return {};
}

// `count` of [0, total) without replacement, ascending: the first `count` places of a Fisher-Yates
// shuffle by Philox. (The modulo's bias is below total / 2^64.)
std::vector<int64_t> draw(int64_t total, int64_t count, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(total));
  std::iota(order.begin(), order.end(), 0);
  if (count >= total) return order;
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed),
                                       static_cast<uint32_t>(seed >> 32)};
  for (int64_t i = 0; i < count; ++i) {
    const auto words =
        engine::philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0}, key);
    const uint64_t random = uint64_t{words[1]} << 32 | words[0];
    const auto j = i + static_cast<int64_t>(random % static_cast<uint64_t>(total - i));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
  }
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

struct Line {
  std::string_view text;
  int64_t number = 0;  // from 1
};
std::vector<Line> filled_lines(std::string_view text) {
  std::vector<Line> out;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (!is_blank(line)) out.push_back({line, number});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

Result<Sample> line_sample(const engine::Bundle& bundle, const JsonRef& line) {
  if (line.is_string()) {
    SUB8_ASSIGN_OR_RETURN(const std::string text, line.as_string());
    return bundle.raw_prompt(text);
  }
  if (const auto messages = line.find("messages"); messages && messages->is_array())
    return bundle.chat_prompt(messages->value().as_array());
  for (const char* key : {"text", "prompt"}) {
    if (const auto member = line.find(key)) {
      SUB8_ASSIGN_OR_RETURN(const std::string text, member->as_string());
      return bundle.raw_prompt(text);
    }
  }
  return invalid_argument(
      "expected a string, or an object with \"text\", \"prompt\" or \"messages\"");
}

// Sums of one input; several modules may share it.
struct InputSums {
  std::vector<std::string> modules;
  std::vector<double> sum_abs;
  std::vector<uint16_t> max_bits;  // of the magnitude, as bf16: finite ones are ordered as bits are
};

class Collector final : public model::Observer {
 public:
  // `kv_cols`: KV heads times their size.
  Collector(ThreadPool& pool, int64_t kv_cols, model::Observer* watch)
      : pool_(pool), kv_cols_(kv_cols), watch_(watch) {}

  void linear_input(const model::LinearOp& op, const uint16_t* x, int64_t stride,
                    int64_t rows) override {
    if (watch_ != nullptr) watch_->linear_input(op, x, stride, rows);
    InputSums& sums = inputs_[op.name];
    if (sums.modules.empty()) {
      sums.modules = op.modules;
      sums.sum_abs.resize(static_cast<size_t>(op.in.cols));
      sums.max_bits.resize(static_cast<size_t>(op.in.cols));
    }
    // Threads share the channels, so each sum is in row order whatever their number.
    pool_.for_ranges(op.in.cols, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = 0; row < rows; ++row) {
        const uint16_t* values = x + row * stride;
        for (int64_t k = begin; k < end; ++k) {
          const auto magnitude = static_cast<uint16_t>(values[k] & 0x7fffu);
          const auto at = static_cast<size_t>(k);
          sums.sum_abs[at] += static_cast<double>(format::bf16_to_float(magnitude));
          sums.max_bits[at] = std::max(sums.max_bits[at], magnitude);
        }
      }
    });
  }

  void attention_input(const model::AttentionOp& op, kernels::InputRows, kernels::InputRows k,
                       kernels::InputRows v, int64_t rows) override {
    const auto layer = static_cast<size_t>(op.layer);
    if (kv_.size() <= layer) kv_.resize(layer + 1);
    kv_[layer].k = std::max(kv_[layer].k, amax(k, kv_cols_, rows));
    kv_[layer].v = std::max(kv_[layer].v, amax(v, kv_cols_, rows));
  }

  Result<Calibration> finish(int64_t tokens) const {
    constexpr uint16_t kInfinity = 0x7f80;
    Calibration out;
    out.kv = kv_;
    for (size_t layer = 0; layer < kv_.size(); ++layer) {
      if (std::isfinite(kv_[layer].k) && std::isfinite(kv_[layer].v)) continue;
      return corrupt_data(fmt::format(
          "keys or values of layer {} are not finite: the weights are damaged, or overflow on this "
          "text",
          layer));
    }
    out.tokens = tokens;
    for (const auto& [name, sums] : inputs_) {
      InputStatistics statistics;
      uint16_t largest = 0;
      for (size_t k = 0; k < sums.sum_abs.size(); ++k) {
        if (sums.max_bits[k] >= kInfinity) {
          return corrupt_data(fmt::format(
              "the input of {} is not finite in channel {}: the weights are damaged, or overflow "
              "on this text",
              name, k));
        }
        largest = std::max(largest, sums.max_bits[k]);
        statistics.mean_abs.push_back(
            static_cast<float>(sums.sum_abs[k] / static_cast<double>(tokens)));
      }
      statistics.amax = format::bf16_to_float(largest);
      for (const std::string& module : sums.modules) out.modules[module] = statistics;
    }
    return out;
  }

 private:
  // Of the values as the cache rounds them; infinity where one is not finite.
  static float amax(const kernels::InputRows& x, int64_t cols, int64_t rows) {
    uint32_t largest = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < cols; ++i) {
        const uint16_t value = format::float_to_bf16(x.data[row * x.stride + i]);
        largest = std::max<uint32_t>(largest, value & 0x7fffu);
      }
    }
    constexpr uint32_t kInfinity = 0x7f80;
    return format::bf16_to_float(static_cast<uint16_t>(std::min(largest, kInfinity)));
  }

  ThreadPool& pool_;
  int64_t kv_cols_;
  model::Observer* watch_;
  std::vector<KvAmax> kv_;
  std::map<std::string, InputSums> inputs_;  // by the operation's name
};

bool has_coded_head(const model::Program& program) {
  return std::any_of(program.head.begin(), program.head.end(), [](const model::Op& op) {
    const auto* linear = std::get_if<model::LinearOp>(&op);
    return linear != nullptr && !linear->weight->format.dense;
  });
}

// Rows [first, first + count) of a sample through all layers, and through the head where wanted.
Status run_rows(model::Model& model, const Sample& sample, int64_t first, int64_t count,
                std::span<const int32_t> pages, bool head, Collector& collector) {
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<kernels::AttentionRow> attention;
  for (int64_t i = first; i < first + count; ++i) {
    positions.push_back(static_cast<int32_t>(i));
    slots.push_back(i);
    attention.push_back({pages.data(), static_cast<int32_t>(i)});
  }
  const auto tokens =
      std::span(sample).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  SUB8_RETURN_IF_ERROR(model.forward({tokens, positions, slots, attention, count}, &collector));
  if (!head) return {};
  const int64_t block = model.options().max_logit_rows;
  for (int64_t done = 0; done < count; done += block) {
    std::vector<int32_t> rows(static_cast<size_t>(std::min(block, count - done)));
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(done));
    SUB8_ASSIGN_OR_RETURN(const auto logits, model.logits(rows, &collector));
    (void)logits;
  }
  return {};
}

}  // namespace

Result<std::vector<Sample>> text_samples(const Tokenizer& tokenizer, std::string_view text,
                                         const CalibrateOptions& options) {
  SUB8_RETURN_IF_ERROR(check_options(options));
  SUB8_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                        tokenizer.encode(text, {.add_special_tokens = false}));
  const auto total = static_cast<int64_t>(tokens.size()) / options.length;
  if (total == 0) {
    return invalid_argument(fmt::format(
        "the text has {} tokens, fewer than one sample of {}; give more text or a smaller --length",
        tokens.size(), options.length));
  }
  std::vector<Sample> out;
  for (const int64_t window : draw(total, options.samples, options.seed)) {
    const auto begin = tokens.begin() + window * options.length;
    out.emplace_back(begin, begin + options.length);
  }
  return out;
}

Result<std::vector<Sample>> jsonl_samples(const engine::Bundle& bundle, std::string_view jsonl,
                                          std::string_view source,
                                          const CalibrateOptions& options) {
  SUB8_RETURN_IF_ERROR(check_options(options));
  const std::vector<Line> lines = filled_lines(jsonl);
  std::vector<Sample> out;
  for (const int64_t i : draw(static_cast<int64_t>(lines.size()), options.samples, options.seed)) {
    const Line& line = lines[static_cast<size_t>(i)];
    const std::string where = fmt::format("{}, line {}", source, line.number);
    SUB8_ASSIGN_OR_RETURN(const boost::json::value value, parse_json(line.text, where));
    Result<Sample> sample = line_sample(bundle, JsonRef(value, where));
    if (!sample.ok()) return sample.error().within(where);
    if (sample->empty()) continue;
    if (static_cast<int64_t>(sample->size()) > options.length)
      sample->resize(static_cast<size_t>(options.length));
    out.push_back(std::move(sample).value());
  }
  if (out.empty())
    return invalid_argument(fmt::format("{} has no line with a token in it", source));
  return out;
}

Result<std::unique_ptr<model::Model>> load_for_calibration(const checkpoint::WeightSource& source,
                                                           int64_t context,
                                                           model::LoadProgressFn progress,
                                                           ThreadPool& pool) {
  const int64_t limit = source.config().max_positions;
  if (context > limit) {
    return invalid_argument(
        fmt::format("samples of {} tokens are beyond the model's {} positions; give a smaller "
                    "--length",
                    context, limit));
  }
  model::ModelOptions options;
  SUB8_ASSIGN_OR_RETURN(options.path, selected_cpu_path());
  options.max_context = context;
  options.max_rows = std::min(context, kStepRows);
  options.kv_pages =
      static_cast<int32_t>((context + kvcache::kPageTokens - 1) / kvcache::kPageTokens);
  options.progress = std::move(progress);
  return model::Model::load(source, options, pool);
}

Result<Calibration> calibrate(model::Model& model, std::span<const Sample> samples,
                              const CalibrateOptions& options, model::Observer* watch) {
  SUB8_CHECK(model.options().activations == ActivationType::kBF16);
  int64_t longest = 0;
  for (const Sample& sample : samples)
    longest = std::max(longest, static_cast<int64_t>(sample.size()));
  SUB8_CHECK_GE(model.options().max_context, longest);
  SUB8_CHECK_GE(int64_t{model.options().kv_pages} * kvcache::kPageTokens, longest);
  std::vector<int32_t> pages(static_cast<size_t>(model.options().kv_pages));
  std::iota(pages.begin(), pages.end(), 0);
  const bool head = has_coded_head(model.program());
  Collector collector(model.pool(), model.config().kv_heads * model.config().head_dim, watch);
  int64_t tokens = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto length = static_cast<int64_t>(samples[i].size());
    for (int64_t first = 0; first < length; first += model.options().max_rows) {
      SUB8_RETURN_IF_ERROR(check_interrupt());
      SUB8_RETURN_IF_ERROR(run_rows(model, samples[i], first,
                                    std::min(model.options().max_rows, length - first), pages, head,
                                    collector));
    }
    tokens += length;
    if (options.progress)
      options.progress(static_cast<int64_t>(i) + 1, static_cast<int64_t>(samples.size()));
  }
  if (tokens == 0) return invalid_argument("calibration needs at least one token");
  SUB8_ASSIGN_OR_RETURN(Calibration out, collector.finish(tokens));
  out.samples = static_cast<int64_t>(samples.size());
  return out;
}

}  // namespace sub8::study
