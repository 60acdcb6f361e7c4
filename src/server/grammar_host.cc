#include "server/grammar_host.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sub8::server {
namespace {

using namespace std::chrono_literals;
using grammar::Descriptor;
using grammar::Header;
using grammar::Kind;

constexpr auto kStartTimeout = 60s;  // to load the libraries, and to sort the vocabulary
constexpr auto kEndTimeout = 2000ms;
// Above the descriptors that a new process gets its own in.
constexpr int kFirstOwnDescriptor = 10;

Error errno_error(std::string_view action) {
  return resource_exhausted(fmt::format("{}: {}", action, std::strerror(errno)));
}

Result<Descriptor> raised(int fd) {
  const Descriptor low(fd);
  Descriptor out(::fcntl(fd, F_DUPFD_CLOEXEC, kFirstOwnDescriptor));
  if (out.get() < 0) return errno_error("could not duplicate a descriptor");
  return out;
}

struct Pair {
  Descriptor ours, theirs;
};
Result<Pair> make_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
    return errno_error("could not make a pair of sockets");
  Pair out{Descriptor(fds[0]), {}};
  SUB8_ASSIGN_OR_RETURN(out.theirs, raised(fds[1]));
  return out;
}

// Without the server's key.
std::vector<char*> environment() {
  std::vector<char*> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("SUB8_API_KEY=")) out.push_back(*entry);
  }
  out.push_back(nullptr);
  return out;
}

// What posix_spawn is to do in the new process. In a process group of its own, so that what comes
// from the terminal does not reach it and all of it can be ended and waited for.
class SpawnPlan {
 public:
  SpawnPlan(int control, int vocabulary) {
    ::posix_spawn_file_actions_init(&actions);
    for (const int fd : {0, 1, 2})
      ::posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", fd == 0 ? O_RDONLY : O_WRONLY,
                                         0);
    ::posix_spawn_file_actions_adddup2(&actions, control, grammar::kControlDescriptor);
    ::posix_spawn_file_actions_adddup2(&actions, vocabulary, grammar::kVocabularyDescriptor);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, grammar::kVocabularyDescriptor + 1);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    sigset_t none;
    sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

Result<Descriptor> file_in_memory(std::string_view content) {
  SUB8_ASSIGN_OR_RETURN(Descriptor out, raised(::memfd_create("vocabulary", MFD_CLOEXEC)));
  for (size_t at = 0; at < content.size();) {
    const ssize_t size = ::write(out.get(), content.data() + at, content.size() - at);
    if (size <= 0) return errno_error("could not keep the vocabulary in memory");
    at += static_cast<size_t>(size);
  }
  return out;
}

Status wait_ready(int control) {
  pollfd wanted{control, POLLIN, 0};
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(kStartTimeout);
  int ready = 0;
  do {
    ready = ::poll(&wanted, 1, static_cast<int>(timeout.count()));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return internal_error("the process for grammars did not answer in time");
  Header header;
  std::vector<std::byte> bytes;
  if (grammar::receive_message(control, header, bytes, false) != grammar::Received::kMessage)
    return internal_error("the process for grammars ended while XGrammar was being loaded");
  if (header.kind == Kind::kFailed) return grammar::to_error(header, bytes);
  return {};
}

}  // namespace

GrammarHost::GrammarHost(GrammarHostProgram program, Descriptor vocabulary)
    : program_(std::move(program)), vocabulary_(std::move(vocabulary)) {}

GrammarHost::~GrammarHost() { end(kEndTimeout); }

Result<std::shared_ptr<GrammarHost>> GrammarHost::start(GrammarHostProgram program,
                                                        const grammar::Vocabulary& vocabulary) {
  if (static_cast<size_t>(vocabulary.vocab_size) / 8 > grammar::kMaxMessageBytes / 2) {
    return unsupported(
        fmt::format("structured output for a vocabulary of {} tokens: the limit is {}",
                    vocabulary.vocab_size, grammar::kMaxMessageBytes * 4));
  }
  SUB8_ASSIGN_OR_RETURN(Descriptor file, file_in_memory(vocabulary.to_bytes()));
  std::shared_ptr<GrammarHost> out(new GrammarHost(std::move(program), std::move(file)));
  SUB8_RETURN_IF_ERROR(out->launch());
  return out;
}

Status GrammarHost::launch() {
  SUB8_ASSIGN_OR_RETURN(Pair sockets, make_pair());
  const SpawnPlan plan(sockets.theirs.get(), vocabulary_.get());
  std::string name = "sub8";
  std::vector<std::string> arguments = program_.arguments;
  std::vector<char*> argv{name.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  errno = ::posix_spawn(&pid, program_.path.c_str(), &plan.actions, &plan.attributes, argv.data(),
                        environment().data());
  if (errno != 0) return errno_error(fmt::format("could not start {}", program_.path));
  pid_ = pid;
  sockets.theirs.reset();  // so that its end is seen
  Status ready = wait_ready(sockets.ours.get());
  {
    const std::lock_guard lock(control_mutex_);
    control_ = std::move(sockets.ours);
  }
  if (!ready.ok()) end(0ms);
  return ready;
}

// The host ends with its socket; one that does not, and what it left behind, is killed.
void GrammarHost::end(std::chrono::milliseconds patience) {
  {
    const std::lock_guard lock(control_mutex_);
    control_.reset();
  }
  if (pid_ == 0) return;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  bool ended = false;
  while (!ended && std::chrono::steady_clock::now() < deadline) {
    siginfo_t info{};  // WNOWAIT: until it is waited for, its number and its group are not reused
    ended = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid != 0;
    if (!ended) std::this_thread::sleep_for(2ms);
  }
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  // Children of a host that was killed, where this process is the one that inherits them.
  while (::waitpid(-pid_, nullptr, WNOHANG) > 0) {
  }
  pid_ = 0;
}

Result<GrammarHost::Child> GrammarHost::spawn(const GrammarSpec& spec) {
  const std::lock_guard lock(start_mutex_);
  Child child;
  child.id = next_id_++;
  const Header header{Kind::kSpawn, static_cast<uint32_t>(spec.kind), child.id};
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (pid_ == 0) SUB8_RETURN_IF_ERROR(launch());
    SUB8_ASSIGN_OR_RETURN(Pair sockets, make_pair());
    switch (grammar::send_message(control_.get(), header, spec.text, false, sockets.theirs.get())) {
      case grammar::Sent::kYes:
        child.socket = std::move(sockets.ours);
        return child;
      case grammar::Sent::kFull:
        return resource_exhausted("too many grammars wait to be compiled; try again later");
      case grammar::Sent::kClosed:
        end(0ms);
        break;
    }
  }
  return internal_error("the process for grammars ended twice");
}

void GrammarHost::kill(int64_t id) {
  const std::lock_guard lock(control_mutex_);
  // Nobody to tell: they ended together.
  if (control_.get() < 0) return;
  (void)grammar::send_message(control_.get(), {Kind::kKill, 0, id}, {}, false);
}

}  // namespace sub8::server
