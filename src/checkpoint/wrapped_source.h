// A source that is another one in everything that a derived class does not change.
//
// The weights are listed by the derived class, in the wrapped source's order: it may describe some
// of them differently.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/weight_source.h"

namespace sub8::checkpoint {

class WrappedSource : public WeightSource {
 public:
  const WeightSource& stored() const override { return source_->stored(); }
  const ModelConfig& config() const override { return source_->config(); }
  const GgufTokenizer* gguf_tokenizer() const override { return source_->gguf_tokenizer(); }
  bool tied_head() const override { return source_->tied_head(); }
  Result<std::optional<float>> kv_scale(int64_t layer, bool value_side) const override {
    return source_->kv_scale(layer, value_side);
  }
  Result<StoredMatrix> matrix(std::string_view module, format::DType decoded) const override {
    return source_->matrix(module, decoded);
  }
  Status decode_rows(std::string_view module, int64_t row, int64_t count,
                     std::span<float> out) const override {
    return source_->decode_rows(module, row, count, out);
  }
  Result<std::vector<float>> vector(std::string_view name) const override {
    return source_->vector(name);
  }
  void release(std::string_view module) const override { source_->release(module); }

 protected:
  explicit WrappedSource(std::unique_ptr<WeightSource> source) : source_(std::move(source)) {
    path_ = source_->path();
    generation_config_ = source_->generation_config();
    texts_ = source_->texts();
    ignored_ = source_->ignored();
    warnings_ = source_->warnings();
    quantization_ = source_->quantization();
    kv_cache_scheme_ = source_->kv_cache_scheme();
  }
  const WeightSource& source() const { return *source_; }

 private:
  std::unique_ptr<WeightSource> source_;
};

}  // namespace sub8::checkpoint
