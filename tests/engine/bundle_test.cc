// What a prompt becomes on its way to the model: template and tokenizer of one directory together.
#include "engine/bundle.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

namespace sub8::engine {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int32_t kBos = 1;  // of the fixture's tokenizer
constexpr const char* kHello = R"([{"role":"user","content":"hello"}])";

json::array messages(const char* text) { return json::parse(text).as_array(); }

// The fixture llama-chat in a directory of its own, with another template and, where `adds_bos`, a
// post-processor that puts BOS in front of what is encoded with special tokens.
class BundleTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sub8-bundle-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
    fs::copy(fs::path(SUB8_TEST_DATA) / "models/llama-chat", dir_,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  void TearDown() override { fs::remove_all(dir_); }

  void edit(const char* name, const std::function<void(json::object&)>& change) {
    json::value file = json::parse(read_file(dir_ / name).value());
    change(file.as_object());
    std::ofstream(dir_ / name, std::ios::trunc) << json::serialize(file);
  }
  Bundle make(const char* chat_template, bool adds_bos) {
    edit("tokenizer_config.json",
         [&](json::object& file) { file["chat_template"] = chat_template; });
    edit("tokenizer.json", [&](json::object& file) {
      if (!adds_bos) {
        file["post_processor"] = nullptr;
        return;
      }
      file["post_processor"] = json::parse(R"({"type":"TemplateProcessing",
          "single":[{"SpecialToken":{"id":"<|bos|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
          "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],
          "special_tokens":{"<|bos|>":{"id":"<|bos|>","ids":[1],"tokens":["<|bos|>"]}}})");
    });
    return open();
  }
  Bundle open() {
    auto source = checkpoint::open_checkpoint(dir_);
    EXPECT_TRUE(source.ok()) << (source.ok() ? "" : source.error().message);
    auto bundle = make_bundle(std::move(source).value());
    EXPECT_TRUE(bundle.ok()) << (bundle.ok() ? "" : bundle.error().message);
    return std::move(bundle).value();
  }
  static int64_t bos_count(const std::vector<int32_t>& ids) {
    return std::count(ids.begin(), ids.end(), kBos);
  }
  fs::path dir_;
};

TEST_F(BundleTest, ChatIdsEqualThoseOfTransformers) {
  const json::value reference = json::parse(read_file(dir_ / "tokenizer_reference.json").value());
  std::vector<int32_t> want;
  for (const json::value& id : reference.at("chat").at("ids").as_array()) {
    want.push_back(id.to_number<int32_t>());
  }
  EXPECT_EQ(open().chat_prompt(messages(kHello)).value(), want);
}

// Field fault B39: the template writes BOS and the tokenizer would add another. Exactly one where
// the family has one, at the front; none in a family without.
TEST_F(BundleTest, NoDoubledBos) {
  constexpr const char* kLlama3 =
      "{% for m in messages %}{% set c = '<|im_start|>' + m['role'] + '\\n\\n' + m['content'] | "
      "trim + '<|im_end|>' %}{% if loop.index0 == 0 %}{% set c = bos_token + c %}{% endif %}"
      "{{ c }}{% endfor %}";
  constexpr const char* kGemma =
      "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] "
      "+ '<|im_end|>\\n' }}{% endfor %}";
  constexpr const char* kMistral =
      "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
      "{% endfor %}";
  constexpr const char* kQwen =
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
      "'<|im_end|>\\n' }}{% endfor %}";
  for (const char* family : {kLlama3, kGemma, kMistral}) {
    const Bundle bundle = make(family, true);
    const auto ids = bundle.chat_prompt(messages(kHello)).value();
    EXPECT_EQ(bos_count(ids), 1) << family;
    EXPECT_EQ(ids.front(), kBos) << family;
    // The rendered text as a raw prompt is the same prompt.
    const auto text = bundle.tokenizer->decode(ids, false);
    EXPECT_EQ(bundle.raw_prompt(text).value(), ids) << family;
    // Plain text gets the BOS that the model wants.
    const auto plain = bundle.raw_prompt("hello").value();
    EXPECT_EQ(bos_count(plain), 1);
    EXPECT_EQ(plain.front(), kBos);
  }
  // Only a leading BOS is the tokenizer's: what the user wrote further on stays.
  const Bundle gemma = make(kGemma, true);
  EXPECT_EQ(bos_count(gemma.raw_prompt("a<|bos|>b").value()), 2);

  const Bundle qwen = make(kQwen, false);
  EXPECT_EQ(bos_count(qwen.chat_prompt(messages(kHello)).value()), 0);
  EXPECT_EQ(bos_count(qwen.raw_prompt("hello").value()), 0);
}

TEST_F(BundleTest, WithoutATemplateRawIsNamed) {
  edit("tokenizer_config.json", [](json::object& file) { file.erase("chat_template"); });
  const auto refused = open().chat_prompt(messages(kHello));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("--raw"), std::string::npos);
}

TEST_F(BundleTest, ErrorsNameTheFile) {
  const auto error = [&] {
    auto source = checkpoint::open_checkpoint(dir_);
    EXPECT_TRUE(source.ok()) << (source.ok() ? "" : source.error().message);
    const auto bundle = make_bundle(std::move(source).value());
    EXPECT_FALSE(bundle.ok());
    return bundle.ok() ? std::string() : bundle.error().message;
  };
  const auto named = [&](const std::string& file) {
    const std::string text = error();
    EXPECT_NE(text.find(dir_.string() + file), std::string::npos) << text;
  };
  edit("tokenizer_config.json", [](json::object& file) { file["bos_token"] = 7; });
  named("/tokenizer_config.json: $.bos_token");
  edit("tokenizer_config.json", [](json::object& file) {
    file["bos_token"] = nullptr;
    file["chat_template"] = "{% for %}";
  });
  named("', line 1");
  edit("tokenizer.json", [](json::object& file) { file["model"].as_object()["type"] = "Unigram"; });
  named("/tokenizer.json: $.model");
  fs::remove(dir_ / "tokenizer.json");
  named("' has no tokenizer.json");
}

TEST_F(BundleTest, ConversationsAreRenderedInOrder) {
  const Bundle bundle = make(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      false);
  const auto ids = bundle
                       .chat_prompt(messages(R"([{"role":"system","content":"Be brief."},
      {"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"},
      {"role":"user","content":"So?"}])"))
                       .value();
  EXPECT_EQ(bundle.tokenizer->decode(ids, false),
            "<system>Be brief.<user>Hi<assistant>Yo<user>So?<assistant>");
}

}  // namespace
}  // namespace sub8::engine
