// The tensors of a Hugging Face directory under canonical names, with a record of which were used.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace sub8::checkpoint {

class HfTensors {
 public:
  // Removes prefixes of multimodal wrappers ("model.language_model.", "language_model.model.") and
  // adds those that a bare backbone lacks ("layers.0" -> "model.layers.0").
  static Result<HfTensors> create(SafetensorsModel model, Architecture architecture);

  // Null where absent. Marks the tensor as used.
  const Tensor* take(std::string_view name);
  bool has(std::string_view name) const;
  // The name in the file of a canonical module or tensor name.
  std::string file_name(std::string_view canonical) const;
  // Canonical names that were never taken, in order.
  std::vector<std::string> unused() const;
  const Tensor* peek(std::string_view name) const;

 private:
  SafetensorsModel model_;
  std::map<std::string, const Tensor*, std::less<>> by_name_;
  std::set<std::string, std::less<>> used_;
};

// A float tensor of any 16/32-bit dtype as f32; an error naming the tensor for other dtypes and for
// NaN or infinity.
Result<std::vector<float>> read_floats(const Tensor& tensor);
// The same for one value: shape [] or [1] (a fused file may have one per part: `count`).
Result<std::vector<float>> read_scales(const Tensor& tensor, int64_t count);

}  // namespace sub8::checkpoint
