// One layer at a time: the forward pass in pieces, and other weights in the place of a layer's own.
#include <cstring>

#include "base/check.h"
#include "model/model.h"

namespace sub8::model {

ActivationState Model::save() const {
  ActivationState out;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const BufferPlan& plan = program_.buffers[i];
    std::vector<std::byte>& bytes = out.buffers.emplace_back();
    if (plan.logit_rows) continue;
    const size_t per_row = buffers_[i].size() / static_cast<size_t>(options_.max_rows);
    const auto used = per_row * static_cast<size_t>(last_rows_);
    bytes.assign(buffers_[i].data(), buffers_[i].data() + used);
  }
  return out;
}

void Model::restore(const ActivationState& state) {
  SUB8_CHECK_EQ(state.buffers.size(), buffers_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const std::vector<std::byte>& bytes = state.buffers[i];
    SUB8_CHECK_LE(bytes.size(), buffers_[i].size());
    if (!bytes.empty()) std::memcpy(buffers_[i].data(), bytes.data(), bytes.size());
  }
}

Result<LinearSubstitute> Model::pack_substitute(
    size_t op, const std::vector<const StoredMatrix*>& parts, float ratio,
    std::vector<uint8_t> masks, const std::vector<const StoredMatrix*>& extension) const {
  SUB8_CHECK_LT(op, program_.body.size());
  const auto* linear = std::get_if<LinearOp>(&program_.body[op]);
  SUB8_CHECK(linear != nullptr && parts.size() == linear->modules.size());
  const bool selective = ratio > 0 && ratio < 1;
  SUB8_CHECK_EQ(extension.size(), selective ? parts.size() : size_t{0});
  LinearSubstitute out;
  out.ratio = ratio;
  out.masks = std::move(masks);
  SUB8_ASSIGN_OR_RETURN(out.weight, pack_linear(parts, options_.path, *pool_));
  SUB8_CHECK_EQ(out.weight.rows, linear->weight->rows);
  SUB8_CHECK_EQ(out.weight.cols, linear->weight->cols);
  if (selective) {
    SUB8_ASSIGN_OR_RETURN(out.extension, pack_linear(extension, options_.path, *pool_));
  }
  return out;
}

void Model::substitute_linear(size_t op, const LinearSubstitute* substitute) {
  SUB8_CHECK(options_.substitution);
  if (substituted_) program_.body[substituted_->first] = substituted_->second;
  substituted_.reset();
  if (substitute == nullptr) return;
  SUB8_CHECK_LT(op, program_.body.size());
  auto* linear = std::get_if<LinearOp>(&program_.body[op]);
  SUB8_CHECK(linear != nullptr);
  substituted_.emplace(op, *linear);
  linear->weight = &substitute->weight;
  linear->nvfp4_alpha = linear->fp8_alpha = {};
  linear->prompt = {substitute->ratio, substitute->masks,
                    substitute->extension ? &*substitute->extension : nullptr};
}

}  // namespace sub8::model
