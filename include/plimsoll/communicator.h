// The processes that train one network together. Each is a rank, as MPI numbers them, and has a part of every batch.
//
//   Transport      messages between two ranks: MPI, NCCL, torch.distributed, or threads of one process in tests
//   Communicator   what a training does with them: collectives whose sums have one order, and failures that all learn of
//
// Behind the ranks may stand processes that only serve memory (`plimsoll serve-memory`, remote_memory.h). They are numbered
// from size() on, in messages and in failures.
//
// Sums run in the order of the ranks, element by element: ((x0 + x1) + x2) + x3. So they are the same in every run,
// however the elements are grouped into messages.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "plimsoll/bytes.h"
#include "plimsoll/error.h"

namespace plimsoll {

// Messages between two ranks. Those of one channel arrive in the order in which they were sent. It may be used by one
// thread at a time.
class Transport {
 public:
  enum class Channel : uint8_t { data, control, failure };
  using Ticket = int32_t;  // of a message under way
  virtual ~Transport() = default;
  virtual std::string name() const = 0;  // "Open MPI 4.1.4"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int servers() const { return 0; }  // their numbers begin at size()
  virtual Bytes served(int /*server*/) const { return {}; }
  // Begin to send or receive; the memory must stay until the message is done.
  virtual Ticket send(Channel channel, int to, std::span<const std::byte> bytes) = 0;
  virtual Ticket receive(Channel channel, int from, std::span<std::byte> bytes) = 0;
  // Moves messages on. True: this one is done, and its ticket has no meaning any more. Throws Error(device_failure).
  virtual bool is_done(Ticket ticket) = 0;
  // The link to it is broken, so that nothing of it comes any more.
  virtual bool is_lost(int /*rank*/) const { return false; }
  // Begin to copy to or from the memory that a server has, without its doing. A put that is done has left this process;
  // after flush all puts are there. Flush waits inside the library, and so may the others where a server is gone.
  virtual Ticket put(int /*server*/, int64_t /*at*/, std::span<const std::byte>) { has_no_servers(); }
  virtual Ticket get(int /*server*/, int64_t /*at*/, std::span<std::byte>) { has_no_servers(); }
  virtual void flush(int /*server*/) { has_no_servers(); }
  // Takes leave of the other ranks, which do the same. Without it a launcher takes the end of the process for a failure.
  virtual void finish() = 0;

 private:
  [[noreturn]] void has_no_servers() const {
    throw Error(ErrorCode::internal, name() + " knows no memory of other processes");
  }
};

class Heartbeat;
class RemoteMemory;

inline constexpr std::chrono::seconds kDefaultTimeout{300};

// A rank has failed, or does not answer. The message names rank and host; one of the ranks has told the user.
class RankFailed : public Error {
 public:
  using Error::Error;
};

// All ranks make the same calls in the same order. Calls of one kind come from one thread at a time: exchanges of data
// from the one that runs collectives, the others from the one that trains.
//
// Every call throws RankFailed when another rank has ended, or has not answered for as long as the timeout says. A rank
// that works long on its own says that it is alive (Heartbeat).
class Communicator {
 public:
  explicit Communicator(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout = kDefaultTimeout);
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int servers() const { return servers_; }
  bool serves() const { return rank_ >= size_; }
  bool is_first() const { return rank_ == 0; }
  std::string transport() const { return transport_->name(); }
  const std::string& host(int rank) const { return places_[rank].host; }
  std::string name(int rank) const;             // "rank 2 (node7)"
  std::vector<int> ranks_here() const;          // those on this rank's host, this one included
  std::vector<int64_t> processes_here() const;  // their process numbers, without this one's
  std::vector<int64_t> sharers() const;         // of these, those that may run on the same processors
  std::string network() const;                  // hosts, library, and what mpirun was told of the network
  bool shares_processors() const { return !sharers().empty(); }

  std::chrono::milliseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  // Asked while it waits: whether all are to end. A rank that does not answer is waited for only a little longer then.
  void set_ending(std::function<bool()> ending) { ending_ = std::move(ending); }
  void set_ending_timeout(std::chrono::milliseconds timeout) { ending_timeout_ = timeout; }

  void set_teller(std::function<void(std::string_view)> teller) { teller_ = std::move(teller); }  // to the user

  void broadcast(std::span<std::byte> bytes, int root = 0);
  std::string broadcast(std::string text, int root = 0);  // of any length; other ranks give anything
  // Equal pieces of all ranks, in their order.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  template <class T>
  std::vector<T> all_gather(const T& mine) {
    std::vector<T> all(size_);
    all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    return all;
  }
  std::vector<std::string> all_gather(const std::string& mine);  // of any lengths
  void barrier();

  // The exchange under an AllReduce: piece r of `pieces` goes to rank r, and `received` gets this rank's piece of every
  // rank, in their order (its own is left out). `sizes`: the elements of each piece; both lie one behind the other.
  void exchange(std::span<const float> pieces, std::span<const int64_t> sizes, std::span<float> received);
  // Piece r of `pieces`, which rank r has, reaches all.
  void spread(std::span<float> pieces, std::span<const int64_t> sizes);

  // A part of what the servers have, for this rank: all ranks ask for theirs at the same time, some perhaps for none (null).
  // It lives as long as the communicator. Throws Error(invalid_input) with the sizes where the servers have too little.
  RemoteMemory* take_remote_memory(Bytes size);
  Bytes served(int server) const { return transport_->served(server); }
  // Copies to and from a server, by any thread; waiting is as for messages.
  Transport::Ticket begin_put(int server, int64_t at, std::span<const std::byte> bytes);
  Transport::Ticket begin_get(int server, int64_t at, std::span<std::byte> bytes);
  void wait(std::span<Transport::Ticket> tickets, std::span<const int> ranks) { wait(tickets, ranks, {}); }
  void flush(int server);  // what was put is there
  // Where one of these calls does not come back, no other can be made any more. Then this is told, by another thread, and may
  // end the process.
  void set_abandon(std::function<void(std::string_view why)> abandon) { abandon_ = std::move(abandon); }
  // A server's whole work: until the ranks take leave.
  void serve();

  // What waiting for messages does meanwhile, for who waits for the other ranks by other means: throws RankFailed where one
  // of them has ended, or where `what` has been under way since then for longer than the timeout says.
  void look(std::optional<std::chrono::steady_clock::time_point> since, std::string_view what);

  // Tells the user, and the others, that this rank ends, and why, so that they end too. What all ranks find at once, one of
  // them tells. Waits a moment, so that it reaches them.
  void fail(ErrorCode code, std::string_view why) noexcept;
  // Takes leave in peace, when all is done. The others are at the same place, or come there: who still waits for something
  // of this rank throws RankFailed.
  void finish();
  bool is_over() const { return over_; }

 private:
  friend class Heartbeat;
  struct Place {
    std::string host;
    int64_t process = 0;
    uint64_t processors = 0;  // a hash of those that it may run on
    bool is_seen = false;     // its process can be looked for from here
  };
  struct Notice;
  void exchange_places();
  // Each look asks `is_busy`, where there is one, whether the next is to come soon.
  void wait(std::span<Transport::Ticket> tickets, std::span<const int> ranks, const std::function<bool()>& is_busy);
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, int processes,
              const std::function<bool()>& is_busy = {});
  void meet_all(const std::function<bool()>& is_busy);
  void wake(int server);
  void guard_calls();
  template <class Make>
  auto call(int server, const Make& make);
  bool has_failed(int rank);
  std::optional<RankFailed> failure_heard();
  bool pass(std::span<Transport::Ticket> tickets);
  void look_for_failures();
  [[noreturn]] void end(const std::string& why);
  std::string silent_among(std::span<const Transport::Ticket> tickets, std::span<const int> ranks,
                           std::chrono::steady_clock::time_point since);
  void tell_alive();
  std::string gone_among(std::span<const Transport::Ticket> tickets, std::span<const int> ranks) const;
  std::vector<Transport::Ticket> tell_all();
  std::chrono::steady_clock::time_point when_left(int rank) const;  // none: it has not
  void wait_for_leaves();
  Transport::Ticket begin_send(Transport::Channel channel, int to, std::span<const std::byte> bytes);
  Transport::Ticket begin_receive(Transport::Channel channel, int from, std::span<std::byte> bytes);
  void forget();

  std::unique_ptr<Transport> transport_;
  const int rank_, size_, servers_, processes_;  // the last: ranks and servers
  std::vector<Place> places_;
  std::chrono::milliseconds timeout_, ending_timeout_ = std::chrono::seconds(20);
  std::function<bool()> ending_;
  std::function<void(std::string_view)> teller_;
  std::function<void(std::string_view)> abandon_;
  std::mutex mutex_;                   // of the transport
  std::unique_ptr<Notice[]> notices_;  // one a process: what it says when it fails; then this one's two
  struct Tickets {
    std::vector<Transport::Ticket> tickets;
    std::vector<int> ranks;
  };
  Tickets data_, control_;
  mutable std::mutex failure_mutex_;  // of these:
  std::vector<Transport::Ticket> failures_;
  std::vector<std::chrono::steady_clock::time_point> heard_;  // when each said last that it is alive
  std::optional<RankFailed> failure_;                         // the first that was heard of
  std::vector<std::chrono::steady_clock::time_point> left_;   // when each has taken leave
  std::atomic<bool> over_ = false, leaving_ = false;
  std::mutex beats_mutex_;
  std::vector<Transport::Ticket> beats_;  // one a rank: this one's word that it is alive

  struct Wake {  // a word to a server that copies begin
    std::chrono::steady_clock::time_point last;
    Transport::Ticket ticket;
  };
  std::vector<Wake> wakes_;  // by server
  std::unique_ptr<RemoteMemory> remote_;
  // A call of the library for a server, which a thread watches.
  struct Call {
    std::atomic<int64_t> began_ns{0};  // 0: none is under way
    std::atomic<int> server{0};
    std::mutex mutex;
    std::condition_variable changed;
    bool stop = false;
  } call_;
  std::thread guard_;
};

// As long as it lives, this rank tells the others now and then that it is alive, so that long work of its own is not taken
// for a failure. A process that is stopped or gone says nothing.
class Heartbeat {
 public:
  explicit Heartbeat(Communicator* communicator);  // null: there is nobody to tell
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

// What the user has chosen of the network, as mpirun's --mca does: " OMPI_MCA_btl=tcp,self", one behind the other.
std::string network_settings();

// The ranks that mpirun or srun started; this process is none of them where it serves memory. Null where this process is alone. Throws Error(unsupported) where it was
// started as one of several and there is no MPI in this build.
std::unique_ptr<Transport> open_mpi(std::span<std::byte> served = {});
// This process's number among those, known before MPI is asked; 0 where it is alone.
int launched_rank();
int launched_ranks();

}  // namespace plimsoll
