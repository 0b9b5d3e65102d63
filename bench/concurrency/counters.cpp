#include "bench/concurrency/counters.h"

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace plimsoll::bench {
namespace {

constexpr uint64_t kReadsOfL1 = PERF_COUNT_HW_CACHE_L1D | (PERF_COUNT_HW_CACHE_OP_READ << 8);

struct Event {
  uint32_t type;
  uint64_t config;
};
// In the order of Counters::kNames; of the last two the difference is taken.
constexpr Event kEvents[] = {{PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
                             {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
                             {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES},
                             {PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_REFERENCES},
                             {PERF_TYPE_HW_CACHE, kReadsOfL1 | (PERF_COUNT_HW_CACHE_RESULT_ACCESS << 16)},
                             {PERF_TYPE_HW_CACHE, kReadsOfL1 | (PERF_COUNT_HW_CACHE_RESULT_MISS << 16)}};

int open_event(const Event& event) {
  perf_event_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.type = event.type;
  attributes.config = event.config;
  attributes.disabled = 1;
  attributes.inherit = 1;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  return static_cast<int>(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
}

}  // namespace

Counters::Counters() {
  for (const Event& event : kEvents) {
    const int file = open_event(event);
    if (file < 0) {
      why_not_ = std::string("perf_event_open: ") + std::strerror(errno);
      return;
    }
    files_.push_back(file);
  }
}

Counters::~Counters() {
  for (int file : files_) close(file);
}

void Counters::start() {
  for (int file : files_) {
    ioctl(file, PERF_EVENT_IOC_RESET, 0);
    ioctl(file, PERF_EVENT_IOC_ENABLE, 0);
  }
}

std::array<double, Counters::kNames.size()> Counters::stop() {
  for (int file : files_) ioctl(file, PERF_EVENT_IOC_DISABLE, 0);
  double values[std::size(kEvents)] = {};
  for (size_t i = 0; i < files_.size(); ++i) {
    uint64_t read_values[3] =
        {};  // value, time enabled, time running: more events than the processor counts at once take turns
    if (read(files_[i], read_values, sizeof(read_values)) != static_cast<ssize_t>(sizeof(read_values)) ||
        read_values[2] == 0)
      continue;
    values[i] =
        static_cast<double>(read_values[0]) * static_cast<double>(read_values[1]) / static_cast<double>(read_values[2]);
  }
  return {values[0], values[1], values[2], values[3], values[4] - values[5]};
}

}  // namespace plimsoll::bench
