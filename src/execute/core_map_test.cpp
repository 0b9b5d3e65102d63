#include "execute/core_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace plimsoll {
namespace {

using ::testing::ElementsAre;

std::vector<int> places_for(const CoreMap& core_map, int threads, Affinity affinity) {
  std::vector<int> places;
  core_map.find(threads, affinity, places);
  return places;
}

TEST(CoreMap, ThreadsOfAnOpSitOnNeighboursOrEachOnACacheOfItsOwn) {
  CoreMap core_map(8, 2, false);
  EXPECT_THAT(places_for(core_map, 3, Affinity::close), ElementsAre(0, 1, 2));
  EXPECT_THAT(places_for(core_map, 3, Affinity::spread), ElementsAre(0, 2, 4));
  EXPECT_THAT(places_for(core_map, 6, Affinity::spread), ElementsAre(0, 2, 4, 6, 1, 3));
  core_map.take(std::vector{2, 3});
  EXPECT_THAT(places_for(core_map, 3, Affinity::close), ElementsAre(4, 5, 6));
  EXPECT_THAT(places_for(core_map, 3, Affinity::spread), ElementsAre(0, 4, 6));
  EXPECT_TRUE(core_map.has_own(6));
  EXPECT_FALSE(core_map.has_own(7));
  EXPECT_FALSE(core_map.has_smt(1));
}

TEST(CoreMap, APlaceSuitsWhenItIsFreeAndLiesAsWanted) {
  CoreMap core_map(8, 2, false);
  const std::vector<int> neighbours{0, 1, 2}, spread{0, 2, 4};
  EXPECT_TRUE(core_map.suits(neighbours, Affinity::close));
  EXPECT_FALSE(core_map.suits(neighbours, Affinity::spread));
  EXPECT_TRUE(core_map.suits(spread, Affinity::spread));
  core_map.take(std::vector{2});
  EXPECT_FALSE(core_map.suits(neighbours, Affinity::close));
  EXPECT_FALSE(core_map.suits(spread, Affinity::spread));
  core_map.leave(std::vector{2});
  EXPECT_TRUE(core_map.suits(spread, Affinity::spread));
}

TEST(CoreMap, SecondHardwareThreadsAreForWhatRunsBesideOthers) {
  CoreMap core_map(4, 2, true);
  EXPECT_EQ(core_map.places(), 8);
  EXPECT_FALSE(core_map.has_smt(1));  // where a core is free, there is no need
  core_map.take(std::vector{1, 2});
  EXPECT_TRUE(core_map.has_smt(2));
  EXPECT_FALSE(core_map.has_smt(3));
  EXPECT_THAT(places_for(core_map, 2, Affinity::smt), ElementsAre(5, 6));
  EXPECT_TRUE(core_map.suits(std::vector{5, 6}, Affinity::smt));
  EXPECT_FALSE(core_map.suits(std::vector{4}, Affinity::smt));
  core_map.take(std::vector{5, 6});
  EXPECT_EQ(core_map.free_cores(), 2);
  core_map.leave(std::vector{1, 2});
  EXPECT_EQ(core_map.free_cores(), 4);
  core_map.leave(std::vector{5, 6});
  EXPECT_FALSE(core_map.has_smt(1));
}

TEST(CoreMap, NobodySitsOnAnothersPlaceWhateverTheOrder) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int cores = 1 + static_cast<int>(random() % 9), a_cache = 1 + static_cast<int>(random() % 4);
    CoreMap core_map(cores, a_cache, random() % 2 == 0);
    std::vector<int> taken(core_map.places(), 0);
    std::vector<std::vector<int>> sitting;
    for (int turn = 0; turn < 60; ++turn) {
      const int threads = 1 + static_cast<int>(random() % static_cast<unsigned>(cores));
      const Affinity affinity = static_cast<Affinity>(random() % 3);
      if (affinity == Affinity::smt ? core_map.has_smt(threads) : core_map.has_own(threads)) {
        std::vector<int> places = places_for(core_map, threads, affinity);
        ASSERT_EQ(std::ssize(places), threads);
        for (int place : places) ASSERT_EQ(taken[place]++, 0);
        core_map.take(places);
        sitting.push_back(std::move(places));
      } else if (!sitting.empty()) {
        for (int place : sitting.front()) --taken[place];
        core_map.leave(sitting.front());
        sitting.erase(sitting.begin());
      }
    }
    for (const std::vector<int>& places : sitting) core_map.leave(places);
    EXPECT_EQ(core_map.free_cores(), cores);
  }
}

}  // namespace
}  // namespace plimsoll
