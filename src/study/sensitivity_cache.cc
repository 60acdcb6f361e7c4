#include "study/sensitivity_cache.h"

#include <cmath>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_keys.h"
#include "checkpoint/pretty_json.h"

namespace sub8::study {
namespace {

namespace json = boost::json;

constexpr std::string_view kKind = "sub8-sensitivity";
constexpr int64_t kVersion = 1;
constexpr std::string_view kRemedy = "; remove the file, or name another one with --cache";

json::object key_json(const SensitivityKey& key) {
  return {{"layout", key.model.layout},
          {"content", key.model.content},
          {"text_hash", key.text_hash},
          {"windows", key.sample.windows},
          {"window", key.sample.window},
          {"seed", key.sample.seed},
          {"mode", key.residue ? "residue" : "weight-only"},
          {"scale", quantize::scale_method_name(key.rules.scale)},
          {"mx_rule", quantize::mx_rule_name(key.rules.block.mx)}};
}

}  // namespace

Result<SensitivityCache> SensitivityCache::open(const std::filesystem::path& path,
                                                SensitivityKey key) {
  SensitivityCache out;
  out.path_ = path;
  out.key_ = std::move(key);
  std::error_code ignored;
  if (path.empty() || !std::filesystem::exists(path, ignored)) return out;
  const auto remedied = [](Error error) {
    error.message += kRemedy;
    return error;
  };
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  Result<json::value> value = parse_json(text, path.string());
  if (!value.ok()) return remedied(value.error());
  if (Status unique = check_no_duplicate_keys(text, path.string()); !unique.ok())
    return remedied(unique.error());
  const JsonRef root(*value, path.string());
  const auto kind = root.get_string("kind", "");
  if (!kind.ok() || *kind != kKind) {
    return remedied(
        invalid_argument(fmt::format("{}: expected an object of kind '{}'", root.where(), kKind)));
  }
  const auto version = root.get_int("schema_version", 0, 0, INT32_MAX);
  if (!version.ok()) return remedied(version.error());
  if (*version != kVersion) {
    return remedied(
        unsupported(fmt::format("{}.schema_version: this program reads {}, the file "
                                "has {}",
                                root.where(), kVersion, *version)));
  }
  const json::object wanted = key_json(out.key_);
  Result<JsonRef> key_node = root.at("key");
  if (!key_node.ok()) return remedied(key_node.error());
  for (const auto& [name, expected] : wanted) {
    const auto found = key_node->find(name);
    // Numbers in the file may be signed where ours are not.
    if (found && json::serialize(found->value()) == json::serialize(expected)) continue;
    return remedied(invalid_argument(fmt::format(
        "{}.{} is {}, this run has {}: the file holds measurements of another model, text, "
        "sample or mode",
        key_node->where(), std::string_view(name),
        found ? json::serialize(found->value()).substr(0, 60) : "missing",
        json::serialize(expected))));
  }
  Result<JsonRef> layers_node = root.at("kl_divergence");
  if (!layers_node.ok()) return remedied(layers_node.error());
  auto layers = layers_node->members();
  if (!layers.ok()) return remedied(layers.error());
  for (const auto& [layer, node] : *layers) {
    auto options = node.members();
    if (!options.ok()) return remedied(options.error());
    for (const auto& [option, number] : *options) {
      auto measured = number.as_double();
      if (!measured.ok()) return remedied(measured.error());
      if (*measured < 0)
        return remedied(
            corrupt_data(fmt::format("{} is {}, expected at least 0", number.where(), *measured)));
      out.values_[{layer, option}] = *measured;
    }
  }
  return out;
}

std::optional<double> SensitivityCache::find(const std::string& layer,
                                             const std::string& option) const {
  const auto found = values_.find({layer, option});
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

void SensitivityCache::set(const std::string& layer, const std::string& option,
                           double kl_divergence) {
  values_[{layer, option}] = kl_divergence;
}

Status SensitivityCache::save() const {
  if (path_.empty()) return {};
  json::object layers;
  for (const auto& [key, value] : values_) {
    json::value& layer = layers[key.first];
    if (!layer.is_object()) layer = json::object();
    layer.get_object()[key.second] = value;
  }
  const json::object root{{"kind", kKind},
                          {"schema_version", kVersion},
                          {"key", key_json(key_)},
                          {"kl_divergence", std::move(layers)}};
  return write_file_atomic(path_, checkpoint::pretty_json(root));
}

}  // namespace sub8::study
