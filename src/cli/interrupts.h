// What ends a command early, and what a training survives: signals, and a standard output that nobody reads any more.
#pragma once

namespace plimsoll::cli {

// What SIGHUP means, which a dropped connection brings: the end, or, where a checkpoint is kept, to save and go on.
enum class Hangup { stops, saves };

// From now on SIGINT and SIGTERM make `interrupted` true, and a second one ends the process at once; SIGHUP does what
// `hangup` says, unless the process was started to ignore it (nohup); and a standard output that was closed makes
// `output_closed` true instead of ending the process.
void catch_interrupts(Hangup hangup = Hangup::stops);
bool interrupted();
bool save_requested();  // true once after every SIGHUP that saves

void note_output_closed();
bool output_closed();

}  // namespace plimsoll::cli
