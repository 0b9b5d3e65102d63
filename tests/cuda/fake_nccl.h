// NCCL without GPUs: what a rank's group of operations reads is posted for the others when its turn in the queue comes, and
// the group is done when all have posted theirs. Ranks are threads that share a board, or processes that share a folder.
// Means are added from the last rank to the first, so that who relies on another order is found.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "device/cuda/door.h"
#include "plimsoll/error.h"

namespace plimsoll::testing {

// Where ranks post what they send: one message a group, rank and number.
class FakeBoard {
 public:
  using Message = std::vector<char>;
  virtual ~FakeBoard() = default;
  virtual void put(const std::string& group, int rank, int64_t number, Message message) = 0;
  virtual std::optional<Message> get(const std::string& group, int rank, int64_t number) = 0;
};

class SharedBoard final : public FakeBoard {
 public:
  void put(const std::string& group, int rank, int64_t number, Message message) override {
    const std::lock_guard lock(mutex_);
    messages_[{group, rank, number}] = std::move(message);
  }
  std::optional<Message> get(const std::string& group, int rank, int64_t number) override {
    const std::lock_guard lock(mutex_);
    const auto found = messages_.find({group, rank, number});
    if (found == messages_.end()) return std::nullopt;
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::string, int, int64_t>, Message> messages_;
};

class FolderBoard final : public FakeBoard {
 public:
  explicit FolderBoard(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void put(const std::string& group, int rank, int64_t number, Message message) override {
    const std::filesystem::path to = file(group, rank, number), written = to.string() + ".part";
    std::ofstream(written, std::ios::binary).write(message.data(), static_cast<std::streamsize>(message.size()));
    std::filesystem::rename(written, to);
  }
  std::optional<Message> get(const std::string& group, int rank, int64_t number) override {
    std::ifstream in(file(group, rank, number), std::ios::binary);
    if (!in) return std::nullopt;
    return Message(std::istreambuf_iterator<char>(in), {});
  }

 private:
  std::filesystem::path file(const std::string& group, int rank, int64_t number) const {
    return folder_ / fmt::format("{}-{}-{}", group, rank, number);
  }
  std::filesystem::path folder_;
};

// One rank's part of it. It is behind a door, whose queue of messages calls arrive and is_there and then finish.
class FakeNccl {
 public:
  using Transmission = cuda::Transmission;
  using Kind = Transmission::Kind;

  FakeNccl(std::shared_ptr<FakeBoard> board, std::string group, int rank, int ranks)
      : board_(std::move(board)), group_(std::move(group)), rank_(rank), ranks_(ranks) {}

  static const char* call_of(Kind kind) {
    switch (kind) {
      case Kind::mean: return "ncclAllReduce";
      case Kind::mean_scatter: return "ncclReduceScatter";
      case Kind::gather: return "ncclAllGather";
      case Kind::mean_to_root: return "ncclReduce";
      case Kind::broadcast: return "ncclBroadcast";
      case Kind::send: return "ncclSend";
      case Kind::receive: break;
    }
    return "ncclRecv";
  }

  int64_t number_of_next() { return next_++; }

  void arrive(int64_t number, const std::vector<Transmission>& group) {
    FakeBoard::Message message;
    for (const Transmission& t : group) {
      const int64_t elements = sent(t);
      const int64_t head[] = {static_cast<int64_t>(t.kind), t.count, t.rank, elements};
      append(message, head, sizeof head);
      append(message, t.from, static_cast<size_t>(elements) * sizeof(float));
    }
    board_->put(group_, rank_, number, std::move(message));
  }

  bool is_there(int64_t number) {
    std::vector<std::optional<FakeBoard::Message>>& all = arrived_[number];
    all.resize(static_cast<size_t>(ranks_));
    bool there = true;
    for (int r = 0; r < ranks_; ++r) {
      std::optional<FakeBoard::Message>& message = all[static_cast<size_t>(r)];
      if (!message) message = board_->get(group_, r, number);
      there = there && message.has_value();
    }
    return there;
  }

  void finish(int64_t number, const std::vector<Transmission>& group) {
    std::vector<std::vector<Posted>> all;
    for (const auto& message : arrived_.at(number)) all.push_back(read(*message));
    arrived_.erase(number);
    std::vector<size_t> sends(static_cast<size_t>(ranks_), 0);  // by rank: looked at already
    const auto collective = [&](int r, size_t nth) -> const Posted& {
      return nth_of(all[static_cast<size_t>(r)], nth);
    };
    size_t collectives = 0;
    for (const Transmission& t : group) {
      auto* const to = static_cast<float*>(t.to);
      if (t.kind == Kind::send) continue;
      if (t.kind == Kind::receive) {
        const Posted& posted = next_send(all[static_cast<size_t>(t.rank)], sends[static_cast<size_t>(t.rank)]);
        expect(posted.count == t.count, "a message of another size is received");
        std::copy(posted.elements.begin(), posted.elements.end(), to);
        continue;
      }
      for (int r = 0; r < ranks_; ++r) {
        const Posted& theirs = collective(r, collectives);
        expect(theirs.kind == t.kind && theirs.count == t.count && theirs.rank == t.rank,
               "the ranks' collectives are not the same");
      }
      const auto of_rank = [&](int r) -> const std::vector<float>& { return collective(r, collectives).elements; };
      switch (t.kind) {
        case Kind::mean: take_mean(of_rank, 0, t.count, to); break;
        case Kind::mean_scatter: take_mean(of_rank, rank_ * t.count, t.count, to); break;
        case Kind::mean_to_root:
          if (t.rank == rank_) take_mean(of_rank, 0, t.count, to);
          break;
        case Kind::gather:
          for (int r = 0; r < ranks_; ++r) std::copy(of_rank(r).begin(), of_rank(r).end(), to + r * t.count);
          break;
        case Kind::broadcast: std::copy(of_rank(t.rank).begin(), of_rank(t.rank).end(), to); break;
        case Kind::send:
        case Kind::receive: break;
      }
      ++collectives;
    }
  }

 private:
  struct Posted {
    Kind kind = Kind::mean;
    int64_t count = 0;
    int rank = 0;
    std::vector<float> elements;
  };

  static void expect(bool right, const char* what) {
    if (!right) throw Error(ErrorCode::internal, fmt::format("NCCL (fake): {}", what));
  }

  int64_t sent(const Transmission& t) const {
    switch (t.kind) {
      case Kind::mean_scatter: return t.count * ranks_;
      case Kind::broadcast: return t.rank == rank_ ? t.count : 0;
      case Kind::receive: return 0;
      default: return t.count;
    }
  }

  static void append(FakeBoard::Message& message, const void* bytes, size_t size) {
    const auto* at = static_cast<const char*>(bytes);
    if (size > 0) message.insert(message.end(), at, at + size);
  }

  static std::vector<Posted> read(const FakeBoard::Message& message) {
    std::vector<Posted> result;
    for (const char* at = message.data(); at < message.data() + message.size();) {
      int64_t head[4];
      std::memcpy(head, at, sizeof head);
      at += sizeof head;
      Posted posted{static_cast<Kind>(head[0]), head[1], static_cast<int>(head[2]),
                    std::vector<float>(static_cast<size_t>(head[3]))};
      std::memcpy(posted.elements.data(), at, posted.elements.size() * sizeof(float));
      at += posted.elements.size() * sizeof(float);
      result.push_back(std::move(posted));
    }
    return result;
  }

  static const Posted& nth_of(const std::vector<Posted>& all, size_t nth) {
    for (const Posted& posted : all) {
      if (posted.kind == Kind::send || posted.kind == Kind::receive) continue;
      if (nth-- == 0) return posted;
    }
    throw Error(ErrorCode::internal, "NCCL (fake): a rank has fewer collectives in its group than another");
  }

  // Of those to this rank, from place `from` on.
  const Posted& next_send(const std::vector<Posted>& all, size_t& from) const {
    for (; from < all.size(); ++from) {
      if (all[from].kind == Kind::send && all[from].rank == rank_) return all[from++];
    }
    throw Error(ErrorCode::internal, "NCCL (fake): nobody sends what is received");
  }

  template <class OfRank>
  void take_mean(const OfRank& of_rank, int64_t first, int64_t count, float* to) const {
    for (int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = ranks_ - 1; r >= 0; --r)
        sum += of_rank(r)[static_cast<size_t>(first + i)] * (1.0F / static_cast<float>(ranks_));
      to[i] = sum;
    }
  }

  const std::shared_ptr<FakeBoard> board_;
  const std::string group_;
  const int rank_, ranks_;
  int64_t next_ = 0;
  std::map<int64_t, std::vector<std::optional<FakeBoard::Message>>> arrived_;
};

}  // namespace plimsoll::testing
