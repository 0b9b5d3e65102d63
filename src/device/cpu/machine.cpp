#include "device/cpu/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <vector>

#include "base/clock.h"
#include "base/parallel.h"
#include "plimsoll/error.h"

namespace plimsoll::cpu {
namespace {

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number after `key` in text of lines such as "MemTotal:  24689012 kB" or "inactive_file 4096".
std::optional<int64_t> field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

std::optional<int64_t> number_in(const std::string& path) {
  const auto text = read_file(path);
  if (!text) return std::nullopt;
  std::istringstream words(*text);
  int64_t value = 0;
  if (!(words >> value)) return std::nullopt;  // "max": no limit
  return value;
}

// The process's control group and those above it, as folders, for one controller ("" : version 2).
std::vector<std::string> group_folders(const std::string& root, std::string_view controller) {
  const auto text = read_file(root + "/proc/self/cgroup");
  if (!text) return {};
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (controllers.find(fmt::format(",{},", controller)) == std::string::npos) continue;
    const std::string mount = fmt::format("{}/sys/fs/cgroup/{}", root, controller);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    std::vector<std::string> result;
    for (;;) {
      result.push_back(mount + path);
      if (path.empty()) return result;
      path.erase(path.find_last_of('/'));
    }
  }
  return {};
}

// Whether the process may run on a processor: as it began, before threads of it were pinned to fewer.
bool may_run_on(int processor) {
  static const cpu_set_t allowed = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) std::fill_n(reinterpret_cast<char*>(&set), sizeof(set), '\xff');
    return set;
  }();
  return processor < CPU_SETSIZE && CPU_ISSET(processor, &allowed);
}

// Lines such as "cpu3 user nice system idle iowait irq softirq steal guest guest_nice", in ticks. What another virtual
// machine took (steal) is busy, too.
void add_machine_times(ProcessorTimes& times, const std::string& root) {
  const auto text = read_file(root + "/proc/stat");
  if (!text) return;
  const auto tick = static_cast<double>(std::max(::sysconf(_SC_CLK_TCK), 1L));
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line) && line.starts_with("cpu");) {
    if (line.size() < 4 || line[3] == ' ' || !may_run_on(std::atoi(line.c_str() + 3))) continue;
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (int i = 0; i < 8; ++i) {
      double ticks = 0;
      words >> ticks;
      times.all += ticks / tick;
      if (i != 3 && i != 4) times.busy += ticks / tick;
    }
  }
}

struct OwnProcesses {
  std::mutex mutex;
  std::vector<int64_t> list;
};
OwnProcesses& own_processes() {
  static OwnProcesses own;
  return own;
}

// "number (name) state ...": the words 12 and 13 behind the name are its ticks in programs and in the system. One that has
// ended has none.
double seconds_of_own_processes(const std::string& root) {
  OwnProcesses& own = own_processes();
  const std::lock_guard lock(own.mutex);
  double ticks = 0;
  for (const int64_t process : own.list) {
    const auto text = read_file(fmt::format("{}/proc/{}/stat", root, process));
    const size_t name_end = text ? text->rfind(')') : std::string::npos;
    if (name_end == std::string::npos) continue;
    std::istringstream words(text->substr(name_end + 1));
    std::string word;
    for (int i = 0; i < 11; ++i) words >> word;
    double user = 0, system = 0;
    if (words >> user >> system) ticks += user + system;
  }
  return ticks / static_cast<double>(std::max(::sysconf(_SC_CLK_TCK), 1L));
}

// "nanoseconds computed, nanoseconds ready and waiting, turns" of every thread that lives.
double waiting_seconds(const std::string& root) {
  double ns = 0;
  std::error_code ignored;
  for (const auto& thread : std::filesystem::directory_iterator(root + "/proc/self/task", ignored)) {
    const auto text = read_file(thread.path().string() + "/schedstat");
    std::istringstream words(text.value_or(""));
    double computed = 0, waited = 0;
    if (words >> computed >> waited) ns += waited;
  }
  return ns / 1e9;
}

double throttled_seconds(const std::string& root) {
  for (const char* controller : {"", "cpu"}) {
    for (const std::string& folder : group_folders(root, controller)) {
      const auto text = read_file(folder + "/cpu.stat");
      if (!text) continue;
      if (const auto us = field(*text, "throttled_usec")) return static_cast<double>(*us) / 1e6;
      if (const auto ns = field(*text, "throttled_time")) return static_cast<double>(*ns) / 1e9;
    }
  }
  return 0;
}

void limit_by_group(MachineMemory& memory, const std::string& folder, const char* limit_file, const char* usage_file,
                    const char* cache_key) {
  const auto limit = number_in(folder + "/" + limit_file);
  if (!limit || *limit >= memory.total.count) return;
  memory.total = {*limit};
  const int64_t used = number_in(folder + "/" + usage_file).value_or(0);
  const auto statistics = read_file(folder + "/memory.stat");
  const int64_t cache = statistics ? field(*statistics, cache_key).value_or(0) : 0;  // given back under pressure
  memory.available = {std::clamp<int64_t>(*limit - used + cache, 0, memory.available.count)};
}

// A line such as "Max address space  4294967296  unlimited  bytes": the limit that holds now.
std::optional<int64_t> process_limit(const std::string& limits, std::string_view name) {
  std::istringstream lines(limits);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream words(line.substr(name.size()));
    int64_t value = 0;
    if (words >> value) return value;
    return std::nullopt;  // "unlimited"
  }
  return std::nullopt;
}

// ulimit -v and ulimit -d.
void limit_by_process(MachineMemory& memory, const std::string& root) {
  const auto limits = read_file(root + "/proc/self/limits"), status = read_file(root + "/proc/self/status");
  if (!limits || !status) return;
  for (const auto& [name, taken] : {std::pair{"Max address space", "VmSize:"}, std::pair{"Max data size", "VmData:"}}) {
    const auto limit = process_limit(*limits, name);
    if (!limit || *limit >= memory.total.count) continue;
    memory.total = {*limit};
    const Bytes left{std::max<int64_t>(0, *limit - 1024 * field(*status, taken).value_or(0))};
    if (left >= memory.available) continue;
    memory.available = left;
    memory.limited_by_process = true;
  }
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
  MachineMemory memory;
  if (const auto text = read_file(root + "/proc/meminfo")) {
    memory.total = {field(*text, "MemTotal:").value_or(0) * 1024};
    memory.available = {field(*text, "MemAvailable:").value_or(0) * 1024};
  }
  for (const std::string& folder : group_folders(root, "")) {
    limit_by_group(memory, folder, "memory.max", "memory.current", "inactive_file");
  }
  for (const std::string& folder : group_folders(root, "memory")) {
    limit_by_group(memory, folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
  }
  limit_by_process(memory, root);
  return memory;
}

int usable_processors(const std::string& root) {
  int count = 1;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = std::max(1, CPU_COUNT(&set));
  auto limit = [&](double quota, double period) {
    if (quota > 0 && period > 0) count = std::clamp(static_cast<int>(std::ceil(quota / period)), 1, count);
  };
  for (const std::string& folder : group_folders(root, "")) {
    const auto text = read_file(folder + "/cpu.max");
    if (!text) continue;
    std::istringstream words(*text);
    double quota = 0, period = 0;
    if (words >> quota >> period) limit(quota, period);
  }
  for (const std::string& folder : group_folders(root, "cpu")) {
    limit(static_cast<double>(number_in(folder + "/cpu.cfs_quota_us").value_or(0)),
          static_cast<double>(number_in(folder + "/cpu.cfs_period_us").value_or(0)));
  }
  return count;
}

void count_as_own(std::span<const int64_t> processes) {
  OwnProcesses& own = own_processes();
  const std::lock_guard lock(own.mutex);
  own.list.assign(processes.begin(), processes.end());
  std::erase(own.list, ::getpid());  // ranks that are threads
}

ProcessorTimes processor_times(const std::string& root) {
  ProcessorTimes times;
  times.wall = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  add_machine_times(times, root);
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  times.own = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  times.own += seconds_of_own_processes(root);
  times.waiting = waiting_seconds(root);
  times.throttled = throttled_seconds(root);
  return times;
}

void require_threads(int threads) {
  constexpr int kSomeThreads = 64, kThreadsAProcessor = 16;
  const int processors = usable_processors();
  const int most = std::max(kSomeThreads, kThreadsAProcessor * processors);
  if (threads > most) {
    throw Error(
        ErrorCode::device_failure,
        fmt::format("{} threads were asked for, but the process may use {} processor{}; more than {} threads only "
                    "wait for each other there: lower --threads",
                    threads, processors, processors == 1 ? "" : "s", most));
  }
  const int startable = 1 + startable_threads(threads - 1);
  if (startable < threads) {
    throw Error(
        ErrorCode::device_failure,
        fmt::format("{} threads are needed, but the system lets this process start only {}; lower --threads, or "
                    "raise the limit (ulimit -u, or pids.max of the control group)",
                    threads, startable));
  }
}

std::string processor_name(const std::string& root) {
  const auto text = read_file(root + "/proc/cpuinfo");
  if (!text) return "unknown processor";
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t at = line.find_first_not_of(" \t:", line.find(':'));
    if (at != std::string::npos) return line.substr(at);
  }
  return "unknown processor";
}

}  // namespace plimsoll::cpu
