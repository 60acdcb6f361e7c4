#include "server/xgrammar.h"

#include <mutex>
#include <optional>

#include <dlfcn.h>
#include <fmt/format.h>

#include "server/tvm_ffi.h"

namespace sub8::server {

const char* const kXGrammarInstall =
    "python3 -m pip install --no-deps --target DIR xgrammar==0.2.9 apache-tvm-ffi==0.1.15.post2";

namespace {

constexpr size_t kMaxGrammarBytes = size_t{64} << 10;
constexpr int64_t kCacheBytes = int64_t{256} << 20;
constexpr int kMaxWhitespace = 16;  // between JSON tokens; a model may not fill its answer with it

// The functions of the library, and the compiler for one tokenizer. Shared with the constraints.
struct XGrammar {
  explicit XGrammar(ffi::Library ffi_library) : library(ffi_library) {}
  ffi::Library library;
  ffi::Raw compile_schema, compile_regex, compile_ebnf;
  ffi::Raw make_matcher, fill_mask, accept, is_terminated;
  std::vector<int32_t> end_ids;
  std::mutex mutex;  // for compile calls
  ffi::Value compiler;
};

class GrammarConstraint final : public engine::TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<XGrammar> shared, ffi::Value matcher)
      : shared_(std::move(shared)), matcher_(std::move(matcher)) {}

  Status restrict_next(std::span<uint32_t> allowed) override {
    if (terminated_) {
      // Only reached when end tokens do not end the answer.
      std::fill(allowed.begin(), allowed.end(), 0);
      for (const int32_t id : shared_->end_ids)
        allowed[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
      return {};
    }
    int64_t shape = static_cast<int64_t>(allowed.size());
    int64_t stride = 1;
    const ffi::Tensor mask{allowed.data(), 1, 0, 1, 0, 32, 1, &shape, &stride, 0};
    const ffi::Raw arguments[] = {matcher_.raw(), ffi::tensor(&mask), ffi::integer(0),
                                  ffi::boolean(false)};
    const Result<ffi::Value> filled = shared_->library.call(shared_->fill_mask, arguments);
    if (!filled.ok()) return internal_error("xgrammar: " + filled.error().message);
    return {};
  }

  Status accept(int32_t token) override {
    if (terminated_) return {};
    const ffi::Raw arguments[] = {matcher_.raw(), ffi::integer(token), ffi::boolean(false)};
    const Result<ffi::Value> accepted = shared_->library.call(shared_->accept, arguments);
    if (!accepted.ok()) return internal_error("xgrammar: " + accepted.error().message);
    if (accepted->raw().integer == 0)
      return internal_error(fmt::format("xgrammar: token {} does not fit the grammar", token));
    const ffi::Raw self[] = {matcher_.raw()};
    const Result<ffi::Value> over = shared_->library.call(shared_->is_terminated, self);
    if (!over.ok()) return internal_error("xgrammar: " + over.error().message);
    terminated_ = over->raw().integer != 0;
    return {};
  }

 private:
  std::shared_ptr<XGrammar> shared_;
  ffi::Value matcher_;
  bool terminated_ = false;
};

// The library puts the time and its own source line in front: "[11:51:17] /a/b.cc:94: what".
std::string_view without_source(std::string_view message) {
  if (!message.starts_with('[')) return message;
  const size_t path = message.find("] /");
  const size_t end = path == std::string_view::npos ? path : message.find(": ", path);
  return end == std::string_view::npos ? message : message.substr(end + 2);
}

class XGrammarCompiler final : public GrammarCompiler {
 public:
  explicit XGrammarCompiler(std::shared_ptr<XGrammar> shared) : shared_(std::move(shared)) {}

  Result<ConstraintFactory> compile(const GrammarSpec& spec) override {
    if (spec.text.size() > kMaxGrammarBytes) {
      return invalid_argument(fmt::format("the grammar has {} bytes, the limit is {}",
                                          spec.text.size(), kMaxGrammarBytes));
    }
    Result<ffi::Value> compiled = [&] {
      const std::lock_guard lock(shared_->mutex);
      return run(spec);
    }();
    if (!compiled.ok()) {
      return invalid_argument(
          fmt::format("the grammar is not usable: {}", without_source(compiled.error().message)));
    }
    auto grammar = std::make_shared<ffi::Value>(std::move(*compiled));
    return ConstraintFactory(
        [shared = shared_, grammar](uint32_t) -> Result<std::unique_ptr<engine::TokenConstraint>> {
          const ffi::Raw arguments[] = {grammar->raw(), ffi::none(), ffi::boolean(false),
                                        ffi::integer(-1), ffi::none()};
          SUB8_ASSIGN_OR_RETURN(ffi::Value matcher,
                                shared->library.call(shared->make_matcher, arguments));
          return std::unique_ptr<engine::TokenConstraint>(
              std::make_unique<GrammarConstraint>(shared, std::move(matcher)));
        });
  }

 private:
  Result<ffi::Value> run(const GrammarSpec& spec) {
    const std::string_view any_object = R"({"type": "object"})";
    const std::string_view text = spec.kind == GrammarSpec::Kind::kJson ? any_object : spec.text;
    SUB8_ASSIGN_OR_RETURN(const ffi::Value given, shared_->library.make_string(text));
    const ffi::Raw self = shared_->compiler.raw();
    switch (spec.kind) {
      case GrammarSpec::Kind::kRegex: {
        const ffi::Raw arguments[] = {self, given.raw()};
        return shared_->library.call(shared_->compile_regex, arguments);
      }
      case GrammarSpec::Kind::kEbnf: {
        SUB8_ASSIGN_OR_RETURN(const ffi::Value root, shared_->library.make_string("root"));
        const ffi::Raw arguments[] = {self, given.raw(), root.raw()};
        return shared_->library.call(shared_->compile_ebnf, arguments);
      }
      case GrammarSpec::Kind::kJson:
      case GrammarSpec::Kind::kJsonSchema:
        break;
    }
    // Schema, any whitespace, indent, separators, strict, most whitespace, any order of members.
    const bool strict = spec.kind == GrammarSpec::Kind::kJsonSchema;
    const ffi::Raw arguments[] = {
        self,        given.raw(),          ffi::boolean(true),           ffi::none(),
        ffi::none(), ffi::boolean(strict), ffi::integer(kMaxWhitespace), ffi::boolean(false)};
    return shared_->library.call(shared_->compile_schema, arguments);
  }

  std::shared_ptr<XGrammar> shared_;
};

Result<ffi::Value> make_array(const ffi::Library& library, std::span<const ffi::Raw> elements) {
  SUB8_ASSIGN_OR_RETURN(const ffi::Value array, library.global("ffi.Array"));
  return library.call(array.raw(), elements);
}

// What every token adds to the text. Special tokens are empty: no grammar produces them.
Result<ffi::Value> make_vocabulary(const ffi::Library& library, const Tokenizer& tokenizer) {
  std::vector<ffi::Value> tokens;
  std::vector<ffi::Raw> elements;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string text = tokenizer.is_special(id) ? std::string() : tokenizer.token_bytes(id);
    SUB8_ASSIGN_OR_RETURN(ffi::Value token, library.make_bytes(text));
    elements.push_back(token.raw());
    tokens.push_back(std::move(token));
  }
  return make_array(library, elements);
}

Status make_compiler(XGrammar& x, const Tokenizer& tokenizer, int64_t vocab_size) {
  constexpr std::string_view kPrefix = "xgrammar.tvm_ffi_binding.";
  const auto method = [&](ffi::Raw& out, std::string_view type, std::string_view name) -> Status {
    SUB8_ASSIGN_OR_RETURN(out, x.library.method(fmt::format("{}{}", kPrefix, type), name));
    return {};
  };
  ffi::Raw make_info;
  ffi::Raw make_grammar_compiler;
  SUB8_RETURN_IF_ERROR(method(make_info, "TokenizerInfo", "__ffi_init__"));
  SUB8_RETURN_IF_ERROR(method(make_grammar_compiler, "GrammarCompiler", "__ffi_init__"));
  SUB8_RETURN_IF_ERROR(method(x.compile_schema, "GrammarCompiler", "compile_json_schema"));
  SUB8_RETURN_IF_ERROR(method(x.compile_regex, "GrammarCompiler", "compile_regex"));
  SUB8_RETURN_IF_ERROR(method(x.compile_ebnf, "GrammarCompiler", "compile_grammar_from_strings"));
  SUB8_RETURN_IF_ERROR(method(x.make_matcher, "GrammarMatcher", "__ffi_init__"));
  SUB8_RETURN_IF_ERROR(method(x.fill_mask, "GrammarMatcher", "fill_next_token_bitmask"));
  SUB8_RETURN_IF_ERROR(method(x.accept, "GrammarMatcher", "accept_token"));
  SUB8_RETURN_IF_ERROR(method(x.is_terminated, "GrammarMatcher", "is_terminated"));
  SUB8_ASSIGN_OR_RETURN(const ffi::Value vocabulary, make_vocabulary(x.library, tokenizer));
  std::vector<ffi::Raw> ends;
  for (const int32_t id : x.end_ids) ends.push_back(ffi::integer(id));
  SUB8_ASSIGN_OR_RETURN(const ffi::Value end_ids, make_array(x.library, ends));
  constexpr int kRawVocabulary = 0;
  const ffi::Raw info_arguments[] = {vocabulary.raw(), ffi::integer(kRawVocabulary),
                                     ffi::integer(vocab_size), end_ids.raw(), ffi::boolean(false)};
  SUB8_ASSIGN_OR_RETURN(const ffi::Value info, x.library.call(make_info, info_arguments));
  // One thread: grammars are compiled beside running answers.
  const ffi::Raw compiler_arguments[] = {info.raw(), ffi::integer(1), ffi::boolean(true),
                                         ffi::integer(kCacheBytes), ffi::boolean(false)};
  SUB8_ASSIGN_OR_RETURN(x.compiler, x.library.call(make_grammar_compiler, compiler_arguments));
  return {};
}

}  // namespace

Result<std::unique_ptr<GrammarCompiler>> open_xgrammar(const std::filesystem::path& packages,
                                                       const Tokenizer& tokenizer,
                                                       int64_t vocab_size,
                                                       const std::vector<int32_t>& end_ids) {
  SUB8_ASSIGN_OR_RETURN(ffi::Library library,
                        ffi::Library::open(packages / "tvm_ffi/lib/libtvm_ffi.so"));
  const std::filesystem::path bindings = packages / "xgrammar/libxgrammar_bindings.so";
  if (::dlopen(bindings.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* reason = ::dlerror();
    return not_found(fmt::format("could not load {}: {}", bindings.string(),
                                 reason == nullptr ? "unknown reason" : reason));
  }
  auto shared = std::make_shared<XGrammar>(library);
  shared->end_ids = end_ids;
  SUB8_RETURN_IF_ERROR(make_compiler(*shared, tokenizer, vocab_size));
  return std::unique_ptr<GrammarCompiler>(std::make_unique<XGrammarCompiler>(std::move(shared)));
}

}  // namespace sub8::server
