#include "ranks.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "device/collectives.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {

constexpr int kChannels = 3;  // of Transport::Channel

Relay::Relay(int rank, int size, std::string name)
    : rank_(rank), size_(size), name_(std::move(name)), lanes_(kChannels * size * 2), lost_(size) {}

Transport::Ticket Relay::put(Transport::Channel channel, int peer, bool sends, std::byte* data, size_t size) {
  const std::lock_guard lock(mutex_);
  Transport::Ticket ticket = static_cast<Transport::Ticket>(done_.size());
  if (free_.empty()) {
    done_.push_back(false);
  } else {
    ticket = free_.back();
    free_.pop_back();
  }
  done_[ticket] = size == 0;
  if (size > 0) lane(static_cast<int>(channel), peer, sends).push_back({ticket, data, size});
  changed_.notify_all();
  return ticket;
}

bool Relay::is_done(Transport::Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (!done_[ticket]) return false;
  free_.push_back(ticket);
  return true;
}

std::optional<Relay::Message> Relay::take(int channel, int peer, bool sends) {
  std::unique_lock lock(mutex_);
  std::deque<Message>& messages = lane(channel, peer, sends);
  changed_.wait(lock, [&] { return closed_ || !messages.empty(); });
  if (closed_) return std::nullopt;
  const Message message = messages.front();
  messages.pop_front();
  return message;
}

void Relay::done(Transport::Ticket ticket) {
  const std::lock_guard lock(mutex_);
  done_[ticket] = true;
}

void Relay::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

namespace {

class RelayTransport final : public Transport {
 public:
  explicit RelayTransport(std::shared_ptr<Relay> relay) : relay_(std::move(relay)) {}
  std::string name() const override { return relay_->name(); }
  int rank() const override { return relay_->rank(); }
  int size() const override { return relay_->size(); }
  Ticket send(Channel channel, int to, std::span<const std::byte> bytes) override {
    return relay_->put(channel, to, true, const_cast<std::byte*>(bytes.data()), bytes.size());  // it is only read
  }
  Ticket receive(Channel channel, int from, std::span<std::byte> bytes) override {
    return relay_->put(channel, from, false, bytes.data(), bytes.size());
  }
  bool is_done(Ticket ticket) override { return relay_->is_done(ticket); }
  bool is_lost(int rank) const override { return relay_->is_lost(rank); }
  void finish() override {}  // whoever carries the messages ends that

 private:
  const std::shared_ptr<Relay> relay_;
};

std::chrono::milliseconds timeout_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, 1e9) * 1000));
}

// The ranks as Python has them. Every call but the plain ones is made by all ranks together, without the interpreter's lock.
struct Ranks {
  explicit Ranks(std::unique_ptr<Transport> transport, double timeout)
      : communicator(std::make_shared<Communicator>(std::move(transport), timeout_of(timeout))) {}
  std::shared_ptr<Communicator> communicator;
};

using Bytes1D = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

std::shared_ptr<Communicator> communicator_of(const nb::object& ranks) {
  return ranks.is_none() ? nullptr : nb::cast<Ranks&>(ranks).communicator;
}

void bind_ranks(nb::module_& m) {
  nb::class_<Relay>(m, "Relay")
      .def(nb::init<int, int, std::string>(), "rank"_a, "size"_a, "name"_a)
      // (ticket, array of the bytes), or None when it was closed
      .def("take",
           [](Relay& relay, int channel, int peer, bool sends) -> nb::object {
             std::optional<Relay::Message> message;
             {
               const nb::gil_scoped_release released;
               message = relay.take(channel, peer, sends);
             }
             if (!message) return nb::none();
             size_t shape = message->size;
             nb::ndarray<nb::numpy, uint8_t> bytes(message->data, 1, &shape, nb::none());
             return nb::make_tuple(message->ticket, nb::cast(bytes, nb::rv_policy::reference));
           })
      .def("done", &Relay::done)
      .def("lose", &Relay::lose)
      .def("close", &Relay::close);
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Ranks>(m, "Ranks")
      .def_static(
          "by_mpi",
          [](double timeout) -> std::optional<Ranks> {
            auto transport = open_mpi();
            if (!transport) return std::nullopt;
            if (transport->servers() > 0) {
              throw Error(ErrorCode::unsupported,
                          "serve-memory serves `plimsoll train` only; a training from Python has no --remote-memory");
            }
            return Ranks(std::move(transport), timeout);
          },
          released)
      .def_static(
          "by_relay",
          [](const std::shared_ptr<Relay>& relay, double timeout) {
            return Ranks(std::make_unique<RelayTransport>(relay), timeout);
          },
          released)
      .def_prop_ro("rank", [](const Ranks& ranks) { return ranks.communicator->rank(); })
      .def_prop_ro("size", [](const Ranks& ranks) { return ranks.communicator->size(); })
      .def_prop_ro("transport", [](const Ranks& ranks) { return ranks.communicator->transport(); })
      .def_prop_ro("is_over", [](const Ranks& ranks) { return ranks.communicator->is_over(); })
      .def("name", [](const Ranks& ranks, int rank) { return ranks.communicator->name(rank); })
      .def("set_timeout",
           [](const Ranks& ranks, double timeout) { ranks.communicator->set_timeout(timeout_of(timeout)); })
      .def(
          "all_gather",
          [](const Ranks& ranks, const std::string& mine) { return ranks.communicator->all_gather(mine); },
          released)
      .def(
          "is_same",  // the text on all ranks
          [](const Ranks& ranks, const std::string& text) {
            const auto all = ranks.communicator->all_gather(std::hash<std::string>()(text));
            return std::ranges::all_of(all, [&](size_t hash) { return hash == all[0]; });
          },
          released)
      .def("broadcast",
           [](const Ranks& ranks, const Bytes1D& bytes) {
             const nb::gil_scoped_release released;
             if (bytes.size() > 0)
               ranks.communicator->broadcast({reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
           })
      .def(
          "fail",
          [](const Ranks& ranks, const std::string& why) { ranks.communicator->fail(ErrorCode::device_failure, why); },
          released)
      .def(
          "finish", [](const Ranks& ranks) { ranks.communicator->finish(); }, released);
  m.def("launched_ranks", &launched_ranks);
  m.def("launched_rank", &launched_rank);
}

}  // namespace plimsoll::python
