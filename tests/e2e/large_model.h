// A model of any size without bytes on disk, and the program at work on it in the background.
#pragma once

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <boost/json.hpp>

#include "program.h"

namespace sub8 {

class LargeModelCli : public Cli {
 protected:
  // A one-layer Llama in bf16 of hidden x hidden matrices, all zero: a sparse file, so that it can
  // be large. Returns the bytes of its weights.
  int64_t make_large(const std::string& name, int64_t hidden, int64_t vocab = 64) {
    namespace fs = std::filesystem;
    namespace json = boost::json;
    const fs::path folder = dir_ / name;
    fs::create_directories(folder);
    std::ofstream(folder / "config.json") << fmt::format(
        R"({{"model_type":"llama","hidden_size":{0},"intermediate_size":{0},"num_hidden_layers":1,
            "num_attention_heads":{1},"vocab_size":{2},"max_position_embeddings":64,
            "tie_word_embeddings":false}})",
        hidden, hidden / 64, vocab);
    json::object header;
    int64_t size = 0;
    const auto add = [&](const std::string& tensor, std::initializer_list<int64_t> shape) {
      int64_t bytes = 2;
      json::array dims;
      for (const int64_t n : shape) {
        bytes *= n;
        dims.emplace_back(n);
      }
      header[tensor] = {{"dtype", "BF16"}, {"shape", dims}, {"data_offsets", {size, size + bytes}}};
      size += bytes;
    };
    add("model.embed_tokens.weight", {vocab, hidden});
    const std::string layer = "model.layers.0.";
    for (const char* part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      add(layer + part + ".weight", {hidden, hidden});
    }
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "post_attention_layernorm.weight", {hidden});
    add("model.norm.weight", {hidden});
    add("lm_head.weight", {vocab, hidden});
    const std::string text = json::serialize(header);
    const auto length = static_cast<uint64_t>(text.size());
    std::ofstream file(folder / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << text;
    file.close();
    fs::resize_file(folder / "model.safetensors", 8 + text.size() + static_cast<size_t>(size));
    return size;
  }

  // Waits until a background quantiser has begun to write `out`.
  bool writing(pid_t pid, const std::string& out) const {
    for (int i = 0; i < 6000; ++i) {
      std::error_code none;
      const auto size =
          std::filesystem::file_size(dir_ / ("." + out + ".partial") / "model.safetensors", none);
      if (!none && size > 0) return true;
      if (::kill(pid, 0) != 0) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  static std::vector<std::string> slow_quantise(const std::string& in, const std::string& out) {
    return {"quantize", in, out, "--weights", "e3m2", "--scale", "mse", "--threads", "1"};
  }
};

}  // namespace sub8
