#include "plimsoll/communicator.h"
#include "plimsoll/remote_memory.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;
using Channel = Transport::Channel;
using Ticket = Transport::Ticket;

constexpr Ticket kNone = -1;
constexpr size_t kHostBytes = 256, kReasonBytes = 1000;
// By these a user chooses the network: mpirun's --mca sets the first ones.
constexpr const char* kNetworkVariables[] = {
    "OMPI_MCA_btl", "OMPI_MCA_osc", "OMPI_MCA_pml", "OMPI_MCA_btl_tcp_if_include", "UCX_TLS", "UCX_NET_DEVICES"};
constexpr int kSpins = 64;  // looks without a pause
constexpr std::chrono::microseconds kShortestNap{5}, kLongestNap{200};
constexpr std::chrono::milliseconds kBetweenLooks{50};  // for failures
// A server looks seldom for what its library has to do, until a rank says that copies begin.
constexpr std::chrono::microseconds kBusyNap{20}, kIdleNap{1000};
constexpr std::chrono::milliseconds kBetweenWakes{5}, kStaysAwake{50};
constexpr std::chrono::milliseconds kLongestBetweenBeats{5000};
constexpr std::chrono::hours kForever{24 * 365 * 10};
constexpr std::chrono::milliseconds kToReachOthers{1000};  // at most, for the word that this rank fails
constexpr std::chrono::milliseconds kToGoOut{100};         // at least
constexpr int32_t kLeaves = -1, kAlive = -2;               // in place of an error's code
constexpr std::chrono::seconds kAfterLeave{2};             // what a rank that has left had sent is there then
constexpr size_t kLongestMessage = size_t{64} << 20;
constexpr std::chrono::milliseconds kBeforeOthers{150}, kBetweenRanks{20};  // so that one of several tells the user

uint64_t hash_of_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return XXH3_64bits(&set, sizeof set);
}

// Whether a process of this host is gone, or has ended and was not yet asked for.
bool has_ended(int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  if (!std::getline(file, line)) return true;
  const size_t name_end = line.rfind(')');  // a program's name may hold anything
  return name_end != std::string::npos && name_end + 2 < line.size() &&
         (line[name_end + 2] == 'Z' || line[name_end + 2] == 'X');
}

// Pauses that grow: a message that is nearly there is met at once, and a long wait costs the processor little.
class Naps {
 public:
  void rest() {
    if (++looks_ < kSpins) return;
    std::this_thread::sleep_for(nap_);
    nap_ = std::min(nap_ + nap_ / 2 + std::chrono::microseconds(1), kLongestNap);
  }

 private:
  int looks_ = 0;
  std::chrono::microseconds nap_ = kShortestNap;
};

}  // namespace

struct Communicator::Notice {
  int32_t code = kAlive;
  std::array<char, kReasonBytes> reason{};
};

Communicator::Communicator(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout)
    : transport_(std::move(transport)),
      rank_(transport_->rank()),
      size_(transport_->size()),
      servers_(transport_->servers()),
      processes_(size_ + servers_),
      timeout_(timeout) {
  for (Tickets* tickets : {&data_, &control_}) {
    tickets->tickets.reserve(2 * processes_);
    tickets->ranks.reserve(2 * processes_);
  }
  notices_ = std::make_unique<Notice[]>(processes_ + 2);  // the last two are this rank's own: that it fails, and lives
  failures_.assign(processes_, kNone);
  heard_.resize(processes_);
  beats_.assign(size_, kNone);
  left_.assign(processes_, {});
  wakes_.assign(servers_, {.last = {}, .ticket = kNone});
  places_.resize(processes_);
  for (int r = 0; r < processes_; ++r) {
    places_[r].host = "its host";
    if (r != rank_)
      failures_[r] = transport_->receive(Channel::failure, r, std::as_writable_bytes(std::span(&notices_[r], 1)));
  }
  exchange_places();
}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(call_.mutex);
    call_.stop = true;
  }
  call_.changed.notify_all();
  if (guard_.joinable()) guard_.join();
}

void Communicator::exchange_places() {
  struct Words {
    std::array<char, kHostBytes> host{};
    int64_t process = 0;
    uint64_t processors = 0;
  } mine;
  ::gethostname(mine.host.data(), mine.host.size() - 1);
  mine.process = ::getpid();
  mine.processors = hash_of_processors();
  std::vector<Words> all(processes_);
  gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), processes_);
  for (int r = 0; r < processes_; ++r) places_[r] = {all[r].host.data(), all[r].process, all[r].processors};
  for (int r = 0; r < processes_; ++r)
    places_[r].is_seen = r != rank_ && places_[r].host == places_[rank_].host && !has_ended(places_[r].process);
  meet_all({});
}

std::string Communicator::name(int rank) const {
  return fmt::format("rank {} ({}{})", rank, places_[rank].host, rank < size_ ? "" : ", serve-memory");
}

std::vector<int> Communicator::ranks_here() const {
  std::vector<int> here;
  for (int r = 0; r < size_; ++r) {
    if (places_[r].host == places_[rank_].host) here.push_back(r);
  }
  return here;
}

std::vector<int64_t> Communicator::processes_here() const {
  std::vector<int64_t> processes;
  for (int r : ranks_here()) {
    if (r != rank_) processes.push_back(places_[r].process);
  }
  return processes;
}

std::string network_settings() {
  std::string text;
  for (const char* variable : kNetworkVariables) {
    if (const char* value = std::getenv(variable)) text += fmt::format(" {}={}", variable, value);
  }
  return text;
}

std::string Communicator::network() const {
  std::string text;
  for (int r = 0, same = 1; r < size_; ++r, ++same) {  // "2 of node7, 1 of node8"
    if (r + 1 < size_ && places_[r + 1].host == places_[r].host) continue;
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", same, places_[r].host);
    same = 0;
  }
  return fmt::format("{} {}{}", text, transport(), network_settings());
}

std::vector<int64_t> Communicator::sharers() const {
  std::vector<int64_t> processes;
  for (int r : ranks_here()) {
    if (r != rank_ && places_[r].processors == places_[rank_].processors) processes.push_back(places_[r].process);
  }
  return processes;
}

Ticket Communicator::begin_send(Channel channel, int to, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  return transport_->send(channel, to, bytes);
}

Ticket Communicator::begin_receive(Channel channel, int from, std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  return transport_->receive(channel, from, bytes);
}

// Whether all are done; those that are become kNone.
bool Communicator::pass(std::span<Ticket> tickets) {
  const std::lock_guard lock(mutex_);
  bool all = true;
  for (Ticket& ticket : tickets) {
    if (ticket == kNone) continue;
    if (transport_->is_done(ticket)) {
      ticket = kNone;
    } else {
      all = false;
    }
  }
  return all;
}

// Reads what it has said since the last time. With failure_mutex_.
bool Communicator::has_failed(int rank) {
  while (failures_[rank] != kNone && pass({&failures_[rank], 1})) {
    Notice& notice = notices_[rank];
    if (notice.code == kLeaves) {  // its last word
      left_[rank] = Clock::now();
      return false;
    }
    if (notice.code != kAlive) return true;
    heard_[rank] = Clock::now();
    failures_[rank] = begin_receive(Channel::failure, rank, std::as_writable_bytes(std::span(&notice, 1)));
  }
  return false;
}

std::optional<RankFailed> Communicator::failure_heard() {
  const std::lock_guard lock(failure_mutex_);
  for (int r = 0; r < processes_ && !failure_; ++r) {
    if (!has_failed(r)) continue;
    over_ = true;
    failure_.emplace(static_cast<ErrorCode>(notices_[r].code),
                     fmt::format("{} failed: {}", name(r), notices_[r].reason.data()));
  }
  return failure_;
}

// All threads of this process hear of the same.
void Communicator::look_for_failures() {
  if (const std::optional<RankFailed> failure = failure_heard()) throw RankFailed(*failure);
}

std::chrono::steady_clock::time_point Communicator::when_left(int rank) const {
  const std::lock_guard lock(failure_mutex_);
  return left_[rank];
}

// The ranks that are waited for and have said nothing since then.
std::string Communicator::silent_among(std::span<const Ticket> tickets, std::span<const int> ranks,
                                       Clock::time_point since) {
  const std::lock_guard lock(failure_mutex_);
  std::string names;
  for (int r = 0; r < processes_; ++r) {
    if (heard_[r] > since) continue;
    for (size_t i = 0; i < tickets.size(); ++i) {
      if (tickets[i] == kNone || ranks[i] != r) continue;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name(r));
      break;
    }
  }
  return names;
}

// Of the ranks that are waited for, one that will not answer, and why: its process of this host is gone, the link to it, or it has
// taken leave.
std::string Communicator::gone_among(std::span<const Ticket> tickets, std::span<const int> ranks) const {
  for (size_t i = 0; i < tickets.size(); ++i) {
    if (tickets[i] == kNone) continue;
    const Place& place = places_[ranks[i]];
    if (const Clock::time_point left = when_left(ranks[i]); left != Clock::time_point{}) {
      if (Clock::now() - left < kAfterLeave) continue;
      if (!leaving_)
        return fmt::format("{} has ended, while {} goes on: all ranks must train as many steps", name(ranks[i]),
                           name(rank_));
    }
    if (place.is_seen && has_ended(place.process)) return fmt::format("{} has died", name(ranks[i]));
    if (transport_->is_lost(ranks[i])) return fmt::format("{} has died, or the link to it is broken", name(ranks[i]));
  }
  return {};
}

void Communicator::wait(std::span<Ticket> tickets, std::span<const int> ranks, const std::function<bool()>& is_busy) {
  Naps naps;
  const Clock::time_point begin = Clock::now();
  Clock::time_point looked = begin;
  std::optional<Clock::time_point> ending;
  while (!pass(tickets)) {
    if (is_busy) {
      std::this_thread::sleep_for(is_busy() ? kBusyNap : kIdleNap);
    } else {
      naps.rest();
    }
    const Clock::time_point now = Clock::now();
    if (now - looked < kBetweenLooks) continue;
    looked = now;
    look_for_failures();
    if (const std::string gone = gone_among(tickets, ranks); !gone.empty()) end(gone);
    if (!ending && ending_ && ending_()) ending = now;
    if (ending && now - *ending > ending_timeout_) {
      end(fmt::format("{} does not answer any more, and this process was told to end",
                      silent_among(tickets, ranks, Clock::time_point::max())));
    }
    if (now - begin <= timeout_) continue;
    if (const std::string silent = silent_among(tickets, ranks, now - timeout_); !silent.empty())
      end(fmt::format("{} has not answered for {:.0f} s (--timeout): it hangs, has died, or cannot be reached", silent,
                      std::chrono::duration<double>(timeout_).count()));
  }
}

void Communicator::look(std::optional<Clock::time_point> since, std::string_view what) {
  look_for_failures();
  for (int r = 0; r < processes_; ++r) {
    if (places_[r].is_seen && has_ended(places_[r].process)) end(fmt::format("{} has died", name(r)));
  }
  if (!since) return;
  const Clock::duration waited = Clock::now() - *since;
  const double seconds = std::chrono::duration<double>(waited).count();
  if (waited > timeout_) {
    end(fmt::format("{} has not ended for {:.0f} s (--timeout): a rank hangs, has died, or cannot be reached", what,
                    seconds));
  }
  if (waited > ending_timeout_ && ending_ && ending_())
    end(fmt::format("{} has not ended for {:.0f} s, and this process was told to end", what, seconds));
}

void Communicator::end(const std::string& why) {
  fail(ErrorCode::device_failure, why);
  throw RankFailed(ErrorCode::device_failure, why);
}

void Communicator::broadcast(std::span<std::byte> bytes, int root) {
  for (; bytes.size() > kLongestMessage; bytes = bytes.subspan(kLongestMessage))
    broadcast(bytes.first(kLongestMessage), root);
  control_.tickets.clear();
  control_.ranks.clear();
  // Doubling: who has it gives it on, so that it takes as many rounds as size_ has bits.
  const int mine = (rank_ - root + size_) % size_;
  int reach = 1;
  for (; reach < size_; reach *= 2) {
    if (mine < reach) {
      if (mine + reach < size_) {
        const int to = (mine + reach + root) % size_;
        control_.tickets.push_back(begin_send(Channel::control, to, bytes));
        control_.ranks.push_back(to);
      }
    } else if (mine < 2 * reach) {
      const int from = (mine - reach + root) % size_;
      control_.tickets.push_back(begin_receive(Channel::control, from, bytes));
      control_.ranks.push_back(from);
      wait(control_.tickets, control_.ranks);
      control_.tickets.clear();
      control_.ranks.clear();
    }
  }
  wait(control_.tickets, control_.ranks);
}

std::string Communicator::broadcast(std::string text, int root) {
  int64_t length = static_cast<int64_t>(text.size());
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  text.resize(length);
  if (length > 0) broadcast(std::as_writable_bytes(std::span(text)), root);
  return text;
}

std::vector<std::string> Communicator::all_gather(const std::string& mine) {
  const std::vector<int64_t> lengths = all_gather(static_cast<int64_t>(mine.size()));
  std::vector<std::string> all;
  for (int r = 0; r < size_; ++r) {
    all.push_back(r == rank_ ? mine : std::string(lengths[r], '\0'));
    if (lengths[r] > 0) broadcast(std::as_writable_bytes(std::span(all[r])), r);
  }
  return all;
}

void Communicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) { gather(mine, all, size_); }

void Communicator::gather(std::span<const std::byte> mine, std::span<std::byte> all, int processes,
                          const std::function<bool()>& is_busy) {
  const size_t each = mine.size();
  if (all.size() != each * processes) throw Error(ErrorCode::internal, "all_gather: the pieces do not add up");
  control_.tickets.clear();
  control_.ranks.clear();
  for (int r = 0; r < processes; ++r) {
    const std::span<std::byte> place = all.subspan(r * each, each);
    if (r == rank_) {
      std::memcpy(place.data(), mine.data(), each);
      continue;
    }
    control_.tickets.push_back(begin_receive(Channel::control, r, place));
    control_.ranks.push_back(r);
  }
  for (int k = 1; k < processes; ++k) {
    const int to = (rank_ + k) % processes;
    control_.tickets.push_back(begin_send(Channel::control, to, mine));
    control_.ranks.push_back(to);
  }
  wait(control_.tickets, control_.ranks, is_busy);
}

void Communicator::barrier() { all_gather(char{}); }

void Communicator::meet_all(const std::function<bool()>& is_busy) {
  const std::byte mine{};
  std::vector<std::byte> all(processes_);
  gather({&mine, 1}, all, processes_, is_busy);
}

void Communicator::exchange(std::span<const float> pieces, std::span<const int64_t> sizes, std::span<float> received) {
  data_.tickets.clear();
  data_.ranks.clear();
  const auto add = [&](Ticket ticket, int rank) {
    data_.tickets.push_back(ticket);
    data_.ranks.push_back(rank);
  };
  const int64_t mine = sizes[rank_];
  for (int r = 0, at = 0; r < size_ && mine > 0; ++r) {
    if (r == rank_) continue;
    add(begin_receive(Channel::data, r, std::as_writable_bytes(received.subspan(mine * at++, mine))), r);
  }
  int64_t first = 0;
  for (int r = 0; r < rank_; ++r) first += sizes[r];
  // From this rank's neighbour on, so that not all send to the same one first.
  for (int k = 1; k < size_; ++k) {
    const int to = (rank_ + k) % size_;
    first = to == 0 ? 0 : first + sizes[to - 1];
    if (sizes[to] > 0) add(begin_send(Channel::data, to, std::as_bytes(pieces.subspan(first, sizes[to]))), to);
  }
  wait(data_.tickets, data_.ranks);
}

void Communicator::spread(std::span<float> pieces, std::span<const int64_t> sizes) {
  data_.tickets.clear();
  data_.ranks.clear();
  const auto add = [&](Ticket ticket, int rank) {
    data_.tickets.push_back(ticket);
    data_.ranks.push_back(rank);
  };
  int64_t first = 0, own = 0;
  for (int r = 0; r < size_; first += sizes[r++]) {
    if (r == rank_) own = first;
    if (r == rank_ || sizes[r] == 0) continue;
    add(begin_receive(Channel::data, r, std::as_writable_bytes(pieces.subspan(first, sizes[r]))), r);
  }
  for (int k = 1; k < size_ && sizes[rank_] > 0; ++k) {
    const int to = (rank_ + k) % size_;
    add(begin_send(Channel::data, to, std::as_bytes(pieces.subspan(own, sizes[rank_]))), to);
  }
  wait(data_.tickets, data_.ranks);
}

void Communicator::fail(ErrorCode code, std::string_view why) noexcept {
  if (over_.exchange(true)) return;
  try {
    // What all find at once, the first of them tells.
    const Clock::time_point begin = Clock::now();
    const auto turn = rank_ == 0 ? Clock::duration{} : kBeforeOthers + kBetweenRanks * std::min(rank_, 50);
    do {
      if (failure_heard()) return;
      if (rank_ > 0) std::this_thread::sleep_for(kLongestNap);
    } while (Clock::now() - begin < turn);
    {
      const std::lock_guard lock(failure_mutex_);
      failure_.emplace(code, std::string(why));
    }
    if (teller_) teller_(why);  // first: who hears of it ends, and then a launcher ends all
    Notice& word = notices_[processes_];
    word.code = static_cast<int32_t>(code);
    std::memcpy(word.reason.data(), why.data(), std::min(why.size(), word.reason.size() - 1));
    std::vector<Ticket> sent = tell_all();
    // A short message is "sent" when the library has it; it goes on its way while the library is asked.
    const Clock::time_point since = Clock::now();
    for (bool all = false; !all || Clock::now() - since < kToGoOut;) {
      all = pass(sent);
      if (Clock::now() - since > kToReachOthers) break;
      std::this_thread::sleep_for(kLongestNap);
    }
  } catch (...) {  // they will see that it does not answer
  }
}

void Communicator::tell_alive() {
  const std::lock_guard lock(beats_mutex_);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || !pass({&beats_[r], 1})) continue;  // it has not taken the last word yet
    beats_[r] = begin_send(Channel::failure, r, std::as_bytes(std::span(&notices_[processes_ + 1], 1)));
  }
}

Heartbeat::Heartbeat(Communicator* communicator) {
  if (communicator == nullptr || communicator->size() < 2) return;
  thread_ = std::thread([this, communicator] {
    const auto between = std::min(communicator->timeout() / 4, kLongestBetweenBeats);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, between, [&] { return stop_; })) {
      try {
        if (!communicator->is_over()) communicator->tell_alive();
      } catch (const Error&) {
        return;  // whoever waits for a rank finds out by itself
      }
    }
  });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Begins to send this rank's word to all.
std::vector<Ticket> Communicator::tell_all() {
  std::vector<Ticket> sent;
  for (int r = 0; r < processes_; ++r) {
    if (r != rank_) sent.push_back(begin_send(Channel::failure, r, std::as_bytes(std::span(&notices_[processes_], 1))));
  }
  return sent;
}

// Others may be in the midst of something, so messages of the other channels are not for this.
void Communicator::wait_for_leaves() {
  const Clock::time_point begin = Clock::now();
  std::vector<Ticket> awaited;  // 0: of a rank that has not left
  std::vector<int> ranks;
  for (Clock::time_point looked = begin;; std::this_thread::sleep_for(kIdleNap)) {  // perhaps for long
    look_for_failures();
    awaited.clear();
    ranks.clear();
    for (int r = 0; r < size_; ++r) {
      if (r == rank_ || when_left(r) != Clock::time_point{}) continue;
      awaited.push_back(0);
      ranks.push_back(r);
    }
    if (awaited.empty()) return;
    if (Clock::now() - looked < kBetweenLooks) continue;
    looked = Clock::now();
    if (const std::string gone = gone_among(awaited, ranks); !gone.empty()) end(gone);
    if (Clock::now() - begin > timeout_) {
      end(fmt::format("{} has not come to the end for {:.0f} s (--timeout)",
                      silent_among(awaited, ranks, Clock::time_point::max()),
                      std::chrono::duration<double>(timeout_).count()));
    }
  }
}

void Communicator::finish() {
  if (over_) return;
  leaving_ = true;
  notices_[processes_].code = kLeaves;
  std::vector<Ticket> sent = tell_all();
  wait_for_leaves();
  meet_all({});
  const auto are_out = [&] {
    const bool told = pass(sent);
    return pass(beats_) && told;
  };
  for (const Clock::time_point since = Clock::now(); !are_out() && Clock::now() - since < kToReachOthers;)
    std::this_thread::sleep_for(kLongestNap);
  over_ = true;
  const std::lock_guard lock(mutex_);
  transport_->finish();
}

RemoteMemory* Communicator::take_remote_memory(Bytes size) {
  const std::vector<Bytes> wanted = all_gather(size);
  std::vector<Bytes> served;
  Bytes all_wanted, all_served;
  for (int s = 0; s < servers_; ++s) served.push_back(transport_->served(size_ + s));
  for (const Bytes bytes : wanted) all_wanted += bytes;
  for (const Bytes bytes : served) all_served += bytes;
  auto shares = share_remote_memory(wanted, served, size_);
  if (!shares) {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format(
            "--remote-memory {}: the ranks ask for {} together, but serve-memory has {} ({} of it); start it with a "
            "larger --size, or more of it",
            to_string(size), to_string(all_wanted), to_string(all_served),
            servers_ == 1 ? "1 process" : fmt::format("{} processes", servers_)));
  }
  if (size.count == 0) return nullptr;
  remote_ = std::make_unique<RemoteMemory>(*this, std::move((*shares)[rank_]));
  if (abandon_) guard_ = std::thread([this] { guard_calls(); });
  return remote_.get();
}

template <class Make>
auto Communicator::call(int server, const Make& make) {
  struct Watched {
    Call& call;
    Watched(Call& c, int server) : call(c) {
      call.server = server;
      call.began_ns = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
    }
    ~Watched() { call.began_ns = 0; }
  };
  const std::lock_guard lock(mutex_);
  const Watched watched(call_, server);
  return make();
}

Ticket Communicator::begin_put(int server, int64_t at, std::span<const std::byte> bytes) {
  return call(server, [&] {
    wake(server);
    return transport_->put(server, at, bytes);
  });
}

Ticket Communicator::begin_get(int server, int64_t at, std::span<std::byte> bytes) {
  return call(server, [&] {
    wake(server);
    return transport_->get(server, at, bytes);
  });
}

void Communicator::flush(int server) {
  call(server, [&] { transport_->flush(server); });
}

// Now and then while copies go on; never waits.
void Communicator::wake(int server) {
  static constexpr std::byte kWord{};
  Wake& wake = wakes_[server - size_];
  const Clock::time_point now = Clock::now();
  if (now - wake.last < kBetweenWakes) return;
  if (wake.ticket != kNone && !transport_->is_done(wake.ticket)) return;
  wake.ticket = transport_->send(Channel::data, server, {&kWord, 1});
  wake.last = now;
}

void Communicator::guard_calls() {
  constexpr std::chrono::milliseconds kToFinish{300};  // what a server that has died may still have answered
  std::unique_lock lock(call_.mutex);
  while (!call_.changed.wait_for(lock, kBetweenLooks, [&] { return call_.stop; })) {
    const int64_t began = call_.began_ns;
    if (began == 0) continue;
    const auto waited = std::chrono::nanoseconds(Clock::now().time_since_epoch()) - std::chrono::nanoseconds(began);
    const Place& place = places_[call_.server];
    if (waited > kToFinish && place.is_seen && has_ended(place.process))
      return abandon_(fmt::format("{} has died", name(call_.server)));
    if (waited > timeout_)
      return abandon_(fmt::format("{} has not answered for {:.0f} s (--timeout)", name(call_.server),
                                  std::chrono::duration<double>(waited).count()));
  }
}

void Communicator::serve() {
  constexpr unsigned long kSlackNs = 1000;  // short naps are to be short
  ::prctl(PR_SET_TIMERSLACK, kSlackNs);
  timeout_ = kForever;
  std::vector<std::byte> words(size_);
  std::vector<Ticket> wakes;
  for (int r = 0; r < size_; ++r) wakes.push_back(begin_receive(Channel::data, r, {&words[r], 1}));
  Clock::time_point woken{};
  meet_all([&] {
    for (int r = 0; r < size_; ++r) {
      if (!pass({&wakes[r], 1})) continue;
      woken = Clock::now();
      wakes[r] = begin_receive(Channel::data, r, {&words[r], 1});
    }
    return Clock::now() - woken < kStaysAwake;
  });
  over_ = true;
  const std::lock_guard lock(mutex_);
  transport_->finish();
}

}  // namespace plimsoll
