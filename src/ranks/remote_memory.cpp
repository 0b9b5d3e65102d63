#include "plimsoll/remote_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

namespace plimsoll {
namespace {

constexpr size_t kBufferBytes = kRemoteBuffers * kRemotePiece;

}  // namespace

std::optional<std::vector<std::vector<RemoteRange>>> share_remote_memory(std::span<const Bytes> wanted,
                                                                         std::span<const Bytes> served,
                                                                         int first_server) {
  std::vector<int64_t> taken(served.size());
  std::vector<std::vector<RemoteRange>> shares(wanted.size());
  for (size_t r = 0; r < wanted.size(); ++r) {
    for (Bytes missing = wanted[r]; missing.count > 0;) {
      size_t best = served.size();
      int64_t most = 0;
      for (size_t s = 0; s < served.size(); ++s) {
        if (served[s].count - taken[s] <= most) continue;
        most = served[s].count - taken[s];
        best = s;
      }
      const int64_t bytes = std::min(missing.count, most);
      if (bytes < std::min(missing.count, kRemotePiece)) return std::nullopt;
      shares[r].push_back({first_server + static_cast<int>(best), taken[best], {bytes}});
      taken[best] += bytes;
      missing = missing - Bytes{bytes};
    }
  }
  return shares;
}

RemoteMemory::RemoteMemory(Communicator& communicator, std::vector<RemoteRange> ranges)
    : communicator_(communicator), ranges_(std::move(ranges)) {
  for (const RemoteRange& range : ranges_) capacity_ += range.bytes;
  void* const memory = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::device_failure,
                fmt::format("the system gives no {} for copies to other machines: {}",
                            to_string(Bytes{static_cast<int64_t>(kBufferBytes)}), std::strerror(errno)));
  }
  buffers_ = static_cast<std::byte*>(memory);
}

RemoteMemory::~RemoteMemory() { munmap(buffers_, kBufferBytes); }

std::string RemoteMemory::where() const {
  std::set<int> servers;
  for (const RemoteRange& range : ranges_) servers.insert(range.server);
  std::string text;
  for (const int server : servers) text += (text.empty() ? "memory of " : ", ") + communicator_.name(server);
  return text;
}

std::string RemoteMemory::where(int64_t at) const {
  for (const RemoteRange& range : ranges_) {
    if (at < range.bytes.count) return "memory of " + communicator_.name(range.server);
    at -= range.bytes.count;
  }
  return where();
}

std::string RemoteMemory::hosts() const {
  std::set<std::string> hosts;
  for (const RemoteRange& range : ranges_) hosts.insert(communicator_.host(range.server));
  return fmt::format("{}", fmt::join(hosts, ", "));
}

std::string RemoteMemory::library() const { return communicator_.transport(); }

std::string RemoteMemory::network() const { return hosts() + " " + library() + network_settings(); }

void RemoteMemory::acquire() {
  if (used_.exchange(true)) throw Error(ErrorCode::internal, where() + " is in use already");
}

bool RemoteMemory::take_buffer(Flight& flight, bool waits) {
  for (uint32_t free = free_.load(std::memory_order_relaxed);;) {
    if (free == 0 && !waits) return false;
    if (free == 0) {
      free_.wait(0, std::memory_order_relaxed);
      free = free_.load(std::memory_order_relaxed);
    } else if (free_.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire)) {
      flight.buffer = buffers_ + std::countr_zero(free) * kRemotePiece;
      return true;
    }
  }
}

void RemoteMemory::give_back(Flight& flight) {
  if (flight.buffer == nullptr) return;
  free_.fetch_or(uint32_t{1} << ((flight.buffer - buffers_) / kRemotePiece), std::memory_order_release);
  free_.notify_all();
  flight.buffer = nullptr;
}

// `begin` gets server, byte of it, byte of the piece, and length.
template <class Begin>
void RemoteMemory::for_each_part(int64_t at, int64_t bytes, Begin begin) const {
  int64_t start = 0, done = 0;  // of the range; of the piece
  for (const RemoteRange& range : ranges_) {
    const int64_t end = start + range.bytes.count;
    if (done < bytes && at + done < end) {
      const int64_t part = std::min(bytes - done, end - (at + done));
      begin(range.server, range.first + (at + done - start), done, part);
      done += part;
    }
    start = end;
  }
  if (done < bytes) throw Error(ErrorCode::internal, "a copy beyond the end of the remote memory");
}

void RemoteMemory::begin_write(Flight& flight, int64_t at, size_t bytes) {
  flight.parts = 0;
  for_each_part(at, static_cast<int64_t>(bytes), [&](int server, int64_t there, int64_t here, int64_t part) {
    const std::span<const std::byte> from(flight.buffer + here, static_cast<size_t>(part));
    flight.tickets.at(flight.parts) = communicator_.begin_put(server, there, from);
    flight.servers.at(flight.parts++) = server;
  });
}

void RemoteMemory::begin_read(Flight& flight, int64_t at, size_t bytes) {
  flight.parts = 0;
  for_each_part(at, static_cast<int64_t>(bytes), [&](int server, int64_t there, int64_t here, int64_t part) {
    const std::span<std::byte> to(flight.buffer + here, static_cast<size_t>(part));
    flight.tickets.at(flight.parts) = communicator_.begin_get(server, there, to);
    flight.servers.at(flight.parts++) = server;
  });
}

void RemoteMemory::wait(Flight& flight) {
  const auto parts = static_cast<size_t>(flight.parts);
  communicator_.wait(std::span(flight.tickets).first(parts), std::span(flight.servers).first(parts));
  flight.parts = 0;
}

void RemoteMemory::flush(int64_t at, int64_t bytes) {
  for_each_part(at, bytes, [&](int server, int64_t, int64_t, int64_t) { communicator_.flush(server); });
}

}  // namespace plimsoll
