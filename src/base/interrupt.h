// Signals: Ctrl-C as a flag that long loops poll, and what a mapped file that shrinks means.
// Library code only reads the flag; the program installs the handlers.
#pragma once

#include "base/error.h"

namespace sub8 {

// From now on SIGINT, SIGTERM and SIGHUP (unless it was ignored, as nohup does) set the flag
// instead of ending the process; a second one while the flag is still set ends it at once with
// status 130. A closed pipe and a file-size limit fail the write (EPIPE, EFBIG) instead of killing
// the process, so that what is half-written gets removed. A mapped file that became shorter ends
// the process with its name and status 4 (SIGBUS, mapped_regions.h); that removes nothing: what an
// OutputDirectory held half-written is removed by the next writer of the same target.
void install_signal_handlers();
bool interrupted();
void clear_interrupt();

// cancelled("interrupted") when the flag is set.
Status check_interrupt();

// While one lives, the first signal ends the process with "interrupted" and status 130. For work
// that a program has nothing to clean up after and that nobody else waits for, such as loading a
// model; its constructor ends the process when the flag is set already.
class InterruptEndsProcess {
 public:
  InterruptEndsProcess();
  ~InterruptEndsProcess();
  InterruptEndsProcess(const InterruptEndsProcess&) = delete;
  InterruptEndsProcess& operator=(const InterruptEndsProcess&) = delete;
};

}  // namespace sub8
