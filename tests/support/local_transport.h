// Ranks that are threads of one process: messages are copied from one to the other.
#pragma once

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

#include "plimsoll/communicator.h"

namespace plimsoll::testing {

// What all of them share.
class PostOffice {
 public:
  explicit PostOffice(int size) : size_(size) {}
  int size() const { return size_; }

  using Way = std::tuple<int, int, Transport::Channel>;  // from, to
  void put(const Way& way, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    boxes_[way].emplace_back(bytes.begin(), bytes.end());
    if (std::get<2>(way) == Transport::Channel::data) data_sent_ += bytes.size();
  }
  bool take(const Way& way, std::span<std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    auto& box = boxes_[way];
    if (box.empty()) return false;
    if (box.front().size() != bytes.size()) throw Error(ErrorCode::internal, "a message of another size");
    std::copy(box.front().begin(), box.front().end(), bytes.begin());
    box.pop_front();
    return true;
  }
  size_t data_bytes_sent() {
    const std::lock_guard lock(mutex_);
    return data_sent_;
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::map<Way, std::deque<std::vector<std::byte>>> boxes_;
  size_t data_sent_ = 0;
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
  bool is_done(Ticket ticket) override {
    std::optional<Receiving>& waiting = tickets_.at(ticket);
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

}  // namespace plimsoll::testing
