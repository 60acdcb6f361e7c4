// What is sent when: synthetic prompts of fixed length, and arrival times. Equal seeds give equal
// workloads on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "load/target.h"

namespace sub8::load {

enum class PromptKind : uint8_t {
  kIds,   // token ids: the exact length on any server that takes them
  kText,  // English words, as many as come out at the wanted length
};

struct Workload {
  int64_t requests = 100;
  int64_t warmup = 0;  // sent before, in the same manner, and not counted
  double rate = 0;     // mean arrivals per second (Poisson); 0: as fast as `concurrency` allows
  int64_t concurrency = 0;  // requests under way at most; 0: no limit
  int64_t input_tokens = 512;
  int64_t output_tokens = 128;
  int64_t prefix_tokens = 0;  // of the input: the same in all requests
  PromptKind kind = PromptKind::kIds;
  int32_t first_id = 1000;  // token ids are drawn from [first_id, last_id]
  int32_t last_id = 29999;
  double temperature = 0;
  std::string mode;  // sub8's execution mode; "": not sent
  uint64_t seed = 17;
};

// The error names the field by its option.
Status check_workload(const Workload& workload, const Target& target);

// Seconds from the start at which request 0, 1, ... arrives: exponential gaps at `rate`, or zeros.
std::vector<double> arrival_seconds(const Workload& workload, int64_t count, uint64_t stream);

// The prompt of one request. Different requests differ behind the common prefix.
std::vector<int32_t> prompt_ids(const Workload& workload, int64_t request);
// `prefix_words` are common, `words` in all.
std::string prompt_text(const Workload& workload, int64_t request, int64_t prefix_words,
                        int64_t words);

// How many words make how many tokens: tokens = per_word * words + overhead.
struct WordRate {
  double per_word = 1;
  double overhead = 0;
  int64_t words_for(int64_t tokens) const;
};

// The JSON body of a request that streams its answer. The usage is asked for, end tokens do not end
// the answer (`ignore_eos`, which vLLM, llama.cpp and sub8 know).
std::string request_body(const Workload& workload, const Target& target, int64_t request,
                         const WordRate& words);
// The same for a text of so many words and an answer of one token: to find the WordRate.
std::string probe_body(const Workload& workload, const Target& target, int64_t words);

}  // namespace sub8::load
