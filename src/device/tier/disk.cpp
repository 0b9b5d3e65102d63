// A file as a tier. Pieces of a MiB, several in flight; past the page cache where the file system allows it, which
// wants addresses, places and lengths at multiples of a block: what lies otherwise in the arena goes through aligned
// buffers.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "device/tier/checksum.h"
#include "device/tier/fault.h"
#include "device/tier/queue.h"
#include "device/tier/tier.h"
#include "plimsoll/error.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "plimsoll-", kSuffix = ".spill";

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error(ErrorCode::device_failure, fmt::format("{}: {}", what, std::strerror(error)));
}

// The process that a spill file's name tells of; 0: it is no spill file.
pid_t owner_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return 0;
  pid_t owner = 0;
  const char* begin = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), owner);
  return error == std::errc() && *end == '-' ? owner : 0;
}

// What a process left that was killed in the moment between making its file and taking the name away, or whose file
// system kept it. A file whose lock is held, or whose process lives, is somebody's.
void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const pid_t owner = owner_of(entry.path().filename().string());
    if (owner <= 0 || ::kill(owner, 0) == 0 || errno != ESRCH) continue;
    const int file = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) ::unlink(entry.path().c_str());
    ::close(file);
  }
}

// What direct I/O wants of addresses in memory.
int64_t memory_alignment(int file) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0 &&
      status.stx_dio_mem_align > 0) {
    return status.stx_dio_mem_align;
  }
#endif
  (void)file;
  return kSlotAlignment;
}

// The signal that a file larger than the process's limit brings becomes an error like others.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~NoSizeSignal() {
    const timespec now{};
    if (sigismember(&before_, SIGXFSZ) == 0) sigtimedwait(&set_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t set_, before_;
};

struct SpillFile {
  int file = -1;
  bool direct = false;
  int64_t alignment = 1;  // of addresses
  std::string name;
};

// Aligned memory for the pieces in flight, of all channels of a tier together. A channel holds one only while a piece is
// on its way, so who waits for one gets it when somebody else's piece has landed.
class Buffers {
 public:
  Buffers() {
    int error = injected(TierOperation::buffers);
    if (error == 0) {
      memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory_ == MAP_FAILED) error = errno;
    }
    if (error != 0) fail(fmt::format("the system gives no {} for copies to the disk", to_string(Bytes{kBytes})), error);
  }
  ~Buffers() { munmap(memory_, kBytes); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Of a piece; null where all are in use, unless `waits`.
  std::byte* take(bool waits) {
    for (uint32_t free = free_.load(std::memory_order_relaxed);;) {
      if (free == 0 && !waits) return nullptr;
      if (free == 0) {
        free_.wait(0, std::memory_order_relaxed);
        free = free_.load(std::memory_order_relaxed);
      } else if (free_.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire)) {
        return static_cast<std::byte*>(memory_) + std::countr_zero(free) * kTierPiece;
      }
    }
  }
  void give_back(const std::byte* buffer) {
    const auto number = (buffer - static_cast<std::byte*>(memory_)) / kTierPiece;
    free_.fetch_or(uint32_t{1} << number, std::memory_order_release);
    free_.notify_all();
  }

 private:
  static constexpr size_t kBytes = kDiskBuffers * kTierPiece;
  void* memory_ = nullptr;
  std::atomic<uint32_t> free_{(uint32_t{1} << kDiskBuffers) - 1};  // a bit each
};

class DiskChannel final : public Channel {
 public:
  DiskChannel(const SpillFile& file, Buffers& buffers, std::unique_ptr<DiskQueue> queue)
      : file_(file), buffers_(buffers), queue_(std::move(queue)) {}

 protected:
  void write_pieces(Slot& slot, int64_t first, int64_t count, const std::byte* from) override {
    run(
        true, slot, first, count,
        [&](Flight& flight) {
          // Only read from.
          flight.target = const_cast<std::byte*>(from + (flight.piece - first) * kTierPiece);
        },
        [&](Flight& flight) {
          uint64_t& sum = slot.sums[flight.piece];
          sum = flight.buffer == nullptr ? checksum(flight.target, flight.bytes)
                                         : copy_with_checksum(flight.buffer, flight.target, flight.bytes);
        },
        [&](const Flight& flight) { slot.known[flight.piece] = 1; });
  }

  void read_pieces(const Slot& slot, int64_t first, int64_t count, std::byte* to) override {
    run(
        false, slot, first, count, [&](Flight& flight) { flight.target = to + (flight.piece - first) * kTierPiece; },
        [](Flight&) {},
        [&](const Flight& flight) {
          if (injected(TierOperation::corrupt) != 0) flight.memory()[flight.bytes / 2] ^= std::byte{1};
          const uint64_t found = flight.buffer == nullptr
                                     ? checksum(flight.target, flight.bytes)
                                     : copy_with_checksum(flight.target, flight.buffer, flight.bytes);
          const uint64_t expected = slot.sums[flight.piece];
          if (slot.known[flight.piece] != 0 && found != expected) {
            throw_wrong_checksum(file_.name, slot.offset + flight.piece * kTierPiece, expected, found);
          }
        });
  }

 private:
  struct Flight {
    int64_t piece = 0;
    size_t bytes = 0;    // of the piece
    size_t rounded = 0;  // in the file: whole blocks
    size_t done = 0;
    std::byte* target = nullptr;  // where the piece's bytes lie, or will
    std::byte* buffer = nullptr;  // through which they go where the file does not take that address
    std::byte* memory() const { return buffer != nullptr ? buffer : target; }
  };

  bool fits_directly(const std::byte* memory, size_t bytes) const {
    return reinterpret_cast<uintptr_t>(memory) % static_cast<uintptr_t>(file_.alignment) == 0 &&
           bytes % kSlotAlignment == 0;
  }

  [[noreturn]] void fail_piece(bool write, const Slot& slot, const Flight& flight, int error) const {
    throw Error(
        ErrorCode::device_failure,
        fmt::format("{}: {} {} at byte {}: {}", file_.name, write ? "writing" : "reading",
                    to_string(Bytes{static_cast<int64_t>(flight.bytes)}), slot.offset + flight.piece * kTierPiece,
                    error == 0 ? std::string("the file ends early") : std::string(std::strerror(error))));
  }

  void submit(bool write, const Slot& slot, const Flight& flight, int tag) {
    int error = injected(write ? TierOperation::write : TierOperation::read);
    if (error == 0) {
      const int64_t at = slot.offset + flight.piece * kTierPiece + static_cast<int64_t>(flight.done);
      error = queue_->submit(tag, {write, flight.memory() + flight.done, flight.rounded - flight.done, at});
    }
    if (error != 0) fail_piece(write, slot, flight, error);
    in_flight_[tag] = true;
  }

  // The next piece that is all there; what comes in parts is asked for again.
  int land(bool write, const Slot& slot) {
    for (;;) {
      const int asked = injected(TierOperation::wait);
      const DiskQueue::Done done = asked != 0 ? DiskQueue::Done{.tag = -1, .result = -asked} : queue_->wait();
      if (done.tag < 0) fail(fmt::format("{}: io_uring", file_.name), static_cast<int>(-done.result));
      in_flight_[done.tag] = false;
      Flight& flight = flights_[done.tag];
      if (done.result == -EINTR || done.result == -EAGAIN) {
        submit(write, slot, flight, done.tag);
        continue;
      }
      if (done.result < 0) fail_piece(write, slot, flight, static_cast<int>(-done.result));
      if (done.result == 0 || (!write && injected(TierOperation::short_read) != 0))
        fail_piece(write, slot, flight, write ? ENOSPC : 0);
      flight.done += done.result;
      if (flight.done >= flight.rounded) return done.tag;
      submit(write, slot, flight, done.tag);
    }
  }

  // The number of a flight that has landed, or was never begun; -1: all are in the air.
  int free_flight() const {
    for (int tag = 0; tag < queue_->depth(); ++tag) {
      if (!in_flight_[tag]) return tag;
    }
    return -1;
  }
  bool any_in_flight() const {
    return std::any_of(in_flight_.begin(), in_flight_.end(), [](bool flying) { return flying; });
  }
  void give_buffer_back(Flight& flight) {
    if (flight.buffer != nullptr) buffers_.give_back(flight.buffer);
    flight.buffer = nullptr;
  }

  // Where every buffer is in use, one is waited for only by who holds none.
  bool take_buffer(Flight& flight) {
    if (fits_directly(flight.target, flight.bytes)) return true;
    flight.buffer = buffers_.take(!any_in_flight());
    return flight.buffer != nullptr;
  }

  // `aim` says where a piece's bytes lie; `fill` gets them ready to be sent; `finish` takes them when they are there.
  template <class Aim, class Fill, class Finish>
  void run(bool write, const Slot& slot, int64_t first, int64_t count, Aim&& aim, Fill&& fill, Finish&& finish) {
    // It would change the file and the queue of the process that it was forked from.
    if (const pid_t process = ::getpid(); process != owner_) {
      throw Error(
          ErrorCode::device_failure,
          fmt::format("{}: this spill file is of process {}, from which process {} was forked. A forked process has "
                      "none of its own; start it by 'spawn', and make its step there",
                      file_.name, owner_, process));
    }
    try {
      int64_t sent = 0, landed = 0;
      while (landed < count) {
        if (const int tag = free_flight(); sent < count && tag >= 0) {
          Flight& flight = flights_[tag];
          flight = {.piece = first + sent};
          flight.bytes = std::min(kTierPiece, slot.bytes - flight.piece * kTierPiece);
          flight.rounded = align_up({static_cast<int64_t>(flight.bytes)}, kSlotAlignment).count;
          aim(flight);
          if (take_buffer(flight)) {
            fill(flight);
            submit(write, slot, flight, tag);
            ++sent;
            continue;
          }
        }
        Flight& flight = flights_[land(write, slot)];
        finish(flight);
        give_buffer_back(flight);
        ++landed;
      }
    } catch (...) {
      drain();
      throw;
    }
  }

  // Nothing may write into the arena behind a step that has failed. A buffer that the system may still write to stays
  // taken.
  void drain() {
    while (any_in_flight()) {
      const DiskQueue::Done done = queue_->wait();
      if (done.tag < 0) break;
      in_flight_[done.tag] = false;
    }
    for (size_t tag = 0; tag < flights_.size(); ++tag) {
      if (!in_flight_[tag]) give_buffer_back(flights_[tag]);
    }
  }

  const SpillFile& file_;
  const pid_t owner_ = ::getpid();
  Buffers& buffers_;
  std::unique_ptr<DiskQueue> queue_;
  std::array<Flight, kDiskDepth> flights_;
  std::array<bool, kDiskDepth> in_flight_{};
};

class DiskTier final : public Tier {
 public:
  DiskTier(const fs::path& folder, Bytes capacity) : Tier("disk", capacity), folder_(folder) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("--spill: there is no folder '{}'; make it, or name another", folder.string()));
    }
    remove_leftovers(folder);
    make_file();
    if (spill_.direct) spill_.alignment = memory_alignment(spill_.file);
    uring_ = open_ring(spill_.file) != nullptr;
  }
  ~DiskTier() override { ::close(spill_.file); }
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  std::string where() const override { return spill_.name; }
  std::string how() const override {
    return fmt::format("{}, {}", spill_.direct ? "direct I/O" : "through the page cache",
                       uring_ ? "io_uring" : "pread and pwrite");
  }

  void reserve(Bytes bytes) override {
    bytes = align_up(bytes, kSlotAlignment);
    if (bytes <= reserved_) return;
    if (bytes > align_up(capacity(), kSlotAlignment)) {
      throw Error(ErrorCode::device_failure,
                  fmt::format("the plan needs {} in {} but --spill allows {}; raise that size", to_string(bytes),
                              folder_.string(), to_string(capacity())));
    }
    int error = injected(TierOperation::allocate);
    if (error == 0) {
      const NoSizeSignal quiet;
      do {
        error = ::posix_fallocate(spill_.file, 0, bytes.count);
      } while (error == EINTR);
    }
    if (error == 0) {
      reserved_ = bytes;
      return;
    }
    struct statvfs status {};
    const bool known = ::fstatvfs(spill_.file, &status) == 0;
    const Bytes free{known ? static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize) : 0};
    if (::ftruncate(spill_.file, reserved_.count) != 0) error = errno;  // give back what it took of the disk
    throw Error(
        ErrorCode::device_failure,
        fmt::format("--spill {}: a file of {} is needed there: {}; {} are free. Name another folder or raise --memory",
                    folder_.string(), to_string(bytes), std::strerror(error), to_string(free)));
  }

  std::unique_ptr<Channel> open_channel(int) override {
    std::unique_ptr<DiskQueue> queue = uring_ ? open_ring(spill_.file) : nullptr;
    if (!queue) {
      uring_ = false;
      queue = open_plain_queue(spill_.file);
    }
    if (!buffers_) buffers_ = std::make_unique<Buffers>();
    return std::make_unique<DiskChannel>(spill_, *buffers_, std::move(queue));
  }

 private:
  void make_file() {
    if (const int error = injected(TierOperation::open))
      fail(fmt::format("--spill: cannot make a file in {}", folder_.string()), error);
    spill_.name = (folder_ / fmt::format("{}{}-unnamed{}", kPrefix, ::getpid(), kSuffix)).string();
    const bool named = injected(TierOperation::unnamed) != 0;
    for (const int direct : {O_DIRECT, 0}) {
      if (named) break;
      spill_.file = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL | direct, 0600);
      if (spill_.file >= 0) {
        spill_.direct = direct != 0;
        return;
      }
    }
    for (const int direct : {O_DIRECT, 0}) {
      for (int n = 0; n < 10000; ++n) {
        spill_.name = (folder_ / fmt::format("{}{}-{:04}{}", kPrefix, ::getpid(), n, kSuffix)).string();
        spill_.file = ::open(spill_.name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | direct, 0600);
        if (spill_.file < 0 && errno == EEXIST) continue;
        break;
      }
      if (spill_.file < 0) {
        if (direct != 0 && errno == EINVAL) ::unlink(spill_.name.c_str());  // made, and then refused
        continue;
      }
      spill_.direct = direct != 0;
      ::flock(spill_.file, LOCK_EX | LOCK_NB);
      ::unlink(spill_.name.c_str());
      return;
    }
    fail(fmt::format("--spill: cannot make a file in {}", folder_.string()), errno);
  }

  fs::path folder_;
  SpillFile spill_;
  Bytes reserved_;
  bool uring_ = false;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace

std::shared_ptr<Tier> open_disk_tier(const fs::path& folder, Bytes capacity) {
  return std::make_shared<DiskTier>(folder, capacity);
}

void parse_spill(std::string_view text, TierOptions& options) {
  std::error_code ignored;
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && !fs::is_directory(fs::path(text), ignored)) {
    const std::string_view size = text.substr(colon + 1);
    try {
      options.spill_size = parse_bytes(size);
    } catch (const Error& error) {
      throw Error(ErrorCode::invalid_input, fmt::format("--spill {}: {}", text, error.what()));
    }
    if (options.spill_size->count < kSlotAlignment)
      throw Error(ErrorCode::invalid_input, fmt::format("--spill {}: '{}' is less than the {} that a tensor "
                                                        "takes there; give a number and a unit, as in 20GiB",
                                                        text, size, to_string(Bytes{kSlotAlignment})));
    text = text.substr(0, colon);
  }
  if (text.empty() || !fs::is_directory(fs::path(text), ignored)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--spill: there is no folder '{}'; make it, or name another", text));
  }
  options.spill = fs::path(text);
}

void parse_peer(std::string_view text, TierOptions& options) {
  const size_t sign = text.find('=');
  if (sign != std::string_view::npos) {
    try {
      options.peer_size = parse_bytes(text.substr(sign + 1));
    } catch (const Error& error) {
      throw Error(ErrorCode::invalid_input, fmt::format("--peer {}: {}", text, error.what()));
    }
    if (options.peer_size->count < kSlotAlignment)
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("--peer {}: that is less than the {} that a tensor takes there; give a number and a unit, as in "
                      "8GiB",
                      text, to_string(Bytes{kSlotAlignment})));
  }
  options.peer = std::string(text.substr(0, sign));
}

Bytes spill_room(const fs::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) {
    throw Error(ErrorCode::invalid_input, fmt::format("--spill: '{}': {}", folder.string(), std::strerror(errno)));
  }
  const int64_t free = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  return {free / 10 * 9 / kSlotAlignment * kSlotAlignment};
}

}  // namespace plimsoll
