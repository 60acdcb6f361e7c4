#include "server/xgrammar.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include "server/tvm_ffi.h"

namespace sub8::server {

namespace {

// The functions of the library, and the compiler for one vocabulary.
struct Bindings {
  explicit Bindings(ffi::Library ffi_library) : library(ffi_library) {}
  ffi::Library library;
  ffi::Raw compile_schema, compile_regex, compile_ebnf;
  ffi::Raw make_matcher, fill_mask, accept, is_terminated;
  std::vector<int32_t> end_ids;
  ffi::Value compiler;
};

constexpr int kMaxWhitespace = 16;  // between JSON tokens; a model may not fill its answer with it

class FfiMatcher final : public XGrammar::Matcher {
 public:
  FfiMatcher(const Bindings& x, ffi::Value matcher) : x_(x), matcher_(std::move(matcher)) {}

  Status fill(std::span<uint32_t> allowed) override {
    std::fill(allowed.begin(), allowed.end(), ~uint32_t{0});
    if (terminated_) {
      // Only reached when end tokens do not end the answer.
      std::fill(allowed.begin(), allowed.end(), 0);
      for (const int32_t id : x_.end_ids)
        allowed[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
      return {};
    }
    int64_t shape = static_cast<int64_t>(allowed.size());
    int64_t stride = 1;
    const ffi::Tensor mask{allowed.data(), 1, 0, 1, 0, 32, 1, &shape, &stride, 0};
    const ffi::Raw arguments[] = {matcher_.raw(), ffi::tensor(&mask), ffi::integer(0),
                                  ffi::boolean(false)};
    const Result<ffi::Value> filled = x_.library.call(x_.fill_mask, arguments);
    if (!filled.ok()) return internal_error("xgrammar: " + filled.error().message);
    return {};
  }

  Status accept(int32_t token) override {
    if (terminated_) return {};
    const ffi::Raw arguments[] = {matcher_.raw(), ffi::integer(token), ffi::boolean(false)};
    const Result<ffi::Value> accepted = x_.library.call(x_.accept, arguments);
    if (!accepted.ok()) return internal_error("xgrammar: " + accepted.error().message);
    if (accepted->raw().integer == 0)
      return internal_error(fmt::format("xgrammar: token {} does not fit the grammar", token));
    const ffi::Raw self[] = {matcher_.raw()};
    const Result<ffi::Value> over = x_.library.call(x_.is_terminated, self);
    if (!over.ok()) return internal_error("xgrammar: " + over.error().message);
    terminated_ = over->raw().integer != 0;
    return {};
  }

 private:
  const Bindings& x_;
  ffi::Value matcher_;
  bool terminated_ = false;
};

class FfiGrammar final : public XGrammar::Grammar {
 public:
  FfiGrammar(const Bindings& x, ffi::Value compiled) : x_(x), compiled_(std::move(compiled)) {}

  Result<std::unique_ptr<XGrammar::Matcher>> matcher() const override {
    const ffi::Raw arguments[] = {compiled_.raw(), ffi::none(), ffi::boolean(false),
                                  ffi::integer(-1), ffi::none()};
    SUB8_ASSIGN_OR_RETURN(ffi::Value made, x_.library.call(x_.make_matcher, arguments));
    return std::unique_ptr<XGrammar::Matcher>(std::make_unique<FfiMatcher>(x_, std::move(made)));
  }

 private:
  const Bindings& x_;
  ffi::Value compiled_;
};

// The library puts the time and its own source line in front: "[11:51:17] /a/b.cc:94: what".
std::string_view without_source(std::string_view message) {
  if (!message.starts_with('[')) return message;
  const size_t path = message.find("] /");
  const size_t end = path == std::string_view::npos ? path : message.find(": ", path);
  return end == std::string_view::npos ? message : message.substr(end + 2);
}

Result<ffi::Value> run(const Bindings& x, const GrammarSpec& spec) {
  const std::string_view any_object = R"({"type": "object"})";
  const std::string_view text = spec.kind == GrammarSpec::Kind::kJson ? any_object : spec.text;
  SUB8_ASSIGN_OR_RETURN(const ffi::Value given, x.library.make_string(text));
  const ffi::Raw self = x.compiler.raw();
  switch (spec.kind) {
    case GrammarSpec::Kind::kRegex: {
      const ffi::Raw arguments[] = {self, given.raw()};
      return x.library.call(x.compile_regex, arguments);
    }
    case GrammarSpec::Kind::kEbnf: {
      SUB8_ASSIGN_OR_RETURN(const ffi::Value root, x.library.make_string("root"));
      const ffi::Raw arguments[] = {self, given.raw(), root.raw()};
      return x.library.call(x.compile_ebnf, arguments);
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
  return x.library.call(x.compile_schema, arguments);
}

Result<ffi::Value> make_array(const ffi::Library& library, std::span<const ffi::Raw> elements) {
  SUB8_ASSIGN_OR_RETURN(const ffi::Value array, library.global("ffi.Array"));
  return library.call(array.raw(), elements);
}

Result<ffi::Value> make_tokens(const ffi::Library& library,
                               const std::vector<std::string>& tokens) {
  std::vector<ffi::Value> owners;
  std::vector<ffi::Raw> elements;
  for (const std::string& text : tokens) {
    SUB8_ASSIGN_OR_RETURN(ffi::Value token, library.make_bytes(text));
    elements.push_back(token.raw());
    owners.push_back(std::move(token));
  }
  return make_array(library, elements);
}

Status make_compiler(Bindings& x, const grammar::Vocabulary& from) {
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
  SUB8_ASSIGN_OR_RETURN(const ffi::Value vocabulary, make_tokens(x.library, from.tokens));
  std::vector<ffi::Raw> ends;
  for (const int32_t id : x.end_ids) ends.push_back(ffi::integer(id));
  SUB8_ASSIGN_OR_RETURN(const ffi::Value end_ids, make_array(x.library, ends));
  constexpr int kRawVocabulary = 0;
  const ffi::Raw info_arguments[] = {vocabulary.raw(), ffi::integer(kRawVocabulary),
                                     ffi::integer(from.vocab_size), end_ids.raw(),
                                     ffi::boolean(false)};
  SUB8_ASSIGN_OR_RETURN(const ffi::Value info, x.library.call(make_info, info_arguments));
  // One thread, since the process forks; and no cache, since each child compiles once.
  const ffi::Raw compiler_arguments[] = {info.raw(), ffi::integer(1), ffi::boolean(false),
                                         ffi::integer(-1), ffi::boolean(false)};
  SUB8_ASSIGN_OR_RETURN(x.compiler, x.library.call(make_grammar_compiler, compiler_arguments));
  return {};
}

}  // namespace

struct XGrammar::Impl {
  Bindings bindings;
};

XGrammar::XGrammar(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
XGrammar::~XGrammar() = default;

Result<std::unique_ptr<XGrammar>> XGrammar::open(const grammar::Vocabulary& vocabulary) {
  const std::filesystem::path packages = vocabulary.packages;
  SUB8_ASSIGN_OR_RETURN(ffi::Library library,
                        ffi::Library::open(packages / "tvm_ffi/lib/libtvm_ffi.so"));
  const std::filesystem::path bindings = packages / "xgrammar/libxgrammar_bindings.so";
  if (::dlopen(bindings.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* reason = ::dlerror();
    return not_found(fmt::format("could not load {}: {}", bindings.string(),
                                 reason == nullptr ? "unknown reason" : reason));
  }
  auto impl = std::make_unique<Impl>(Impl{Bindings(library)});
  impl->bindings.end_ids = vocabulary.end_ids;
  SUB8_RETURN_IF_ERROR(make_compiler(impl->bindings, vocabulary));
  return std::unique_ptr<XGrammar>(new XGrammar(std::move(impl)));
}

Result<std::unique_ptr<XGrammar::Grammar>> XGrammar::compile(const GrammarSpec& spec) const {
  Result<ffi::Value> compiled = run(impl_->bindings, spec);
  if (!compiled.ok()) {
    return invalid_argument(
        fmt::format("the grammar is not usable: {}", without_source(compiled.error().message)));
  }
  return std::unique_ptr<Grammar>(
      std::make_unique<FfiGrammar>(impl_->bindings, std::move(*compiled)));
}

}  // namespace sub8::server
