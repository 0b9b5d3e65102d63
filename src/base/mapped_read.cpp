// Reading a file through a mapping. Only the pages of one read are mapped, and only while it is going on: a file of any size
// takes neither memory nor page tables nor address space of the process, and what is resident for longer is the system's page
// cache.
//
// A page that the file does not have any more, because somebody cut it short, or that the disk cannot give, is a SIGBUS for
// whoever touches it. While a thread copies, such a page is replaced by one of zeros, so that the copy comes to its end; then
// the bytes are read again by pread, which says what is wrong. Any other SIGBUS goes where it went before. What a file loses
// within its last page are zeros without a signal, so its size is looked at behind every copy.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "base/files.h"

namespace plimsoll {
namespace {

// The pages that this thread copies from.
struct Copied {
  uintptr_t begin = 0, end = 0;
  volatile std::sig_atomic_t is_broken = 0;
};
constinit thread_local Copied copying;

const uintptr_t kPageBytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
struct sigaction earlier {};

bool replace_page(uintptr_t address) {
  void* const page = reinterpret_cast<void*>(address / kPageBytes * kPageBytes);
  return mmap(page, kPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address >= copying.begin && address < copying.end && replace_page(address)) {
    copying.is_broken = 1;
    return;
  }
  if ((earlier.sa_flags & SA_SIGINFO) != 0 && earlier.sa_sigaction != nullptr)
    return earlier.sa_sigaction(signal, info, context);
  if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) return earlier.sa_handler(signal);
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  sigaction(signal, &usual, nullptr);
  raise(signal);  // it comes when this function has returned
}

bool handle_bus_errors() {
  struct sigaction ours {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  return sigaction(SIGBUS, nullptr, &earlier) == 0 && sigaction(SIGBUS, &ours, nullptr) == 0;
}

}  // namespace

bool InputFile::copy_mapped(int64_t offset, std::span<std::byte> into) const {
  static const bool is_handled = handle_bus_errors();
  const auto end = offset + static_cast<int64_t>(into.size());
  if (!is_handled || end > size_) return false;
  const int64_t within = offset % static_cast<int64_t>(kPageBytes);
  const size_t mapped_bytes = static_cast<size_t>(within) + into.size();
  void* const mapped = mmap(nullptr, mapped_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd_, offset - within);
  if (mapped == MAP_FAILED) return false;
  copying.is_broken = 0;
  copying.begin = reinterpret_cast<uintptr_t>(mapped);
  copying.end = (copying.begin + mapped_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(into.data(), static_cast<const std::byte*>(mapped) + within, into.size());
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copying.begin = copying.end = 0;
  munmap(mapped, mapped_bytes);
  struct stat now {};
  return copying.is_broken == 0 && ::fstat(fd_, &now) == 0 && now.st_size >= end;
}

void InputFile::read_mapped(int64_t offset, std::span<std::byte> into) const {
  if (!into.empty() && !copy_mapped(offset, into)) read(offset, into);
}

}  // namespace plimsoll
