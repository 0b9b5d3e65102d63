#include "base/signal_stack.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace plimsoll {
namespace {

// Registers alone take 11 KiB with AMX.
size_t wanted_bytes() { return static_cast<size_t>(std::max<long>(64 * 1024, 4 * sysconf(_SC_SIGSTKSZ))); }

class SignalStack {
 public:
  SignalStack() {
    stack_t now{};
    if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
    const size_t bytes = wanted_bytes();
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) return;
    stack_ = {.ss_sp = memory, .ss_flags = 0, .ss_size = bytes};
    if (sigaltstack(&stack_, nullptr) == 0) return;
    munmap(memory, bytes);
    stack_ = {};
  }
  ~SignalStack() {
    if (stack_.ss_sp == nullptr) return;
    stack_t now{};
    if (sigaltstack(nullptr, &now) == 0 && now.ss_sp == stack_.ss_sp) {
      const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
      if (sigaltstack(&none, nullptr) != 0) return;
    }
    munmap(stack_.ss_sp, stack_.ss_size);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  stack_t stack_{};
};

}  // namespace

void use_signal_stack() { static thread_local SignalStack stack; }

}  // namespace plimsoll
