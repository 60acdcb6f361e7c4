// What `sub8 serve` and the processes that run XGrammar say to each other.
//
// Sockets are SOCK_SEQPACKET: one message per send and receive, a Header and the bytes behind it.
// All ends are the same program, so structs travel as they are in memory.
//
//   server -> host:   kSpawn (value: GrammarSpec::Kind, id: of the new process, text; the process's
//                     end of a socket beside it), kKill (id)
//   host -> server:   kReady, or kFailed (value: ErrorCode, message); once, at the start
//   server -> child:  kOpen (id: of a matcher), kAccept (id, value: token), kClose (id)
//   child -> server:  kReady (id: bytes that the grammar takes) or kFailed (value, message) once it
//                     is compiled; then for every kOpen and kAccept kMask (id, the mask's words) or
//                     kFailed (id, value, message). kFailed with id 0 is about all matchers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace sub8::server::grammar {

enum class Kind : uint32_t { kSpawn, kKill, kReady, kFailed, kOpen, kAccept, kClose, kMask };

struct Header {
  Kind kind{};
  uint32_t value = 0;
  int64_t id = 0;
};

// Where the host finds its socket and the vocabulary when it starts.
inline constexpr int kControlDescriptor = 3;
inline constexpr int kVocabularyDescriptor = 4;
// Below what Linux lets one message of such a socket have.
inline constexpr size_t kMaxMessageBytes = size_t{128} << 10;
inline constexpr size_t kMaxErrorBytes = 2000;

// What the host is told: of the model, of XGrammar, and what a grammar may take.
struct Vocabulary {
  std::string packages;                       // the folder that holds xgrammar/ and tvm_ffi/
  int64_t memory_bytes = int64_t{512} << 20;  // of address space, for one grammar
  int64_t vocab_size = 0;                     // of the model, at least the number of tokens
  std::vector<int32_t> end_ids;               // end an answer
  std::vector<std::string> tokens;  // bytes that each adds to the text; special ones are empty

  std::string to_bytes() const;
  static Result<Vocabulary> from_bytes(std::string_view bytes);
};

// Special tokens are empty: no grammar produces them.
Vocabulary make_vocabulary(std::string packages, const Tokenizer& tokenizer, int64_t vocab_size,
                           std::vector<int32_t> end_ids);

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }
  void reset();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

enum class Sent : uint8_t { kYes, kFull, kClosed };
// One message; `descriptor` goes with it unless it is -1. kFull only where `wait` is false: nothing
// was sent.
Sent send_message(int socket, const Header& header, std::string_view bytes, bool wait,
                  int descriptor = -1);

enum class Received : uint8_t { kMessage, kNothing, kClosed };
// One message into `header` and `bytes`, and the descriptor that came with it, if it was asked for.
// kNothing only where `wait` is false. What is no message counts as kClosed.
Received receive_message(int socket, Header& header, std::vector<std::byte>& bytes, bool wait,
                         Descriptor* descriptor = nullptr);

// A kFailed message and back. Long texts are cut.
Sent send_error(int socket, int64_t id, const Error& error);
Error to_error(const Header& header, std::span<const std::byte> bytes);

}  // namespace sub8::server::grammar
