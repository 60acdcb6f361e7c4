#include "base/interrupt.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <unistd.h>

#include "base/mapped_regions.h"

namespace sub8 {
namespace {

std::atomic<bool> interrupt_flag{false};
std::atomic<int> ends_process{0};  // how many InterruptEndsProcess live
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "the signal handler needs lock-free flags");

// Only write and _exit: this runs in signal handlers. The line feed in front ends a progress bar.
void say(const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); }

[[noreturn]] void end_interrupted() {
  say("\nsub8: interrupted\n");
  _exit(130);
}

extern "C" void on_interrupt(int) {
  const int saved = errno;
  if (interrupt_flag.exchange(true)) _exit(130);
  if (ends_process.load() != 0) end_interrupted();
  errno = saved;
}

// A read beyond the end of a mapped file: another process truncated it, or its disk failed.
extern "C" void on_bus_error(int, siginfo_t* info, void*) {
  const char* name = info->si_code == BUS_ADRERR ? find_mapped_region(info->si_addr) : nullptr;
  if (name == nullptr) {
    // Not ours: the same access, repeated on return, ends the process as usual.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &standard, nullptr);
    return;
  }
  say("\nsub8: '");
  say(name);
  say("' became shorter while it was read (or its disk failed); do not change a model in use\n");
  _exit(exit_status(ErrorCode::kCorruptData));
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hang_up {};
  if (sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN) {
    sigaction(SIGHUP, &action, nullptr);
  }
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
  struct sigaction bus {};
  bus.sa_sigaction = on_bus_error;
  bus.sa_flags = SA_SIGINFO;
  sigemptyset(&bus.sa_mask);
  sigaction(SIGBUS, &bus, nullptr);
}

bool interrupted() { return interrupt_flag.load(std::memory_order_relaxed); }
void clear_interrupt() { interrupt_flag.store(false); }

Status check_interrupt() {
  if (interrupted()) return cancelled("interrupted");
  return {};
}

InterruptEndsProcess::InterruptEndsProcess() {
  ends_process.fetch_add(1);
  if (interrupt_flag.load()) end_interrupted();
}

InterruptEndsProcess::~InterruptEndsProcess() { ends_process.fetch_sub(1); }

}  // namespace sub8
