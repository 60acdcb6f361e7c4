// Writes the logits of a model for given token ids; driven by
// tools/interop/compare_transformers.py.
//
//   logits_tool MODEL f32|bf16 <IDS >LOGITS
//
// IDS: raw int32. LOGITS: raw f32 [tokens, vocabulary]. f32: exact decoded weights, f32 activations
// and KV; bf16: activations and KV as `sub8 run` has them.
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/cpu.h"
#include "checkpoint/weight_source.h"
#include "model/model.h"

namespace sub8::model {
namespace {

Status write_logits(const char* path, bool exact, const std::vector<int32_t>& ids) {
  ThreadPool pool(ThreadPool::default_threads());
  SUB8_ASSIGN_OR_RETURN(const auto source, checkpoint::open_checkpoint(path));
  const auto count = static_cast<int64_t>(ids.size());
  ModelOptions options;
  SUB8_ASSIGN_OR_RETURN(options.path, selected_cpu_path());
  options.activations = exact ? ActivationType::kF32 : ActivationType::kBF16;
  options.kv_type = exact ? kernels::KvType::kF32 : kernels::KvType::kBF16;
  options.max_rows = options.max_logit_rows = options.max_context = count;
  options.kv_pages = static_cast<int32_t>((count + 31) / 32);
  SUB8_ASSIGN_OR_RETURN(const auto model, Model::load(*source, options, pool));
  std::vector<int32_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  const std::vector<int64_t> slots(order.begin(), order.end());
  std::vector<kernels::AttentionRow> attention;
  for (const int32_t position : order) attention.push_back({order.data(), position});
  SUB8_RETURN_IF_ERROR(model->forward({ids, order, slots, attention, count}));
  SUB8_ASSIGN_OR_RETURN(const std::span<const float> logits, model->logits(order));
  if (std::fwrite(logits.data(), 4, logits.size(), stdout) != logits.size())
    return resource_exhausted("could not write the logits");
  return {};
}

}  // namespace
}  // namespace sub8::model

int main(int argc, char** argv) {
  const bool exact = argc == 3 && std::strcmp(argv[2], "f32") == 0;
  if (argc != 3 || (!exact && std::strcmp(argv[2], "bf16") != 0)) {
    std::fprintf(stderr, "usage: logits_tool MODEL f32|bf16 <IDS >LOGITS\n");
    return 2;
  }
  std::vector<int32_t> ids;
  int32_t id = 0;
  while (std::fread(&id, 4, 1, stdin) == 1) ids.push_back(id);
  const sub8::Status status = sub8::model::write_logits(argv[1], exact, ids);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  return sub8::exit_status(status.error().code);
}
