#include "checkpoint/rope_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "checkpoint/number_range.h"

namespace sub8::checkpoint {
namespace {

// 0.1 * mscale * ln(factor) + 1: YaRN's temperature as transformers computes it.
double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

Result<double> number(const JsonRef& object, std::string_view key, double fallback,
                      NumberRange range) {
  const auto member = object.find(key);
  if (!member) return fallback;
  SUB8_ASSIGN_OR_RETURN(const double out, member->as_double());
  return require_in(range, out, member->where());
}

Result<double> required_factor(const JsonRef& object) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef member, object.at("factor"));
  SUB8_ASSIGN_OR_RETURN(const double out, member.as_double());
  return require_in(kRopeFactor, out, member.where());
}

void warn_unknown(const JsonRef& object, std::span<const std::string_view> known,
                  std::string_view type, std::vector<std::string>& warnings) {
  const auto members = object.members();
  if (!members.ok()) return;
  for (const auto& [key, value] : *members) {
    if (value.is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    warnings.push_back(value.where() + ": sub8 does not know this key of rope type \"" +
                       std::string(type) + "\" and ignores it");
  }
}

Status read_llama3(const JsonRef& object, int64_t max_positions, RopeConfig& out) {
  SUB8_ASSIGN_OR_RETURN(out.factor, required_factor(object));
  SUB8_ASSIGN_OR_RETURN(out.low_freq_factor, number(object, "low_freq_factor", 1.0, kRopeBound));
  SUB8_ASSIGN_OR_RETURN(out.high_freq_factor, number(object, "high_freq_factor", 4.0, kRopeBound));
  if (out.high_freq_factor <= out.low_freq_factor) {
    return corrupt_data(object.where() + ": high_freq_factor must be above low_freq_factor");
  }
  SUB8_ASSIGN_OR_RETURN(
      out.original_max_positions,
      object.get_int("original_max_position_embeddings", max_positions, 1, 1 << 30));
  return {};
}

Status read_yarn(const JsonRef& object, int64_t max_positions, RopeConfig& out) {
  SUB8_ASSIGN_OR_RETURN(out.factor, required_factor(object));
  SUB8_ASSIGN_OR_RETURN(out.beta_fast, number(object, "beta_fast", 32.0, kRopeBound));
  SUB8_ASSIGN_OR_RETURN(out.beta_slow, number(object, "beta_slow", 1.0, kRopeBound));
  if (out.beta_fast < out.beta_slow) {
    return corrupt_data(object.where() + ": beta_fast must not be below beta_slow");
  }
  SUB8_ASSIGN_OR_RETURN(out.truncate, object.get_bool("truncate", true));
  SUB8_ASSIGN_OR_RETURN(
      out.original_max_positions,
      object.get_int("original_max_position_embeddings", max_positions, 1, 1 << 30));
  SUB8_ASSIGN_OR_RETURN(const double mscale, number(object, "mscale", 0, kYarnMscale));
  SUB8_ASSIGN_OR_RETURN(const double mscale_all, number(object, "mscale_all_dim", 0, kYarnMscale));
  const double automatic = mscale != 0 && mscale_all != 0 ? yarn_mscale(out.factor, mscale) /
                                                                yarn_mscale(out.factor, mscale_all)
                                                          : yarn_mscale(out.factor, 1.0);
  SUB8_ASSIGN_OR_RETURN(out.attention_factor,
                        number(object, "attention_factor", automatic, kRopeAttentionFactor));
  return {};
}

// One object: {rope_type|type, rope_theta, factor, ...}.
Result<RopeConfig> read_rope_object(const JsonRef& object, double theta, int64_t max_positions,
                                    std::vector<std::string>& warnings) {
  if (!object.is_object()) return corrupt_data(object.where() + ": expected an object");
  RopeConfig out;
  SUB8_ASSIGN_OR_RETURN(out.theta, number(object, "rope_theta", theta, kRopeTheta));
  SUB8_ASSIGN_OR_RETURN(const double partial, object.get_double("partial_rotary_factor", 1.0));
  if (partial != 1.0) {
    return unsupported(object.where() + ": partial_rotary_factor " + std::to_string(partial) +
                       ": sub8 rotates whole heads only");
  }
  SUB8_ASSIGN_OR_RETURN(const std::string old_type, object.get_string("type", "default"));
  SUB8_ASSIGN_OR_RETURN(const std::string type, object.get_string("rope_type", old_type));
  if (object.find("type") && type != old_type) {
    return corrupt_data(object.where() + ": rope_type is \"" + type.substr(0, 60) +
                        "\" and type, its older name, \"" + old_type.substr(0, 60) +
                        "\"; remove the wrong one");
  }
  constexpr std::array<std::string_view, 4> kCommon{"rope_type", "type", "rope_theta",
                                                    "partial_rotary_factor"};
  std::vector<std::string_view> known(kCommon.begin(), kCommon.end());
  const auto knows = [&](std::initializer_list<std::string_view> keys) {
    known.insert(known.end(), keys);
  };
  if (type == "default") {
    out.type = RopeType::kDefault;
  } else if (type == "linear") {
    out.type = RopeType::kLinear;
    SUB8_ASSIGN_OR_RETURN(out.factor, required_factor(object));
    knows({"factor"});
  } else if (type == "llama3") {
    out.type = RopeType::kLlama3;
    SUB8_RETURN_IF_ERROR(read_llama3(object, max_positions, out));
    knows({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
  } else if (type == "yarn") {
    out.type = RopeType::kYarn;
    SUB8_RETURN_IF_ERROR(read_yarn(object, max_positions, out));
    knows({"factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale",
           "mscale_all_dim", "original_max_position_embeddings"});
  } else {
    return unsupported(object.where() + ": rope type \"" + type.substr(0, 60) +
                       "\" is not supported; sub8 has default, linear, llama3 and yarn");
  }
  warn_unknown(object, known, type, warnings);
  return out;
}

Result<RopePair> read_per_layer_type(const JsonRef& object, double theta, double local_theta,
                                     int64_t max_positions, std::vector<std::string>& warnings) {
  RopePair out;
  SUB8_ASSIGN_OR_RETURN(const auto members, object.members());
  for (const auto& [key, value] : members) {
    if (key != "full_attention" && key != "sliding_attention") {
      if (value.is_object()) {
        return unsupported(value.where() + ": layers of type \"" + key + "\" are not supported");
      }
      warnings.push_back(value.where() + ": sub8 does not know this rope key and ignores it");
    }
  }
  SUB8_ASSIGN_OR_RETURN(const JsonRef full, object.at("full_attention"));
  SUB8_ASSIGN_OR_RETURN(out.full, read_rope_object(full, theta, max_positions, warnings));
  out.local = out.full;
  if (const auto local = object.find("sliding_attention")) {
    SUB8_ASSIGN_OR_RETURN(out.local,
                          read_rope_object(*local, local_theta, max_positions, warnings));
  }
  return out;
}

}  // namespace

std::string_view rope_type_name(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
  }
  return "?";
}

Result<RopePair> read_rope(const JsonRef& config, Architecture architecture, double default_theta,
                           int64_t max_positions, std::vector<std::string>& warnings) {
  SUB8_ASSIGN_OR_RETURN(const double theta,
                        number(config, "rope_theta", default_theta, kRopeTheta));
  SUB8_ASSIGN_OR_RETURN(const double local_theta,
                        number(config, "rope_local_base_freq", 10000.0, kRopeTheta));
  SUB8_ASSIGN_OR_RETURN(const double partial, config.get_double("partial_rotary_factor", 1.0));
  if (partial != 1.0) {
    return unsupported(config.where() + ".partial_rotary_factor: sub8 rotates whole heads only");
  }
  const auto scaling = config.find("rope_scaling");
  auto object = config.find("rope_parameters");
  const bool both = object && scaling;
  if (!object) object = scaling;
  RopePair out;
  if (object && (object->find("full_attention") || object->find("sliding_attention"))) {
    return read_per_layer_type(*object, theta, local_theta, max_positions, warnings);
  }
  out.full.theta = theta;
  if (object) {
    SUB8_ASSIGN_OR_RETURN(out.full, read_rope_object(*object, theta, max_positions, warnings));
    if (config.find("rope_theta") && out.full.theta != theta) {
      return corrupt_data(object->where() + ".rope_theta: " + std::to_string(out.full.theta) +
                          ", while rope_theta beside it is " + std::to_string(theta) +
                          "; remove the wrong one");
    }
  }
  if (both) {
    SUB8_ASSIGN_OR_RETURN(const RopeConfig older,
                          read_rope_object(*scaling, out.full.theta, max_positions, warnings));
    if (!(older == out.full)) {
      return corrupt_data(config.where() +
                          ": rope_parameters and rope_scaling, its older name, differ; remove the "
                          "wrong one");
    }
  }
  out.local = out.full;
  if (architecture == Architecture::kGemma3) {
    out.local = RopeConfig{};
    out.local.theta = local_theta;
  }
  return out;
}

}  // namespace sub8::checkpoint
