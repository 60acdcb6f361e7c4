#include "text/tokenizer.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "base/json.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace sub8 {
namespace {

std::unique_ptr<Tokenizer> load(const std::string& text) {
  auto tokenizer = Tokenizer::from_json(text, "t.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

std::vector<JsonRef> items(const JsonRef& json) { return json.elements().value(); }

std::vector<int32_t> ids_of(const JsonRef& json) {
  std::vector<int32_t> out;
  for (const JsonRef& id : items(json)) {
    out.push_back(static_cast<int32_t>(id.as_int(0, INT32_MAX).value()));
  }
  return out;
}

// tokenizer_golden.json holds tokenizers trained by the `tokenizers` package with its ids
// (tools/text/compare_tokenizers.py --golden).
class Golden : public testing::Test {
 protected:
  Golden() : document_(read()), root_(document_, "golden") {}
  static boost::json::value read() {
    std::ifstream file(SUB8_TEST_DATA "/text/tokenizer_golden.json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    auto parsed = parse_json(text, "golden");
    EXPECT_TRUE(parsed.ok());
    return parsed.ok() ? *parsed : boost::json::value();
  }
  std::string case_text(std::string_view name) const {
    for (const JsonRef& c : items(root_.at("cases").value())) {
      if (c.at("name")->as_string().value() == name) return c.at("tokenizer")->as_string().value();
    }
    ADD_FAILURE() << name;
    return {};
  }
  boost::json::value document_;
  JsonRef root_;
};

TEST_F(Golden, IdsAndTextEqualTheReference) {
  const auto texts = items(root_.at("texts").value());
  const auto cases = items(root_.at("cases").value());
  ASSERT_GE(cases.size(), 8u);
  for (const JsonRef& c : cases) {
    const auto first = load(c.at("tokenizer")->as_string().value());
    ASSERT_TRUE(first);
    const auto second = load(first->to_json());
    ASSERT_TRUE(second);
    EXPECT_EQ(first->to_json(), second->to_json());
    const auto ids = items(c.at("ids").value());
    const auto decoded = items(c.at("decoded").value());
    ASSERT_EQ(ids.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i].as_string().value();
      for (const Tokenizer* tokenizer : {first.get(), second.get()}) {
        const auto got = tokenizer->encode(text, {});
        ASSERT_TRUE(got.ok());
        EXPECT_EQ(*got, ids_of(ids[i]))
            << c.at("name")->as_string().value() << ": '" << text << "'";
        EncodeOptions bare;
        bare.add_special_tokens = false;
        EXPECT_EQ(tokenizer->decode(*tokenizer->encode(text, bare), false),
                  decoded[i].as_string().value());
      }
    }
  }
}

TEST_F(Golden, StreamIsTheWholeAndNeverHalfACharacter) {
  std::mt19937_64 random(7);
  for (const JsonRef& c : items(root_.at("cases").value())) {
    const auto tokenizer = load(c.at("tokenizer")->as_string().value());
    for (int round = 0; round < 300; ++round) {
      std::vector<int32_t> ids(random() % 40);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % (tokenizer->vocab_size() + 5));
      for (const bool skip : {false, true}) {
        Detokenizer stream(*tokenizer, skip);
        std::string text;
        for (const int32_t id : ids) {
          const std::string part = stream.push(id);
          ASSERT_EQ(find_invalid_utf8(part), std::string_view::npos);
          text += part;
        }
        text += stream.finish();
        ASSERT_EQ(text, tokenizer->decode(ids, skip));
        ASSERT_EQ(find_invalid_utf8(text), std::string_view::npos);
      }
    }
  }
}

TEST_F(Golden, CharactersSplitOverTokens) {  // field fault B33
  for (const char* name : {"gpt2-prefix", "llama2"}) {
    const auto tokenizer = load(case_text(name));
    const bool level = std::string_view(name) == "gpt2-prefix";
    const auto byte = [&](int b) {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", b);
      if (!level) return tokenizer->token_id(text).value();
      for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
        if (tokenizer->token_bytes(id) == std::string(1, static_cast<char>(b))) return id;
      }
      return -1;
    };
    Detokenizer stream(*tokenizer);
    EXPECT_EQ(stream.push(byte(0xf0)), "");
    EXPECT_EQ(stream.push(byte(0x9f)), "");
    EXPECT_EQ(stream.push(byte(0x98)), "");
    EXPECT_EQ(stream.push(byte(0x80)), "\xf0\x9f\x98\x80");
    EXPECT_EQ(stream.push(tokenizer->token_id("a").value()), "a");
    EXPECT_EQ(stream.push(byte(0x80)), "\xef\xbf\xbd");
    EXPECT_EQ(stream.push(tokenizer->token_id("b").value()), "b");
    EXPECT_EQ(stream.push(byte(0xc3)), "");
    EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  }
}

TEST_F(Golden, HostileLengthTakesLinearTime) {  // field fault B37
  const auto seconds = [](const Tokenizer& tokenizer, const std::string& text) {
    double best = 1e9;
    for (int i = 0; i < 2; ++i) {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_TRUE(tokenizer.encode(text, {}).ok());
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  for (const char* name : {"gpt2-prefix", "llama3", "o200k", "llama2", "gemma"}) {
    const auto tokenizer = load(case_text(name));
    for (const auto& [unit, count] : {std::pair<const char*, int>{"a", 100000},
                                      {"_", 300000},
                                      {" ", 300000},
                                      {"7", 100000},
                                      {"\xe4\xb8\xad", 100000},
                                      {"A", 100000},
                                      {"\xcc\x81", 50000},
                                      {"aB3/", 80000}}) {
      std::string text;
      for (int i = 0; i < count; ++i) text += unit;
      const double once = seconds(*tokenizer, text);
      EXPECT_LT(once, 2) << name << " " << unit;
      // Short times are noise; only what takes a while shows growth.
      if (once > 0.05) {
        EXPECT_LT(seconds(*tokenizer, text + text), once * 4) << name << " " << unit;
      }
    }
  }
}

TEST_F(Golden, ThreadsShareOneTokenizer) {
  const auto tokenizer = load(case_text("llama3"));
  const std::string text =
      "Threads don't share scratch memory, 12345 times! \xe4\xb8\xad\xe6\x96\x87";
  const auto expected = tokenizer->encode(text, {}).value();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) wrong += tokenizer->encode(text, {}).value() != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Golden, SpecialTokensAsTextAndInvalidText) {
  const auto tokenizer = load(case_text("smollm"));
  EncodeOptions literal;
  literal.parse_special = false;
  const int32_t special = tokenizer->token_id("<|eot_id|>").value();
  EXPECT_TRUE(tokenizer->is_special(special));
  EXPECT_EQ(tokenizer->encode("<|eot_id|>", {}).value(), std::vector<int32_t>{special});
  const auto ids = tokenizer->encode("<|eot_id|>", literal).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), special), 0);
  EXPECT_EQ(tokenizer->decode(ids, true), "<|eot_id|>");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{special}, true), "");
  const auto bad = tokenizer->encode("ab\xff", {});
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(bad.error().message.find("offset 2"), std::string::npos);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{-1, 1 << 30}, false), "");
}

TEST(TokenizerJson, DamageIsNamed) {
  struct Case {
    const char* json;
    ErrorCode code;
    const char* where;
  };
  const Case cases[] = {
      {"{}", ErrorCode::kCorruptData, "model"},
      {R"({"model":{"type":"WordPiece","vocab":{}}})", ErrorCode::kUnsupported, "WordPiece"},
      {R"({"model":{"type":"Unigram","vocab":[]}})", ErrorCode::kUnsupported, "Unigram"},
      {R"({"model":{"type":"BPE","vocab":[],"merges":[]}})", ErrorCode::kCorruptData,
       "$.model.vocab"},
      {R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})", ErrorCode::kCorruptData,
       "[\"a\"]"},
      {R"({"model":{"type":"BPE","vocab":{"a":99999999999},"merges":[]}})", ErrorCode::kCorruptData,
       "[\"a\"]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}})", ErrorCode::kCorruptData,
       "[\"b\"]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a x"]}})", ErrorCode::kCorruptData,
       "merges[0]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]}})", ErrorCode::kCorruptData,
       "merges[0]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}})", ErrorCode::kCorruptData,
       "merges[0]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[7]}})", ErrorCode::kCorruptData,
       "merges[0]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"u"}})",
       ErrorCode::kCorruptData, "unk_token"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.1}})",
       ErrorCode::kUnsupported, "dropout"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[],"end_of_word_suffix":"</w>"}})",
       ErrorCode::kUnsupported, "end_of_word_suffix"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[{"id":1}]})",
       ErrorCode::kCorruptData, "added_tokens[0]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[{"id":0,"content":"x"}]})",
       ErrorCode::kCorruptData, "added_tokens[0]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[{"id":1,"content":"a"}]})",
       ErrorCode::kCorruptData, "added_tokens[0]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[{"id":1,"content":"x"},{"id":1,"content":"y"}]})",
       ErrorCode::kCorruptData, "added_tokens[1]"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"normalizer":{"type":"Precompiled"}})",
       ErrorCode::kUnsupported, "Precompiled"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"UnicodeScripts"}})",
       ErrorCode::kUnsupported, "UnicodeScripts"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":{"type":"WordPiece"}})",
       ErrorCode::kUnsupported, "WordPiece"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"post_processor":{"type":"BertProcessing"}})",
       ErrorCode::kUnsupported, "BertProcessing"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"}})",
       ErrorCode::kUnsupported, "$.pre_tokenizer"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Sequence","pretokenizers":7}})",
       ErrorCode::kCorruptData, "pretokenizers"},
      {R"({"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}})", ErrorCode::kCorruptData,
       "the key \"a\" occurs twice"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"model":{}})",
       ErrorCode::kCorruptData, "the key \"model\" occurs twice"},
  };
  for (const Case& c : cases) {
    const auto got = Tokenizer::from_json(c.json, "t.json");
    ASSERT_FALSE(got.ok()) << c.json;
    EXPECT_EQ(got.error().code, c.code) << got.error().message;
    EXPECT_NE(got.error().message.find("t.json"), std::string::npos) << got.error().message;
    EXPECT_NE(got.error().message.find(c.where), std::string::npos) << got.error().message;
  }
}

// Six times a thousandfold would be 10^18 bytes.
TEST(TokenizerJson, NormalizersThatGrowWithoutBoundAreNamed) {
  std::string steps;
  for (int i = 0; i < 6; ++i) {
    steps += std::string(i == 0 ? "" : ",") +
             R"({"type":"Replace","pattern":{"String":"i"},"content":")" + std::string(1000, 'i') +
             "\"}";
  }
  const auto tokenizer = load(
      R"({"model":{"type":"BPE","vocab":{"i":0},"merges":[]},"normalizer":{"type":"Sequence",
          "normalizers":[)" +
      steps + "]}}");
  ASSERT_NE(tokenizer, nullptr);
  const auto ids = tokenizer->encode("i", {});
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(ids.error().message.find("t.json: $.normalizer.normalizers[2]: the normalizer "
                                     "\"Replace\""),
            std::string::npos)
      << ids.error().message;
  EXPECT_TRUE(tokenizer->encode("abc", {}).ok());
}

TEST(TokenizerGguf, ScoresBecomeMergesAndSpacesAreMarked) {
  GgufVocab vocab;
  vocab.source = "m.gguf";
  vocab.model = "llama";
  vocab.tokens = {"<unk>", "<s>", "</s>"};
  vocab.token_types = {2, 3, 3};
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    vocab.tokens.emplace_back(text);
    vocab.token_types.push_back(6);
  }
  for (const char* token : {"ab",
                            "\xe2\x96\x81"
                            "ab",
                            "a", "b", "\xe2\x96\x81"}) {
    vocab.tokens.emplace_back(token);
    vocab.token_types.push_back(1);
  }
  vocab.scores.assign(vocab.tokens.size(), 0);
  for (size_t i = 259; i < vocab.tokens.size(); ++i) vocab.scores[i] = -static_cast<float>(i - 259);
  vocab.bos_token_id = 1;
  vocab.eos_token_id = 2;
  vocab.unknown_token_id = 0;
  const auto made = Tokenizer::from_gguf(vocab);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Tokenizer& tokenizer = **made;
  EXPECT_EQ(tokenizer.encode("ab b", {}).value(), (std::vector<int32_t>{1, 260, 263, 262}));
  EXPECT_EQ(tokenizer.encode("", {}).value(), std::vector<int32_t>{1});
  EXPECT_EQ(tokenizer.encode("a\n", {}).value(), (std::vector<int32_t>{1, 263, 261, 3 + 10}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 260, 263, 262}, true), "ab b");
  EXPECT_EQ(tokenizer.prefix_ids(), std::vector<int32_t>{1});
  EXPECT_EQ(tokenizer.special_ids().eos, 2);
  EXPECT_EQ(load(tokenizer.to_json())->encode("<s> ab</s>a", {}).value(),
            tokenizer.encode("<s> ab</s>a", {}).value());

  GgufVocab bad = vocab;
  bad.model = "t5";
  EXPECT_EQ(Tokenizer::from_gguf(bad).error().code, ErrorCode::kUnsupported);
  bad = vocab;
  bad.model = "gpt2";
  bad.pre = "nonsense";
  EXPECT_NE(Tokenizer::from_gguf(bad).error().message.find("nonsense"), std::string::npos);
  bad = vocab;
  bad.scores.pop_back();
  EXPECT_EQ(Tokenizer::from_gguf(bad).error().code, ErrorCode::kCorruptData);
  bad = vocab;
  bad.bos_token_id = 100000;
  EXPECT_EQ(Tokenizer::from_gguf(bad).error().code, ErrorCode::kCorruptData);
  bad = vocab;
  bad.tokens[3] = "a";
  EXPECT_EQ(Tokenizer::from_gguf(bad).error().code, ErrorCode::kCorruptData);
}

}  // namespace
}  // namespace sub8
