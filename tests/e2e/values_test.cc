// Option values, numbers in files and names that make no sense: refused by name, or written so that
// others can read them.
#include <boost/json.hpp>

#include "program.h"

namespace sub8 {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

class Values : public Cli {
 protected:
  void write(const fs::path& path, const std::string& text) {
    std::ofstream(dir_ / path, std::ios::binary) << text;
  }
};

TEST_F(Values, OptionsAreNotChangedOrDropped) {
  const std::pair<const char*, const char*> cases[] = {{"--seed", "-1"},
                                                       {"--seed", "18446744073709551616"},
                                                       {"--seed", "010"},
                                                       {"--seed", "0x10"},
                                                       {"--top-k", "99999999999999999999"},
                                                       {"--top-k", "010"},
                                                       {"--max-tokens", "99999999999999999999"},
                                                       {"--threads", "01"},
                                                       {"--prefill-ratio", "nan"},
                                                       {"--temperature", "nan"},
                                                       {"--top-p", "inf"},
                                                       {"--weights", "''"},
                                                       {"--weights", "e2m1:g32:g64"},
                                                       {"--weights", "e2m1:tensor:none:channel"},
                                                       {"--lm-head", "''"},
                                                       {"--kv-cache-dtype", "''"}};
  for (const auto& [name, value] : cases) {
    const Outcome got = run(fmt::format("run '{}' --raw --prompt a --max-tokens 1 {} {}",
                                        model("llama-chat"), name, value));
    EXPECT_EQ(got.status, 2) << name << " " << value << "\n" << got.err;
    EXPECT_SAYS(got.err, name);
  }
  const Outcome largest =
      run(fmt::format("run '{}' --raw --prompt a --max-tokens 1 --json --seed 18446744073709551615",
                      model("llama-chat")));
  ASSERT_EQ(largest.status, 0) << largest.err;
  EXPECT_EQ(json::parse(largest.out).at("seed").to_number<uint64_t>(), UINT64_MAX);
  EXPECT_SAYS(run("bench linear --seconds nan").err, "--seconds");
  EXPECT_SAYS(run("bench linear --rows 1,08").err, "--rows");
  EXPECT_SAYS(run("serve x --kv-memory 010MB").err, "--kv-memory");
  // Beyond what a signed 64-bit number holds, and beyond 64 bits.
  for (const char* size : {"18446744073709551615", "9223372036854775808", "16EB", "2EB", "-1"})
    EXPECT_SAYS(run(fmt::format("serve x --kv-memory {}", size)).err, "--kv-memory");
  const Outcome dropped =
      run(fmt::format("run '{}' --raw --prompt a --four-over-six", model("llama-chat")));
  EXPECT_EQ(dropped.status, 2);
  EXPECT_SAYS(dropped.err, "--four-over-six");
}

TEST_F(Values, ReportsReplaceNoInputAndNoOtherReport) {
  const std::string text(400, 'a');
  write("text.txt", text);
  fs::copy(model("llama-chat"), dir_ / "m");
  fs::create_symlink("text.txt", dir_ / "link");
  const std::string eval = "eval m --text text.txt --window 32 --max-windows 1 ";
  for (const char* output : {"--json text.txt", "--json ./m/../text.txt", "--plot link",
                             "--json m/config.json", "--json r.json --plot ./r.json"}) {
    const Outcome got = run(eval + output);
    EXPECT_EQ(got.status, 2) << output << got.err;
  }
  EXPECT_EQ(read_all(dir_ / "text.txt"), text);
  EXPECT_FALSE(fs::exists(dir_ / "r.json"));
  EXPECT_SAYS(run(eval + "--json text.txt").err, "would replace the input of --text");
  EXPECT_SAYS(run(eval + "--json m/config.json").err, "would replace a file of MODEL");
  EXPECT_EQ(run(eval + "--json m/new.json").status, 0);
  EXPECT_SAYS(run("quantize m q --weights e3m2 --json m/model.safetensors").err, "of IN");
}

TEST_F(Values, SweepsSayWhatTheyMean) {
  write("text.txt", std::string(400, 'a'));
  for (const char* sweep :
       {"''", "original+head", "original+4/6", "nvfp4+plain+residue", "nvfp4+head+head",
        "nvfp4+residue+ratio=0.5+ratio=1", "nvfp4+residue+ratio=nan", "nvfp4+residue+ratio=2",
        "nvfp4,", ",nvfp4", "nvfp4,,e3m2", "+plain", "nvfp4+"}) {
    const Outcome got = run(fmt::format("eval '{}' --text text.txt --window 16 --sweep {}",
                                        model("llama-chat"), sweep));
    EXPECT_EQ(got.status, 2) << sweep << "\n" << got.err;
    EXPECT_SAYS(got.err, "--sweep");
  }
}

// A model whose configuration lets its logits overflow.
TEST_F(Values, LogitsThatAreNoNumbersAreCorruptData) {
  const fs::path path = copy("llama-chat");
  std::string weights = read_all(path / "model.safetensors");
  const uint64_t header = *reinterpret_cast<const uint64_t*>(weights.data());
  const json::value tensors = json::parse(weights.substr(8, header));
  const json::value& norm = tensors.at("model.norm.weight");
  ASSERT_EQ(norm.at("dtype"), "BF16");
  const auto begin = norm.at("data_offsets").at(0).to_number<size_t>();
  const auto end = norm.at("data_offsets").at(1).to_number<size_t>();
  for (size_t at = 8 + header + begin; at < 8 + header + end; at += 2) {
    weights[at] = '\x7f';  // 3.4e38
    weights[at + 1] = '\x7f';
  }
  write(path / "model.safetensors", weights);
  write("text.txt", std::string(400, 'a'));
  const Outcome scored = run("eval llama-chat --text text.txt --window 16 --json -");
  EXPECT_EQ(scored.status, 4) << scored.out;
  EXPECT_TRUE(scored.out.empty());
  EXPECT_SAYS(scored.err, "window 0");
  EXPECT_SAYS(scored.err, "out of range");
  const Outcome answered = run("run llama-chat --raw --prompt a --max-tokens 1");
  EXPECT_EQ(answered.status, 4);
  EXPECT_SAYS(answered.err, "out of range");
}

TEST_F(Values, NamesThatAreNoTextGiveValidJsonAndSvg) {
  const std::string name = "mod\xff\xc3";
  fs::copy(model("llama-chat"), dir_ / name, fs::copy_options::recursive);
  write("te\xfext", std::string(400, 'a'));
  const auto replaced = [](const std::string& text) {
    EXPECT_SAYS(text, "mod\xef\xbf\xbd\xef\xbf\xbd");
    for (const char* bad : {"\xff", "\xfe", "\xc3"})
      EXPECT_EQ(text.find(bad), std::string::npos) << text;
  };
  const Outcome scored = run(fmt::format(
      "eval '{}' --text 'te\xfext' --window 16 --max-windows 1 --json - --plot p.svg", name));
  ASSERT_EQ(scored.status, 0) << scored.err;
  replaced(scored.out);
  replaced(read_all(dir_ / "p.svg"));
  ASSERT_EQ(run(fmt::format("quantize '{}' out --weights e3m2", name)).status, 0);
  replaced(read_all(dir_ / "out/sub8/provenance.json"));
}

}  // namespace
}  // namespace sub8
