// A stack for signal handlers.
#pragma once

namespace plimsoll {

// From now on a handler with SA_ONSTACK that runs in this thread has a stack of its own, which ends with the thread. Nothing
// changes where the thread has one already, or where the system has no memory for it.
void use_signal_stack();

}  // namespace plimsoll
