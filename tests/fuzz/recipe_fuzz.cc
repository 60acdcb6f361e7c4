// Formats, name patterns and overrides as they come from the command line.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "quantize/fake_int.h"
#include "quantize/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sub8;  // NOLINT
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto format = format::parse_weight_format(text); format.ok()) {
    // A name is read back as what it names.
    const auto again = format::parse_weight_format(format->name());
    if (!again.ok() || !(*again == *format)) std::abort();
    (void)format->storage_bytes(3, 5);
  }
  (void)quantize::parse_fake_int(text);
  (void)quantize::parse_scale_method(text);
  (void)quantize::parse_mx_rule(text);
  (void)quantize::parse_layout(text);
  if (const auto rule = quantize::parse_override(text); rule.ok()) {
    quantize::Recipe recipe;
    recipe.weights = rule->format;
    (void)quantize::check_recipe(recipe);
  }
  if (const auto pattern = quantize::NamePattern::parse(text); pattern.ok()) {
    for (const char* name :
         {"model.layers.0.self_attn.q_proj", "lm_head", "aaaaaaaaaaaaaaaaaaaaaaaa!"}) {
      (void)pattern->matches(name);
    }
  }
  return 0;
}
