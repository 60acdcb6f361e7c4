#include "base/interrupt.h"

#include <atomic>
#include <csignal>

#include <unistd.h>

namespace sub8 {
namespace {

std::atomic<bool> interrupt_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler needs a lock-free flag");

extern "C" void on_interrupt(int) {
  if (interrupt_flag.exchange(true)) _exit(130);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

bool interrupted() { return interrupt_flag.load(std::memory_order_relaxed); }
void clear_interrupt() { interrupt_flag.store(false); }

Status check_interrupt() {
  if (interrupted()) return cancelled("interrupted");
  return {};
}

}  // namespace sub8
