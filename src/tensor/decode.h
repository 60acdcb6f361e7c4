// From storage form to f32: the reference meaning of a StoredMatrix.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "tensor/stored_matrix.h"

namespace sub8 {

// Rows [row, row+count) as f32: out has count*cols elements.
//   dense:  the stored value (exact)
//   coded:  element * d with d = outer_scale * block_scale, each product rounded once, in that
//           order (design of the formats; the same `d` that the quantiser divides by). A scale that
//           the format lacks is not multiplied.
// The matrix must be consistent (check_matrix).
void decode_rows(const StoredMatrix& matrix, int64_t row, int64_t count, std::span<float> out);

// Whether sizes of codes and scales fit format, rows and cols. `name` leads the error.
Status check_matrix(const StoredMatrix& matrix, std::string_view name);

// Refuses NaN and infinity in rows [row, row+count): in dense values, in codes of formats that have
// them, in block scales (NaN, infinity; negative E4M3 scales too) and in outer scales. The error
// names `name`, the row and the column.
Status check_finite(const StoredMatrix& matrix, int64_t row, int64_t count, std::string_view name);

// Rows [row, row+count) of a matrix that shares its memory. `row_bytes` boundaries are whole bytes
// in every format.
StoredMatrix slice_rows(const StoredMatrix& matrix, int64_t row, int64_t count);

}  // namespace sub8
