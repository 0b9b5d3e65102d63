#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace plimsoll {
namespace {

TEST(Parallel, EveryPieceIsDoneOnce) {
  for (const size_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> done(count);
    for_each_in_parallel(count, [&](size_t i) { ++done[i]; });
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(Parallel, WithinItself) {
  std::vector<std::atomic<int>> sums(20);
  for_each_in_parallel(sums.size(),
                       [&](size_t i) { for_each_in_parallel(i, [&](size_t j) { sums[i] += static_cast<int>(j); }); });
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], static_cast<int>(i * (i - (i > 0)) / 2));
}

TEST(Parallel, ThrowsWhatTheFirstPieceThrew) {
  std::atomic<int> done = 0;
  try {
    for_each_in_parallel(50, [&](size_t i) {
      if (i % 10 == 3) throw std::runtime_error(std::to_string(i));
      ++done;
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "3");
  }
  EXPECT_EQ(done, 45);
  for_each_in_parallel(10, [&](size_t) { ++done; });  // and again
  EXPECT_EQ(done, 55);
}

TEST(Parallel, ThreadsThatTheSystemGivesCanBeStarted) {
  EXPECT_EQ(startable_threads(0), 0);
  EXPECT_EQ(startable_threads(5), 5);
  EXPECT_EQ(startable_threads(3), 3);
}

// Whether `count` pieces that wait for one another are all begun within a while.
bool all_begin(int count) {
  std::atomic<int> begun = 0, met = 0;
  for_each_in_parallel(static_cast<size_t>(count), [&](size_t) {
    ++begun;
    for (int i = 0; begun < count && i < 5000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    met += begun == count ? 1 : 0;
  });
  return met == count;
}

TEST(Parallel, WhoWaitsHelpsWithWhatHasBegunAlready) {
  if (threads_in_parallel(100) < 2) GTEST_SKIP() << "this machine has one core";
  const int cores = threads_in_parallel(100);
  std::atomic<int> busy = 0;
  std::atomic<bool> begun = false, helped = false;
  for_each_in_parallel(static_cast<size_t>(cores), [&](size_t i) {
    if (i > 0) {  // every other core has something to do until the loop within has begun
      ++busy;
      while (!begun) std::this_thread::yield();
      return;
    }
    while (busy < cores - 1) std::this_thread::yield();
    std::atomic<int> met = 0;
    for_each_in_parallel(2, [&](size_t) {
      begun = true;
      ++met;
      for (int t = 0; met < 2 && t < 5000; ++t) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (met == 2) helped = true;
    });
  });
  EXPECT_TRUE(helped);
}

TEST(Parallel, ACoreThatHasNothingLeftToDoHelpsWhereThereIsMore) {
  if (threads_in_parallel(100) < 2) GTEST_SKIP() << "this machine has one core";
  const int cores = threads_in_parallel(100);
  // Every core has a piece; all but one end at once, whichever thread has them.
  std::atomic<int> ended = 0;
  std::atomic<bool> helped = false;
  for_each_in_parallel(static_cast<size_t>(cores), [&](size_t i) {
    if (i > 0) {
      ++ended;
      return;
    }
    while (ended < cores - 1) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // now they wait for this one
    helped = all_begin(2);
  });
  EXPECT_TRUE(helped);
  EXPECT_TRUE(all_begin(cores)) << "all are free again";
}

bool works_alone_when_limited() {
  limit_parallel_work(1);
  limit_parallel_work(8);  // a limit is never raised
  std::atomic<int> elsewhere = 0;
  for_each_in_parallel(
      20, [&, here = std::this_thread::get_id()](size_t) { elsewhere += std::this_thread::get_id() != here ? 1 : 0; });
  return threads_in_parallel(100) == 1 && elsewhere == 0;
}

// In a process of its own, since a limit stays.
TEST(Parallel, WorksOnNoMoreThreadsThanItsLimit) {
  EXPECT_EXIT(std::_Exit(works_alone_when_limited() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace plimsoll
