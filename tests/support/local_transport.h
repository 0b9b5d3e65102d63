// Ranks that are threads of one process: messages are copied from one to the other.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "plimsoll/communicator.h"
#include "plimsoll/remote_memory.h"

namespace plimsoll::testing {

// What all of them share.
class PostOffice {
 public:
  // `served`: what each process has that serves memory; these are numbered behind the `size` others.
  explicit PostOffice(int size, const std::vector<Bytes>& served = {}) : size_(size) {
    for (const Bytes bytes : served) served_.emplace_back(static_cast<size_t>(bytes.count));
  }
  int size() const { return size_; }
  int servers() const { return static_cast<int>(served_.size()); }
  std::vector<std::byte>& served(int server) { return served_.at(server - size_); }
  // From now on copies to and from served memory are never done.
  void freeze() { frozen_ = true; }
  bool is_frozen() const { return frozen_; }
  template <class Copy>
  void copy(const Copy& copy) {
    const std::lock_guard lock(mutex_);
    copy();
  }

  using Way = std::tuple<int, int, Transport::Channel>;  // from, to
  void put(const Way& way, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    const bool data = std::get<2>(way) == Transport::Channel::data;
    boxes_[way].push_back({{bytes.begin(), bytes.end()}, data ? arrival(way, bytes.size()) : 0});
    if (data) data_sent_ += bytes.size();
  }
  bool take(const Way& way, std::span<std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    auto& box = boxes_[way];
    if (box.empty() || box.front().arrives_ms > clock_.ms()) return false;
    if (box.front().bytes.size() != bytes.size()) throw Error(ErrorCode::internal, "a message of another size");
    std::copy(box.front().bytes.begin(), box.front().bytes.end(), bytes.begin());
    box.pop_front();
    return true;
  }
  // From now on data goes each way at such a rate, but for so many bytes after a pause (a token bucket).
  void hold_to(double gb_per_s, Bytes burst) {
    bytes_per_ms_ = gb_per_s * 1e6;
    burst_ = static_cast<double>(burst.count);
  }
  size_t data_bytes_sent() {
    const std::lock_guard lock(mutex_);
    return data_sent_;
  }

 private:
  struct Message {
    std::vector<std::byte> bytes;
    double arrives_ms = 0;
  };
  struct Bucket {
    double bytes = 0, at_ms = -1;
  };
  double arrival(const Way& way, size_t bytes) {
    if (bytes_per_ms_ <= 0) return 0;
    Bucket& bucket = buckets_[way];
    const double now = clock_.ms();
    bucket.bytes = bucket.at_ms < 0 ? burst_ : std::min(burst_, bucket.bytes + (now - bucket.at_ms) * bytes_per_ms_);
    bucket.at_ms = now;
    bucket.bytes -= static_cast<double>(bytes);
    return now + std::max(0.0, -bucket.bytes / bytes_per_ms_);
  }

  const int size_;
  const Stopwatch clock_;
  double bytes_per_ms_ = 0, burst_ = 0;
  std::map<Way, Bucket> buckets_;
  std::mutex mutex_;
  std::map<Way, std::deque<Message>> boxes_;
  size_t data_sent_ = 0;
  std::vector<std::vector<std::byte>> served_;
  std::atomic<bool> frozen_ = false;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(PostOffice& office, int rank) : office_(office), rank_(rank) {}
  std::string name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return office_.size(); }
  Ticket send(Channel channel, int to, std::span<const std::byte> bytes) override {
    office_.put({rank_, to, channel}, bytes);
    return add(std::nullopt);
  }
  Ticket receive(Channel channel, int from, std::span<std::byte> bytes) override {
    return add(Receiving{{from, rank_, channel}, bytes});
  }
  int servers() const override { return office_.servers(); }
  Bytes served(int server) const override { return {static_cast<int64_t>(office_.served(server).size())}; }
  Ticket put(int server, int64_t at, std::span<const std::byte> bytes) override {
    if (office_.is_frozen()) return add(Receiving{.frozen = true});
    office_.copy([&] { std::copy(bytes.begin(), bytes.end(), office_.served(server).begin() + at); });
    return add(std::nullopt);
  }
  Ticket get(int server, int64_t at, std::span<std::byte> bytes) override {
    if (office_.is_frozen()) return add(Receiving{.frozen = true});
    office_.copy([&] { std::copy_n(office_.served(server).begin() + at, bytes.size(), bytes.begin()); });
    return add(std::nullopt);
  }
  void flush(int) override {}
  bool is_done(Ticket ticket) override {
    std::optional<Receiving>& waiting = tickets_.at(ticket);
    if (waiting && waiting->frozen) return false;
    if (waiting && !office_.take(waiting->way, waiting->bytes)) return false;
    waiting.reset();
    free_.push_back(ticket);
    return true;
  }
  void finish() override {}

 private:
  struct Receiving {
    PostOffice::Way way;
    std::span<std::byte> bytes;
    bool frozen = false;
  };
  Ticket add(std::optional<Receiving> receiving) {
    if (free_.empty()) {
      tickets_.push_back(receiving);
      return static_cast<Ticket>(tickets_.size()) - 1;
    }
    const Ticket ticket = free_.back();
    free_.pop_back();
    tickets_[ticket] = receiving;
    return ticket;
  }

  PostOffice& office_;
  const int rank_;
  std::vector<std::optional<Receiving>> tickets_;
  std::vector<Ticket> free_;
};

// Runs body(communicator) as every one of so many ranks, and throws what the first of them threw.
inline void as_ranks(int size, const std::function<void(const std::shared_ptr<Communicator>&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::seconds(60), PostOffice* given = nullptr) {
  PostOffice own(size);
  PostOffice& office = given != nullptr ? *given : own;
  std::vector<std::exception_ptr> thrown(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(std::make_shared<Communicator>(std::make_unique<LocalTransport>(office, r), timeout));
      } catch (...) {
        thrown[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
}

// A rank alone with processes that serve memory, each a thread.
class LocalServers {
 public:
  LocalServers(const std::vector<Bytes>& served, Bytes wanted,
               std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : office_(1, served) {
    for (int s = 1; s <= office_.servers(); ++s) {
      threads_.emplace_back([this, s] {
        try {
          Communicator(std::make_unique<LocalTransport>(office_, s)).serve();
          ++ended_;
        } catch (const Error&) {
        }
      });
    }
    ranks_ = std::make_shared<Communicator>(std::make_unique<LocalTransport>(office_, 0), timeout);
    try {
      memory_ = {ranks_, ranks_->take_remote_memory(wanted)};
    } catch (const Error& error) {
      end();
      throw;
    }
  }
  ~LocalServers() { end(); }
  LocalServers(const LocalServers&) = delete;
  LocalServers& operator=(const LocalServers&) = delete;

  // Takes leave; how many servers ended in peace.
  int end() {
    if (ranks_) ranks_->finish();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    return ended_;
  }
  PostOffice& office() { return office_; }
  const std::shared_ptr<Communicator>& ranks() const { return ranks_; }
  const std::shared_ptr<RemoteMemory>& memory() const { return memory_; }

 private:
  PostOffice office_;
  std::atomic<int> ended_ = 0;
  std::vector<std::thread> threads_;
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<RemoteMemory> memory_;
};

}  // namespace plimsoll::testing
