#include "engine/bundle.h"

#include <algorithm>

#include <fmt/format.h>

namespace sub8::engine {
namespace {

namespace json = boost::json;

// Logits are as wide as the vocabulary: larger steps take their rows in groups.
constexpr int kMaxLogitRows = 64;

std::optional<int32_t> as_id(const std::optional<int64_t>& id) {
  if (!id || *id < 0 || *id > INT32_MAX) return std::nullopt;
  return static_cast<int32_t>(*id);
}

// src/text knows nothing of checkpoints, so the vocabulary changes hands here.
GgufVocab gguf_vocab(const checkpoint::GgufTokenizer& in, std::string source) {
  GgufVocab out;
  out.source = std::move(source);
  out.model = in.model;
  out.pre = in.pre;
  out.tokens = in.tokens;
  out.scores = in.scores;
  out.token_types = in.token_types;
  out.merges = in.merges;
  out.bos_token_id = as_id(in.bos_token_id);
  out.eos_token_id = as_id(in.eos_token_id);
  out.unknown_token_id = as_id(in.unknown_token_id);
  out.padding_token_id = as_id(in.padding_token_id);
  out.add_bos_token = in.add_bos_token;
  out.add_eos_token = in.add_eos_token;
  out.add_space_prefix = in.add_space_prefix;
  return out;
}

// End tokens of the generation config, else of the config; the tokenizer's own in any case.
std::vector<int32_t> collect_end_ids(const checkpoint::WeightSource& source,
                                     const Tokenizer& tokenizer) {
  std::vector<int32_t> out;
  const auto add = [&](int64_t id) {
    if (id >= 0 && id < source.config().vocab_size &&
        std::find(out.begin(), out.end(), id) == out.end()) {
      out.push_back(static_cast<int32_t>(id));
    }
  };
  const auto& generation = source.generation_config().eos_token_ids;
  for (const int64_t id : generation.empty() ? source.config().eos_token_ids : generation) add(id);
  if (const auto eos = tokenizer.special_ids().eos) add(*eos);
  if (const checkpoint::GgufTokenizer* gguf = source.gguf_tokenizer()) {
    for (const auto& id : {gguf->eos_token_id, gguf->eot_token_id, gguf->eom_token_id}) {
      if (id) add(*id);
    }
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const checkpoint::WeightSource& source) {
  if (const checkpoint::GgufTokenizer* gguf = source.gguf_tokenizer()) {
    return Tokenizer::from_gguf(gguf_vocab(*gguf, source.path().string()));
  }
  if (source.texts().tokenizer.empty()) {
    return not_found(
        fmt::format("'{}' has no tokenizer.json; copy it there from where the model came from",
                    source.path().string()));
  }
  return Tokenizer::from_json(source.texts().tokenizer, (source.path() / "tokenizer.json").string(),
                              source.texts().tokenizer_config);
}

Result<Bundle> make_bundle(std::unique_ptr<checkpoint::WeightSource> source) {
  Bundle out;
  SUB8_ASSIGN_OR_RETURN(out.tokenizer, load_tokenizer(*source));
  const int64_t vocab = source->config().vocab_size;
  if (out.tokenizer->vocab_size() > vocab) {
    return corrupt_data(fmt::format(
        "{}: the tokenizer has {} tokens, but the model's embedding only {}: they do not "
        "belong together",
        source->path().string(), out.tokenizer->vocab_size(), vocab));
  }
  out.warnings = source->warnings();
  if (!source->texts().chat_template.empty()) {
    SUB8_ASSIGN_OR_RETURN(out.chat_template, ChatTemplate::parse(source->texts().chat_template,
                                                                 source->path().string()));
  }
  out.end_ids = collect_end_ids(*source, *out.tokenizer);
  if (out.end_ids.empty())
    out.warnings.push_back("the model names no end-of-sequence token: answers end at --max-tokens");
  out.source = std::move(source);
  return out;
}

SamplingParams Bundle::sampling_defaults() const {
  const checkpoint::GenerationConfig& config = source->generation_config();
  SamplingParams out;
  out.temperature = config.temperature.value_or(0.7);
  if (config.do_sample && !*config.do_sample) out.temperature = 0;
  out.top_k = config.top_k.value_or(0);
  out.top_p = config.top_p.value_or(1.0);
  out.min_p = config.min_p.value_or(0.0);
  out.repetition_penalty = config.repetition_penalty.value_or(1.0);
  out.presence_penalty = config.presence_penalty.value_or(0.0);
  out.frequency_penalty = config.frequency_penalty.value_or(0.0);
  return out;
}

Result<std::vector<int32_t>> Bundle::chat_prompt(const json::array& messages) const {
  if (!chat_template) {
    return invalid_argument(
        "the model has no chat template; use --raw to complete the text as it is");
  }
  ChatInput input;
  input.messages = messages;
  input.add_generation_prompt = true;
  input.now = local_time_now();
  const auto content = [&](std::optional<int32_t> id) -> std::optional<std::string> {
    if (!id) return std::nullopt;
    return tokenizer->token_bytes(*id);
  };
  input.bos_token = content(tokenizer->special_ids().bos);
  input.eos_token = content(tokenizer->special_ids().eos);
  SUB8_ASSIGN_OR_RETURN(const std::string text, chat_template->render(input));
  return tokenizer->encode(text, {.add_special_tokens = false});
}

Result<std::vector<int32_t>> Bundle::raw_prompt(std::string_view text) const {
  SUB8_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                        tokenizer->encode(text, {.add_special_tokens = true}));
  const std::vector<int32_t> prefix = tokenizer->prefix_ids();
  // The text may begin with what the tokenizer has just put in front of it.
  if (prefix.size() == 1 && ids.size() >= 2 && ids[0] == prefix[0] && ids[1] == prefix[0])
    ids.erase(ids.begin());
  return ids;
}

namespace {

// Bytes of one KV page over all layers.
int64_t kv_page_bytes(const checkpoint::ModelConfig& config, const RunOptions& options) {
  const kernels::KvLayout layout{options.kv_type, static_cast<int>(config.kv_heads),
                                 static_cast<int>(config.head_dim)};
  return layout.page_bytes() * config.layers;
}

// The longest prompt + answer in force.
Result<int64_t> context_length(const checkpoint::ModelConfig& config, const RunOptions& options) {
  int64_t length = options.max_model_len;
  if (length == 0) length = std::min(config.max_positions, kDefaultModelLen);
  if (length > config.max_positions) {
    return invalid_argument(
        fmt::format("a context of {} tokens (--max-model-len, or prompt and answer of a benchmark) "
                    "is beyond the "
                    "{} positions that the model was made for",
                    length, config.max_positions));
  }
  if (length < 2)
    return invalid_argument(fmt::format("--max-model-len must be at least 2, got {}", length));
  return length;
}

// KV pages for `options`, each over all layers.
Result<int32_t> kv_page_count(const checkpoint::ModelConfig& config, const RunOptions& options,
                              int64_t length) {
  const int64_t page_bytes = kv_page_bytes(config, options);
  const int64_t per_context = (length + kvcache::kPageTokens - 1) / kvcache::kPageTokens;
  const int64_t pages = options.kv_memory_bytes > 0 ? options.kv_memory_bytes / page_bytes
                                                    : per_context * options.max_sequences;
  if (pages > INT32_MAX)
    return resource_exhausted("the KV cache would need too many pages; lower --max-model-len");
  if (pages < per_context) {
    return invalid_argument(fmt::format(
        "--kv-memory of {} bytes holds {} tokens, fewer than --max-model-len {}; it takes {} bytes",
        options.kv_memory_bytes, pages * kvcache::kPageTokens, length, per_context * page_bytes));
  }
  return static_cast<int32_t>(pages);
}

}  // namespace

Result<int64_t> context_kv_bytes(const Bundle& bundle, const RunOptions& options) {
  const checkpoint::ModelConfig& config = bundle.source->config();
  SUB8_ASSIGN_OR_RETURN(const int64_t length, context_length(config, options));
  return (length + kvcache::kPageTokens - 1) / kvcache::kPageTokens *
         kv_page_bytes(config, options);
}

Result<std::unique_ptr<Engine>> make_engine(const Bundle& bundle, const RunOptions& options,
                                            ThreadPool& pool) {
  const checkpoint::ModelConfig& config = bundle.source->config();
  SUB8_ASSIGN_OR_RETURN(const int64_t length, context_length(config, options));
  if (options.max_sequences < 1)
    return invalid_argument(
        fmt::format("--max-sequences must be at least 1, got {}", options.max_sequences));
  model::ModelOptions model_options;
  SUB8_ASSIGN_OR_RETURN(model_options.path, selected_cpu_path());
  model_options.activations = options.activations;
  model_options.kv_type = options.kv_type;
  model_options.mode = options.mode;
  model_options.mixed_modes = options.mixed_modes;
  model_options.residue = options.residue;
  model_options.extend = options.extend;
  model_options.max_context = length;
  model_options.max_rows = std::max<int64_t>(options.max_batch_tokens, options.max_sequences);
  model_options.max_logit_rows = std::min(options.max_sequences, kMaxLogitRows);
  SUB8_ASSIGN_OR_RETURN(model_options.kv_pages, kv_page_count(config, options, length));
  model_options.progress = options.progress;
  SUB8_ASSIGN_OR_RETURN(auto model, model::Model::load(*bundle.source, model_options, pool));
  EngineOptions engine_options;
  engine_options.max_model_len = length;
  engine_options.max_batch_tokens = model_options.max_rows;
  engine_options.max_sequences = options.max_sequences;
  engine_options.prefix_cache = options.prefix_cache;
  engine_options.reuse_generated = options.reuse_generated;
  return std::make_unique<Engine>(make_model_runner(std::move(model)), *bundle.tokenizer,
                                  bundle.end_ids, engine_options);
}

}  // namespace sub8::engine
