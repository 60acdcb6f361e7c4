// Structured output with the real library, where the Python environment of the tests has it.
#include "server/xgrammar.h"

#include <filesystem>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "base/file.h"

namespace sub8::server {
namespace {

namespace fs = std::filesystem;

// site-packages of the tests' environment, or "".
fs::path packages() {
  const fs::path lib = fs::path(SUB8_PYTHON_ENV) / "lib";
  if (!fs::exists(lib)) return {};
  for (const auto& entry : fs::directory_iterator(lib)) {
    if (fs::exists(entry.path() / "site-packages/xgrammar/libxgrammar_bindings.so"))
      return entry.path() / "site-packages";
  }
  return {};
}

class XGrammarTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = std::string(SUB8_TEST_DATA) + "/models/llama-chat/";
    tokenizer_ = std::move(Tokenizer::from_json(read_file(dir + "tokenizer.json").value(), "t",
                                                read_file(dir + "tokenizer_config.json").value())
                               .value());
    if (packages().empty()) GTEST_SKIP() << "xgrammar is not in the tests' Python environment";
    auto opened = open_xgrammar(packages(), *tokenizer_, kVocabulary, {end()});
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    compiler_ = std::move(*opened);
  }
  int32_t end() const { return *tokenizer_->special_ids().eos; }

  std::unique_ptr<engine::TokenConstraint> constraint(const GrammarSpec& spec) {
    auto factory = compiler_->compile(spec);
    EXPECT_TRUE(factory.ok()) << factory.error().message;
    return (*factory)(0).value();
  }
  // Which tokens may come next.
  static std::vector<bool> allowed(engine::TokenConstraint& constraint) {
    std::vector<uint32_t> words((kVocabulary + 31) / 32, ~0u);
    const Status status = constraint.restrict_next(words);
    EXPECT_TRUE(status.ok()) << status.error().message;
    std::vector<bool> out;
    for (int64_t id = 0; id < kVocabulary; ++id) out.push_back((words[id / 32] >> (id % 32)) & 1);
    return out;
  }
  // Follows `text` byte by byte as far as the grammar allows; what was accepted.
  std::string follow(engine::TokenConstraint& constraint, const std::string& text) {
    std::string out;
    for (const char c : text) {
      const int32_t id = tokenizer_->encode(std::string(1, c), {false, false}).value().at(0);
      if (!allowed(constraint)[static_cast<size_t>(id)]) break;
      EXPECT_TRUE(constraint.accept(id).ok());
      out += c;
    }
    return out;
  }

  static constexpr int64_t kVocabulary = 300;  // more than the tokenizer has, as in real models
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(XGrammarTest, RegexIsFollowedToTheEnd) {
  const auto c = constraint({GrammarSpec::Kind::kRegex, "[ab]{2}c"});
  EXPECT_FALSE(allowed(*c)[static_cast<size_t>(end())]);
  EXPECT_EQ(follow(*c, "abx"), "ab");
  EXPECT_EQ(follow(*c, "c"), "c");
  const std::vector<bool> last = allowed(*c);
  EXPECT_EQ(std::count(last.begin(), last.end(), true), 1);
  EXPECT_TRUE(last[static_cast<size_t>(end())]);
  EXPECT_TRUE(c->accept(end()).ok());
  // An engine that ignores the end token goes on asking.
  EXPECT_TRUE(allowed(*c)[static_cast<size_t>(end())]);
  EXPECT_TRUE(c->accept(end()).ok());
}

TEST_F(XGrammarTest, SpecialAndMissingTokensAreNeverAllowed) {
  const auto c = constraint({GrammarSpec::Kind::kRegex, ".*"});
  const std::vector<bool> mask = allowed(*c);
  for (int64_t id = 0; id < kVocabulary; ++id) {
    const bool special =
        id >= tokenizer_->vocab_size() || tokenizer_->is_special(static_cast<int32_t>(id));
    EXPECT_FALSE(special && id != end() && mask[static_cast<size_t>(id)]) << id;
  }
}

TEST_F(XGrammarTest, JsonObjectsAndSchemas) {
  const auto any = constraint({GrammarSpec::Kind::kJson, ""});
  EXPECT_EQ(follow(*any, "[1]"), "");
  EXPECT_EQ(follow(*any, R"({"a": [1, null]})"), R"({"a": [1, null]})");
  const auto schema =
      constraint({GrammarSpec::Kind::kJsonSchema,
                  R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})"});
  EXPECT_EQ(follow(*schema, R"({"n": 12})"), R"({"n": 12})");
  const auto wrong =
      constraint({GrammarSpec::Kind::kJsonSchema,
                  R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})"});
  EXPECT_EQ(follow(*wrong, R"({"n": "x"})"), R"({"n": )");
}

TEST_F(XGrammarTest, GrammarsAndChoices) {
  const auto c = constraint({GrammarSpec::Kind::kEbnf, choice_grammar({"yes", "n\"o"})});
  EXPECT_EQ(follow(*c, "n\"ox"), "n\"o");
  const auto own = constraint({GrammarSpec::Kind::kEbnf, "root ::= \"a\" root | \"b\""});
  EXPECT_EQ(follow(*own, "aaab"), "aaab");
}

TEST_F(XGrammarTest, ChoicesOfOneRequestAreIndependent) {
  const auto factory = compiler_->compile({GrammarSpec::Kind::kRegex, "ab"}).value();
  const auto first = factory(0).value();
  const auto second = factory(1).value();
  EXPECT_EQ(follow(*first, "ab"), "ab");
  EXPECT_EQ(follow(*second, "ab"), "ab");
}

TEST_F(XGrammarTest, BadGrammarsAreTheClientsFault) {
  for (const GrammarSpec& spec :
       {GrammarSpec{GrammarSpec::Kind::kJsonSchema, "{\"type\": 5}"},
        GrammarSpec{GrammarSpec::Kind::kJsonSchema, "{"},
        GrammarSpec{GrammarSpec::Kind::kRegex, "(("},
        GrammarSpec{GrammarSpec::Kind::kEbnf, "root ::= ("},
        GrammarSpec{GrammarSpec::Kind::kEbnf, "no_root ::= \"a\""},
        GrammarSpec{GrammarSpec::Kind::kRegex, std::string((64 << 10) + 1, 'a')}}) {
    const auto out = compiler_->compile(spec);
    ASSERT_FALSE(out.ok()) << spec.text.substr(0, 40);
    EXPECT_EQ(out.error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(out.error().message.empty());
    // Neither the time nor the library's own source file.
    EXPECT_EQ(out.error().message.find(".cc:"), std::string::npos) << out.error().message;
    EXPECT_EQ(out.error().message.find("usable: ["), std::string::npos) << out.error().message;
  }
  EXPECT_TRUE(compiler_->compile({GrammarSpec::Kind::kRegex, "a"}).ok());
}

TEST_F(XGrammarTest, TheConstraintOutlivesTheCompiler) {
  const auto c = constraint({GrammarSpec::Kind::kRegex, "ab"});
  compiler_.reset();
  EXPECT_EQ(follow(*c, "ab"), "ab");
}

TEST(XGrammar, AFolderWithoutItIsNamed) {
  const std::string dir = std::string(SUB8_TEST_DATA) + "/models/llama-chat/";
  const auto tokenizer =
      std::move(Tokenizer::from_json(read_file(dir + "tokenizer.json").value(), "t").value());
  const auto out = open_xgrammar("/no/such/folder", *tokenizer, 300, {1});
  ASSERT_FALSE(out.ok());
  EXPECT_NE(out.error().message.find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace sub8::server
