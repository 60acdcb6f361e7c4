#include "study/weight_error.h"

#include <algorithm>

#include <fmt/format.h>

namespace sub8::study {
namespace {

constexpr int64_t kValuesPerPiece = 1 << 18;

struct Sums {
  double error = 0;
  double total = 0;
};

Status add_rows(const checkpoint::WeightSource& source, const checkpoint::WeightSource& reference,
                const std::string& name, int64_t cols, int64_t first, int64_t count, Sums& sums) {
  std::vector<float> a(static_cast<size_t>(count * cols));
  std::vector<float> b(a.size());
  SUB8_RETURN_IF_ERROR(source.decode_rows(name, first, count, a));
  SUB8_RETURN_IF_ERROR(reference.decode_rows(name, first, count, b));
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    sums.error += d * d;
    sums.total += static_cast<double>(b[i]) * b[i];
  }
  return {};
}

}  // namespace

Result<std::vector<WeightError>> weight_errors(const checkpoint::WeightSource& source,
                                               const checkpoint::WeightSource& reference,
                                               ThreadPool& pool) {
  std::vector<WeightError> out;
  for (const checkpoint::WeightInfo& info : source.weights()) {
    if (info.kind == checkpoint::WeightKind::kVector) continue;
    const checkpoint::WeightInfo* other = reference.find(info.name);
    if (other == nullptr || other->rows != info.rows || other->cols != info.cols) {
      return invalid_argument(fmt::format("the reference has no matrix '{}' of {} x {}", info.name,
                                          info.rows, info.cols));
    }
    if (other->stored_type == info.stored_type) continue;
    const int64_t step = std::max<int64_t>(1, kValuesPerPiece / info.cols);
    const int64_t pieces = (info.rows + step - 1) / step;
    // One sum per piece, added in order: the result does not depend on the number of threads.
    std::vector<Sums> sums(static_cast<size_t>(pieces));
    std::vector<Status> statuses(static_cast<size_t>(pieces));
    pool.for_ranges(pieces, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t p = begin; p < end; ++p) {
        statuses[static_cast<size_t>(p)] =
            add_rows(source, reference, info.name, info.cols, p * step,
                     std::min(step, info.rows - p * step), sums[static_cast<size_t>(p)]);
      }
    });
    for (Status& status : statuses) SUB8_RETURN_IF_ERROR(std::move(status));
    Sums total;
    for (const Sums& s : sums) {
      total.error += s.error;
      total.total += s.total;
    }
    out.push_back({info.name, info.stored_type, total.total > 0 ? total.error / total.total : 0.0});
  }
  return out;
}

}  // namespace sub8::study
