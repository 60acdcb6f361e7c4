// The weight columns that K-Ext appends: Y = X^ W^ + R^_S W^_S, with S the selected channels.
//
// Source: ResServe section 5.3, equation 6. Order of the columns: groups of 8 channels ascending,
// channels ascending; a channel that a short last group lacks gives a column of zeros. They begin
// at a block boundary of their own and have the base's outer scales, so that raw sums of both add.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "format/row.h"
#include "tensor/stored_matrix.h"

namespace sub8::quantize {

// `base` is the stored weight, in nvfp4 or mxfp4; `columns` is where the values of `module` come
// from: the floating-point original, or the base's own source (then they are the decoded ones).
// `masks` are ceil(K/8) bytes of equal population. The result owns its buffers. Errors: a module
// that `columns` lacks or has in another shape, values that are not finite.
Result<StoredMatrix> extension_columns(const StoredMatrix& base,
                                       const checkpoint::WeightSource& columns,
                                       std::string_view module, std::span<const uint8_t> masks,
                                       const format::BlockRules& rules, ThreadPool& pool);

}  // namespace sub8::quantize
