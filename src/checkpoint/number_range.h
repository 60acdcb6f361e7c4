// The limits of numbers that model files give, the same for config.json, generation_config.json and
// GGUF metadata: values outside make logits NaN or infinite.
#pragma once

#include <string>

#include "base/error.h"

namespace sub8::checkpoint {

struct NumberRange {
  double low = 0;
  double high = 0;
  bool above_low = false;  // `low` itself is outside
};

inline constexpr NumberRange kRopeTheta{1, 1e12, true};  // frequencies fall from 1
inline constexpr NumberRange kRopeFactor{1, 1e6};
inline constexpr NumberRange kRopeBound{1e-6, 1e9};  // low/high_freq_factor, beta_fast/slow
inline constexpr NumberRange kYarnMscale{0, 1000};   // 0: as if absent
inline constexpr NumberRange kRopeAttentionFactor{1e-6, 1e6};
inline constexpr NumberRange kNormEps{0, 1, true};
inline constexpr NumberRange kSoftcap{0, 1e6};  // 0: none
inline constexpr NumberRange kAttentionScalar{1e-6, 1e12};
inline constexpr NumberRange kAttentionScale{0, 1000};  // 0: the architecture's own
// Sampling defaults: what the sampler accepts.
inline constexpr NumberRange kTemperature{0, 100};
inline constexpr NumberRange kProbability{0, 1};
inline constexpr NumberRange kRepetitionPenalty{1e-6, 1e6};
inline constexpr NumberRange kPenalty{-2, 2};

// `value` if it lies in `range`, else kCorruptData: "WHERE: expected a number from ... to ...".
Result<double> require_in(NumberRange range, double value, const std::string& where);

}  // namespace sub8::checkpoint
