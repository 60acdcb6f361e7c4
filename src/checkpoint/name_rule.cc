#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "checkpoint/quantization_config.h"

namespace sub8::checkpoint {
namespace {

constexpr size_t kMaxRuleBytes = 2000;

// '*' any run, '?' any character. Linear backtracking to the last star.
bool wildcard_match(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Whether `part` is a run of whole dot-separated components of `name`.
bool has_components(std::string_view name, std::string_view part) {
  for (size_t at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1)) {
    const bool starts = at == 0 || name[at - 1] == '.';
    const size_t end = at + part.size();
    if (starts && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

Result<std::string> rule_text(const JsonRef& entry) {
  SUB8_ASSIGN_OR_RETURN(std::string text, entry.as_string());
  if (text.empty() || text.size() > kMaxRuleBytes) {
    return corrupt_data(entry.where() + ": a pattern of " + std::to_string(text.size()) + " bytes");
  }
  return text;
}

void strip_linear_suffix(std::string& text) {
  constexpr std::string_view kSuffix = ".linear";
  if (text.size() > kSuffix.size() && text.ends_with(kSuffix)) {
    text.resize(text.size() - kSuffix.size());
  }
}

Result<std::shared_ptr<const void>> compile(const std::string& pattern, const JsonRef& entry) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                       PCRE2_ANCHORED, &code, &offset, nullptr);
  if (compiled == nullptr) {
    std::array<PCRE2_UCHAR, 200> message{};
    pcre2_get_error_message(code, message.data(), message.size());
    return corrupt_data(
        entry.where() + ": \"" + pattern.substr(0, 100) + "\" is not a valid regular expression: " +
        reinterpret_cast<const char*>(message.data()) + " at byte " + std::to_string(offset));
  }
  return std::shared_ptr<const void>(compiled, [](const void* p) {
    pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p)));
  });
}

// The name under which a fused file would hold this module, or "".
std::string fused_name(std::string_view module) {
  struct Part {
    std::string_view part, fused;
  };
  constexpr std::array<Part, 5> kParts{{{".q_proj", ".qkv_proj"},
                                        {".k_proj", ".qkv_proj"},
                                        {".v_proj", ".qkv_proj"},
                                        {".gate_proj", ".gate_up_proj"},
                                        {".up_proj", ".gate_up_proj"}}};
  for (const Part& p : kParts) {
    if (module.ends_with(p.part)) {
      return std::string(module.substr(0, module.size() - p.part.size())) + std::string(p.fused);
    }
  }
  return {};
}

}  // namespace

Result<NameRule> NameRule::modelopt(const JsonRef& entry) {
  NameRule out;
  out.where_ = entry.where();
  SUB8_ASSIGN_OR_RETURN(out.text_, rule_text(entry));
  strip_linear_suffix(out.text_);
  if (out.text_.find('[') != std::string::npos) {
    return unsupported(entry.where() + ": character sets in name patterns are not supported");
  }
  out.kind_ =
      out.text_.find_first_of("*?") == std::string::npos ? Kind::kComponents : Kind::kWildcard;
  return out;
}

Result<NameRule> NameRule::compressed_tensors(const JsonRef& entry) {
  NameRule out;
  out.where_ = entry.where();
  SUB8_ASSIGN_OR_RETURN(out.text_, rule_text(entry));
  if (out.text_.starts_with("re:")) {
    out.kind_ = Kind::kRegex;
    SUB8_ASSIGN_OR_RETURN(out.regex_, compile(out.text_.substr(3), entry));
    return out;
  }
  if (out.text_ == "Linear") {
    out.kind_ = Kind::kLinearClass;
  } else if (out.text_ == "Embedding") {
    out.kind_ = Kind::kEmbeddingClass;
  } else if (out.text_[0] >= 'A' && out.text_[0] <= 'Z' &&
             out.text_.find('.') == std::string::npos) {
    return unsupported(entry.where() + ": module class \"" + out.text_.substr(0, 60) +
                       "\" is not supported; sub8 knows Linear and Embedding");
  } else {
    strip_linear_suffix(out.text_);
  }
  return out;
}

Result<bool> NameRule::matches(std::string_view module, bool is_linear) const {
  SUB8_ASSIGN_OR_RETURN(const bool direct, matches_one(module, is_linear));
  if (direct) return true;
  const std::string fused = fused_name(module);
  return fused.empty() ? Result<bool>(false) : matches_one(fused, is_linear);
}

Result<bool> NameRule::matches_one(std::string_view name, bool is_linear) const {
  switch (kind_) {
    case Kind::kLinearClass:
      return is_linear;
    case Kind::kEmbeddingClass:
      return !is_linear;
    case Kind::kExact:
      return name == text_;
    case Kind::kComponents:
      return has_components(name, text_);
    case Kind::kWildcard:
      return wildcard_match(text_, name);
    case Kind::kRegex:
      break;
  }
  struct Free {
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  };
  const auto* code = static_cast<const pcre2_code*>(regex_.get());
  const std::unique_ptr<pcre2_match_data, Free> data(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const std::unique_ptr<pcre2_match_context, Free> limits(pcre2_match_context_create(nullptr));
  if (!data || !limits) return resource_exhausted("out of memory while matching module names");
  pcre2_set_match_limit(limits.get(), 100000);
  pcre2_set_heap_limit(limits.get(), 20000);  // KiB
  const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                                data.get(), limits.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return corrupt_data(where_ + ": the regular expression is too expensive to match \"" +
                      std::string(name.substr(0, 100)) + "\"");
}

}  // namespace sub8::checkpoint
