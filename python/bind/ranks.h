// The processes that train together, for Python: joined by MPI, or by what Python has (torch.distributed).
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/communicator.h"

namespace plimsoll::python {

// Messages that threads of Python's carry. They wait here in lanes, one for each channel, rank and direction:
//
//   Communicator ──send, receive──> lane ──take──> a thread of Python ──torch.distributed──> the other rank
//                <────is_done─────────────────done────┘
//
// None of it holds the interpreter's lock while it waits.
class Relay {
 public:
  struct Message {
    Transport::Ticket ticket = 0;
    std::byte* data = nullptr;
    size_t size = 0;
  };
  Relay(int rank, int size, std::string name);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  Transport::Ticket put(Transport::Channel channel, int peer, bool sends, std::byte* data, size_t size);
  bool is_done(Transport::Ticket ticket);
  bool is_lost(int peer) const { return lost_[peer]; }

  // For the threads: waits for the lane's next message; nothing when the relay was closed.
  std::optional<Message> take(int channel, int peer, bool sends);
  void done(Transport::Ticket ticket);
  void lose(int peer) { lost_[peer] = true; }
  void close();

 private:
  std::deque<Message>& lane(int channel, int peer, bool sends) { return lanes_[(channel * size_ + peer) * 2 + sends]; }

  const int rank_, size_;
  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::vector<std::deque<Message>> lanes_;
  std::vector<bool> done_;  // by ticket
  std::vector<Transport::Ticket> free_;
  std::vector<std::atomic<bool>> lost_;  // by rank
};

// What Python holds of the ranks; null where the object is of no others.
std::shared_ptr<Communicator> communicator_of(const nanobind::object& ranks);

void bind_ranks(nanobind::module_& m);

}  // namespace plimsoll::python
