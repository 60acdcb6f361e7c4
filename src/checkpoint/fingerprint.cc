#include "checkpoint/fingerprint.h"

#include <vector>

#include "base/fnv1a.h"
#include "base/interrupt.h"

namespace sub8::checkpoint {
namespace {

void add_values(Fnv1a& hash, const std::vector<float>& values) {
  hash.add({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)});
}

}  // namespace

Result<ModelFingerprint> fingerprint(const WeightSource& source) {
  Fnv1a layout;
  Fnv1a content;
  layout.add_text(architecture_name(source.config().architecture));
  layout.add_number(source.tied_head() ? 1 : 0);
  for (const WeightInfo& info : source.weights()) {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    layout.add_text(info.name);
    layout.add_text(info.stored_type);
    layout.add_number(static_cast<uint64_t>(info.kind));
    layout.add_number(static_cast<uint64_t>(info.rows));
    if (info.kind == WeightKind::kVector) {
      SUB8_ASSIGN_OR_RETURN(const std::vector<float> values, source.vector(info.name));
      add_values(content, values);
      continue;
    }
    layout.add_number(static_cast<uint64_t>(info.cols));
    std::vector<float> row(static_cast<size_t>(info.cols));
    for (const int64_t at : {int64_t{0}, info.rows / 2}) {
      SUB8_RETURN_IF_ERROR(source.decode_rows(info.name, at, 1, row));
      add_values(content, row);
    }
  }
  return ModelFingerprint{layout.text(), content.text()};
}

}  // namespace sub8::checkpoint
