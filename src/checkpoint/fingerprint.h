// What a model is, in two short texts: so that a file made for one model is not used with another.
#pragma once

#include <string>

#include "base/error.h"
#include "checkpoint/weight_source.h"

namespace sub8::checkpoint {

struct ModelFingerprint {
  std::string layout;   // architecture; name, kind, shape and stored type of every weight
  std::string content;  // all vectors; the first and the middle row of every matrix, as f32

  bool operator==(const ModelFingerprint&) const = default;
};

// 16 hexadecimal digits each (FNV-1a). Reads two rows of a matrix, not all of it: models that were
// trained apart differ, a single changed weight need not show.
Result<ModelFingerprint> fingerprint(const WeightSource& source);

}  // namespace sub8::checkpoint
