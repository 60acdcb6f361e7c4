#include "quantize/fake_int.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "checkpoint/wrapped_source.h"
#include "format/block.h"

namespace sub8::quantize {
namespace {

using checkpoint::WeightInfo;
using checkpoint::WeightKind;
using checkpoint::WeightSource;
using format::DType;

// Nearest integer, ties to even, for |x| < 2^22: the sum's unit in the last place is 1.
float nearest_integer(float x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

class FakeSource final : public checkpoint::WrappedSource {
 public:
  FakeSource(std::unique_ptr<WeightSource> source, const FakeInt& rule)
      : WrappedSource(std::move(source)), rule_(rule) {
    quantization_ = "fake " + rule_.name();
    for (WeightInfo info : this->source().weights()) {
      if (rounded(info)) {
        info.format = format::dense_format(DType::kBF16);
        info.stored_type = rule_.name();
        info.stored_bytes = static_cast<int64_t>(
            std::llround(rule_.storage_bits(info.cols) * static_cast<double>(info.rows) *
                         static_cast<double>(info.cols) / 8.0));
      }
      add_weight(std::move(info));
    }
  }

  Result<StoredMatrix> matrix(std::string_view module, DType decoded) const override {
    const WeightInfo* info = source().find(module);
    if (info == nullptr || !rounded(*info)) return source().matrix(module, decoded);
    const bool wide = decoded == DType::kF32;
    StoredMatrix out;
    out.format = format::dense_format(wide ? DType::kF32 : DType::kBF16);
    out.rows = info->rows;
    out.cols = info->cols;
    auto bytes = std::make_shared<std::vector<uint8_t>>(
        static_cast<size_t>(out.rows * out.format.row_bytes(out.cols)));
    std::vector<float> row(static_cast<size_t>(info->cols));
    for (int64_t r = 0; r < info->rows; ++r) {
      SUB8_RETURN_IF_ERROR(decode_rows(info->name, r, 1, row));
      uint8_t* at = bytes->data() + r * out.format.row_bytes(out.cols);
      if (wide) {
        std::memcpy(at, row.data(), row.size() * 4);
        continue;
      }
      for (size_t k = 0; k < row.size(); ++k) {
        const uint16_t half = format::float_to_bf16(row[k]);
        std::memcpy(at + 2 * k, &half, 2);
      }
    }
    out.codes = *bytes;
    out.owner = std::move(bytes);
    return out;
  }

  Status decode_rows(std::string_view module, int64_t row, int64_t count,
                     std::span<float> out) const override {
    SUB8_RETURN_IF_ERROR(source().decode_rows(module, row, count, out));
    const WeightInfo* info = source().find(module);
    if (info == nullptr || !rounded(*info)) return {};
    for (int64_t r = 0; r < count; ++r) {
      fake_quantize_row(
          rule_, out.subspan(static_cast<size_t>(r * info->cols), static_cast<size_t>(info->cols)));
    }
    return {};
  }

 private:
  bool rounded(const WeightInfo& info) const {
    if (info.name == "lm_head") return rule_.lm_head;
    if (info.kind == WeightKind::kEmbedding) {
      return rule_.lm_head && source().tied_head() && info.name.ends_with("embed_tokens");
    }
    return info.kind == WeightKind::kLinear;
  }

  FakeInt rule_;
};

}  // namespace

double FakeInt::storage_bits(int64_t cols) const {
  if (group == 0) return bits + 32.0 / static_cast<double>(cols);
  const int64_t groups = (cols + group - 1) / group;
  return bits + 16.0 * static_cast<double>(groups) / static_cast<double>(cols);
}

std::string FakeInt::name() const {
  return "int" + std::to_string(bits) + (group == 0 ? "" : ":g" + std::to_string(group));
}

Result<FakeInt> parse_fake_int(std::string_view name) {
  const auto refuse = [&] {
    return invalid_argument("unknown integer baseline '" + std::string(name) +
                            "'; known: int2 to int8, with :g32, :g64 or :g128 for groups");
  };
  FakeInt out;
  if (name.size() < 4 || !name.starts_with("int") || name[3] < '2' || name[3] > '8') {
    return refuse();
  }
  out.bits = name[3] - '0';
  const std::string_view rest = name.substr(4);
  if (rest.empty()) return out;
  for (const int group : {32, 64, 128}) {
    if (rest == ":g" + std::to_string(group)) {
      out.group = group;
      return out;
    }
  }
  return refuse();
}

void fake_quantize_row(const FakeInt& rule, std::span<float> row) {
  const auto count = static_cast<int64_t>(row.size());
  const auto limit = static_cast<float>((1 << (rule.bits - 1)) - 1);
  const int64_t group = rule.group == 0 ? count : rule.group;
  for (int64_t begin = 0; begin < count; begin += group) {
    const int64_t size = std::min(group, count - begin);
    float* x = row.data() + begin;
    const float d = format::abs_max(x, size) / limit;
    for (int64_t k = 0; k < size; ++k) {
      if (d < format::power_of_two(-126)) {
        x[k] = 0.0F;
        continue;
      }
      const float q = nearest_integer(x[k] / d);
      x[k] = std::clamp(q, -limit, limit) * d;
    }
  }
}

Result<std::unique_ptr<WeightSource>> fake_quantize(std::unique_ptr<WeightSource> source,
                                                    const FakeInt& rule) {
  if (rule.bits < 2 || rule.bits > 8 ||
      (rule.group != 0 && rule.group != 32 && rule.group != 64 && rule.group != 128)) {
    return invalid_argument("integer baselines have 2 to 8 bits and groups of 32, 64 or 128");
  }
  return std::unique_ptr<WeightSource>(std::make_unique<FakeSource>(std::move(source), rule));
}

}  // namespace sub8::quantize
