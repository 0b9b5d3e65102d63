#include "run/seating.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace plimsoll {
namespace {

using testing::ElementsAre;

std::vector<int> places_for(const Seating& seating, int threads, Seats seats) {
  std::vector<int> places;
  seating.find(threads, seats, places);
  return places;
}

TEST(Seating, ThreadsOfAnOpSitOnNeighboursOrEachOnACacheOfItsOwn) {
  Seating seating(8, 2, false);
  EXPECT_THAT(places_for(seating, 3, Seats::neighbours), ElementsAre(0, 1, 2));
  EXPECT_THAT(places_for(seating, 3, Seats::apart), ElementsAre(0, 2, 4));
  EXPECT_THAT(places_for(seating, 6, Seats::apart), ElementsAre(0, 2, 4, 6, 1, 3));
  seating.take(std::vector{2, 3});
  EXPECT_THAT(places_for(seating, 3, Seats::neighbours), ElementsAre(4, 5, 6));
  EXPECT_THAT(places_for(seating, 3, Seats::apart), ElementsAre(0, 4, 6));
  EXPECT_TRUE(seating.has_own(6));
  EXPECT_FALSE(seating.has_own(7));
  EXPECT_FALSE(seating.has_second(1));
}

TEST(Seating, APlaceSuitsWhenItIsFreeAndLiesAsWanted) {
  Seating seating(8, 2, false);
  const std::vector<int> neighbours{0, 1, 2}, apart{0, 2, 4};
  EXPECT_TRUE(seating.suits(neighbours, Seats::neighbours));
  EXPECT_FALSE(seating.suits(neighbours, Seats::apart));
  EXPECT_TRUE(seating.suits(apart, Seats::apart));
  seating.take(std::vector{2});
  EXPECT_FALSE(seating.suits(neighbours, Seats::neighbours));
  EXPECT_FALSE(seating.suits(apart, Seats::apart));
  seating.leave(std::vector{2});
  EXPECT_TRUE(seating.suits(apart, Seats::apart));
}

TEST(Seating, SecondHardwareThreadsAreForWhatRunsBesideOthers) {
  Seating seating(4, 2, true);
  EXPECT_EQ(seating.places(), 8);
  EXPECT_FALSE(seating.has_second(1));  // where a core is free, there is no need
  seating.take(std::vector{1, 2});
  EXPECT_TRUE(seating.has_second(2));
  EXPECT_FALSE(seating.has_second(3));
  EXPECT_THAT(places_for(seating, 2, Seats::second), ElementsAre(5, 6));
  EXPECT_TRUE(seating.suits(std::vector{5, 6}, Seats::second));
  EXPECT_FALSE(seating.suits(std::vector{4}, Seats::second));
  seating.take(std::vector{5, 6});
  EXPECT_EQ(seating.free_cores(), 2);
  seating.leave(std::vector{1, 2});
  EXPECT_EQ(seating.free_cores(), 4);
  seating.leave(std::vector{5, 6});
  EXPECT_FALSE(seating.has_second(1));
}

TEST(Seating, NobodySitsOnAnothersPlaceWhateverTheOrder) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int cores = 1 + static_cast<int>(random() % 9), a_cache = 1 + static_cast<int>(random() % 4);
    Seating seating(cores, a_cache, random() % 2 == 0);
    std::vector<int> taken(static_cast<size_t>(seating.places()), 0);
    std::vector<std::vector<int>> sitting;
    for (int turn = 0; turn < 60; ++turn) {
      const int threads = 1 + static_cast<int>(random() % static_cast<unsigned>(cores));
      const Seats seats = static_cast<Seats>(random() % 3);
      if (seats == Seats::second ? seating.has_second(threads) : seating.has_own(threads)) {
        std::vector<int> places = places_for(seating, threads, seats);
        ASSERT_EQ(places.size(), static_cast<size_t>(threads));
        for (int place : places) ASSERT_EQ(taken[static_cast<size_t>(place)]++, 0);
        seating.take(places);
        sitting.push_back(std::move(places));
      } else if (!sitting.empty()) {
        for (int place : sitting.front()) --taken[static_cast<size_t>(place)];
        seating.leave(sitting.front());
        sitting.erase(sitting.begin());
      }
    }
    for (const std::vector<int>& places : sitting) seating.leave(places);
    EXPECT_EQ(seating.free_cores(), cores);
  }
}

}  // namespace
}  // namespace plimsoll
