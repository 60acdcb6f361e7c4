// Quantising while a model is loaded: `sub8 run MODEL --weights e3m2`.
#pragma once

#include <memory>

#include "base/error.h"
#include "checkpoint/weight_source.h"
#include "quantize/recipe.h"

namespace sub8::quantize {

// A source whose quantised modules come in the recipe's formats, equal bit for bit to what
// quantize_checkpoint writes and a reader reads back; everything else is passed through. Nothing is
// quantised before matrix() or decode_rows() asks for it, and nothing is kept: a loader takes each
// matrix once. `threads` >= 1 belong to this source; calls from several threads take turns on them.
// Errors of plan_quantization are returned here.
Result<std::unique_ptr<checkpoint::WeightSource>> quantize_at_load(
    std::unique_ptr<checkpoint::WeightSource> source, const Recipe& recipe, int threads);

}  // namespace sub8::quantize
