// Structured output through XGrammar, which is found at run time or not at all.
//
// XGrammar comes as two Python packages whose shared libraries need no Python: xgrammar
// (libxgrammar_bindings.so) and apache-tvm-ffi (libtvm_ffi.so, a stable C interface). Nothing of
// them is needed to build sub8.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/error.h"
#include "server/grammar.h"
#include "text/tokenizer.h"

namespace sub8::server {

// The command that installs what open_xgrammar() looks for.
extern const char* const kXGrammarInstall;

// `packages`: the folder that holds xgrammar/ and tvm_ffi/. `vocab_size`: of the model, at least
// the tokenizer's. `end_ids` end an answer. The libraries stay loaded until the process ends.
Result<std::unique_ptr<GrammarCompiler>> open_xgrammar(const std::filesystem::path& packages,
                                                       const Tokenizer& tokenizer,
                                                       int64_t vocab_size,
                                                       const std::vector<int32_t>& end_ids);

}  // namespace sub8::server
