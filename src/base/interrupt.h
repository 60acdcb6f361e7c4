// Ctrl-C as a flag that long loops poll. Library code only reads it; the program installs the
// handler.
#pragma once

#include "base/error.h"

namespace sub8 {

// From now on SIGINT and SIGTERM set the flag instead of ending the process; a second one while the
// flag is still set ends it at once with status 130. A closed pipe and a file-size limit fail the
// write (EPIPE, EFBIG) instead of killing the process, so that what is half-written gets removed.
void install_signal_handlers();
bool interrupted();
void clear_interrupt();

// cancelled("interrupted") when the flag is set.
Status check_interrupt();

}  // namespace sub8
