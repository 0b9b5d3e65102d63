#include "cli/ranks.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "cli/commands.h"
#include "cli/interrupts.h"
#include "device/cpu/machine.h"
#include "plimsoll/remote_memory.h"

namespace plimsoll::cli {
namespace {

// Ends the process when this lives longer than the timeout: MPI's own calls for all ranks wait for them without end.
class TimeLimit {
 public:
  TimeLimit(std::chrono::milliseconds timeout, std::string_view what)
      : thread_([this, timeout, what] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, timeout, [this] { return over_; })) return;
          complain(
              fmt::format("MPI did not {} all ranks within {:.0f} s (--timeout): one of them hangs, or cannot be "
                          "reached",
                          what, std::chrono::duration<double>(timeout).count()));
          std::_Exit(kFailure);
        }) {}
  ~TimeLimit() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

std::unique_ptr<Transport> open_within(std::chrono::milliseconds timeout, std::span<std::byte> served = {}) {
  const TimeLimit limit(timeout, "bring together");
  return open_mpi(served);
}

void finish(Communicator& ranks) {
  const TimeLimit limit(2 * ranks.timeout() + std::chrono::seconds(1),
                        "take leave of");  // it finds out by itself before
  ranks.finish();
}

std::shared_ptr<Communicator> join(double seconds) {
  if (launched_ranks() < 2) return nullptr;
  const std::chrono::milliseconds timeout(static_cast<int64_t>(std::min(seconds, 1e9) * 1000));
  return std::make_shared<Communicator>(open_within(timeout), timeout);
}

constexpr std::string_view kHowToServe =
    "mpirun -n 1 plimsoll train ... --remote-memory 4GiB : -n 1 plimsoll serve-memory --size 4GiB";

int end(Communicator& ranks, ErrorCode code, const std::string& why) {
  const bool is_of_all = ranks.is_first() && code != ErrorCode::device_failure;  // flags are the same on all
  ranks.fail(code, is_of_all ? why : fmt::format("{}: {}", ranks.name(ranks.rank()), why));
  return exit_code(code);
}

}  // namespace

int as_rank(double timeout, const std::function<int(const std::shared_ptr<Communicator>&)>& run) {
  const std::shared_ptr<Communicator> ranks = join(timeout);
  if (!ranks) return run(nullptr);
  ranks->set_teller([](std::string_view why) { complain(why); });
  ranks->set_abandon([](std::string_view why) {
    complain(why);
    std::_Exit(kFailure);
  });
  try {
    const int code = run(ranks);
    finish(*ranks);
    return code;
  } catch (const RankFailed& error) {
    return exit_code(error.code());
  } catch (const Error& error) {
    return end(*ranks, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return end(*ranks, ErrorCode::device_failure, "the system has no more memory; lower --memory or --batch");
  } catch (const std::system_error& error) {
    return end(
        *ranks, ErrorCode::device_failure,
        fmt::format("the system refused what was asked of it: {}; a limit (ulimit -a) may be too low", error.what()));
  } catch (const std::exception& error) {
    return end(*ranks, ErrorCode::internal, fmt::format("internal error: {}", error.what()));
  }
}

void take_remote_memory(TrainOptions& options, const std::shared_ptr<Communicator>& ranks, bool by_checkpoint) {
  const bool served = ranks != nullptr && ranks->servers() > 0;
  if (served) {
    if (!options.remote_memory && ranks->is_first())
      complain("serve-memory serves nobody: say with --remote-memory SIZE how much each rank may take");
    options.remote = {ranks, ranks->take_remote_memory(options.remote_memory.value_or(0_B))};
    return;
  }
  if (!options.remote_memory) return;
  if (by_checkpoint) {
    if (ranks == nullptr || ranks->is_first()) {
      complain(fmt::format("{} was trained with --remote-memory {}; nobody serves memory now, so it goes on without",
                           options.resume->string(), to_string(*options.remote_memory)));
    }
    options.remote_memory.reset();
    return;
  }
  throw Error(ErrorCode::invalid_input, fmt::format("--remote-memory {}: no process serves memory; start it as in `{}`",
                                                    to_string(*options.remote_memory), kHowToServe));
}

namespace {

struct ServeFlags {
  std::string size;
};

// Memory that is there: what is only promised may be missing in the middle of a training.
class ServedMemory {
 public:
  explicit ServedMemory(Bytes size) : bytes_(size.count) {
    if (const Bytes available = cpu::machine_memory().available; size > available) {
      throw Error(ErrorCode::device_failure,
                  fmt::format("--size {}: this machine has {} left; lower it", to_string(size), to_string(available)));
    }
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory_ == MAP_FAILED) {
      throw Error(ErrorCode::device_failure,
                  fmt::format("--size {}: the system gives no such memory: {}", to_string(size), std::strerror(errno)));
    }
  }
  ~ServedMemory() { munmap(memory_, bytes_); }
  ServedMemory(const ServedMemory&) = delete;
  ServedMemory& operator=(const ServedMemory&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  void* memory_ = nullptr;
  size_t bytes_;
};

int serve(const ServeFlags& flags) {
  Bytes size;
  try {
    size = parse_bytes(flags.size);
    if (size < kLeastRemoteMemory)
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} are too few to serve: {} at least", to_string(size), to_string(kLeastRemoteMemory)));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--size: {}", error.what()));
  }
  const auto nobody = [](const std::string& why) {
    throw Error(ErrorCode::invalid_input, fmt::format("serve-memory: {}; start both, as in `{}`", why, kHowToServe));
  };
  if (launched_ranks() < 2) nobody("it was started alone, and serves a training that mpirun starts beside it");
  catch_interrupts();  // a training that is told to end needs its memory until it has saved; a second one ends it at once
  const ServedMemory memory(size);
  Communicator ranks(open_within(kDefaultTimeout, memory.bytes()));
  if (ranks.size() == 0) nobody("no process trains");
  ranks.set_teller([](std::string_view why) { complain(why); });
  ranks.set_ending([told = false]() mutable {
    if (interrupted() && !std::exchange(told, true))
      complain("serve-memory: it ends when the training has; a second signal ends it at once");
    return false;
  });
  try {
    ranks.serve();
    return kDone;
  } catch (const RankFailed& error) {
    return exit_code(error.code());
  }
}

}  // namespace

Run add_serve_memory(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand(
      "serve-memory", "Serve this machine's memory to trainings with --remote-memory, started together by mpirun");
  command->footer(
      "It ends when the training does, with 0, or with the exit code of a rank that failed (4 where one died).\n"
      "Examples:\n"
      "  mpirun -n 1 plimsoll train resnet50 --memory 1GiB --remote-memory 4GiB : -n 1 plimsoll serve-memory --size 4GiB\n"
      "  mpirun -n 2 -host a,b plimsoll train ... --remote-memory 8GiB : -n 1 -host c plimsoll serve-memory --size 16GiB");
  command
      ->add_option("--size", flags->size, "Memory to serve, taken at once: 16GiB; the ranks of the trainings divide it")
      ->type_name("SIZE")
      ->required();
  return [flags] { return serve(*flags); };
}

}  // namespace plimsoll::cli
