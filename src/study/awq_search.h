// The search for AWQ's scales (quantize/awq.h): for each input that can be scaled,
// s[k] = mean|x_k|^a over a grid of exponents a, the one with the least output error.
//
// Source: Lin et al., AWQ, section 3.2, equations 4 and 5. The error of a candidate is the sum over
// captured rows x and the outputs of all layers that read the input of
//
//   (sum_k x[k] (q[n][k] / s[k] - w[n][k]))^2      q: the quantised row of w[n][k] s[k]
//
// in units of the unscaled model: FP32 over k, double over rows and outputs, in order, whatever the
// threads. a = 0 leaves the input as it is and wins ties, so scaling never makes this error larger.
// Activations are not rounded. Inputs are taken in an order in which a producer's rows are scaled
// before its own columns.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "model/model.h"
#include "quantize/awq.h"
#include "quantize/plan.h"
#include "study/calibrate.h"

namespace sub8::study {

// The exponents are i / kAwqGrid for i = 0 .. kAwqGrid - 1.
inline constexpr int kAwqGrid = 20;

// Keeps rows of every linear layer's input, spread evenly over all that it sees.
class RowCapture final : public model::Observer {
 public:
  // `tokens` rows will come in all; at most `rows` are kept.
  RowCapture(int64_t tokens, int64_t rows) : tokens_(tokens), rows_(rows) {}
  void linear_input(const model::LinearOp& op, const uint16_t* x, int64_t stride,
                    int64_t rows) override;

  // bf16 [count][K] of the input that a module reads; empty for others.
  std::span<const uint16_t> rows_of(std::string_view module) const;

 private:
  struct Input {
    int64_t seen = 0;
    std::vector<uint16_t> values;
  };
  int64_t tokens_;
  int64_t rows_;
  std::map<std::string, Input, std::less<>> inputs_;       // by operation
  std::map<std::string, std::string, std::less<>> owner_;  // module -> operation
};

struct AwqSiteReport {
  std::string name;
  double exponent = 0;  // 0: left as it is
  double error = 0;     // over the error without scales; 1 where exponent is 0
  std::string skipped;  // why it was not searched; or empty
};

struct AwqSearch {
  quantize::AwqScales scales;
  std::vector<AwqSiteReport> sites;
};

struct AwqSearchOptions {
  // Called before each input.
  std::function<void(int64_t done, int64_t total, std::string_view site)> progress;
};

// `plan` says what each weight becomes; inputs whose readers or whose producer stay as they are are
// left alone. `calibration` and `rows` are of the unscaled model. Errors of reading the source,
// `cancelled` after an interrupt.
Result<AwqSearch> search_awq(const checkpoint::WeightSource& source, const quantize::Plan& plan,
                             const quantize::Recipe& recipe, const Calibration& calibration,
                             const RowCapture& rows, const AwqSearchOptions& options,
                             ThreadPool& pool);

}  // namespace sub8::study
