#include <cstdint>
#include <vector>

#include "checkpoint/gguf.h"
#include "checkpoint/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sub8::checkpoint;  // NOLINT
  const std::vector<uint8_t> bytes(data, data + size);
  const auto file = GgufFile::parse(bytes, "fuzz", nullptr);
  if (!file.ok()) return 0;
  for (const GgufTensor& tensor : file->tensors()) {
    std::vector<float> row(
        static_cast<size_t>(tensor.rows > 0 && !tensor.data.empty() ? tensor.cols : 0));
    if (row.empty()) continue;
    decode_ggml(tensor.type, tensor.data.data(), tensor.cols, row.data());
    decode_ggml(tensor.type, tensor.data.data() + (tensor.rows - 1) * tensor.row_bytes(),
                tensor.cols, row.data());
  }
  const auto config = gguf_model_config(*file);
  if (config.ok()) {
    const auto again = parse_model_config(model_config_json(*config, "bfloat16"), "again");
    (void)again;
  }
  const auto tokenizer = gguf_tokenizer(*file);
  if (tokenizer.ok()) {
    (void)tokenizer_config_json(*tokenizer, 1);
    const auto generation = gguf_generation_config(*file, *tokenizer);
    if (generation.ok()) (void)generation_config_json(*generation);
  }
  return 0;
}
