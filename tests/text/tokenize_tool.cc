// Drives a Tokenizer from a script: tokenize_tool MODE MODEL < JSON, where MODEL is a
// tokenizer.json or a GGUF file.
//   encode | encode-special | encode-literal   an array of texts -> one line of ids each: bare,
//   with
//                                              what the post-processor adds, and with special
//                                              tokens taken as plain text
//   decode | stream                            an array of arrays of ids -> one JSON string each
//   json                                       no input -> the complete tokenizer.json
//   time                                       an array of texts -> ids and seconds of each
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/gguf.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sub8 {
namespace {

using checkpoint::GgufFile;

Result<GgufVocab> read_vocab(const GgufFile& file) {
  GgufVocab out;
  out.source = file.source();
  const std::string prefix = "tokenizer.ggml.";
  SUB8_ASSIGN_OR_RETURN(std::optional<std::string> model, file.get_string(prefix + "model"));
  SUB8_ASSIGN_OR_RETURN(std::optional<std::string> pre, file.get_string(prefix + "pre"));
  out.model = model.value_or("");
  out.pre = pre.value_or("");
  SUB8_ASSIGN_OR_RETURN(out.tokens, file.get_strings(prefix + "tokens"));
  if (file.has(prefix + "merges")) {
    SUB8_ASSIGN_OR_RETURN(out.merges, file.get_strings(prefix + "merges"));
  }
  if (file.has(prefix + "scores")) {
    SUB8_ASSIGN_OR_RETURN(const std::vector<double> scores, file.get_doubles(prefix + "scores"));
    for (const double score : scores) out.scores.push_back(static_cast<float>(score));
  }
  if (file.has(prefix + "token_type")) {
    SUB8_ASSIGN_OR_RETURN(const std::vector<int64_t> types,
                          file.get_ints(prefix + "token_type", 0, 100));
    out.token_types.assign(types.begin(), types.end());
  }
  const auto id = [&](const char* key, std::optional<int32_t>* to) -> Status {
    SUB8_ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                          file.get_int(prefix + key, 0, INT32_MAX));
    if (value) *to = static_cast<int32_t>(*value);
    return {};
  };
  SUB8_RETURN_IF_ERROR(id("bos_token_id", &out.bos_token_id));
  SUB8_RETURN_IF_ERROR(id("eos_token_id", &out.eos_token_id));
  SUB8_RETURN_IF_ERROR(id("unknown_token_id", &out.unknown_token_id));
  SUB8_RETURN_IF_ERROR(id("padding_token_id", &out.padding_token_id));
  SUB8_ASSIGN_OR_RETURN(out.add_bos_token, file.get_bool(prefix + "add_bos_token"));
  SUB8_ASSIGN_OR_RETURN(out.add_eos_token, file.get_bool(prefix + "add_eos_token"));
  SUB8_ASSIGN_OR_RETURN(out.add_space_prefix, file.get_bool(prefix + "add_space_prefix"));
  return out;
}

Result<std::unique_ptr<Tokenizer>> load(const std::string& path) {
  if (path.ends_with(".gguf")) {
    SUB8_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
    SUB8_ASSIGN_OR_RETURN(const GgufVocab vocab, read_vocab(file));
    return Tokenizer::from_gguf(vocab);
  }
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return Tokenizer::from_json(text, path);
}

Status run_decode(const Tokenizer& tokenizer, bool stream, const std::vector<JsonRef>& items) {
  for (const JsonRef& item : items) {
    SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> list, item.elements());
    std::vector<int32_t> ids;
    for (const JsonRef& element : list) {
      SUB8_ASSIGN_OR_RETURN(const int64_t id, element.as_int(INT32_MIN, INT32_MAX));
      ids.push_back(static_cast<int32_t>(id));
    }
    std::string text;
    if (stream) {
      Detokenizer detokenizer(tokenizer, false);
      for (const int32_t id : ids) text += detokenizer.push(id);
      text += detokenizer.finish();
    } else {
      text = tokenizer.decode(ids, false);
    }
    std::cout << boost::json::serialize(boost::json::value(text)) << "\n";
  }
  return {};
}

Status run(const std::string& mode, const std::string& path) {
  SUB8_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, load(path));
  if (mode == "json") {
    std::cout << tokenizer->to_json();
    return {};
  }
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  SUB8_ASSIGN_OR_RETURN(const boost::json::value document, parse_json(input, "stdin"));
  SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> items, JsonRef(document, "stdin").elements());
  if (mode == "decode" || mode == "stream") return run_decode(*tokenizer, mode == "stream", items);
  EncodeOptions options;
  options.add_special_tokens = mode == "encode-special";
  options.parse_special = mode != "encode-literal";
  for (const JsonRef& item : items) {
    SUB8_ASSIGN_OR_RETURN(const std::string text, item.as_string());
    const auto start = std::chrono::steady_clock::now();
    SUB8_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer->encode(text, options));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (mode == "time") {
      std::cout << ids.size() << " " << took.count() << "\n";
      continue;
    }
    std::string line;
    for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
    std::cout << line << "\n";
  }
  return {};
}

}  // namespace
}  // namespace sub8

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenize_tool MODE MODEL (see the source)\n");
    return 2;
  }
  std::ios::sync_with_stdio(false);
  const sub8::Status status = sub8::run(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::cout.flush();
  std::fprintf(stderr, "%s: %s\n", std::string(error_code_name(status.error().code)).c_str(),
               status.error().message.c_str());
  return sub8::exit_status(status.error().code);
}
