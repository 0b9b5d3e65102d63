// What ranks say to each other, as threads of one process.
#include "plimsoll/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/support/local_transport.h"

namespace plimsoll {
namespace {

using std::chrono::milliseconds;
using testing::as_ranks;
using ::testing::HasSubstr;
using testing::PostOffice;

TEST(Communicator, BroadcastsFromAnyRankToAll) {
  for (const int size : {1, 2, 3, 5, 8}) {
    as_ranks(size, [&](const std::shared_ptr<Communicator>& ranks) {
      for (int root = 0; root < size; ++root) {
        const std::string text = "from " + std::string(root, '!');
        EXPECT_EQ(ranks->broadcast(ranks->rank() == root ? text : "", root), text) << size;
      }
    });
  }
}

TEST(Communicator, GathersInTheOrderOfTheRanks) {
  as_ranks(4, [](const std::shared_ptr<Communicator>& ranks) {
    EXPECT_THAT(ranks->all_gather(10 * ranks->rank()), ::testing::ElementsAre(0, 10, 20, 30));
    ranks->barrier();
    EXPECT_THAT(ranks->all_gather(int64_t{ranks->rank()}), ::testing::ElementsAre(0, 1, 2, 3));
  });
}

TEST(Communicator, GathersTextsOfAnyLengths) {
  as_ranks(3, [](const std::shared_ptr<Communicator>& ranks) {
    const std::vector<std::string> all = ranks->all_gather(std::string(1000 * ranks->rank(), 'x'));
    EXPECT_THAT(all, ::testing::ElementsAre("", std::string(1000, 'x'), std::string(2000, 'x')));
  });
}

TEST(Communicator, ExchangesPiecesOfDifferentSizes) {
  constexpr int kRanks = 3;
  const std::vector<int64_t> sizes = {2, 0, 3};
  as_ranks(kRanks, [&](const std::shared_ptr<Communicator>& ranks) {
    const int me = ranks->rank();
    std::vector<float> pieces(5), received(sizes[me] * (kRanks - 1));
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = static_cast<float>(100 * me + i);
    ranks->exchange(pieces, sizes, received);
    const std::vector<float> wanted[] = {{100, 101, 200, 201}, {}, {2, 3, 4, 102, 103, 104}};
    EXPECT_EQ(received, wanted[me]);
    ranks->spread(pieces, sizes);
    EXPECT_THAT(pieces, ::testing::ElementsAre(0, 1, 202, 203, 204));
  });
}

TEST(Communicator, KnowsWhoSharesTheHost) {
  as_ranks(3, [](const std::shared_ptr<Communicator>& ranks) {
    EXPECT_THAT(ranks->ranks_here(), ::testing::ElementsAre(0, 1, 2));
    EXPECT_EQ(ranks->processes_here().size(), 2u);
    EXPECT_TRUE(ranks->shares_processors());
    EXPECT_THAT(ranks->name(2), HasSubstr("rank 2 ("));
  });
}

TEST(Communicator, OneThatDoesNotAnswerIsNamed) {
  try {
    as_ranks(
        3,
        [](const std::shared_ptr<Communicator>& ranks) {
          if (ranks->rank() == 1) std::this_thread::sleep_for(milliseconds(900));  // and says nothing
          if (ranks->rank() != 1) ranks->barrier();
        },
        milliseconds(200));
    FAIL() << "nobody noticed";
  } catch (const RankFailed& error) {
    EXPECT_EQ(error.code(), ErrorCode::device_failure);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 ("));
    EXPECT_THAT(error.what(), HasSubstr("--timeout"));
  }
}

TEST(Communicator, OneThatWorksLongAndSaysThatItIsAliveIsWaitedFor) {
  as_ranks(
      4,
      [](const std::shared_ptr<Communicator>& ranks) {
        const Heartbeat heartbeat(ranks.get());
        if (ranks->is_first()) std::this_thread::sleep_for(milliseconds(5000));
        EXPECT_EQ(ranks->broadcast(std::string(ranks->is_first() ? "a plan" : "")), "a plan");
        ranks->barrier();
      },
      milliseconds(2000));
}

TEST(Communicator, OneThatIsSilentIsNamedThoughTheOthersAreAlive) {
  std::atomic<bool> ended = false;
  try {
    as_ranks(
        4,
        [&](const std::shared_ptr<Communicator>& ranks) {
          if (ranks->rank() == 2) {
            while (!ended) std::this_thread::sleep_for(milliseconds(10));
            return;
          }
          const Heartbeat heartbeat(ranks.get());
          try {
            ranks->barrier();
          } catch (const RankFailed&) {
            ended = true;
            throw;
          }
        },
        milliseconds(2000));
    FAIL() << "nobody noticed";
  } catch (const RankFailed& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 2 ("));
    EXPECT_THAT(error.what(), HasSubstr("has not answered"));
  }
}

TEST(Communicator, WhatEndsOneEndsAllAndIsToldOnce) {
  std::atomic<int> told = 0, ended = 0;
  as_ranks(4, [&](const std::shared_ptr<Communicator>& ranks) {
    ranks->set_teller([&](std::string_view why) {
      ++told;
      EXPECT_EQ(why, "no space left");
    });
    if (ranks->rank() == 2) return ranks->fail(ErrorCode::invalid_input, "no space left");
    try {
      ranks->barrier();
    } catch (const RankFailed& error) {
      ++ended;
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_THAT(error.what(), HasSubstr("no space left"));
      EXPECT_THAT(error.what(), HasSubstr("rank 2 ("));
    }
  });
  EXPECT_EQ(told, 1);
  EXPECT_EQ(ended, 3);
}

TEST(Communicator, WhatAllFindAtOnceIsToldOnce) {
  std::atomic<int> told = 0;
  as_ranks(4, [&](const std::shared_ptr<Communicator>& ranks) {
    ranks->set_teller([&](std::string_view) { ++told; });
    ranks->fail(ErrorCode::invalid_input, "the same everywhere");
  });
  EXPECT_EQ(told, 1);
}

TEST(Communicator, OneThatHasLeftWhileOthersGoOnIsNamed) {
  std::atomic<int> named = 0;
  as_ranks(3, [&](const std::shared_ptr<Communicator>& ranks) {
    try {
      if (ranks->rank() == 1) {
        ranks->finish();
      } else {
        ranks->barrier();
      }
    } catch (const RankFailed& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 ("));
      EXPECT_THAT(error.what(), HasSubstr("has ended"));
      ++named;
    }
  });
  EXPECT_EQ(named, 3);
}

TEST(Communicator, OneThatEndsEarlyWaitsForTheOthers) {
  std::atomic<int> ended = 0;
  as_ranks(3, [&](const std::shared_ptr<Communicator>& ranks) {
    if (ranks->rank() == 0) {
      std::this_thread::sleep_for(milliseconds(300));
      EXPECT_EQ(ended, 0);
    }
    ranks->finish();
    ++ended;
  });
  EXPECT_EQ(ended, 3);
}

// Its link to rank 1 breaks.
class BrokenTransport final : public Transport {
 public:
  BrokenTransport(PostOffice& office, int rank) : local_(office, rank) {}
  std::string name() const override { return local_.name(); }
  int rank() const override { return local_.rank(); }
  int size() const override { return local_.size(); }
  Ticket send(Channel channel, int to, std::span<const std::byte> bytes) override {
    return local_.send(channel, to, bytes);
  }
  Ticket receive(Channel channel, int from, std::span<std::byte> bytes) override {
    return local_.receive(channel, from, bytes);
  }
  bool is_done(Ticket ticket) override { return local_.is_done(ticket); }
  bool is_lost(int rank) const override { return rank == 1; }
  void finish() override {}

 private:
  testing::LocalTransport local_;
};

TEST(Communicator, ALinkThatBreaksIsNamed) {
  PostOffice office(2);
  std::thread other([&] { const Communicator ranks(std::make_unique<testing::LocalTransport>(office, 1)); });
  Communicator ranks(std::make_unique<BrokenTransport>(office, 0), std::chrono::hours(1));
  other.join();
  try {
    ranks.barrier();
    FAIL() << "nobody noticed";
  } catch (const RankFailed& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 ("));
    EXPECT_THAT(error.what(), HasSubstr("link"));
  }
}

TEST(Communicator, OneThatIsToEndWaitsALittleOnly) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    as_ranks(
        2,
        [](const std::shared_ptr<Communicator>& ranks) {
          ranks->set_ending([] { return true; });
          ranks->set_ending_timeout(milliseconds(100));
          if (ranks->rank() == 1) std::this_thread::sleep_for(milliseconds(700));
          if (ranks->rank() == 0) ranks->barrier();
        },
        std::chrono::hours(1));
    FAIL();
  } catch (const RankFailed& error) {
    EXPECT_THAT(error.what(), HasSubstr("told to end"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(RemoteMemory, IsSharedInTheOrderOfTheRanksFromWhoHasMostLeft) {
  const std::vector<Bytes> wanted = {10_MiB, 20_MiB}, served = {16_MiB, 18_MiB};
  const auto shares = share_remote_memory(wanted, served, 2);
  ASSERT_TRUE(shares);
  ASSERT_EQ((*shares)[0].size(), 1u);
  EXPECT_EQ((*shares)[0][0].server, 3);
  ASSERT_EQ((*shares)[1].size(), 2u);
  EXPECT_EQ((*shares)[1][0].server, 2);
  EXPECT_EQ((*shares)[1][0].bytes, 16_MiB);
  EXPECT_EQ((*shares)[1][1].server, 3);
  EXPECT_EQ((*shares)[1][1].first, (10_MiB).count);
  EXPECT_FALSE(share_remote_memory(wanted, std::vector<Bytes>{29_MiB}, 2));
  EXPECT_FALSE(share_remote_memory(wanted, {}, 2));
  EXPECT_TRUE(share_remote_memory(std::vector<Bytes>{0_B}, {}, 1));
}

TEST(RemoteMemory, ServersEndInPeaceWhenTheRanksTakeLeave) {
  testing::LocalServers servers({16_MiB, 16_MiB}, 32_MiB);
  EXPECT_EQ(servers.memory()->capacity(), 32_MiB);
  EXPECT_EQ(servers.end(), 2);
}

TEST(RemoteMemory, TooLittleIsToldWithTheSizes) {
  try {
    testing::LocalServers servers({16_MiB, 12_MiB}, 32_MiB);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_STREQ(
        error.what(),
        "--remote-memory 32.0 MiB: the ranks ask for 32.0 MiB together, but serve-memory has 28.0 MiB (2 processes "
        "of it); start it with a larger --size, or more of it");
  }
}

TEST(RemoteMemory, AFailureOfARankEndsTheServers) {
  testing::LocalServers servers({16_MiB}, 16_MiB);
  servers.ranks()->fail(ErrorCode::device_failure, "it fails");
  EXPECT_EQ(servers.end(), 0);
}

// A call into the library that does not come back is told by another thread, which may end the process.
class StuckTransport final : public Transport {
 public:
  StuckTransport(PostOffice& office, std::atomic<bool>& stuck) : local_(office, 0), stuck_(stuck) {}
  std::string name() const override { return local_.name(); }
  int rank() const override { return local_.rank(); }
  int size() const override { return local_.size(); }
  int servers() const override { return local_.servers(); }
  Bytes served(int server) const override { return local_.served(server); }
  Ticket send(Channel channel, int to, std::span<const std::byte> bytes) override {
    return local_.send(channel, to, bytes);
  }
  Ticket receive(Channel channel, int from, std::span<std::byte> bytes) override {
    return local_.receive(channel, from, bytes);
  }
  bool is_done(Ticket ticket) override { return local_.is_done(ticket); }
  void flush(int) override {
    while (stuck_) std::this_thread::sleep_for(milliseconds(1));
  }
  void finish() override {}

 private:
  testing::LocalTransport local_;
  std::atomic<bool>& stuck_;
};

TEST(RemoteMemory, ACallThatDoesNotComeBackIsTold) {
  PostOffice office(1, {16_MiB});
  std::thread server([&] { Communicator(std::make_unique<testing::LocalTransport>(office, 1)).serve(); });
  std::atomic<bool> stuck = true;
  Communicator ranks(std::make_unique<StuckTransport>(office, stuck), milliseconds(200));
  std::string told;
  ranks.set_abandon([&](std::string_view why) {
    told = why;
    stuck = false;
  });
  ranks.take_remote_memory(16_MiB)->flush(0, 4096);
  EXPECT_THAT(told, HasSubstr("rank 1 ("));
  EXPECT_THAT(told, HasSubstr("--timeout"));
  ranks.finish();
  server.join();
}

}  // namespace
}  // namespace plimsoll
