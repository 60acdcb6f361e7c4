// Integer baselines for the evaluation table: weights rounded to symmetric integers and back. sub8
// stores no integer formats; this shows what they would cost in quality.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/weight_source.h"

namespace sub8::quantize {

// One FP32 scale d = amax/(2^(bits-1)-1) per output channel or per group of K; value =
// rn(x/d)*d with integers in [-(2^(bits-1)-1), 2^(bits-1)-1], ties to even. amax below
// (2^(bits-1)-1)*2^-126: zeros.
struct FakeInt {
  int bits = 4;   // 2..8
  int group = 0;  // 32, 64 or 128; 0: per channel
  bool lm_head = false;

  // Weights per stored bit, scales included, as the table reports it (FP32 scale per channel, 16
  // bits per group).
  double storage_bits(int64_t cols) const;
  std::string name() const;  // "int4", "int4:g128"
};
Result<FakeInt> parse_fake_int(std::string_view name);

// Rounds one row in place.
void fake_quantize_row(const FakeInt& rule, std::span<float> row);

// A source whose Linear weights (and the head, where asked) went through the rounding. matrix()
// gives them dense in the type it is asked for: f32 exact, bf16 rounded once more.
Result<std::unique_ptr<checkpoint::WeightSource>> fake_quantize(
    std::unique_ptr<checkpoint::WeightSource> source, const FakeInt& rule);

}  // namespace sub8::quantize
