#include "study/awq_search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/checked_math.h"
#include "base/interrupt.h"
#include "format/dtype.h"
#include "quantize/matrix_quantizer.h"

namespace sub8::study {
namespace {

using checkpoint::WeightInfo;
using format::WeightFormat;
using quantize::AwqSite;
using quantize::PlannedWeight;

constexpr int64_t kLanes = 32;  // captured rows that are summed at a time
// The least scale before normalisation, as in the AWQ authors' program.
constexpr double kLeastScale = 1e-4;

// A reader of the input at hand.
struct Reader {
  const WeightInfo* info = nullptr;
  const PlannedWeight* planned = nullptr;
  std::vector<float> column_amax;  // of the weight with its rows divided
};

// One row's codes back to numbers.
void decode_row(const WeightFormat& format, float outer, std::span<const uint8_t> codes,
                std::span<const uint8_t> scales, std::span<float> out) {
  const auto count = static_cast<int64_t>(codes.size());
  const int64_t group = format.group == 0 ? count : format.group;
  for (int64_t g = 0, begin = 0; begin < count; ++g, begin += group) {
    float d = outer;
    if (format.block_scale == format::BlockScale::kE4M3) {
      d = format::block_divisor(outer, scales[static_cast<size_t>(g)]);
    } else if (format.block_scale == format::BlockScale::kE8M0) {
      d = format::decode_e8m0(scales[static_cast<size_t>(g)]);
    }
    format::dequantize(format.element, codes.data() + begin, std::min(group, count - begin), d,
                       out.data() + begin);
  }
}

// The search over one model.
class Search {
 public:
  Search(const checkpoint::WeightSource& source, const quantize::Plan& plan,
         const quantize::Recipe& recipe, const Calibration& calibration, const RowCapture& rows,
         quantize::AwqFold fold, ThreadPool& pool)
      : source_(source),
        recipe_(recipe),
        calibration_(calibration),
        rows_(rows),
        fold_(std::move(fold)),
        pool_(pool) {
    for (const PlannedWeight& w : plan.weights) planned_[w.name] = &w;
  }

  const std::vector<AwqSite>& sites() const { return fold_.sites(); }

  Result<AwqSiteReport> run(const AwqSite& site) {
    AwqSiteReport out{.name = site.name(), .error = 1};
    out.skipped = obstacle(site);
    if (!out.skipped.empty()) return out;
    SUB8_RETURN_IF_ERROR(prepare(site));
    const std::vector<float> ones(static_cast<size_t>(site.channels), 1.0F);
    SUB8_ASSIGN_OR_RETURN(const double plain, error(ones));
    double best = plain;
    std::vector<float> chosen;
    for (int i = 1; i < kAwqGrid; ++i) {
      SUB8_RETURN_IF_ERROR(check_interrupt());
      const double exponent = static_cast<double>(i) / kAwqGrid;
      SUB8_ASSIGN_OR_RETURN(const std::vector<float> scales,
                            fold_.foldable(site, candidate(site, exponent)));
      SUB8_ASSIGN_OR_RETURN(const double here, error(scales));
      if (!(here < best)) continue;
      best = here;
      out.exponent = exponent;
      chosen = scales;
    }
    if (chosen.empty()) return out;
    out.error = best / plain;
    SUB8_RETURN_IF_ERROR(fold_.set(site, chosen));
    return out;
  }

  const quantize::AwqScales& scales() const { return fold_.scales(); }

 private:
  const PlannedWeight* quantized(const std::string& module) const {
    const auto at = planned_.find(module);
    return at != planned_.end() && at->second->quantize ? at->second : nullptr;
  }

  // Why the input is not scaled.
  std::string obstacle(const AwqSite& site) const {
    for (const std::string& reader : site.readers) {
      if (quantized(reader) == nullptr) return reader + " is not quantised";
    }
    // A weight that stays in 16 bits could not hold its divided rows.
    if (!site.producer.empty() && quantized(site.producer) == nullptr)
      return site.producer + " is not quantised";
    if (calibration_.modules.find(site.name()) == calibration_.modules.end() ||
        rows_.rows_of(site.name()).empty())
      return "no activations were seen";
    return {};
  }

  Status prepare(const AwqSite& site) {
    readers_.clear();
    for (const std::string& name : site.readers) {
      Reader reader{.info = source_.find(name), .planned = quantized(name)};
      std::vector<float> amax(static_cast<size_t>(site.channels), 0.0F);
      const std::vector<float>* divisors = fold_.row_divisors(name);
      std::vector<float> chunk;
      constexpr int64_t kChunk = 64;
      for (int64_t row = 0; row < reader.info->rows; row += kChunk) {
        const int64_t count = std::min(kChunk, reader.info->rows - row);
        chunk.resize(static_cast<size_t>(count * site.channels));
        SUB8_RETURN_IF_ERROR(source_.decode_rows(name, row, count, chunk));
        for (int64_t r = 0; r < count; ++r) {
          const float divisor =
              divisors == nullptr ? 1.0F : (*divisors)[static_cast<size_t>(row + r)];
          for (int64_t k = 0; k < site.channels; ++k) {
            const float value = std::fabs(chunk[static_cast<size_t>(r * site.channels + k)]);
            amax[static_cast<size_t>(k)] = std::max(amax[static_cast<size_t>(k)], value / divisor);
          }
        }
      }
      reader.column_amax = std::move(amax);
      readers_.push_back(std::move(reader));
    }
    transpose(rows_.rows_of(site.name()), site.channels);
    return {};
  }

  // [K][lanes], rows beyond the captured ones zero.
  void transpose(std::span<const uint16_t> values, int64_t channels) {
    const int64_t count = static_cast<int64_t>(values.size()) / channels;
    lanes_ = round_up<int64_t>(count, kLanes);
    x_.assign(static_cast<size_t>(channels * lanes_), 0.0F);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t k = 0; k < channels; ++k)
        x_[static_cast<size_t>(k * lanes_ + r)] =
            format::bf16_to_float(values[static_cast<size_t>(r * channels + k)]);
    }
  }

  // mean^a, normalised so that the largest and the smallest scale are each other's inverse.
  std::vector<float> candidate(const AwqSite& site, double exponent) const {
    const std::vector<float>& means = calibration_.modules.find(site.name())->second.mean_abs;
    std::vector<float> out;
    double low = HUGE_VAL;
    double high = 0;
    for (const float mean : means) {
      const double s = std::max(std::pow(static_cast<double>(mean), exponent), kLeastScale);
      low = std::min(low, s);
      high = std::max(high, s);
      out.push_back(static_cast<float>(s));
    }
    const double middle = std::sqrt(low * high);
    for (float& s : out) s = static_cast<float>(static_cast<double>(s) / middle);
    return out;
  }

  // alpha of a reader's scale group under these scales: amax is exact, since rounding is monotone.
  float alpha(const Reader& reader, const std::vector<float>& scales) const {
    if (reader.planned->scale_group < 0) return 1.0F;
    float amax = 0;
    for (const Reader& other : readers_) {
      if (other.planned->scale_group != reader.planned->scale_group) continue;
      for (size_t k = 0; k < scales.size(); ++k)
        amax = std::max(amax, other.column_amax[k] * scales[k]);
    }
    return format::choose_outer_scale(reader.planned->format, amax,
                                      recipe_.rules.block.four_over_six);
  }

  Result<double> error(const std::vector<float>& scales) const {
    double sum = 0;
    for (const Reader& reader : readers_) {
      std::vector<double> rows(static_cast<size_t>(reader.info->rows));
      const float outer = alpha(reader, scales);
      const std::vector<float>* divisors = fold_.row_divisors(reader.info->name);
      SUB8_RETURN_IF_ERROR(quantize::for_each_row(
          source_, *reader.info, 0, reader.info->rows, pool_,
          [&](int64_t row, std::span<const float> w) {
            const float divisor =
                divisors == nullptr ? 1.0F : (*divisors)[static_cast<size_t>(row)];
            rows[static_cast<size_t>(row)] = row_error(reader, scales, outer, divisor, w);
          }));
      for (const double row : rows) sum += row;
    }
    return sum;
  }

  double row_error(const Reader& reader, const std::vector<float>& scales, float alpha,
                   float divisor, std::span<const float> w) const {
    thread_local std::vector<float> scaled, decoded;
    thread_local std::vector<uint8_t> codes, blocks;
    const WeightFormat& format = reader.planned->format;
    const size_t count = w.size();
    scaled.resize(count);
    decoded.resize(count);
    codes.resize(count);
    blocks.resize(static_cast<size_t>(format.groups(static_cast<int64_t>(count))));
    for (size_t k = 0; k < count; ++k) scaled[k] = w[k] / divisor * scales[k];
    const float outer = quantize::quantize_row(format, recipe_.rules, scaled, alpha, codes, blocks);
    decode_row(format, outer, codes, blocks, decoded);
    for (size_t k = 0; k < count; ++k) scaled[k] = decoded[k] / scales[k] * divisor - w[k];
    double sum = 0;
    for (int64_t first = 0; first < lanes_; first += kLanes) {
      std::array<float, kLanes> dot{};
      for (size_t k = 0; k < count; ++k) {
        const float* x = x_.data() + static_cast<int64_t>(k) * lanes_ + first;
        const float e = scaled[k];
        for (size_t j = 0; j < kLanes; ++j) dot[j] += e * x[j];
      }
      for (const float value : dot) sum += static_cast<double>(value) * static_cast<double>(value);
    }
    return sum;
  }

  const checkpoint::WeightSource& source_;
  const quantize::Recipe& recipe_;
  const Calibration& calibration_;
  const RowCapture& rows_;
  quantize::AwqFold fold_;
  ThreadPool& pool_;
  std::map<std::string, const PlannedWeight*, std::less<>> planned_;
  // Of the site at hand.
  std::vector<Reader> readers_;
  std::vector<float> x_;
  int64_t lanes_ = 0;
};

}  // namespace

void RowCapture::linear_input(const model::LinearOp& op, const uint16_t* x, int64_t stride,
                              int64_t rows) {
  Input& input = inputs_[op.name];
  if (input.seen == 0) {
    for (const std::string& module : op.modules) owner_[module] = op.name;
  }
  for (int64_t row = 0; row < rows; ++row, ++input.seen) {
    // Row i is kept where i * rows / tokens reaches a new whole number.
    const bool kept = rows_ >= tokens_ || input.seen == 0 ||
                      input.seen * rows_ / tokens_ > (input.seen - 1) * rows_ / tokens_;
    if (kept)
      input.values.insert(input.values.end(), x + row * stride, x + row * stride + op.in.cols);
  }
}

std::span<const uint16_t> RowCapture::rows_of(std::string_view module) const {
  const auto owner = owner_.find(module);
  if (owner == owner_.end()) return {};
  return inputs_.find(owner->second)->second.values;
}

Result<AwqSearch> search_awq(const checkpoint::WeightSource& source, const quantize::Plan& plan,
                             const quantize::Recipe& recipe, const Calibration& calibration,
                             const RowCapture& rows, const AwqSearchOptions& options,
                             ThreadPool& pool) {
  SUB8_ASSIGN_OR_RETURN(quantize::AwqFold fold, quantize::AwqFold::create(source));
  Search search(source, plan, recipe, calibration, rows, std::move(fold), pool);
  AwqSearch out;
  const auto total = static_cast<int64_t>(search.sites().size());
  int64_t done = 0;
  for (const AwqSite& site : search.sites()) {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    if (options.progress) options.progress(done++, total, site.name());
    SUB8_ASSIGN_OR_RETURN(AwqSiteReport report, search.run(site));
    out.sites.push_back(std::move(report));
  }
  out.scales = search.scales();
  return out;
}

}  // namespace sub8::study
