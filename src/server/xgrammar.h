// XGrammar, which is found at run time or not at all.
//
// It comes as two Python packages whose shared libraries need no Python: xgrammar
// (libxgrammar_bindings.so) and apache-tvm-ffi (libtvm_ffi.so, a stable C interface). Nothing of
// them is needed to build sub8.
//
// Nothing interrupts or bounds what happens inside: a small expression may take hours or all
// memory. So it is only called in processes of its own (grammar_worker.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "server/grammar.h"
#include "server/grammar_protocol.h"

namespace sub8::server {

class XGrammar {
 public:
  // One place in one text that follows a grammar. The XGrammar must outlive it.
  class Matcher {
   public:
    virtual ~Matcher() = default;
    // Which tokens may come next: token t in bit t % 32 of word t / 32. When the text is complete,
    // end tokens alone.
    virtual Status fill(std::span<uint32_t> allowed) = 0;
    virtual Status accept(int32_t token) = 0;
  };
  // Makes matchers at the start of a text.
  class Grammar {
   public:
    virtual ~Grammar() = default;
    virtual Result<std::unique_ptr<Matcher>> matcher() const = 0;
  };

  // The libraries stay loaded until the process ends.
  static Result<std::unique_ptr<XGrammar>> open(const grammar::Vocabulary& vocabulary);
  ~XGrammar();

  // An invalid_argument error says what is wrong with the grammar.
  Result<std::unique_ptr<Grammar>> compile(const GrammarSpec& spec) const;

 private:
  struct Impl;
  explicit XGrammar(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sub8::server
