// Structured output with the real library, where the Python environment of the tests has it: what
// grammars allow, what hostile ones cost, and what is left when processes die.
#include "server/grammar_pool.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "server/grammar_worker.h"

namespace sub8::server {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

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

// Processes that `parent` started and that have not ended.
std::set<pid_t> children(pid_t parent) {
  std::set<pid_t> out;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); }))
      continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);
    // "pid (name) state ppid ...", where the name may hold anything.
    const size_t end = line.rfind(')');
    char state = 'X';
    pid_t ppid = 0;
    if (end == std::string::npos ||
        std::sscanf(line.c_str() + end + 1, " %c %d", &state, &ppid) != 2)
      continue;
    if (ppid == parent && state != 'Z') out.insert(std::stoi(name));
  }
  return out;
}

int open_descriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

template <class F>
bool eventually(F&& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

class GrammarPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = std::string(SUB8_TEST_DATA) + "/models/llama-chat/";
    tokenizer_ = std::move(Tokenizer::from_json(read_file(dir + "tokenizer.json").value(), "t",
                                                read_file(dir + "tokenizer_config.json").value())
                               .value());
    if (packages().empty()) GTEST_SKIP() << "xgrammar is not in the tests' Python environment";
    start({});
  }
  void start(GrammarPoolOptions options, int64_t memory_bytes = int64_t{512} << 20) {
    compiler_.reset();
    options.host = {SUB8_BINARY, {kGrammarWorkerVerb}};
    grammar::Vocabulary vocabulary =
        grammar::make_vocabulary(packages(), *tokenizer_, kVocabulary, {end()});
    vocabulary.memory_bytes = memory_bytes;
    auto opened = GrammarPool::start(vocabulary, options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    compiler_ = std::move(*opened);
  }
  int32_t end() const { return *tokenizer_->special_ids().eos; }
  pid_t host() const {
    const std::set<pid_t> hosts = children(::getpid());
    EXPECT_EQ(hosts.size(), 1u);
    return hosts.empty() ? -1 : *hosts.begin();
  }

  std::unique_ptr<engine::TokenConstraint> constraint(const GrammarSpec& spec) {
    auto factory = compiler_->compile(spec);
    EXPECT_TRUE(factory.ok()) << factory.error().message;
    return (*factory)(0).value();
  }
  static GrammarSpec regex(std::string text) {
    return {GrammarSpec::Kind::kRegex, std::move(text)};
  }
  // Which tokens may come next.
  static std::vector<bool> allowed(engine::TokenConstraint& constraint) {
    std::vector<uint32_t> words((kVocabulary + 31) / 32, ~0u);
    const Result<bool> ready = constraint.ready(20s);
    EXPECT_TRUE(ready.ok() && *ready) << (ready.ok() ? "late" : ready.error().message);
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
  std::unique_ptr<GrammarPool> compiler_;
};

TEST_F(GrammarPoolTest, RegexIsFollowedToTheEnd) {
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

TEST_F(GrammarPoolTest, SpecialAndMissingTokensAreNeverAllowed) {
  const auto c = constraint({GrammarSpec::Kind::kRegex, ".*"});
  const std::vector<bool> mask = allowed(*c);
  for (int64_t id = 0; id < kVocabulary; ++id) {
    const bool special =
        id >= tokenizer_->vocab_size() || tokenizer_->is_special(static_cast<int32_t>(id));
    EXPECT_FALSE(special && id != end() && mask[static_cast<size_t>(id)]) << id;
  }
}

TEST_F(GrammarPoolTest, JsonObjectsAndSchemas) {
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

TEST_F(GrammarPoolTest, GrammarsAndChoices) {
  const auto c = constraint({GrammarSpec::Kind::kEbnf, choice_grammar({"yes", "n\"o"})});
  EXPECT_EQ(follow(*c, "n\"ox"), "n\"o");
  const auto own = constraint({GrammarSpec::Kind::kEbnf, "root ::= \"a\" root | \"b\""});
  EXPECT_EQ(follow(*own, "aaab"), "aaab");
}

TEST_F(GrammarPoolTest, ChoicesOfOneRequestAreIndependent) {
  const auto factory = compiler_->compile({GrammarSpec::Kind::kRegex, "ab"}).value();
  const auto first = factory(0).value();
  const auto second = factory(1).value();
  EXPECT_EQ(follow(*first, "ab"), "ab");
  EXPECT_EQ(follow(*second, "ab"), "ab");
}

TEST_F(GrammarPoolTest, BadGrammarsAreTheClientsFault) {
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

TEST_F(GrammarPoolTest, TheConstraintOutlivesTheCompiler) {
  const auto c = constraint({GrammarSpec::Kind::kRegex, "ab"});
  compiler_.reset();
  EXPECT_EQ(follow(*c, "ab"), "ab");
}

TEST_F(GrammarPoolTest, RequestsWithTheSameGrammarShareItsProcess) {
  EXPECT_FALSE(compiler_->find(regex("ab")).has_value());
  const auto first = constraint(regex("ab"));
  const auto second = constraint(regex("ab"));
  const auto known = compiler_->find(regex("ab"));
  ASSERT_TRUE(known.has_value());
  const auto third = (*known)(0).value();
  EXPECT_EQ(children(host()).size(), 1u);
  for (const auto* c : {&first, &second, &third}) EXPECT_EQ(follow(**c, "ab"), "ab");
  const auto other = constraint({GrammarSpec::Kind::kEbnf, "root ::= \"ab\""});
  EXPECT_EQ(children(host()).size(), 2u);
}

TEST_F(GrammarPoolTest, TheLeastRecentlyUsedMakesRoom) {
  GrammarPoolOptions options;
  options.max_processes = 2;
  start(options);
  auto a = constraint(regex("a"));
  auto b = constraint(regex("b"));
  const auto refused = compiler_->compile(regex("c"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  a.reset();
  b.reset();
  EXPECT_TRUE(compiler_->find(regex("a")).has_value());
  const auto c = constraint(regex("c"));
  EXPECT_TRUE(compiler_->find(regex("a")).has_value());
  EXPECT_FALSE(compiler_->find(regex("b")).has_value());
  EXPECT_TRUE(eventually([&] { return children(host()).size() == 2; }));
}

TEST_F(GrammarPoolTest, CompilingHasATimeLimit) {
  GrammarPoolOptions options;
  options.timeout = 300ms;
  start(options);
  std::string text;
  for (int i = 0; i < 8000; ++i) text += "a?";
  const auto begin = Clock::now();
  auto second = std::async(std::launch::async, [&] { return compiler_->compile(regex(text)); });
  for (const auto& out : {compiler_->compile(regex(text)), second.get()}) {
    ASSERT_FALSE(out.ok());
    EXPECT_EQ(out.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(out.error().message.find("more than 0.3 s"), std::string::npos)
        << out.error().message;
  }
  EXPECT_LT(Clock::now() - begin, 20s);
  EXPECT_TRUE(eventually([&] { return children(host()).empty(); }));
  EXPECT_EQ(follow(*constraint(regex("ab")), "ab"), "ab");
}

TEST_F(GrammarPoolTest, WhatMayComeNextHasATimeLimit) {
  GrammarPoolOptions options;
  options.timeout = 2s;
  start(options);
  const auto factory = compiler_->compile(regex("a*")).value();
  const auto slow = factory(0).value();
  const auto same = factory(1).value();
  EXPECT_EQ(follow(*slow, "aa"), "aa");
  EXPECT_EQ(follow(*same, "a"), "a");
  // From here on it computes for ever, as far as anybody can tell.
  const std::set<pid_t> grammars = children(host());
  ASSERT_EQ(grammars.size(), 1u);
  ASSERT_EQ(::kill(*grammars.begin(), SIGSTOP), 0);
  const auto begin = Clock::now();  // the time runs from the token on
  EXPECT_TRUE(slow->accept(tokenizer_->encode("a", {false, false}).value().at(0)).ok());
  Result<bool> ready = slow->ready(0us);
  EXPECT_LT(Clock::now() - begin, 1s);  // the engine's thread goes on
  EXPECT_TRUE(ready.ok() && !*ready);
  while (ready.ok() && !*ready && Clock::now() - begin < 60s) ready = slow->ready(10ms);
  EXPECT_GE(Clock::now() - begin, 2s);
  ASSERT_FALSE(ready.ok());
  EXPECT_EQ(ready.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(ready.error().message.find("simplify"), std::string::npos);
  EXPECT_TRUE(same->accept(1).ok());  // nothing more happens
  EXPECT_FALSE(same->ready(1s).ok());
  EXPECT_TRUE(eventually([&] { return children(host()).empty(); }));
  EXPECT_EQ(follow(*constraint(regex("a*")), "aa"), "aa");
}

TEST_F(GrammarPoolTest, MemoryHasALimit) {
  GrammarPoolOptions options;
  options.timeout = 120s;
  start(options, int64_t{32} << 20);
  std::string text;
  for (int i = 0; i < 16000; ++i) text += "a?";
  const auto out = compiler_->compile(regex(text));
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code, ErrorCode::kInvalidArgument) << out.error().message;
  EXPECT_EQ(follow(*constraint(regex("ab")), "ab"), "ab");
}

TEST_F(GrammarPoolTest, AKilledProcessEndsItsTextsAndNoOthers) {
  const auto a = constraint(regex("a*"));
  EXPECT_EQ(follow(*a, "aa"), "aa");
  const std::set<pid_t> before = children(host());
  ASSERT_EQ(before.size(), 1u);
  const auto b = constraint(regex("b*"));
  ASSERT_EQ(::kill(*before.begin(), SIGKILL), 0);
  Result<bool> ready = true;
  EXPECT_TRUE(eventually([&] {
    (void)a->accept(tokenizer_->encode("a", {false, false}).value().at(0));
    ready = a->ready(10ms);
    return !ready.ok();
  }));
  EXPECT_EQ(ready.error().code, ErrorCode::kInternal);
  EXPECT_EQ(follow(*b, "bb"), "bb");
  // Nobody is left with the dead one.
  EXPECT_FALSE(compiler_->find(regex("a*")).has_value());
  EXPECT_EQ(follow(*constraint(regex("a*")), "aa"), "aa");
  EXPECT_EQ(children(host()).size(), 2u);
}

TEST_F(GrammarPoolTest, AKilledHostIsStartedAgain) {
  const auto a = constraint(regex("a*"));
  const pid_t first = host();
  const std::set<pid_t> orphans = children(first);
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  EXPECT_EQ(follow(*constraint(regex("b*")), "bb"), "bb");
  EXPECT_NE(host(), first);
  EXPECT_TRUE(a->accept(tokenizer_->encode("a", {false, false}).value().at(0)).ok());
  EXPECT_TRUE(eventually([&] { return !a->ready(10ms).ok(); }));
  for (const pid_t orphan : orphans)
    EXPECT_TRUE(
        eventually([&] { return !fs::exists(fs::path("/proc") / std::to_string(orphan)); }));
  EXPECT_EQ(follow(*constraint(regex("a*")), "aa"), "aa");
}

TEST_F(GrammarPoolTest, SignalsThatEndTheServerDoNotEndWhatRepliesNeed) {
  const auto a = constraint(regex("a*"));
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    for (const pid_t child : children(host())) ::kill(child, signal);
    ::kill(host(), signal);
  }
  EXPECT_EQ(follow(*a, "aa"), "aa");
  EXPECT_EQ(follow(*constraint(regex("b*")), "bb"), "bb");
}

TEST_F(GrammarPoolTest, NothingIsLeftBehind) {
  compiler_.reset();
  const int before = open_descriptors();
  for (int round = 0; round < 3; ++round) {
    start({});
    const auto a = constraint(regex("a*"));
    const auto b = constraint(regex("b*"));
    EXPECT_EQ(follow(*a, "aa"), "aa");
    const pid_t first = host();
    const std::set<pid_t> grammars = children(first);
    EXPECT_EQ(grammars.size(), 2u);
    // The last one that holds it may be a text.
    compiler_.reset();
    EXPECT_EQ(follow(*b, "bb"), "bb");
  }
  EXPECT_TRUE(eventually([&] { return children(::getpid()).empty(); }));
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(GrammarPoolTest, StoppingEndsCompilationsSoon) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += "a?";
  auto slow = std::async(std::launch::async, [&] { return compiler_->compile(regex(text)); });
  ASSERT_TRUE(eventually([&] { return children(host()).size() == 1; }));
  const auto begin = Clock::now();
  compiler_->stop();
  const auto out = slow.get();
  EXPECT_LT(Clock::now() - begin, 5s);
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(compiler_->compile(regex("a")).error().code, ErrorCode::kCancelled);
}

TEST(GrammarPool, AFolderWithoutXGrammarIsNamed) {
  const std::string dir = std::string(SUB8_TEST_DATA) + "/models/llama-chat/";
  const auto tokenizer =
      std::move(Tokenizer::from_json(read_file(dir + "tokenizer.json").value(), "t").value());
  GrammarPoolOptions options;
  options.host = {SUB8_BINARY, {kGrammarWorkerVerb}};
  const auto out = GrammarPool::start(
      grammar::make_vocabulary("/no/such/folder", *tokenizer, 300, {1}), options);
  ASSERT_FALSE(out.ok());
  EXPECT_NE(out.error().message.find("/no/such/folder"), std::string::npos);
  options.host = {"/no/such/program", {}};
  EXPECT_NE(GrammarPool::start(grammar::make_vocabulary("/", *tokenizer, 300, {1}), options)
                .error()
                .message.find("/no/such/program"),
            std::string::npos);
  options.host = {"/bin/true", {}};
  EXPECT_NE(GrammarPool::start(grammar::make_vocabulary("/", *tokenizer, 300, {1}), options)
                .error()
                .message.find("ended"),
            std::string::npos);
}

TEST(GrammarPool, VocabulariesTravelWhole) {
  grammar::Vocabulary in{"/a", 7, 5, {3, 4}, {"a", "", std::string("\0\xff", 2)}};
  const std::string bytes = in.to_bytes();
  const auto out = grammar::Vocabulary::from_bytes(bytes);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->packages, in.packages);
  EXPECT_EQ(out->memory_bytes, in.memory_bytes);
  EXPECT_EQ(out->vocab_size, in.vocab_size);
  EXPECT_EQ(out->end_ids, in.end_ids);
  EXPECT_EQ(out->tokens, in.tokens);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(grammar::Vocabulary::from_bytes(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(grammar::Vocabulary::from_bytes(bytes + "x").ok());
}

}  // namespace
}  // namespace sub8::server
