#include "cli/interrupts.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace plimsoll::cli {
namespace {

std::atomic<bool> was_interrupted{false}, is_closed{false};
std::atomic<int> wants_save{0};  // a signal
bool is_terminal[3] = {};        // by descriptor, before a hangup

// A hangup comes from the shell and from the system at once, so a second one must not cut off what the first began.
extern "C" void on_interrupt(int) {
  was_interrupted = true;
  for (const int signal : {SIGINT, SIGTERM, SIGXCPU}) ::signal(signal, SIG_DFL);
}
extern "C" void on_signal_that_saves(int signal) { wants_save = signal; }
// Writing to a closed pipe tells by its error which stream it was; only what another process sent is told here.
extern "C" void on_closed_pipe(int, siginfo_t* info, void*) {
  if (info->si_pid != ::getpid()) is_closed = true;
}

// Not on the thread's own stack: see use_signal_stack.
void handle(int signal, void (*action)(int)) {
  struct sigaction handler {};
  handler.sa_handler = action;
  handler.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(signal, &handler, nullptr);
}

// Each write to a terminal that is gone would fail, which is no failure of the training.
void leave_terminal() {
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    if (is_terminal[stream]) ::dup2(nowhere, stream);
  }
  ::close(nowhere);
}

}  // namespace

void catch_interrupts(Hangup hangup) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) is_terminal[stream] = ::isatty(stream) == 1;
  handle(SIGINT, on_interrupt);
  handle(SIGTERM, on_interrupt);
  struct sigaction before {};
  sigaction(SIGHUP, nullptr, &before);
  const bool nohup = before.sa_handler == SIG_IGN;
  void (*const save)(int) = hangup == Hangup::saves ? on_signal_that_saves : on_interrupt;
  if (!nohup) handle(SIGHUP, save);
  handle(SIGUSR1, save);
  handle(SIGXCPU, on_interrupt);
  struct sigaction closed {};
  closed.sa_sigaction = on_closed_pipe;
  closed.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigaction(SIGPIPE, &closed, nullptr);
}

bool interrupted() { return was_interrupted; }

int save_requested() {
  const int signal = wants_save.exchange(0);
  if (signal == SIGHUP) leave_terminal();
  return signal;
}

void note_output_closed() { is_closed = true; }
bool output_closed() { return is_closed; }

}  // namespace plimsoll::cli
