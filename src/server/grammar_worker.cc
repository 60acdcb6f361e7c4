#include "server/grammar_worker.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <new>
#include <unordered_map>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "server/grammar_protocol.h"
#include "server/xgrammar.h"

namespace sub8::server {
namespace {

using grammar::Header;
using grammar::Kind;
using grammar::Received;

// CPU time of one operation: so much at the server's own priority, so much at a tenth of what an
// equal would get, and the rest at a hundredth of it.
constexpr itimerval kPriorities{{0, 900'000}, {0, 100'000}};
constexpr int kLowPriority = 10;
constexpr int kLowestPriority = 19;
constexpr rlim_t kSlowSeconds = 10;  // of CPU time, from the first slow operation on

std::string errno_text(std::string_view action) {
  return fmt::format("{}: {}", action, std::strerror(errno));
}

// What a child says when a limit ends it, prepared since nothing can be allocated then.
struct LastWords {
  Header header{Kind::kFailed, static_cast<uint32_t>(ErrorCode::kInvalidArgument), 0};
  char text[120] = {};
};
int child_socket = -1;
volatile std::sig_atomic_t low_priority = 0;

[[noreturn]] void end_child(const char* reason) {
  LastWords words;
  std::strncpy(words.text, reason, sizeof words.text - 1);
  (void)!::send(child_socket, &words, sizeof words.header + std::strlen(words.text),
                MSG_NOSIGNAL | MSG_DONTWAIT);
  _exit(0);
}

// Once after the quick part of an operation, then at every interval of it.
extern "C" void on_slow_operation(int) {
  (void)::setpriority(PRIO_PROCESS, 0, low_priority == 0 ? kLowPriority : kLowestPriority);
  low_priority = 1;
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  rlimit limit{};
  if (::getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return;
  limit.rlim_cur = std::min(static_cast<rlim_t>(used.tv_sec) + kSlowSeconds, limit.rlim_max);
  ::setrlimit(RLIMIT_CPU, &limit);
}

extern "C" void on_cpu_limit(int) { end_child("the grammar takes too much time"); }

void on_memory_limit() { end_child("the grammar takes too much memory"); }

void handle_signal(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

// Around calls of XGrammar: tells slow ones.
class Operation {
 public:
  Operation() { ::setitimer(ITIMER_PROF, &kPriorities, nullptr); }
  ~Operation() {
    const itimerval none{};
    ::setitimer(ITIMER_PROF, &none, nullptr);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
};

// Pages of address space, and those in memory that are this process's own.
struct Memory {
  int64_t total = 0, own = 0;
};
Memory memory_pages() {
  Memory out;
  const Result<std::string> text = read_file("/proc/self/statm", 4096);
  int64_t resident = 0;
  int64_t shared = 0;
  // total, resident, shared
  if (text.ok() && std::sscanf(text->c_str(), "%ld %ld %ld", &out.total, &resident, &shared) == 3)
    out.own = resident - shared;
  return out;
}

// `bytes`: of address space, beyond what there is now.
void limit_child(const Memory& before, int64_t bytes) {
  const auto page = static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  const rlim_t space = static_cast<rlim_t>(before.total) * page + static_cast<rlim_t>(bytes);
  if (before.total > 0) {
    const rlimit limit{space, space};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  std::set_new_handler(on_memory_limit);
  handle_signal(SIGPROF, on_slow_operation);
  handle_signal(SIGXCPU, on_cpu_limit);
}

// One grammar, and the texts that follow it.
class Child {
 public:
  Child(int socket, const grammar::Vocabulary& vocabulary)
      : socket_(socket),
        memory_bytes_(vocabulary.memory_bytes),
        mask_(static_cast<size_t>((vocabulary.vocab_size + 31) / 32)) {}

  // Until the server has no more use for it.
  void run(const XGrammar& xgrammar, const GrammarSpec& spec) {
    const Memory before = memory_pages();
    limit_child(before, memory_bytes_);
    Result<std::unique_ptr<XGrammar::Grammar>> compiled = [&] {
      const Operation operation;
      return xgrammar.compile(spec);
    }();
    if (!compiled.ok()) {
      (void)grammar::send_error(socket_, 0, compiled.error());
      return;
    }
    const int64_t own =
        std::max<int64_t>(memory_pages().own - before.own, 0) * ::sysconf(_SC_PAGESIZE);
    if (grammar::send_message(socket_, {Kind::kReady, 0, own}, {}, true) != grammar::Sent::kYes)
      return;
    Header header;
    std::vector<std::byte> bytes;
    while (grammar::receive_message(socket_, header, bytes, true) == Received::kMessage &&
           handle(header, **compiled)) {
    }
  }

 private:
  bool handle(const Header& header, const XGrammar::Grammar& grammar) {
    if (header.kind == Kind::kClose) {
      matchers_.erase(header.id);
      return true;
    }
    const Status status = [&] {
      const Operation operation;
      return advance(header, grammar);
    }();
    if (!status.ok())
      return grammar::send_error(socket_, header.id, status.error()) == grammar::Sent::kYes;
    const std::string_view words(reinterpret_cast<const char*>(mask_.data()),
                                 mask_.size() * sizeof(uint32_t));
    return grammar::send_message(socket_, {Kind::kMask, 0, header.id}, words, true) ==
           grammar::Sent::kYes;
  }

  Status advance(const Header& header, const XGrammar::Grammar& grammar) {
    if (header.kind == Kind::kOpen) {
      SUB8_ASSIGN_OR_RETURN(matchers_[header.id], grammar.matcher());
    } else {
      const auto at = matchers_.find(header.id);
      if (at == matchers_.end() || at->second == nullptr)
        return internal_error("a token for a matcher that was never opened");
      SUB8_RETURN_IF_ERROR(at->second->accept(static_cast<int32_t>(header.value)));
    }
    return matchers_.at(header.id)->fill(mask_);
  }

  int socket_;
  int64_t memory_bytes_;
  std::vector<uint32_t> mask_;
  std::unordered_map<int64_t, std::unique_ptr<XGrammar::Matcher>> matchers_;
};

class Host {
 public:
  Host(const XGrammar& xgrammar, const grammar::Vocabulary& vocabulary, int signals)
      : xgrammar_(xgrammar), vocabulary_(vocabulary), signals_(signals) {}

  // Until the server closes its end.
  void run() {
    pollfd wanted[] = {{grammar::kControlDescriptor, POLLIN, 0}, {signals_, POLLIN, 0}};
    while (true) {
      if (::poll(wanted, 2, -1) < 0 && errno != EINTR) return;
      reap();
      if (wanted[0].revents != 0 && !take_message()) break;
    }
    for (const auto& [id, pid] : children_) ::kill(pid, SIGKILL);
    while (!children_.empty()) reap(true);
  }

 private:
  // Only here, so that a pid in children_ is never someone else's.
  void reap(bool wait = false) {
    signalfd_siginfo told;
    while (::read(signals_, &told, sizeof told) > 0) {
    }
    for (pid_t pid = 0; (pid = ::waitpid(-1, nullptr, wait ? 0 : WNOHANG)) > 0;) {
      std::erase_if(children_, [pid](const auto& child) { return child.second == pid; });
      if (wait) return;
    }
    if (wait) children_.clear();  // there are none
  }

  bool take_message() {
    Header header;
    std::vector<std::byte> bytes;
    grammar::Descriptor socket;
    const Received got =
        grammar::receive_message(grammar::kControlDescriptor, header, bytes, false, &socket);
    if (got == Received::kNothing) return true;
    if (got == Received::kClosed) return false;
    if (header.kind == Kind::kKill) {
      const auto child = children_.find(header.id);
      if (child != children_.end()) ::kill(child->second, SIGKILL);
    } else if (header.kind == Kind::kSpawn) {
      GrammarSpec spec;
      spec.kind = static_cast<GrammarSpec::Kind>(header.value);
      spec.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      spawn(header.id, spec, socket.get());
    }
    return true;
  }

  void spawn(int64_t id, const GrammarSpec& spec, int socket) {
    const pid_t host = ::getpid();
    const pid_t pid = ::fork();
    if (pid > 0) {
      children_.emplace(id, pid);
    } else if (pid < 0) {
      (void)grammar::send_error(socket, 0,
                                resource_exhausted(errno_text("could not start a process")));
    } else {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != host) _exit(0);  // it ended before the line above
      ::close(grammar::kControlDescriptor);
      ::close(signals_);
      child_socket = socket;
      Child(socket, vocabulary_).run(xgrammar_, spec);
      _exit(0);
    }
  }

  const XGrammar& xgrammar_;
  const grammar::Vocabulary& vocabulary_;
  int signals_;
  std::map<int64_t, pid_t> children_;
};

Result<grammar::Vocabulary> read_vocabulary() {
  struct stat info {};
  if (::fstat(grammar::kVocabularyDescriptor, &info) != 0 || info.st_size <= 0)
    return invalid_argument(fmt::format("'{}' is started by `sub8 serve`", kGrammarWorkerVerb));
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t size = ::pread(grammar::kVocabularyDescriptor, bytes.data() + at,
                                 bytes.size() - at, static_cast<off_t>(at));
    if (size <= 0) return internal_error(errno_text("could not read the vocabulary for grammars"));
    at += static_cast<size_t>(size);
  }
  ::close(grammar::kVocabularyDescriptor);
  return grammar::Vocabulary::from_bytes(bytes);
}

// If memory runs out, these processes go before the server.
void offer_to_oom_killer() {
  const grammar::Descriptor file(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (file.get() >= 0) (void)!::write(file.get(), "1000", 4);
}

}  // namespace

Error run_grammar_worker() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  const int signals = ::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC);
  const auto refuse = [](Error error) {
    (void)grammar::send_error(grammar::kControlDescriptor, 0, error);
    return error;
  };
  if (signals < 0) return refuse(internal_error(errno_text("signalfd")));
  offer_to_oom_killer();
  const Result<grammar::Vocabulary> vocabulary = read_vocabulary();
  if (!vocabulary.ok()) return refuse(vocabulary.error());
  const auto xgrammar = XGrammar::open(*vocabulary);
  if (!xgrammar.ok()) return refuse(xgrammar.error());
  if (grammar::send_message(grammar::kControlDescriptor, {Kind::kReady, 0, 0}, {}, true) !=
      grammar::Sent::kYes)
    return internal_error("the server is gone");
  Host(**xgrammar, *vocabulary, signals).run();
  // Not through the destructors of the libraries: there is nothing left to do.
  _exit(0);
}

}  // namespace sub8::server
