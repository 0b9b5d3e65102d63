// What ends a command early, and what a training survives: signals, and a standard output that nobody reads any more.
#pragma once

namespace plimsoll::cli {

// What SIGHUP means, which a dropped connection brings, and SIGUSR1, with which schedulers of clusters warn: the end, or,
// where a checkpoint is kept, to save and go on.
enum class Hangup { stops, saves };

// From now on SIGINT, SIGTERM and SIGXCPU (a limit of processor time) make `interrupted` true, and a second one ends the
// process at once; SIGHUP and SIGUSR1 do what `hangup` says, unless the process was started to ignore SIGHUP (nohup); and a
// standard output that was closed makes `output_closed` true instead of ending the process.
void catch_interrupts(Hangup hangup = Hangup::stops);
bool interrupted();
int save_requested();  // the signal, once after every one that saves; else 0

void note_output_closed();
bool output_closed();

}  // namespace plimsoll::cli
