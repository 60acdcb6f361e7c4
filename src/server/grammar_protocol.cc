#include "server/grammar_protocol.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include "text/utf8.h"

namespace sub8::server::grammar {
namespace {

void put_number(int64_t value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string_view text, std::string& out) {
  put_number(static_cast<int64_t>(text.size()), out);
  out += text;
}

// Numbers and texts in the order in which they were put.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  int64_t number() {
    int64_t value = 0;
    const std::string_view bytes = take(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string text() {
    const int64_t size = number();
    if (size < 0) failed_ = true;
    return std::string(take(static_cast<size_t>(size)));
  }
  // How many things of at least `bytes` each follow.
  size_t count(size_t bytes) {
    const int64_t value = number();
    if (value < 0 || static_cast<size_t>(value) > left_.size() / bytes) failed_ = true;
    return failed_ ? 0 : static_cast<size_t>(value);
  }
  bool complete() const { return !failed_ && left_.empty(); }

 private:
  std::string_view take(size_t size) {
    if (failed_ || size > left_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view out = left_.substr(0, size);
    left_.remove_prefix(size);
    return out;
  }
  std::string_view left_;
  bool failed_ = false;
};

}  // namespace

std::string Vocabulary::to_bytes() const {
  std::string out;
  put_text(packages, out);
  put_number(memory_bytes, out);
  put_number(vocab_size, out);
  put_number(static_cast<int64_t>(end_ids.size()), out);
  for (const int32_t id : end_ids) put_number(id, out);
  put_number(static_cast<int64_t>(tokens.size()), out);
  for (const std::string& token : tokens) put_text(token, out);
  return out;
}

Result<Vocabulary> Vocabulary::from_bytes(std::string_view bytes) {
  Reader reader(bytes);
  Vocabulary out;
  out.packages = reader.text();
  out.memory_bytes = reader.number();
  out.vocab_size = reader.number();
  out.end_ids.resize(reader.count(sizeof(int64_t)));
  for (int32_t& id : out.end_ids) id = static_cast<int32_t>(reader.number());
  out.tokens.resize(reader.count(sizeof(int64_t)));
  for (std::string& token : out.tokens) token = reader.text();
  if (!reader.complete()) return corrupt_data("the vocabulary for grammars is damaged");
  return out;
}

Vocabulary make_vocabulary(std::string packages, const Tokenizer& tokenizer, int64_t vocab_size,
                           std::vector<int32_t> end_ids) {
  Vocabulary out;
  out.packages = std::move(packages);
  out.vocab_size = vocab_size;
  out.end_ids = std::move(end_ids);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    out.tokens.push_back(tokenizer.is_special(id) ? std::string() : tokenizer.token_bytes(id));
  return out;
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Descriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Sent send_message(int socket, const Header& header, std::string_view bytes, bool wait,
                  int descriptor) {
  iovec parts[2] = {{const_cast<Header*>(&header), sizeof header},
                    {const_cast<char*>(bytes.data()), bytes.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* passed = CMSG_FIRSTHDR(&message);
    passed->cmsg_level = SOL_SOCKET;
    passed->cmsg_type = SCM_RIGHTS;
    passed->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(passed), &descriptor, sizeof descriptor);
  }
  const int flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT);
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, flags);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Sent::kYes;
  // The kernel's memory for sockets is short: as good as full.
  return errno == EAGAIN || errno == ENOBUFS ? Sent::kFull : Sent::kClosed;
}

Received receive_message(int socket, Header& header, std::vector<std::byte>& bytes, bool wait,
                         Descriptor* descriptor) {
  bytes.resize(kMaxMessageBytes);
  iovec parts[2] = {{&header, sizeof header}, {bytes.data(), bytes.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  int passed = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof passed)] = {};
  if (descriptor != nullptr) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
    // ECONNRESET comes once, before what the other end sent last: it left something unread.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0 && errno == EAGAIN) return Received::kNothing;
  if (descriptor != nullptr) {
    const cmsghdr* found = size < 0 ? nullptr : CMSG_FIRSTHDR(&message);
    if (found != nullptr && found->cmsg_type == SCM_RIGHTS)
      std::memcpy(&passed, CMSG_DATA(found), sizeof passed);
    *descriptor = Descriptor(passed);
  }
  if (size < static_cast<ssize_t>(sizeof header) || (message.msg_flags & MSG_TRUNC) != 0)
    return Received::kClosed;
  bytes.resize(static_cast<size_t>(size) - sizeof header);
  return Received::kMessage;
}

Sent send_error(int socket, int64_t id, const Error& error) {
  std::string_view text = std::string_view(error.message).substr(0, kMaxErrorBytes);
  text.remove_suffix(incomplete_utf8_tail(text));
  return send_message(socket, {Kind::kFailed, static_cast<uint32_t>(error.code), id}, text, true);
}

Error to_error(const Header& header, std::span<const std::byte> bytes) {
  const auto known = static_cast<uint32_t>(ErrorCode::kInternal);
  return {static_cast<ErrorCode>(std::min(header.value, known)),
          std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

}  // namespace sub8::server::grammar
