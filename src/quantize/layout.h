// Names, types and shapes of the tensors that hold a quantised module, and the quantization_config
// that tells readers about them.
//
// | layout             | codes                      | block scales               | outer scale |
// | sub8               | weight U8 [N, row bytes]   | weight_scale or            | weight_scale F32
// [N]  | |                    |                            | weight_group_scale (E4M3 with channel
// scales) | | | sub8, nvfp4        | weight                     | weight_scale F8_E4M3       |
// weight_scale_2 F32 [] | | modelopt           | weight U8 [N, K/2]         | weight_scale F8_E4M3
// | weight_scale_2 F32 [] | | compressed-tensors | weight_packed U8 [N, K/2]  | weight_scale
// F8_E4M3 or U8 | weight_global_scale F32 [1], the reciprocal | Block scales are [N,
// ceil(K/group)]; E8M0 bytes are U8.
//
// Sources: exports of NVIDIA Model Optimizer 0.47 and compressed-tensors 0.20.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "checkpoint/safetensors.h"
#include "quantize/plan.h"

namespace sub8::quantize {

struct ModuleTensors {
  checkpoint::TensorSpec codes;  // the dense values of a kept matrix
  std::optional<checkpoint::TensorSpec> block_scales;
  std::optional<checkpoint::TensorSpec> outer_scales;
  std::optional<checkpoint::TensorSpec> input_scale;  // a reciprocal where outer scales are
  bool outer_is_reciprocal = false;
};
ModuleTensors module_tensors(const PlannedWeight& weight, Layout layout);

// Name, type and shape of a KV scale: ModelOpt's and sub8's "...self_attn.k_proj.k_scale" F32 [],
// compressed-tensors' "...self_attn.k_scale" F32 [1].
checkpoint::TensorSpec kv_scale_tensor(const KvScale& scale, const checkpoint::ModelConfig& config,
                                       Layout layout);

// The member quantization_config of config.json. `version` is the program's.
boost::json::object quantization_config(const Plan& plan, std::string_view version);

// modelopt's hf_quant_config.json; nothing in other layouts.
std::optional<boost::json::object> hf_quant_config(const Plan& plan, std::string_view version);

}  // namespace sub8::quantize
